"""Excludes items whose tool pair or reasoning is incomplete, even if nothing is cut."""

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
    """Return the outcomes of orphaned items, and the blocks with pending calls.

    The outcomes are by block and index. Orphaned items are a result without its call, and a call that was abandoned. A
    call without a result is pending while no response follows it, in its own block or in another; see
    `ReadBlock.pending_atoms`. Pairs are searched within a block, because each block is kept or dropped on its own.

    Args:
        blocks: The blocks.
        lost: Items that are already excluded.

    Raises:
        DescribeError: An item has an unregistered type; the message names the block.
    """
    with_events = [read for read in blocks if read.block.has_events]
    if not with_events:
        return {}, frozenset()
    responding = [read.block for read in with_events if read.has_response(lost.get(read.block.name, ()))]
    orphaned: dict[str, dict[int, ItemOutcome]] = {}
    pending: set[str] = set()
    for read in with_events:
        block = read.block
        answered_later = any(other is not block and _may_follow(other, block) for other in responding)
        reasons, has_pending = read.unpaired(lost.get(block.name, ()), answered_later=answered_later)
        if reasons:
            orphaned[block.name] = {at: (DecisionOutcome.DROPPED, reason, None) for at, reason in reasons.items()}
        if has_pending:
            pending.add(block.name)
    return orphaned, frozenset(pending)


def _may_follow(other: Block, block: Block) -> bool:
    """Return whether a block may follow another in the prompt.

    The place of evidence depends on all pieces of evidence, so it may follow any block.
    """
    if EventKind.EVIDENCE in (other.kind, block.kind):
        return True
    return (zone_of(other), other.order) > (zone_of(block), block.order)
