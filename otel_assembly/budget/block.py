"""`Block`: a named, prioritised piece of a prompt, which the allocator keeps whole, cuts, compacts or drops (seed)."""

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

#: The seed's table: what each priority is for. The highest survives, the lowest is sacrificed first.
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
#: Blocks of these priorities begin the prompt and stay the same from turn to turn, unless they say otherwise.
_STABLE_PRIORITIES: Final = 2
_UNRANKED: Final = 10**8


class Cut(StrEnum):
    """How a block gives way where it does not fit.

    Attributes:
        TAIL: The worst-ranked item first (evidence).
        SCORE: The lowest score first; what belongs to the profile last (memory).
        COMPRESS: Compacted to what room there is; where that fails, from the tail (summary).
        OLDEST: The oldest item first (turns).
        WHOLE: Kept or dropped as it is.

    A block that is one text gives way by compaction, unless it is ``whole``.
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
    """One of several things in a block, decided on its own: a passage, a memory, a turn.

    Attributes:
        content: Its text; or an event of any described type, which is rendered as a message of its own.
        id: The source's id. Of two passages, or two memories, of one source with one id, the newest version wins, and
            the other is ``stale``.
        source: Who says so: ids of two sources are not compared.
        rank: 1 for the best; those without one are behind those with one, as they stand.
        score: The higher, the later it is cut; without one, lower than any.
        version: What tells the newer of two items with one id: numbers or datetimes.
        profile: Whether it belongs to the profile: durable facts, cut after everything else of the block.
        group: Items of one group are kept or dropped together. Tool calls and their results are grouped by themselves.
            Only the provider's rule for the first message (see `allocate`) may drop the first items of a group alone.
        current: Whether it still holds; a passage or memory that has expired or was superseded is ``stale``.
        echo: Whether it only says again what an earlier event of its conversation said, as a framework's stream may: it
            takes no tokens.
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
    """A named, prioritised piece of the prompt.

    Args:
        name: Unique among the blocks that are allocated together; exported, so never a piece of content.
        priority: 1 (never optional) to 9 (cut first); it gives the block its kind, as in the seed's table.
        content: One text; what compaction made of one; or items, each a `BlockItem`, a text, or an event.
        cuttable: Whether it may be cut, compacted or dropped.
        min_tokens: The floor below which it is useless: so many tokens are reserved for it before any block of higher
            priority may take them; where there is not even room for that, it is dropped, reason ``below_floor``.
        rank: Among blocks of one priority, 1 for the best.
        cut: How it gives way; by default as its priority's row in the table says.
        stable: Whether it is the same on every turn and belongs to the cacheable prefix (few-shot examples); by default
            instructions and schemas do.
        separator: Stands between its items.
        restated: The key instruction, said once more at the end of this block: for the query, which comes last.

    Raises:
        ConfigurationError: Something cannot work; the message names the block.
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
    #: Sorts blocks as they are decided: by priority, then rank, then name; so that no tie is left to chance.
    order: str = field(init=False, repr=False, compare=False)
    kind: EventKind = field(init=False, repr=False, compare=False)
    #: Whether its content is one text as it stands: what the allocator meets most often.
    plain: bool = field(init=False, repr=False, compare=False)
    #: Whether some of its items are events, each with a message of its own.
    eventful: bool = field(init=False, repr=False, compare=False)
    #: Whether it holds turns of the conversation: none of them stays if a newer one is dropped, also of another block.
    holds_turns: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"a block needs a name, got {name!r}")
        try:
            name.encode()
        except UnicodeEncodeError:  # an exporter would lose the whole batch over it
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
            raise self._wrong("what it restates must be a text", type(self.restated).__name__)
        derive = object.__setattr__
        derive(self, "kind", KINDS[self.priority - 1])
        derive(self, "holds_turns", self.kind in _TURNS)
        derive(self, "cut", self._cut())
        derive(self, "stable", self.priority <= _STABLE_PRIORITIES if self.stable is None else self.stable)
        rank = _UNRANKED if self.rank is None else min(self.rank, _UNRANKED)
        derive(self, "order", f"{self.priority}{rank:09d}{self.name}")
        derive(self, "content", self._read())
        derive(self, "plain", isinstance(self.content, str) and not self.restated)
        derive(self, "eventful", isinstance(self.content, tuple) and not all(map(_is_text, self.content)))

    def _wrong(self, what: str, value: object) -> ConfigurationError:
        return ConfigurationError(f"block {self.name!r}: {what}, got {value!r}")

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
        """What it holds, one by one; a block that is one text holds one item."""
        content = self.content
        if isinstance(content, tuple):
            return content
        if isinstance(content, CompactedBlock):
            return (BlockItem(content),) if content.summary else ()
        return (BlockItem(content),) if content else ()

    @property
    def lossy(self) -> bool:
        """Whether some of it is what compaction made of a longer text: not to be trusted word by word."""
        return any(isinstance(item.content, CompactedBlock) and item.content.lossy for item in self.items)

    def holding(self, content: Content) -> Self:
        """This block with other content."""
        return replace(self, content=content)
