"""One turn as a page shows it: its numbers and those of each policy, its signals, and what an allocator decided."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.page.fields import known
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.attributes import runs_in_order
from otel_assembly.telemetry.span_values import as_list, below, integer, pairs, text, whole_attributes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_assembly.page.fields import Texts
    from otel_assembly.telemetry.ledger_history import ReportedStep, ReportedTurn
    from otel_assembly.telemetry.span_values import SpanLike

    _Children = Mapping[tuple[str, str | None], Sequence[SpanLike]]

_COMPACTION: Final = "assembly.compaction."
_DEEPEST: Final = 6


def turn_row(turn: ReportedTurn, span: SpanLike, children: _Children, texts: Texts) -> dict[str, Any]:
    """Everything of a turn but its items' histories."""
    held = turn.attributes
    policies = [child for child in below(span, children) if child.name.startswith(names.SPAN_APPLY_POLICY)]
    return known(
        {
            "n": turn.number,
            "trace": turn.trace_id,
            "unsent": not turn.sent,
            "partial": not turn.follows,
            "start": span.start_ns // 1_000_000,
            "us": max(0, span.end_ns - span.start_ns) // 1_000,
            **_measures(held),
            "method": text(held.get(names.TOKENS_METHOD)),
            "encoding": text(held.get(names.TOKENS_ENCODING)),
            "model": text(held.get(names.MODEL)),
            "budget": integer(held.get(names.BUDGET_TOKENS)),
            "fixed": integer(held.get(names.BUDGET_FIXED)),
            "prefix": integer(held.get(names.PREFIX_TOKENS)),
            "break": text(held.get(names.PREFIX_BREAK)),
            "kinds": pairs(held.get(names.KIND_NAMES), held.get(names.KIND_TOKENS)),
            "prompts": pairs(held.get(names.PROMPT_SOURCES), held.get(names.PROMPT_TOKENS)),
            "said": texts.instructions(held),
            "kept": runs_in_order(turn.kept),
            "steps": [_step(step) for step in turn.steps],
            "signals": _signals(span, policies),
            "allocations": _allocations(span, children),
            "attempts": _attempts(span, children),
            "summaries": [[one.result, runs_in_order(sorted(one.provenance))] for one in turn.compactions],
        }
    )


def _step(step: ReportedStep) -> dict[str, Any]:
    held = step.attributes
    reasons = Counter(exit_.reason for exit_ in step.exits.values())
    return known(
        {
            "policy": step.policy,
            "index": step.index,
            "kind": text(held.get(names.POLICY_KIND)),
            "config": text(held.get(names.POLICY_CONFIG)),
            **_measures(held),
            "reasons": [[reason, count] for reason, count in reasons.most_common()],
            "error": text(held.get(names.ERROR_TYPE)),
        }
    )


def _measures(held: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "in": integer(held.get(names.TOKENS_IN)),
        "estimated": held.get(names.TOKENS_IN_ESTIMATED) is True,
        "out": integer(held.get(names.TOKENS_OUT)),
        "eventsIn": integer(held.get(names.EVENTS_IN)),
        "eventsOut": integer(held.get(names.EVENTS_OUT)),
        "inserted": integer(held.get(names.EVENTS_INJECTED)) or None,
        "injectedTokens": integer(held.get(names.INJECTED_TOKENS)) or None,
        "dropped": integer(held.get(names.DROPPED_COUNT)) or None,
        "droppedTokens": integer(held.get(names.DROPPED_TOKENS)) or None,
        "compacted": integer(held.get(names.COMPACTED_COUNT)) or None,
        "compactedTokens": integer(held.get(names.COMPACTED_TOKENS)) or None,
        "diff": text(held.get(names.DIFF)),
    }


def _signals(assembly: SpanLike, policies: Iterable[SpanLike]) -> list[dict[str, Any]]:
    """What a turn's spans signal, each thing once: the policy that says it is nearer to the cause."""
    found: list[dict[str, Any]] = []
    for span in (*policies, assembly):
        for signal in (*_event_signals(span), *_errors(span)):
            if not any(_same(signal, other) for other in found):
                found.append(signal)
    stated = integer(assembly.attributes.get(names.ALERTS_DELIVERED)) or 0
    unsaid = stated - sum(signal["what"] == "alert" for signal in found)
    if unsaid > 0:
        found.append({"what": "alert", "count": unsaid, "untold": True})
    halts = integer(assembly.attributes.get(names.HALTS_EMITTED)) or 0
    if not any(signal["what"] == "halt" for signal in found):
        if halts:
            found.append({"what": "halt", "untold": True})
        elif assembly.attributes.get(names.ERROR_TYPE) == names.ERROR_ASSEMBLY_HALT:  # halted before this turn
            found.append({"what": "error", "says": names.ERROR_ASSEMBLY_HALT})
    return found


def halts_of(span: SpanLike) -> list[dict[str, Any]]:
    """The halts that stand on a span of another kind, such as the run's."""
    return [signal for signal in _event_signals(span) if signal["what"] == "halt"]


def _event_signals(span: SpanLike) -> Iterator[dict[str, Any]]:
    policy = text(span.attributes.get(names.POLICY_NAME))
    for event in getattr(span, "events", ()):
        held = event.attributes
        if event.name == names.EVENT_ALERT:
            yield known(
                {
                    "what": "alert",
                    "severity": text(held.get(names.ALERT_SEVERITY)),
                    "source": text(held.get(names.ALERT_SOURCE)),
                    "says": text(held.get(names.ALERT_MESSAGE)),
                    "policy": policy,
                }
            )
        elif event.name == names.EVENT_HALT:
            yield known(
                {
                    "what": "halt",
                    "source": text(held.get(names.HALT_SOURCE)),
                    "says": text(held.get(names.HALT_REASON)),
                    "policy": policy,
                }
            )


def _errors(span: SpanLike) -> Iterator[dict[str, Any]]:
    """Overflow has attributes of its own, which stand on the span whatever carries the events."""
    held = span.attributes
    policy = text(held.get(names.POLICY_NAME))
    if held.get(names.OVERFLOWED) is True:
        yield known(
            {
                "what": "overflow",
                "cause": text(held.get(names.OVERFLOW_CAUSE)),
                "tokens": integer(held.get(names.OVERFLOW_TOKENS)),
                "policy": policy,
            }
        )
    error = text(held.get(names.ERROR_TYPE))
    if error is not None and error not in (names.ERROR_CONTEXT_OVERFLOW, names.ERROR_ASSEMBLY_HALT):
        yield known({"what": "error", "says": error, "policy": policy})


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """A policy's span and its assembly's report the same thing; two alerts of one policy are two."""
    if one["what"] == "alert" and one.get("policy") is not None:
        return False
    return {**one, "policy": None} == {**other, "policy": None}


def _allocations(assembly: SpanLike, children: _Children) -> list[dict[str, Any]]:
    """Each allocation below an assembly, with its blocks in the order in which they were decided."""
    found = []
    for span, policy in ((assembly, None), *_below(assembly, children, None, _DEEPEST)):
        if span.name.startswith(names.SPAN_ALLOCATE_BUDGET):
            held = span.attributes
            inside = below(span, children)
            found.append(
                known(
                    {
                        "policy": policy,
                        "window": integer(held.get(names.BUDGET_WINDOW)),
                        "reserve": integer(held.get(names.BUDGET_OUTPUT_RESERVE)),
                        "budget": integer(held.get(names.BUDGET_TOKENS)),
                        "fixed": integer(held.get(names.BUDGET_FIXED)),
                        "used": integer(held.get(names.BUDGET_USED)),
                        "remaining": integer(held.get(names.BUDGET_REMAINING)),
                        "kept": integer(held.get(names.BLOCKS_KEPT)),
                        "compacted": integer(held.get(names.BLOCKS_COMPACTED)),
                        "dropped": integer(held.get(names.BLOCKS_DROPPED)),
                        "blocks": [
                            _block(child, children)
                            for child in inside
                            if child.name.startswith(names.SPAN_ALLOCATE_BLOCK)
                        ],
                        "others": _others(whole_attributes(span, inside)),
                        "attempts": [
                            _attempt(child) for child in inside if child.name.startswith(names.SPAN_COMPACT_BLOCK)
                        ],
                    }
                )
            )
    return found


def _attempts(assembly: SpanLike, children: _Children) -> list[dict[str, Any]]:
    """Attempts to compact that belong to no allocation: those of policies."""
    return [
        _attempt(span) | known({"policy": policy})
        for span, policy in _below(assembly, children, None, _DEEPEST, into_allocations=False)
        if span.name.startswith(names.SPAN_COMPACT_BLOCK)
    ]


def _below(
    span: SpanLike, children: _Children, policy: str | None, depth: int, *, into_allocations: bool = True
) -> Iterator[tuple[SpanLike, str | None]]:
    """Descendants with the policy that they work for; only so deep, for a false circle of parents has no end."""
    for child in below(span, children) if depth else ():
        whose = text(child.attributes.get(names.POLICY_NAME)) or policy
        yield child, whose
        if into_allocations or not child.name.startswith(names.SPAN_ALLOCATE_BUDGET):
            yield from _below(child, children, whose, depth - 1, into_allocations=into_allocations)


def _block(span: SpanLike, children: _Children) -> dict[str, Any]:
    held = span.attributes
    return known(
        {
            "name": text(held.get(names.BLOCK_NAME)),
            "kind": text(held.get(names.BLOCK_KIND)),
            "priority": integer(held.get(names.BLOCK_PRIORITY)),
            "cuttable": text(held.get(names.BLOCK_CUTTABLE)),
            "floor": integer(held.get(names.BLOCK_MIN_TOKENS)),
            "in": integer(held.get(names.TOKENS_IN)),
            "out": integer(held.get(names.TOKENS_OUT)),
            "outcome": text(held.get(names.DECISION_OUTCOME)),
            "reason": text(held.get(names.DECISION_REASON)),
            "remaining": integer(held.get(names.BUDGET_REMAINING)),
            "itemsIn": integer(held.get(names.ITEMS_IN)),
            "itemsOut": integer(held.get(names.ITEMS_OUT)),
            "attempts": [
                _attempt(child) for child in below(span, children) if child.name.startswith(names.SPAN_COMPACT_BLOCK)
            ],
        }
    )


def _others(held: Mapping[str, Any]) -> list[list[Any]]:
    """Blocks past the number that have a span each."""
    columns = (names.BLOCKS_NAMES, names.BLOCKS_OUTCOMES, names.BLOCKS_REASONS, names.BLOCKS_TOKENS)
    return [list(row) for row in zip(*(as_list(held.get(column)) for column in columns), strict=False)]


def _attempt(span: SpanLike) -> dict[str, Any]:
    """An attempt's own attributes, whatever they are called: what is new there is shown without being known here."""
    held = span.attributes
    said = {
        key.removeprefix(_COMPACTION): ", ".join(map(str, as_list(value)))
        for key, value in held.items()
        if key.startswith(_COMPACTION)
    }
    return known(
        {
            "kind": span.name.removeprefix(names.SPAN_COMPACT_BLOCK).strip() or None,
            "in": integer(held.get(names.TOKENS_IN)),
            "out": integer(held.get(names.TOKENS_OUT)),
            "error": text(held.get(names.ERROR_TYPE)),
            "said": said or None,
        }
    )
