"""Read ledgers (the turns and items of a conversation) from exported spans, without an SDK.

Spans may be missing because they were not sampled, were lost, or are not exported yet. The reader does not guess: for
example, `ReportedExit.reason` is None if the span with the reason is missing. An attribute with an invalid value is
ignored and reported. A turn or step counts as missing if one of its essential attributes is invalid.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import SpanFormatError
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.ledger_history import (
    ALLOCATOR,
    LedgerHistory,
    ReportedBlock,
    ReportedItem,
    ReportedStep,
    ReportedTurn,
)
from otel_assembly.telemetry.span_values import (
    ItemRanges,
    SpanLike,
    as_list,
    below,
    children_of,
    item_key,
    ranges_of,
    whole_attributes,
)
from otel_assembly.telemetry.typed_spans import typed_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from otel_assembly.telemetry.typed_spans import Flaw

    _Children = Mapping[tuple[str, str | None], Sequence[SpanLike]]
    _Flaws = Mapping[tuple[str, str], Flaw]

__all__ = ["read_ledgers"]


def read_ledgers(
    spans: Iterable[SpanLike],
    *,
    allocations: bool = False,
    all_turns: bool = True,
    on_problem: Callable[[str], None] | None = None,
) -> dict[str, LedgerHistory]:
    """Return the ledgers in exported spans, by ledger id.

    A ledger numbers the items and the turns of one conversation with one agent.
    Spans of other libraries and duplicates are ignored.

    Args:
        spans: The spans, in any order.
        allocations: Whether to read allocations outside a chain too; each one is a ledger of one turn.
        all_turns: Whether these are all spans of each ledger. If False, an item that no turn describes is no problem.
        on_problem: Called with a sentence for each unreadable span that belongs to no ledger, and for each ledger in an
            unsupported format; None: these are ignored. Problems of a ledger's own spans are in
            `LedgerHistory.problems`.

    Raises:
        SpanFormatError: Every ledger was written in a format that this version cannot read.
    """
    typed, flaws = typed_spans(spans)
    children = children_of(typed)
    assemblies: dict[str, dict[str, SpanLike]] = {}
    refused: dict[str, SpanFormatError] = {}
    for span in (span for siblings in children.values() for span in siblings):
        is_turn = span.name == names.SPAN_ASSEMBLE_CONTEXT or (allocations and span.name == names.SPAN_ALLOCATE_BUDGET)
        if is_turn and names.LEDGER_ID in span.attributes and _has_format(span, flaws, refused):
            assemblies.setdefault(str(span.attributes[names.LEDGER_ID]), {}).setdefault(_assembly_id(span), span)
    if refused and not assemblies:
        raise next(iter(refused.values()))
    unassigned = dict(flaws)
    ledgers = {ledger: _ledger(ledger, by_id.values(), children, unassigned) for ledger, by_id in assemblies.items()}
    for history in ledgers.values() if all_turns else ():
        history.problems += _undescribed(history)
    if on_problem is not None:
        for problem in (*unassigned.values(), *refused.values()):
            on_problem(str(problem))
    return ledgers


def _has_format(span: SpanLike, flaws: _Flaws, refused: dict[str, SpanFormatError]) -> bool:
    """Return whether to read a turn's span. If its format version is not supported, add an error to `refused`.

    A version with an invalid value is reported as a flaw and does not prevent reading.
    """
    version = span.attributes.get(names.FORMAT_VERSION)
    if version == names.READ_FORMAT or _has_invalid(span, flaws, frozenset({names.FORMAT_VERSION})):
        return True
    refused.setdefault(
        str(span.attributes[names.LEDGER_ID]), SpanFormatError(span.trace_id, version, names.READ_FORMAT)
    )
    return False


def _ledger(
    ledger: str, spans: Iterable[SpanLike], children: _Children, unassigned: dict[tuple[str, str], Flaw]
) -> LedgerHistory:
    """Build a ledger, and move the flaws of its spans from `unassigned` to the ledger's problems."""
    turns: dict[int, ReportedTurn] = {}
    problems: list[str] = []
    for span in sorted(spans, key=attrgetter("end_ns", "start_ns")):
        turn_flaws = _flaws_below(span, children, unassigned)
        if _has_invalid(span, turn_flaws, _TURN_ESSENTIALS):
            number = span.attributes.get(names.TURN)
            which = "a turn" if number is None else f"turn {number}"
            problems.append(f"{which} is skipped: {turn_flaws[span.trace_id, span.span_id]}")
            continue
        problems += map(str, turn_flaws.values())
        turn = _turn(span, children, turn_flaws)
        if turns.setdefault(turn.number, turn) is not turn:
            problems.append(f"turn {turn.number}: a second assembly has the same number and is skipped")
    history = LedgerHistory(ledger, [turns[number] for number in sorted(turns)])
    turn_problems = (problem for turn in history.turns for problem in _problems(turn))
    history.problems = [*problems, *turn_problems]
    return history


def _flaws_below(
    span: SpanLike, children: _Children, unassigned: dict[tuple[str, str], Flaw]
) -> dict[tuple[str, str], Flaw]:
    """Remove from `unassigned`, and return, the flaws of a turn's span and of its descendants."""
    flaws: dict[tuple[str, str], Flaw] = {}
    waiting = [span] if unassigned else []
    seen = set[tuple[str, str]]()
    while waiting:
        descendant = waiting.pop()
        key = descendant.trace_id, descendant.span_id
        if key in seen:
            continue
        seen.add(key)
        if key in unassigned:
            flaws[key] = unassigned.pop(key)
        waiting += below(descendant, children)
    return flaws


#: Essential attributes: if one of them is invalid, the turn or step counts as missing.
_TURN_ESSENTIALS: Final = frozenset({names.TURN, names.KEPT_ITEMS, names.PREFIX_HASH, names.INPUT_UNKNOWN})
_STEP_ESSENTIALS: Final = frozenset(
    {
        names.POLICY_INDEX,
        names.DROPPED_ITEMS,
        names.DROPPED_REASONS,
        names.DROPPED_UNLISTED_REASONS,
        names.COMPACTED_ITEMS,
        names.INJECTED_ITEMS,
    }
)


def _turn(span: SpanLike, children: _Children, flaws: _Flaws) -> ReportedTurn:
    """Build a turn from an assembly's span, or from an allocation's span as a turn with one step."""
    child_spans = below(span, children)
    attributes = whole_attributes(span, child_spans)
    number = int(attributes.get(names.TURN, 0))
    is_allocation = span.name == names.SPAN_ALLOCATE_BUDGET
    blocks = _blocks(child_spans, children) if is_allocation else []
    if is_allocation:
        # The allocation's span lists the items of blocks that have no span.
        lists = [attributes, *(block.attributes for block in blocks)]
        steps = [_build_step(lists, ALLOCATOR, 0, attributes, blocks)]
    else:
        policies = [child for child in child_spans if child.name.startswith(names.SPAN_APPLY_POLICY)]
        steps = [_step(child, children) for child in policies if not _has_invalid(child, flaws, _STEP_ESSENTIALS)]
    steps.sort(key=attrgetter("index"))
    sent = names.EXCEPTION_TYPE not in attributes if is_allocation else names.PREFIX_HASH in attributes
    is_input_known = names.OFFERED_ITEMS in attributes or names.INPUT_UNKNOWN not in attributes
    return ReportedTurn(
        number=number,
        assembly_id=_assembly_id(span),
        sent=sent,
        missing=max(0, int(attributes.get(names.STEPS, 0)) - len(steps)) if sent else 0,
        attributes=attributes,
        steps=steps,
        offered=ItemRanges(attributes.get(names.OFFERED_ITEMS)) if is_input_known else None,
        kept=ItemRanges(attributes.get(names.KEPT_ITEMS)),
        arrived=_arrived(attributes, number),
        trace_id=span.trace_id,
        span_id=span.span_id,
        end_ns=span.end_ns,
        blocks=blocks,
        halts=[halt for holder in (span, *child_spans) for halt in _halts(holder)],
    )


def _halts(span: SpanLike) -> Iterable[tuple[str, str]]:
    for event in getattr(span, "events", ()):
        if event.name == names.EVENT_HALT:
            yield str(event.attributes.get(names.HALT_SOURCE, "")), str(event.attributes.get(names.HALT_REASON, ""))


def _has_invalid(span: SpanLike, flaws: _Flaws, attributes: frozenset[str]) -> bool:
    """Return whether any of these attributes of a span is invalid."""
    flaw = flaws.get((span.trace_id, span.span_id))
    return flaw is not None and not flaw.lost.isdisjoint(attributes)


def _assembly_id(span: SpanLike) -> str:
    return str(span.attributes.get(names.ID, span.span_id))


def _arrived(attributes: Mapping[str, Any], turn: int) -> dict[str, ReportedItem]:
    columns = [as_list(attributes.get(name)) for name in _ARRIVALS]
    columns[-1] = columns[-1] or [""] * len(columns[0])
    return {
        str(item): ReportedItem(
            id=str(item),
            kind=str(kind),
            tokens=int(tokens),
            bytes=int(size),
            atom=str(atom),
            calls=int(calls),
            sources=ItemRanges(str(sources).split(",") if sources else None),
            turn=turn,
        )
        for item, kind, tokens, size, atom, calls, sources in zip(*columns, strict=False)
    }


_ARRIVALS: Final = (
    names.ARRIVED_ITEMS,
    names.ARRIVED_KINDS,
    names.ARRIVED_TOKENS,
    names.ARRIVED_BYTES,
    names.ARRIVED_ATOMS,
    names.ARRIVED_CALLS,
    names.ARRIVED_SOURCES,
)


def _step(span: SpanLike, children: _Children) -> ReportedStep:
    child_spans = below(span, children)
    attributes = whole_attributes(span, child_spans)
    budget = next((child for child in child_spans if child.name == names.SPAN_ALLOCATE_BUDGET), None)
    budget_spans = below(budget, children) if budget is not None else ()
    return _build_step(
        [attributes],
        str(attributes.get(names.POLICY_NAME, span.name)),
        int(attributes.get(names.POLICY_INDEX, 0)),
        whole_attributes(budget, budget_spans) if budget is not None else None,
        _blocks(budget_spans, children),
    )


def _build_step(
    spans: Sequence[Mapping[str, Any]],
    policy: str,
    index: int,
    allocation: Mapping[str, Any] | None,
    blocks: Sequence[ReportedBlock],
) -> ReportedStep:
    """Build the step of one policy from span attributes.

    Args:
        spans: The attributes of the spans that list the step's items: of the policy's span, or of an allocation's span
            and the spans of its blocks.
        policy: The policy's name.
        index: The policy's index in the chain.
        allocation: The attributes of the policy's ``allocate_budget`` span; None if it has none.
        blocks: The blocks of that allocation.
    """

    def entries(name: str) -> list[Any]:
        return [entry for attributes in spans for entry in as_list(attributes.get(name))]

    dropped: dict[str, list[str]] = {}
    for text, reason in zip(entries(names.DROPPED_ITEMS), entries(names.DROPPED_REASONS), strict=False):
        dropped.setdefault(str(reason), []).append(text)
    return ReportedStep(
        policy=policy,
        index=index,
        attributes=spans[0],
        dropped={reason: ItemRanges(texts) for reason, texts in dropped.items()},
        compacted=ItemRanges(entries(names.COMPACTED_ITEMS)),
        injected=ItemRanges(entries(names.INJECTED_ITEMS)),
        rest=[str(reason) for reason in entries(names.DROPPED_UNLISTED_REASONS)],
        allocation=allocation,
        blocks=blocks,
    )


def _blocks(spans: Iterable[SpanLike], children: _Children) -> list[ReportedBlock]:
    return [_block(span, children) for span in spans if span.name.startswith(names.SPAN_ALLOCATE_BLOCK)]


def _block(span: SpanLike, children: _Children) -> ReportedBlock:
    attributes = whole_attributes(span, below(span, children))
    losers, winners = (
        as_list(attributes.get(name)) for name in (names.BLOCK_SUPERSEDED_ITEMS, names.BLOCK_SUPERSEDED_BY)
    )
    return ReportedBlock(
        name=str(attributes.get(names.BLOCK_NAME)),
        kind=str(attributes.get(names.BLOCK_KIND)),
        priority=attributes.get(names.BLOCK_PRIORITY),
        remaining=attributes.get(names.BUDGET_REMAINING),
        items=ItemRanges(attributes.get(names.BLOCK_ITEMS)),
        attributes=attributes,
        order=list(map(str, as_list(attributes.get(names.BLOCK_RANKED_ITEMS)))),
        winners=dict(zip(map(str, losers), map(str, winners), strict=False)),
    )


def _problems(turn: ReportedTurn) -> Iterable[str]:
    """Yield a sentence for each problem of a turn: wrong sums of events, items that are not listed, missing steps."""
    for name, attributes in (
        ("the assembly", turn.attributes),
        *((step.policy, step.attributes) for step in turn.steps),
    ):
        numbers = [attributes.get(key) for key in _EQUATION]
        if names.INPUT_UNKNOWN in attributes or not all(type(number) is int for number in numbers):
            continue
        events_in, injected, events_out, dropped, compacted = map(int, numbers)  # type: ignore[arg-type]  # checked
        if events_in + injected != events_out + dropped + compacted:
            yield (
                f"turn {turn.number}: {name}: the counts do not add up: {events_in} in + {injected} injected, but "
                f"{events_out} out + {dropped} dropped + {compacted} compacted"
            )
    out = turn.attributes.get(names.EVENTS_OUT)
    if turn.sent and not turn.blocks and out != len(turn.kept):
        yield f"turn {turn.number}: {out} events are in the prompt, but {len(turn.kept)} are listed"
    if turn.missing:
        yield f"turn {turn.number}: {turn.missing} of its {turn.missing + len(turn.steps)} policies have no span"


def _undescribed(ledger: LedgerHistory) -> Iterable[str]:
    """Yield a sentence with the kept items that no turn describes; nothing if there are none."""
    undescribed = sorted({item for turn in ledger.turns for item in turn.kept} - ledger.items.keys(), key=item_key)
    if undescribed:
        yield f"items in a prompt that no available turn describes: {', '.join(ranges_of(undescribed))}"


_EQUATION: Final = (
    names.EVENTS_IN,
    names.EVENTS_INJECTED,
    names.EVENTS_OUT,
    names.DROPPED_COUNT,
    names.COMPACTED_COUNT,
)
