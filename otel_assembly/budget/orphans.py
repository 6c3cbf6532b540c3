"""Finds messages whose tool pair or reasoning is incomplete; they are dropped even if everything fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.budget.sections import zone_of
from otel_assembly.decision import DecisionOutcome
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.budget.allocation import ItemOutcome
    from otel_assembly.budget.block import Block
    from otel_assembly.budget.read_block import ReadBlock


def orphans(
    blocks: Sequence[ReadBlock], excluded: dict[str, dict[int, ItemOutcome]]
) -> tuple[dict[str, dict[int, ItemOutcome]], frozenset[str]]:
    """Find orphaned items: tool results without their call, abandoned calls, and incomplete reasoning.

    A call without a result is pending as long as no response of the model follows it, in its own block or in another;
    after that it is abandoned. A call and its results must be in the same block, because blocks are kept or dropped
    independently.

    Args:
        blocks: The blocks.
        excluded: The outcomes of items that are already excluded, by the block's name and the item's index.

    Returns:
        The outcomes of the orphaned items, by the block's name and the item's index; and the names of the blocks with
        pending calls.

    Raises:
        DescribeError: An item has an unregistered type; the message names the block.
    """
    with_events = [read for read in blocks if read.block.has_events]
    if not with_events:
        return {}, frozenset()
    blocks_with_response = [read.block for read in with_events if read.has_response(excluded.get(read.block.name, ()))]
    orphaned: dict[str, dict[int, ItemOutcome]] = {}
    pending: set[str] = set()
    for read in with_events:
        block = read.block
        answered_later = any(other is not block and _may_follow(other, block) for other in blocks_with_response)
        reasons, has_pending = read.unpaired(excluded.get(block.name, ()), answered_later=answered_later)
        if reasons:
            orphaned[block.name] = {index: (DecisionOutcome.DROPPED, reason, None) for index, reason in reasons.items()}
        if has_pending:
            pending.add(block.name)
    return orphaned, frozenset(pending)


def _may_follow(other: Block, block: Block) -> bool:
    """Return whether `other` may come after `block` in the prompt.

    True if one of them is evidence, because the position of evidence depends on the evidence of all blocks.
    """
    if EventKind.EVIDENCE in (other.kind, block.kind):
        return True
    return (zone_of(other), other.order) > (zone_of(block), block.order)
