"""`Block`: a named part of a prompt with a priority, which the allocator keeps, cuts, compacts or drops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Self

from otel_assembly._internal.arguments import whole_number
from otel_assembly.budget.compacted_block import CompactedBlock
from otel_assembly.errors import ConfigurationError
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from datetime import datetime

#: The kinds of blocks by priority, from priority 1 (dropped last) to priority 9 (dropped first).
KINDS: Final = (
    EventKind.SYSTEM,
    EventKind.SCHEMA,
    EventKind.QUERY,
    EventKind.STATE,
    EventKind.EVIDENCE,
    EventKind.MEMORY,
    EventKind.SUMMARY,
    EventKind.RECENT,
    EventKind.OLDER,
)
LOWEST_PRIORITY: Final = len(KINDS)
#: By default, blocks of the priorities up to this one are at the beginning of the prompt and equal on every turn.
_STABLE_PRIORITIES: Final = 2
_UNRANKED: Final = 10**8


class Cut(StrEnum):
    """How a block becomes smaller if it does not fit.

    Attributes:
        TAIL: Drop the worst-ranked items first. The default of evidence.
        SCORE: Drop the items with the lowest score first, and items with `BlockItem.profile` last. The default of
            memories.
        COMPRESS: Compact the block to the available tokens; if that fails, drop items as with ``tail``. The default of
            all other blocks.
        OLDEST: Drop the oldest items first. The default of turns.
        WHOLE: Keep the whole block or drop it.

    A block with a single text is compacted with every setting except ``whole``.
    """

    TAIL = "tail"
    SCORE = "score"
    COMPRESS = "compress"
    OLDEST = "oldest"
    WHOLE = "whole"


_TURNS: Final = frozenset({EventKind.RECENT, EventKind.OLDER})
_CUTS: Final = {
    EventKind.EVIDENCE: Cut.TAIL,
    EventKind.MEMORY: Cut.SCORE,
    EventKind.SUMMARY: Cut.COMPRESS,
    EventKind.RECENT: Cut.OLDEST,
    EventKind.OLDER: Cut.OLDEST,
}


@dataclass(frozen=True, slots=True)
class BlockItem:
    """One item of a block, such as a passage, a memory or a turn, which the allocator keeps, compacts or drops.

    Attributes:
        content: A text; or a message object of a type that is registered with ``describe()``, which is sent as it is.
        id: The item's id in its source. If two passages or memories of one source have the same id, the newer version
            is kept, and the older one is dropped with the reason ``stale``.
        source: The name of the item's source, such as a retriever. Ids of different sources are not compared; None is a
            source of its own.
        rank: 1 for the best item. Items without a rank follow those with one, in their order.
        score: Items with a higher score are dropped later. An item without a score counts as lowest.
        version: A number or a datetime; of two items with the same id and source, the one with the greater version is
            kept. None: the item has no version.
        profile: Whether the item is a durable fact about the user, which a block of memories drops last.
        group: The name of the item's group. Items of one group are kept or dropped together, and so are a tool call and
            its results, which need no name. The only exception is a provider that requires a user's request as the
            first message (see `allocate`): the items before that request are dropped without the rest of their group.
        current: False for a passage or memory that expired or was superseded; such an item is dropped with the reason
            ``stale``.
        echo: True if the item only repeats an earlier message of its conversation, as in the streams of some
            frameworks. The item is then counted as 0 tokens.
    """

    content: Any
    id: str | None = None
    source: str | None = None
    rank: int | None = None
    score: float | None = None
    version: float | datetime | None = None
    profile: bool = False
    group: str | None = None
    current: bool = True
    echo: bool = False

    def __post_init__(self) -> None:
        if self.rank is not None and (type(self.rank) is not int or self.rank < 1):
            raise ConfigurationError(f"an item's rank is 1 for the best and counts up, got {self.rank!r}")
        score: Any = self.score
        if score is not None and (isinstance(score, bool) or not isinstance(score, int | float) or score != score):
            raise ConfigurationError(f"an item's score is a number, the higher the better, got {score!r}")
        group: Any = self.group
        if group is not None and not isinstance(group, str):
            raise ConfigurationError(f"an item's group must be a text, got {group!r}; name the group, or leave it out")
        for name in ("profile", "current", "echo"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"an item's {name} must be True or False, got {getattr(self, name)!r}")


_TEXTS: Final = (str, CompactedBlock)
_CONTENT: Final = attrgetter("content")


class LazyItems(Sequence[BlockItem]):
    """The items of a block that are created only when they are read; all of them are message objects.

    A block of this content costs the same, however many items it has.
    """

    __slots__ = ()


Content = str | CompactedBlock | Sequence[Any]


@dataclass(frozen=True, slots=True)
class Block:
    """A named part of the prompt with a priority, such as the instructions, the evidence or the older turns.

    Args:
        name: The block's name, unique among the blocks that are allocated together. Telemetry exports the name, so it
            must not contain content.
        priority: 1 (highest) to 9 (dropped first). The priority determines the block's kind: 1 instructions, 2 tool
            schemas, 3 the query, 4 the application's state, 5 evidence, 6 memories, 7 a summary, 8 recent turns, 9
            older turns.
        content: One text; a `CompactedBlock`; or a sequence of items: `BlockItem`, text or message object.
        cuttable: Whether the block may be cut, compacted or dropped.
        min_tokens: The floor: the fewest tokens with which the block is useful. The allocator reserves these tokens, so
            that blocks of higher priority cannot use them. A block that would get fewer tokens is dropped with the
            reason ``below_floor``.
        rank: The block's rank among blocks of the same priority, 1 for the best. None: after the ranked ones.
        cut: How the block becomes smaller if it does not fit; the default depends on the priority.
        stable: Whether the block is equal on every turn, so that it belongs to the prefix that the provider caches.
            None: True for priorities 1 and 2. Set `stable` to True for few-shot examples.
        separator: The text between two neighboring texts of the block.
        restated: A key instruction that is repeated after the block's content. Set it on the block of the query, which
            is last in the prompt.

    Raises:
        ConfigurationError: A field is invalid; the message names the block.
    """

    name: str
    priority: int
    content: Content
    cuttable: bool
    min_tokens: int = 0
    rank: int | None = None
    cut: Cut | None = None
    stable: bool | None = None
    separator: str = "\n\n"
    restated: str = ""
    #: The key by which the allocator sorts blocks: priority, then rank, then name, which makes it unique.
    order: str = field(init=False, repr=False, compare=False)
    kind: EventKind = field(init=False, repr=False, compare=False)
    #: Whether the content is one text without `restated`; the allocator has a fast path for such blocks.
    is_plain_text: bool = field(init=False, repr=False, compare=False)
    #: Whether an item is a message object, which is sent as a separate message.
    has_events: bool = field(init=False, repr=False, compare=False)
    #: Whether an item is a text.
    has_texts: bool = field(init=False, repr=False, compare=False)
    #: Whether the block contains turns of the conversation. The allocator drops turns oldest first, over all blocks.
    has_turns: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"a block needs a name, got {name!r}")
        try:
            name.encode()
        except UnicodeEncodeError:  # an exporter would lose the whole batch of spans
            raise ConfigurationError(f"a block's name must be text that UTF-8 can hold, got {name!r}") from None
        if type(self.priority) is not int or not 1 <= self.priority <= LOWEST_PRIORITY:
            raise self._invalid_field(f"its priority must be a whole number from 1 to {LOWEST_PRIORITY}", self.priority)
        whole_number(f"block {name!r}: min_tokens", self.min_tokens, least=0, unit="tokens")
        if self.rank is not None:
            whole_number(f"block {name!r}: rank (1 is the best)", self.rank)
        if not isinstance(self.cuttable, bool):
            raise self._invalid_field("cuttable must be True or False", self.cuttable)
        if self.stable is not None and not isinstance(self.stable, bool):
            raise self._invalid_field("stable must be True, False or None (by priority)", self.stable)
        if not isinstance(self.separator, str):
            raise self._invalid_field("its separator must be a text", self.separator)
        if not isinstance(self.restated, str):
            raise self._invalid_field("restated must be a text", type(self.restated).__name__)
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "kind", KINDS[self.priority - 1])
        set_field(self, "has_turns", self.kind in _TURNS)
        set_field(self, "cut", self._checked_cut())
        set_field(self, "stable", self.priority <= _STABLE_PRIORITIES if self.stable is None else self.stable)
        rank = _UNRANKED if self.rank is None else min(self.rank, _UNRANKED)
        set_field(self, "order", f"{self.priority}{rank:09d}{self.name}")
        set_field(self, "content", self._checked_content())
        set_field(self, "is_plain_text", isinstance(self.content, str) and not self.restated)
        types = set(map(type, map(_CONTENT, self.content))) if isinstance(self.content, tuple) else ()
        are_texts = {issubclass(content_type, _TEXTS) for content_type in types}
        is_lazy = not isinstance(self.content, (tuple, *_TEXTS))
        set_field(self, "has_events", is_lazy or False in are_texts)
        set_field(self, "has_texts", not is_lazy and are_texts != {False})

    def _invalid_field(self, rule: str, value: object) -> ConfigurationError:
        return ConfigurationError(f"block {self.name!r}: {rule}, got {value!r}")

    def _checked_cut(self) -> Cut:
        if self.cut is None:
            return _CUTS.get(self.kind, Cut.COMPRESS)
        try:
            return Cut(self.cut)
        except ValueError:
            raise self._invalid_field(f"cut must be one of {', '.join(Cut)}", self.cut) from None

    def _checked_content(self) -> Content:
        content: Any = self.content
        if isinstance(content, (*_TEXTS, LazyItems)):
            return content
        if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
            raise ConfigurationError(
                f"block {self.name!r}: its content must be a text or a sequence of items, got {type(content).__name__}"
            )
        if set(map(type, content)) == {BlockItem}:
            return tuple(content)
        return tuple(item if isinstance(item, BlockItem) else BlockItem(item) for item in content)

    @property
    def items(self) -> Sequence[BlockItem]:
        """The block's items. A block with a single text has one item; a block with an empty text has none."""
        content: Any = self.content
        if isinstance(content, str):
            return (BlockItem(content),) if content else ()
        if isinstance(content, CompactedBlock):
            return (BlockItem(content),) if content.summary else ()
        items: Sequence[BlockItem] = content
        return items

    @property
    def lossy(self) -> bool:
        """Whether an item of the block is a summary that omits content of the original text."""
        return any(isinstance(item.content, CompactedBlock) and item.content.lossy for item in self.items)

    def with_content(self, content: Content) -> Self:
        """Return a copy of this block with other content."""
        return replace(self, content=content)
