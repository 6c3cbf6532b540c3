"""Splits a block's items into sections, and assigns each section to a zone of the prompt."""

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
    """The zones of a prompt, from the first to the last.

    The contents of a zone depend on the order, ``attention`` or ``cache``; see `order_for_attention_and_cache`.

    Attributes:
        PREFIX: Content that is equal on every turn, so that the provider caches it.
        OPENING: The first content after the prefix. ``attention``: the best evidence and facts about the user.
            ``cache``: facts about the user, the summary and the turns.
        MIDDLE: The part to which models attend least. ``attention``: lower-ranked evidence, other memories, the summary
            and older turns. ``cache``: the application's state and other memories.
        CLOSING: The last content before the query. ``attention``: the second-best evidence, the application's state and
            recent turns. ``cache``: all evidence, the best last.
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
    """Items of a block that are next to each other in the prompt.

    If all of them are texts, they are joined into one message.

    Attributes:
        items: Indexes of the items in the block, in the order of the prompt; a range if they follow each other.
        zone: The zone in which the section is placed. For evidence, `strength` decides instead.
        strength: For evidence: 0 if the section is the block's best item, 1 if it is the second best, 2 for the rest.
    """

    items: Sequence[int]
    zone: Zone
    strength: int = 0


def is_text(item: BlockItem) -> bool:
    """Return whether an item is a text, and not a message object."""
    return isinstance(item.content, _TEXTS)


def item_text(item: BlockItem) -> str:
    """Return the text of an item for which `is_text` is true."""
    content = item.content
    return content.summary if isinstance(content, CompactedBlock) else str(content)


def zone_of(block: Block) -> Zone:
    """Return the zone of a block whose items are all placed together."""
    return Zone.PREFIX if block.stable else _ZONES.get(block.kind, Zone.MIDDLE)


def is_split(block: Block) -> bool:
    """Return whether the block's best and second-best item are placed apart from the rest, as for ranked evidence."""
    return block.cut is Cut.TAIL and block.kind is EventKind.EVIDENCE and not block.stable


def _separates_profile(block: Block) -> bool:
    return block.cut is Cut.SCORE and not block.stable


def max_messages(block: Block) -> int:
    """Return the maximum number of messages into which the texts of a block are joined."""
    if is_split(block):
        return 3
    return 2 if _separates_profile(block) else 1


def sections(block: Block, items: Sequence[BlockItem], kept: Sequence[int]) -> list[Section]:
    """Split the kept items of a block into sections.

    Args:
        block: The block.
        items: All items of the block.
        kept: Indexes of the items that are sent, ascending.
    """
    if not kept:
        return []
    zone = zone_of(block)
    # Message objects keep their order, because a tool result must follow its call.
    has_parts = is_split(block) or _separates_profile(block)
    if not has_parts or (block.has_events and not (block.has_texts and all(is_text(items[index]) for index in kept))):
        return [Section(kept if isinstance(kept, range) else tuple(kept), zone)]
    if is_split(block):
        ranked = by_rank(items, kept)
        parts = [Section((ranked[0],), zone, 0)]
        if len(ranked) > 2:
            parts.append(Section(tuple(_best_at_both_ends(ranked[2:])), zone, 2))
        if len(ranked) > 1:
            parts.append(Section((ranked[1],), zone, 1))
        return parts
    profile = tuple(index for index in kept if items[index].profile)
    others = tuple(index for index in kept if not items[index].profile)
    opening = [Section(profile, Zone.OPENING)] if profile else []
    return [*opening, Section(others, zone)] if others else opening


def messages(items: Sequence[BlockItem], section: Section) -> list[list[str]]:
    """Return the texts of a section, grouped by the message in which they are sent.

    All texts are sent in one message. If the section also contains message objects, each text is a separate message.
    """
    texts = [item_text(items[index]) for index in section.items if is_text(items[index])]
    if len(texts) == len(section.items):
        return [texts]
    return [[text] for text in texts]


def sections_with_texts(
    block: Block, items: Sequence[BlockItem], kept: Sequence[int]
) -> list[tuple[Section, list[list[str]]]]:
    """Return the sections of a block's kept items, each with its texts grouped by message; see `messages`.

    `Block.restated` is appended to the block's last text, or is a separate last message if there is no text. Tokens are
    counted from this result and the prompt is rendered from it, so that both agree.
    """
    parts: list[tuple[Section, list[list[str]]]] = [
        (section, messages(items, section) if block.has_texts else []) for section in sections(block, items, kept)
    ]
    if block.restated and parts:
        last = next((texts for _, texts in reversed(parts) if texts), None)
        if last is None:
            parts[-1][1].append([block.restated])
        else:
            last[-1].append(block.restated)
    return parts


def by_rank(items: Sequence[BlockItem], indexes: Sequence[int]) -> list[int]:
    """Sort indexes of items by `BlockItem.rank`, the best first.

    Items of the same rank keep their order, and items without a rank come last.
    """
    return sorted(indexes, key=lambda index: (items[index].rank or _UNRANKED, index))


def _best_at_both_ends(best_first: Sequence[int]) -> list[int]:
    """Reorder items so that the best are at both ends and the weakest in the middle.

    Models attend least to the middle of a prompt (Liu et al. 2023, "Lost in the Middle").
    """
    return [*best_first[::2], *reversed(best_first[1::2])]
