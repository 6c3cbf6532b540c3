"""Converts allocations to reports for spans, which contain numbers but no content."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

from otel_assembly.budget.sections import is_text
from otel_assembly.decision import BudgetEntry, BudgetReport, DecisionOutcome, DecisionReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.budget.allocation import Allocation, BlockDecision, DecidedBlock
    from otel_assembly.budget.block import Block
    from otel_assembly.budget.read_block import ReadBlock
    from otel_assembly.decision import Overflow


def report_of(allocation: Allocation) -> BudgetReport:
    """Return an allocation as a report: the limits, and the numbers of each block."""
    return BudgetReport(
        window=allocation.window,
        output_reserve=allocation.output_reserve,
        fixed=allocation.fixed,
        used=allocation.used,
        entries=tuple(map(_entry, allocation.decided, allocation.decisions)),
        overflow=allocation.overflow,
    )


def overflow_report(
    blocks: Sequence[Block], costs: Sequence[int], window: int, output_reserve: int, overflow: Overflow
) -> BudgetReport:
    """Return the report of an allocation that failed, because the content that cannot be cut exceeds the budget.

    All blocks are reported as dropped, each with the tokens that it needs.
    """
    entries = (
        BudgetEntry(
            name=block.name,
            kind=block.kind.value,
            priority=block.priority,
            cuttable=block.cuttable,
            min_tokens=block.min_tokens,
            tokens_in=cost,
            tokens_out=0,
            outcome=DecisionOutcome.DROPPED,
            reason=DecisionReason.OVER_BUDGET,
            room=0,
            items_in=len(block.items),
            items_out=0,
        )
        for block, cost in zip(blocks, costs, strict=True)
    )
    return BudgetReport(window, output_reserve, overflow.needed, 0, tuple(entries), overflow)


#: The reasons of items that are dropped even if they would fit.
_EXCLUDED: Final = frozenset(
    {
        DecisionReason.DUPLICATE,
        DecisionReason.STALE,
        DecisionReason.ORPHANED_TOOL_CALL,
        DecisionReason.ORPHANED_TOOL_RESULT,
        DecisionReason.ORPHANED_REASONING,
    }
)


def _entry(decided: DecidedBlock, decision: BlockDecision) -> BudgetEntry:
    read, block = decided.read, decision.block
    summary_count = int(decision.made is not None)
    excluded = {item.index for item in decision.items if item.reason in _EXCLUDED}
    tokens_in = decision.tokens_in + decision.separators_in
    tokens_out = decision.tokens_out + decision.separators_out
    atoms: list[Sequence[int]] = []
    cost = tokens_in
    if block.cuttable:
        atoms = list(read.survivors(excluded))
        if excluded:
            cost = tokens_out if decision.items_out == len(read.items) - len(excluded) else read.cost(excluded)
    order = [index for atom in atoms for index in atom]
    charges = read.charges(order)
    floor = min(block.min_tokens, cost)
    return BudgetEntry(
        name=block.name,
        kind=block.kind.value,
        priority=block.priority,
        cuttable=block.cuttable,
        min_tokens=block.min_tokens,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        outcome=decision.outcome,
        reason=decision.reason,
        room=decision.room,
        items_in=len(decision.items),
        items_out=decision.items_out + summary_count,
        items_injected=summary_count,
        compacted=sum(item.outcome is DecisionOutcome.COMPACTED for item in decision.items),
        cut=str(block.cut),
        items=range(len(decision.items)),
        order=order,
        charges=charges,
        atoms=[len(atom) for atom in atoms],
        cost=cost,
        enough=_items_to_reach_floor(read, atoms, charges, floor) if floor else 0,
        events=sum(not is_text(read.items[index]) for index in order),
        winners=[(item.index, item.winner) for item in decision.items if item.winner is not None],
    )


def _items_to_reach_floor(read: ReadBlock, atoms: Sequence[Sequence[int]], charges: Sequence[int], floor: int) -> int:
    """Return how many items of `atoms`, from the first on, have together at least `floor` tokens."""
    cumulated_charges = [0, *accumulate(charges)]
    indexes: list[int] = []
    for atom in atoms:
        indexes += atom
        # The charges are an upper bound: an exact count is needed only if they reach the floor.
        if cumulated_charges[len(indexes)] >= floor and read.tokens(sorted(indexes)) >= floor:
            break
    return len(indexes)
