"""Items of blocks that have lost the other half of their tool-call pair: they leave, whether anything is cut or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.budget.keep_order import pairing_of
from otel_assembly.budget.sections import is_text, zone_of
from otel_assembly.decision import DecisionOutcome, DecisionReason
from otel_assembly.errors import DescribeError
from otel_assembly.messages.describe import EventKind, describe
from otel_assembly.messages.tool_pairs import ANSWERS, unpaired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.budget.allocation import ItemOutcome
    from otel_assembly.budget.block import Block


def orphans(
    blocks: Sequence[Block], lost: dict[str, dict[int, ItemOutcome]]
) -> tuple[dict[str, dict[int, ItemOutcome]], frozenset[str]]:
    """Items that no prompt may hold, by block and place: an answer without its call, a call that nobody will answer.

    And the names of the blocks in which a call awaits an approval; see `pending_of`.

    Pairs are looked for within a block, for blocks are kept and dropped one by one. A call without a result is pending
    while no response stands behind it, in its own block or in another.

    Args:
        blocks: The blocks.
        lost: Items that are out already.

    Raises:
        DescribeError: An item of a type that no row reads; the message names the block.
    """
    holding = [block for block in blocks if block.eventful]
    if not holding:
        return {}, frozenset()
    replies = [block for block in holding if _replies(block, lost)]
    found: dict[str, dict[int, ItemOutcome]] = {}
    pending: set[str] = set()
    for block in holding:
        items = block.items
        alive = [index for index in range(len(items)) if index not in lost.get(block.name, ())]
        pairing = pairing_of([items[index] for index in alive])
        answered_later = any(other is not block and _may_follow(other, block) for other in replies)
        newest_response = len(alive) if answered_later else pairing.last_response
        outcomes: dict[int, ItemOutcome] = {}
        for at in unpaired(pairing, range(len(alive) - 1, -1, -1), newest_response):
            asks = pairing.links[at] and not pairing.flags[at] & ANSWERS
            reason = DecisionReason.ORPHANED_TOOL_CALL if asks else DecisionReason.ORPHANED_TOOL_RESULT
            outcomes[alive[at]] = DecisionOutcome.DROPPED, reason, None
        if outcomes:
            found[block.name] = outcomes
        if pairing.pending_calls(newest_response):
            pending.add(block.name)
    return found, frozenset(pending)


def _replies(block: Block, lost: dict[str, dict[int, ItemOutcome]]) -> bool:
    out = lost.get(block.name, ())
    try:
        return any(
            describe(item.content).kind == EventKind.RESPONSE
            for index, item in enumerate(block.items)
            if index not in out and not is_text(item)
        )
    except DescribeError as error:
        raise DescribeError(error.event_type, f"it is an item of block {block.name!r}") from error


def _may_follow(other: Block, block: Block) -> bool:
    """Whether a block may stand behind another; where pieces of evidence stand depends on all of them."""
    if EventKind.EVIDENCE in (other.kind, block.kind):
        return True
    return (zone_of(other), other.order) > (zone_of(block), block.order)
