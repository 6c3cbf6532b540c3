"""Where the pieces of a prompt stand: the five zones, and the messages that one block becomes in them."""

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
        PREFIX: What is the same on every turn, so that the provider's cache holds it.
        OPENING: The strongest position of the variable region: the best evidence, the profile. In the order for the
            cache what a conversation keeps: the profile, the summary, the turns.
        MIDDLE: Where attention is poor: lower-ranked evidence, other memories, the summary, older turns. In the order
            for the cache the application's state and other memories.
        CLOSING: The second-best evidence, the application's state, recent turns. In the order for the cache all
            evidence, the best last.
        QUERY: The question, last.
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
    """What becomes one message (or, for events, messages of their own), by index in the block's items.

    Attributes:
        items: Indexes, in the order in which they stand.
        zone: The zone it would stand in; evidence is placed among all evidence by its strength.
        strength: Of evidence: 0 for the block's best item, 1 for its second, 2 for the rest.
    """

    items: tuple[int, ...]
    zone: Zone
    strength: int = 0


def is_text(item: BlockItem) -> bool:
    """Whether an item is a text, joined with its neighbours, and not an event with a message of its own."""
    return isinstance(item.content, _TEXTS)


def item_text(item: BlockItem) -> str:
    """The text of an item that is one."""
    content = item.content
    return content.summary if isinstance(content, CompactedBlock) else str(content)


def zone_of(block: Block) -> Zone:
    """Where a block stands that is not split."""
    return Zone.PREFIX if block.stable else _ZONES.get(block.kind, Zone.MIDDLE)


def splits(block: Block) -> bool:
    """Whether the block's best items stand apart from the rest, at the strong positions."""
    return block.cut is Cut.TAIL and block.kind is EventKind.EVIDENCE and not block.stable


def _sets_profile_apart(block: Block) -> bool:
    return block.cut is Cut.SCORE and not block.stable


def most_messages(block: Block) -> int:
    """How many messages the texts of a block become at most."""
    if splits(block):
        return 3
    return 2 if _sets_profile_apart(block) else 1


def sections(block: Block, items: Sequence[BlockItem], kept: Sequence[int]) -> list[Section]:
    """The messages that these items of a block become.

    Args:
        block: The block.
        items: All its items.
        kept: Indexes of those that stand in the prompt, ascending.
    """
    if not kept:
        return []
    zone = zone_of(block)
    # Events stay in their order: a result that stood before its call would be no answer to it.
    parted = splits(block) or _sets_profile_apart(block)
    if not parted or (block.eventful and not all(is_text(items[index]) for index in kept)):
        return [Section(tuple(kept), zone)]
    if splits(block):
        ranked = by_rank(items, kept)
        parts = [Section((ranked[0],), zone, 0)]
        if len(ranked) > 2:
            parts.append(Section(tuple(around(ranked[2:])), zone, 2))
        if len(ranked) > 1:
            parts.append(Section((ranked[1],), zone, 1))
        return parts
    profile = tuple(index for index in kept if items[index].profile)
    others = tuple(index for index in kept if not items[index].profile)
    found = [Section(profile, Zone.OPENING)] if profile else []
    return [*found, Section(others, zone)] if others else found


def messages(items: Sequence[BlockItem], section: Section) -> list[list[str]]:
    """The texts of a section by the message that they are joined to; among events, each is a message of its own."""
    texts = [item_text(items[index]) for index in section.items if is_text(items[index])]
    if len(texts) == len(section.items):
        return [texts]
    return [[text] for text in texts]


def spoken(block: Block, items: Sequence[BlockItem], kept: Sequence[int]) -> list[tuple[Section, list[list[str]]]]:
    """The sections that these items of a block become, each with its texts by message.

    What is counted and what is sent are both read from here. The instruction that a block says once more stands at the
    end of its last text; where it has none, in a message of its own behind its events.
    """
    said = [(section, messages(items, section)) for section in sections(block, items, kept)]
    if block.restated and said:
        last = next((texts for _, texts in reversed(said) if texts), None)
        if last is None:
            said[-1][1].append([block.restated])
        else:
            last[-1].append(block.restated)
    return said


def by_rank(items: Sequence[BlockItem], indexes: Sequence[int]) -> list[int]:
    """Indexes, the best item's first; ties as they stand, and those without a rank behind those with one."""
    return sorted(indexes, key=lambda index: (items[index].rank or _UNRANKED, index))


def around(best_first: Sequence[int]) -> list[int]:
    """The strongest at the two ends, the weakest in the middle (Liu et al. 2023, "Lost in the Middle")."""
    return [*best_first[::2], *reversed(best_first[1::2])]
