"""`Block`: a named part of a prompt with a priority, which the allocator keeps, cuts, compacts or drops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

from otel_assembly._internal.arguments import whole_number
from otel_assembly.budget.compacted_block import CompactedBlock
from otel_assembly.errors import ConfigurationError
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from datetime import datetime

#: The kind of block of each priority, from 1 to 9. Priority 1 is dropped last, priority 9 first.
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
#: By default, blocks of these priorities begin the prompt and are stable from turn to turn.
_STABLE_PRIORITIES: Final = 2
_UNRANKED: Final = 10**8


class Cut(StrEnum):
    """How a block becomes smaller if it does not fit.

    Attributes:
        TAIL: Drop the worst-ranked items first (evidence).
        SCORE: Drop the items with the lowest score first, and those of the profile last (memory).
        COMPRESS: Compact the block to the available tokens; if that fails, drop items from the tail (summary).
        OLDEST: Drop the oldest items first (turns).
        WHOLE: Keep the block whole or drop it.

    A block that is one text is compacted, unless it is ``whole``.
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
    """One item of a block that is decided on its own: a passage, a memory, a turn.

    Attributes:
        content: A text; or an event of any registered type, which is rendered as a separate message.
        id: The item's id in its source. Of two passages or memories of one source with the same id, the newest version
            is kept, and the other is ``stale``.
        source: The name of the source; ids of different sources are not compared.
        rank: 1 for the best item. Items without a rank follow those with one, in their order.
        score: Items with a higher score are dropped later. An item without a score counts as lowest.
        version: Determines the newer of two items with one id: numbers or datetimes.
        profile: Whether the item belongs to the profile: durable facts, which the block drops last.
        group: Items of one group are kept or dropped together. A tool call and its results are a group without being
            named. Only the provider's rule for the first message (see `allocate`) may drop the first items of a group
            alone.
        current: Whether the item still holds. A passage or memory that expired or was superseded is ``stale``.
        echo: Whether the item only repeats an earlier event of its conversation, as in some frameworks' streams. Such
            an item takes no tokens.
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


def _is_text(item: BlockItem) -> bool:
    return isinstance(item.content, _TEXTS)


Content = str | CompactedBlock | Sequence[Any]


@dataclass(frozen=True, slots=True)
class Block:
    """A named part of the prompt with a priority.

    Args:
        name: Unique among the blocks that are allocated together. It is exported, so it must not contain content.
        priority: 1 (never optional) to 9 (dropped first). It determines the block's kind.
        content: One text; a `CompactedBlock`; or items, each a `BlockItem`, a text, or an event.
        cuttable: Whether the block may be cut, compacted or dropped.
        min_tokens: The floor: the fewest tokens with which the block is useful. They are reserved before a block of
            higher priority may take them. If there is no room for the floor, the block is dropped, reason
            ``below_floor``.
        rank: 1 for the best among blocks of one priority.
        cut: How the block becomes smaller; the default depends on the priority.
        stable: Whether the block is the same on every turn and belongs to the cacheable prefix (few-shot examples). By
            default, instructions and schemas do.
        separator: The text between items.
        restated: A key instruction that is repeated at the end of this block; intended for the query, which comes last.

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
    #: The sort key of the allocation: priority, then rank, then name, so that there are no ties.
    order: str = field(init=False, repr=False, compare=False)
    kind: EventKind = field(init=False, repr=False, compare=False)
    #: Whether the content is one text without `restated`, the most frequent case.
    is_plain_text: bool = field(init=False, repr=False, compare=False)
    #: Whether some items are events, which are rendered as separate messages.
    has_events: bool = field(init=False, repr=False, compare=False)
    #: Whether the block contains turns. If a turn is dropped, older turns are dropped too, also in other blocks.
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
            raise self._wrong(f"its priority must be a whole number from 1 to {LOWEST_PRIORITY}", self.priority)
        whole_number(f"block {name!r}: min_tokens", self.min_tokens, least=0, unit="tokens")
        if self.rank is not None:
            whole_number(f"block {name!r}: rank (1 is the best)", self.rank)
        if not isinstance(self.cuttable, bool):
            raise self._wrong("cuttable must be True or False", self.cuttable)
        if self.stable is not None and not isinstance(self.stable, bool):
            raise self._wrong("stable must be True, False or None (by priority)", self.stable)
        if not isinstance(self.separator, str):
            raise self._wrong("its separator must be a text", self.separator)
        if not isinstance(self.restated, str):
            raise self._wrong("restated must be a text", type(self.restated).__name__)
        derive = object.__setattr__
        derive(self, "kind", KINDS[self.priority - 1])
        derive(self, "has_turns", self.kind in _TURNS)
        derive(self, "cut", self._cut())
        derive(self, "stable", self.priority <= _STABLE_PRIORITIES if self.stable is None else self.stable)
        rank = _UNRANKED if self.rank is None else min(self.rank, _UNRANKED)
        derive(self, "order", f"{self.priority}{rank:09d}{self.name}")
        derive(self, "content", self._read())
        derive(self, "is_plain_text", isinstance(self.content, str) and not self.restated)
        derive(self, "has_events", isinstance(self.content, tuple) and not all(map(_is_text, self.content)))

    def _wrong(self, rule: str, value: object) -> ConfigurationError:
        return ConfigurationError(f"block {self.name!r}: {rule}, got {value!r}")

    def _cut(self) -> Cut:
        if self.cut is None:
            return _CUTS.get(self.kind, Cut.COMPRESS)
        try:
            return Cut(self.cut)
        except ValueError:
            raise self._wrong(f"cut must be one of {', '.join(Cut)}", self.cut) from None

    def _read(self) -> Content:
        content: Any = self.content
        if isinstance(content, str | CompactedBlock):
            return content
        if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
            raise ConfigurationError(
                f"block {self.name!r}: its content must be a text or a sequence of items, got {type(content).__name__}"
            )
        if set(map(type, content)) == {BlockItem}:
            return tuple(content)
        return tuple(item if isinstance(item, BlockItem) else BlockItem(item) for item in content)

    @property
    def items(self) -> tuple[BlockItem, ...]:
        """The block's items; a block that is one text has one item."""
        content = self.content
        if isinstance(content, tuple):
            return content
        if isinstance(content, CompactedBlock):
            return (BlockItem(content),) if content.summary else ()
        return (BlockItem(content),) if content else ()

    @property
    def lossy(self) -> bool:
        """Whether a part of the block is a lossy summary of a longer text."""
        return any(isinstance(item.content, CompactedBlock) and item.content.lossy for item in self.items)

    def with_content(self, content: Content) -> Self:
        """Return a copy of this block with other content."""
        return replace(self, content=content)
