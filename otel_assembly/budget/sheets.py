"""An allocation as a sheet: numbers alone, for spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_assembly.budget.survival import survivors_of
from otel_assembly.decision import BudgetLine, BudgetSheet, DecisionOutcome, DecisionReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.budget.allocation import Allocation, BlockDecision
    from otel_assembly.budget.block import Block
    from otel_assembly.decision import Overflow


def sheet_of(allocation: Allocation) -> BudgetSheet:
    """How an allocation gave its budget out."""
    return BudgetSheet(
        window=allocation.window,
        output_reserve=allocation.output_reserve,
        fixed=allocation.fixed,
        used=allocation.used,
        lines=tuple(_line(allocation, decision) for decision in allocation.decisions),
        overflow=allocation.overflow,
    )


def overflowing_sheet(
    blocks: Sequence[Block], costs: Sequence[int], window: int, output_reserve: int, overflow: Overflow
) -> BudgetSheet:
    """A budget that what may not be cut does not fit: nothing is given out, and each block says what it would take."""
    lines = (
        BudgetLine(
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
    return BudgetSheet(window, output_reserve, overflow.needed, 0, tuple(lines), overflow)


#: The reasons of items that stay out however much room there is.
_OUT_FROM_THE_START: Final = frozenset(
    {
        DecisionReason.DUPLICATE,
        DecisionReason.STALE,
        DecisionReason.ORPHANED_TOOL_CALL,
        DecisionReason.ORPHANED_TOOL_RESULT,
    }
)


def _line(allocation: Allocation, decision: BlockDecision) -> BudgetLine:
    block = decision.block
    made = int(decision.made is not None)
    order: list[int] = []
    if block.cuttable:
        alive = [item.index for item in decision.items if item.reason not in _OUT_FROM_THE_START]
        order = [index for atom in survivors_of(block, block.items, alive) for index in atom]
    return BudgetLine(
        name=block.name,
        kind=block.kind.value,
        priority=block.priority,
        cuttable=block.cuttable,
        min_tokens=block.min_tokens,
        tokens_in=decision.tokens_in + decision.separators_in,
        tokens_out=decision.tokens_out + decision.separators_out,
        outcome=decision.outcome,
        reason=decision.reason,
        room=decision.room,
        items_in=len(decision.items),
        items_out=decision.items_out + made,
        items_injected=made,
        compacted=sum(item.outcome is DecisionOutcome.COMPACTED for item in decision.items),
        cut=str(block.cut),
        items=range(len(decision.items)),
        order=order,
        charges=allocation.charges(block, order),
    )
