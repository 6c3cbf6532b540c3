"""Items of blocks that have lost the other half of their tool-call pair: they leave, whether anything is cut or not."""

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
    blocks: Sequence[ReadBlock], lost: dict[str, dict[int, ItemOutcome]]
) -> tuple[dict[str, dict[int, ItemOutcome]], frozenset[str]]:
    """Items that no prompt may hold, by block and place: an answer without its call, a call that nobody will answer.

    And the names of the blocks in which a call awaits an approval; see `ReadBlock.pending`.

    Pairs are looked for within a block, for blocks are kept and dropped one by one. A call without a result is pending
    while no response stands behind it, in its own block or in another.

    Args:
        blocks: The blocks.
        lost: Items that are out already.

    Raises:
        DescribeError: An item of a type that no row reads; the message names the block.
    """
    holding = [read for read in blocks if read.block.eventful]
    if not holding:
        return {}, frozenset()
    replies = [read.block for read in holding if read.replies(lost.get(read.block.name, ()))]
    found: dict[str, dict[int, ItemOutcome]] = {}
    pending: set[str] = set()
    for read in holding:
        block = read.block
        answered_later = any(other is not block and _may_follow(other, block) for other in replies)
        reasons, awaits = read.unpaired(lost.get(block.name, ()), answered_later=answered_later)
        if reasons:
            found[block.name] = {at: (DecisionOutcome.DROPPED, reason, None) for at, reason in reasons.items()}
        if awaits:
            pending.add(block.name)
    return found, frozenset(pending)


def _may_follow(other: Block, block: Block) -> bool:
    """Whether a block may stand behind another; where pieces of evidence stand depends on all of them."""
    if EventKind.EVIDENCE in (other.kind, block.kind):
        return True
    return (zone_of(other), other.order) > (zone_of(block), block.order)
