"""Reads ledgers back: what became of every item, turn by turn, from exported spans alone; no SDK is needed.

Spans may be missing: not sampled, lost on the way, not yet exported. What is stated is read, what is not is said to be
unknown, and nothing is guessed: `ReportedExit.reason` is None where the span that gave it is not there.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from otel_assembly.decision import DecisionOutcome, DecisionReason
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.ledger_history import (
    ALLOCATOR,
    LedgerHistory,
    ReportedBlock,
    ReportedCompaction,
    ReportedExit,
    ReportedStep,
    ReportedTurn,
)
from otel_assembly.telemetry.span_values import (
    SpanLike,
    below,
    by_item_id,
    children_of,
    item_id,
    item_ids,
    whole_attributes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    _Children = Mapping[tuple[str, str | None], Sequence[SpanLike]]

__all__ = ["read_ledgers"]


def read_ledgers(spans: Iterable[SpanLike], *, allocations: bool = False) -> dict[str, LedgerHistory]:
    """Every ledger that the spans report of, by its id; spans of others are passed over, and so is a second copy.

    Args:
        spans: In any order.
        allocations: Whether to read what the allocator did outside of any assembly, too: a ledger of one turn each.
    """
    children = children_of(spans)
    attributes: dict[str, dict[str, SpanLike]] = {}
    for span in (span for found in children.values() for span in found):
        is_turn = span.name == names.SPAN_ASSEMBLE_CONTEXT or (allocations and span.name == names.SPAN_ALLOCATE_BUDGET)
        if is_turn and names.LEDGER_ID in span.attributes:
            ledger_id = str(span.attributes[names.LEDGER_ID])
            assembly_id = str(span.attributes.get(names.ID, span.span_id))
            attributes.setdefault(ledger_id, {}).setdefault(assembly_id, span)
    ledgers: dict[str, LedgerHistory] = {}
    for ledger_id, assemblies in attributes.items():
        ledger = ledgers[ledger_id] = LedgerHistory(ledger_id)
        policies = _policies(assemblies.values(), children)
        for span in _in_order(assemblies):
            alone = span.name == names.SPAN_ALLOCATE_BUDGET
            try:
                ledger.read(_allocation(span, children) if alone else _turn(span, children, assemblies, policies))
            except (TypeError, ValueError):
                ledger.problems.append(f"turn {span.attributes.get(names.TURN)}: an attribute of the wrong form")
    return ledgers


def _in_order(assemblies: Mapping[str, SpanLike]) -> Iterator[SpanLike]:
    """As they ended: each after the one that its changes are against, which the clock alone might not say."""
    waiting = sorted(assemblies.values(), key=attrgetter("end_ns", "start_ns"))
    done: set[str] = set()
    for span in waiting:
        chain: list[SpanLike] = []
        on: SpanLike | None = span
        while on is not None and on.span_id not in done:
            done.add(on.span_id)
            chain.append(on)
            on = assemblies.get(str(on.attributes.get(names.PREVIOUS_ID)))
        yield from reversed(chain)


def _policies(assemblies: Iterable[SpanLike], children: _Children) -> set[int]:
    """The places of the chain's policies; they are the same in each turn, so that a missing one shows."""
    return {
        int(child.attributes.get(names.POLICY_INDEX, 0))
        for span in assemblies
        for child in below(span, children)
        if child.name.startswith(names.SPAN_APPLY_POLICY)
    }


def _turn(span: SpanLike, children: _Children, read: Mapping[str, SpanLike], policies: set[int]) -> ReportedTurn:
    inside = below(span, children)
    attributes = whole_attributes(span, inside)
    number = int(attributes[names.TURN]) if names.TURN in attributes else 0
    previous = attributes.get(names.PREVIOUS_ID)
    sent = names.PREFIX_HASH in attributes
    steps = [_step(child, children, number) for child in inside if child.name.startswith(names.SPAN_APPLY_POLICY)]
    expected = set(range(int(attributes[names.STEPS]))) if names.STEPS in attributes else policies
    return ReportedTurn(
        number=number,
        assembly_id=str(attributes.get(names.ID)),
        previous_id=previous,
        sent=sent,
        follows=(previous is None or previous in read) and (not sent or {step.index for step in steps} == expected),
        attributes=attributes,
        steps=sorted(steps, key=attrgetter("index")),
        kept=item_ids(attributes.get(names.KEPT_ITEMS)),
        arrived=item_ids(attributes.get(names.ARRIVED_ITEMS)),
        counted=by_item_id(attributes.get(names.COUNTED_ITEMS), attributes.get(names.COUNTED_TOKENS)),
        withdrawn=item_ids(attributes.get(names.WITHDRAWN_ITEMS)),
        trace_id=span.trace_id,
        span_id=span.span_id,
        compactions=list(_compactions(span, children, number)),
    )


def _allocation(span: SpanLike, children: _Children) -> ReportedTurn:
    """An allocation that stands alone: one turn, whose only step is the allocator."""
    inside = below(span, children)
    attributes = whole_attributes(span, inside)
    number = int(attributes.get(names.TURN, 0))
    # What happened to the items of a block that has no span stands on this one.
    steps = [_step(one, children, number) for one in (span, *_block_spans(inside))]
    exits = {item: replace(exit_, policy=ALLOCATOR, index=0) for step in steps for item, exit_ in step.exits.items()}
    injected = [item for step in steps for item in step.injected]
    blocks = [_block(child, children) for child in _block_spans(inside)]
    return ReportedTurn(
        number=number,
        assembly_id=str(attributes.get(names.ID, span.span_id)),
        previous_id=None,
        sent=names.EXCEPTION_TYPE not in attributes,
        follows=True,
        attributes=attributes,
        steps=[ReportedStep(ALLOCATOR, 0, attributes, exits, injected, (), (), attributes, blocks)],
        kept=item_ids(attributes.get(names.KEPT_ITEMS)),
        arrived=item_ids(attributes.get(names.ARRIVED_ITEMS)),
        counted={},
        withdrawn=(),
        trace_id=span.trace_id,
        span_id=span.span_id,
        compactions=list(_compactions(span, children, number)),
        blocks=blocks,
    )


def _block_spans(spans: Iterable[SpanLike]) -> list[SpanLike]:
    return [span for span in spans if span.name.startswith(names.SPAN_ALLOCATE_BLOCK)]


def _block(span: SpanLike, children: _Children) -> ReportedBlock:
    attributes = whole_attributes(span, below(span, children))
    losers, winners = item_ids(attributes.get(names.BLOCK_LOSERS)), item_ids(attributes.get(names.BLOCK_WINNERS))
    return ReportedBlock(
        name=str(attributes.get(names.BLOCK_NAME)),
        kind=str(attributes.get(names.BLOCK_KIND)),
        priority=attributes.get(names.BLOCK_PRIORITY),
        remaining=attributes.get(names.BUDGET_REMAINING),
        items=frozenset(item_ids(attributes.get(names.BLOCK_ITEMS))),
        attributes=attributes,
        order=item_ids(attributes.get(names.BLOCK_ORDER)),
        winners=dict(zip(losers, winners, strict=False)),
    )


def _compactions(span: SpanLike, children: _Children, turn: int) -> Iterator[ReportedCompaction]:
    """The summaries that were made anywhere under an assembly's span."""
    waiting, seen = [span], {span.span_id}
    while waiting:
        for child in below(waiting.pop(), children):
            if child.span_id in seen:
                continue
            seen.add(child.span_id)
            waiting.append(child)
            attributes = whole_attributes(child, below(child, children))
            provenance = item_ids(attributes.get(names.COMPACTION_PROVENANCE))
            if provenance:
                result = attributes.get(names.COMPACTION_RESULT)
                yield ReportedCompaction(
                    item_id(str(result)) if result is not None else None, frozenset(provenance), turn
                )


def _step(span: SpanLike, children: _Children, turn: int) -> ReportedStep:
    inside = below(span, children)
    attributes = whole_attributes(span, inside)
    allocation = next((child for child in inside if child.name == names.SPAN_ALLOCATE_BUDGET), None)
    under = below(allocation, children) if allocation is not None else ()
    policy, index = str(attributes.get(names.POLICY_NAME, span.name)), int(attributes.get(names.POLICY_INDEX, 0))
    dropped = by_item_id(attributes.get(names.DROPPED_ITEMS), attributes.get(names.DROPPED_REASONS))
    exits = {item: ReportedExit(str(reason), policy, index, turn=turn) for item, reason in dropped.items()}
    compacted = ReportedExit(DecisionReason.COMPACTED.value, policy, index, DecisionOutcome.COMPACTED.value, turn)
    exits.update(dict.fromkeys(item_ids(attributes.get(names.COMPACTED_ITEMS)), compacted))
    return ReportedStep(
        policy=policy,
        index=index,
        attributes=attributes,
        exits=exits,
        injected=item_ids(attributes.get(names.INJECTED_ITEMS)),
        returned=item_ids(attributes.get(names.RETURNED_ITEMS)),
        withdrawn=item_ids(attributes.get(names.WITHDRAWN_ITEMS)),
        allocation=whole_attributes(allocation, under) if allocation is not None else None,
        blocks=[_block(child, children) for child in _block_spans(under)],
    )
