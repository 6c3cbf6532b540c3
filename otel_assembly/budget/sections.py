"""The zones of a prompt, and the messages of each block in the zones."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from otel_assembly.budget.block import Block, BlockItem, Cut
from otel_assembly.budget.compacted_block import CompactedBlock
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence


class Zone(IntEnum):
    """The zones of a prompt, in order.

    Attributes:
        PREFIX: Content that is the same on every turn, so that the provider caches it.
        OPENING: The strongest position of the variable region: the best evidence, the profile. In the order ``cache``:
            the profile, the summary, the turns.
        MIDDLE: The region of poor attention: lower-ranked evidence, other memories, the summary, older turns. In the
            order ``cache``: the application's state and other memories.
        CLOSING: The second-best evidence, the application's state, recent turns. In the order ``cache``: all evidence,
            the best last.
        QUERY: The query.
    """

    PREFIX = 1
    OPENING = 2
    MIDDLE = 3
    CLOSING = 4
    QUERY = 5


_UNRANKED: Final = float("inf")
_TEXTS: Final = (str, CompactedBlock)
_ZONES: Final = {
    EventKind.QUERY: Zone.QUERY,
    EventKind.STATE: Zone.CLOSING,
    EventKind.RECENT: Zone.CLOSING,
}


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a block that is rendered as one message; next to events, as several.

    Attributes:
        items: Indexes of the block's items, in the order of the prompt.
        zone: The section's zone. Evidence is placed among all evidence by its strength.
        strength: For evidence: 0 for the block's best item, 1 for its second, 2 for the rest.
    """

    items: tuple[int, ...]
    zone: Zone
    strength: int = 0


def is_text(item: BlockItem) -> bool:
    """Return whether an item is a text, which is joined with its neighbors."""
    return isinstance(item.content, _TEXTS)


def item_text(item: BlockItem) -> str:
    """Return the text of an item that is a text."""
    content = item.content
    return content.summary if isinstance(content, CompactedBlock) else str(content)


def zone_of(block: Block) -> Zone:
    """Return the zone of a block that is not split."""
    return Zone.PREFIX if block.stable else _ZONES.get(block.kind, Zone.MIDDLE)


def is_split(block: Block) -> bool:
    """Return whether the block's best items are placed separately."""
    return block.cut is Cut.TAIL and block.kind is EventKind.EVIDENCE and not block.stable


def _separates_profile(block: Block) -> bool:
    return block.cut is Cut.SCORE and not block.stable


def max_messages(block: Block) -> int:
    """Return the most messages that the texts of a block become."""
    if is_split(block):
        return 3
    return 2 if _separates_profile(block) else 1


def sections(block: Block, items: Sequence[BlockItem], kept: Sequence[int]) -> list[Section]:
    """Return the sections of a block with only these items.

    Args:
        block: The block.
        items: All its items.
        kept: Indexes of the items in the prompt, ascending.
    """
    if not kept:
        return []
    zone = zone_of(block)
    # Events keep their order, because a result must follow its call.
    has_parts = is_split(block) or _separates_profile(block)
    if not has_parts or (block.has_events and not all(is_text(items[index]) for index in kept)):
        return [Section(tuple(kept), zone)]
    if is_split(block):
        ranked = by_rank(items, kept)
        parts = [Section((ranked[0],), zone, 0)]
        if len(ranked) > 2:
            parts.append(Section(tuple(_strongest_outside(ranked[2:])), zone, 2))
        if len(ranked) > 1:
            parts.append(Section((ranked[1],), zone, 1))
        return parts
    profile = tuple(index for index in kept if items[index].profile)
    others = tuple(index for index in kept if not items[index].profile)
    opening = [Section(profile, Zone.OPENING)] if profile else []
    return [*opening, Section(others, zone)] if others else opening


def messages(items: Sequence[BlockItem], section: Section) -> list[list[str]]:
    """Return the texts of each message of a section.

    Next to events, each text is a separate message.
    """
    texts = [item_text(items[index]) for index in section.items if is_text(items[index])]
    if len(texts) == len(section.items):
        return [texts]
    return [[text] for text in texts]


def sections_with_texts(
    block: Block, items: Sequence[BlockItem], kept: Sequence[int]
) -> list[tuple[Section, list[list[str]]]]:
    """Return the sections of a block with only these items, and their texts by message.

    Counting and sending both use this result. A restated instruction is appended to the block's last text. If there is
    no text, it is a separate message after the events.
    """
    parts = [(section, messages(items, section)) for section in sections(block, items, kept)]
    if block.restated and parts:
        last = next((texts for _, texts in reversed(parts) if texts), None)
        if last is None:
            parts[-1][1].append([block.restated])
        else:
            last[-1].append(block.restated)
    return parts


def by_rank(items: Sequence[BlockItem], indexes: Sequence[int]) -> list[int]:
    """Return indexes with the best item's first.

    Items of one rank keep their order, and items without a rank follow those with one.
    """
    return sorted(indexes, key=lambda index: (items[index].rank or _UNRANKED, index))


def _strongest_outside(best_first: Sequence[int]) -> list[int]:
    """Return items with the best at both ends and the weakest in the middle.

    Attention is poor in the middle (Liu et al. 2023, "Lost in the Middle").
    """
    return [*best_first[::2], *reversed(best_first[1::2])]
