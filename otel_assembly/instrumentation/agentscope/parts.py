"""The parts of a conversation, read once each, also where every turn brings fresh objects of its messages.

A message grows while its reply goes on, its blocks are changed in place, and a session that is loaded again has a copy
of all of them. So what was read of a block holds for as long as the block says the same. Messages that are what they
were, to the last block, are passed over at the speed of comparing lists.
"""

from __future__ import annotations

from itertools import accumulate, chain, compress, count
from operator import attrgetter, ne
from typing import TYPE_CHECKING, Any, Final

from agentscope.message import DataBlock, HintBlock, TextBlock, ThinkingBlock, ToolCallBlock, ToolResultBlock

from otel_assembly._internal.forks import new_lock
from otel_assembly.instrumentation.agentscope.messages import Part, part_of, summary_part
from otel_assembly.messages.content_snapshot import contents, copied, equal, read_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agentscope.message import Msg

    from otel_assembly.messages.describe import EventFacts

    #: How a message falls into parts: the blocks of each, and whether it is a message of its own.
    Split = Callable[[Msg], Iterable[tuple[tuple[Any, ...], bool]]]

read_from(Part, "facts")
read_from(TextBlock, "text")
read_from(ThinkingBlock, "thinking")
read_from(HintBlock, "hint")
read_from(DataBlock, "source")
read_from(ToolCallBlock, "id", "name", "input", "state")
read_from(ToolResultBlock, "id", "output")

_ID: Final = attrgetter("id")
_CONTENT: Final = attrgetter("content")


class _PlacedPart(Part):
    """A part whose message and blocks are those that the conversation brought last.

    Attributes:
        key: What finds it again, in a copy of its message too.
        said: What each of its blocks said when it was read.
    """

    __slots__ = ("_at", "_messages", "_start", "_stop", "key", "said")

    def __init__(
        self, messages: list[Msg], at: int, place: tuple[int, int], key: Any, said: Sequence[Any], facts: EventFacts
    ) -> None:
        self._messages = messages
        self._at = at
        self._start, self._stop = place
        self.key = key
        self.said = said
        self.facts = facts

    def stands(self, messages: list[Msg], at: int) -> bool:
        """Whether it is a part of the message at this place of a list."""
        return self._messages is messages and self._at == at

    @property
    def message(self) -> Msg:  # type: ignore[override]  # nobody sets it
        return self._messages[self._at]

    @property
    def blocks(self) -> tuple[Any, ...]:  # type: ignore[override]  # as above
        return tuple(self.message.content[self._start : self._stop])


class Parts:
    """The parts of one conversation.

    Args:
        split: How a message falls into parts.
    """

    def __init__(self, split: Split) -> None:
        self._split = split
        self._lock = new_lock(self._begin)
        self._begin()

    def _begin(self) -> None:
        #: The messages of the last turn; parts refer to them through this list.
        self._messages: list[Msg] = []
        self._ids: list[str] = []
        self._sizes: list[int] = []
        #: Of each block its type, and what it said.
        self._types: list[type] = []
        self._said: list[Any] = []
        self._parts: list[_PlacedPart] = []
        #: How many parts there are up to and including each message.
        self._ends: list[int] = []
        self._summary: tuple[Any, Part] | None = None

    def of(self, messages: Iterable[Msg], summary: str | Sequence[Any] = "") -> list[Part]:
        """The parts of these messages, behind the summary that is sent in front of them."""
        with self._lock:
            self._read_on(list(messages))
            return [self._summed(summary), *self._parts] if summary else list(self._parts)

    def _summed(self, summary: str | Sequence[Any]) -> Part:
        if self._summary is None or not equal(self._summary[0], summary):
            self._summary = copied(summary), summary_part(summary)
        return self._summary[1]

    def _read_on(self, messages: list[Msg]) -> None:
        """Keep the parts of messages that are what they were; look at the blocks of the others one by one."""
        blocks = list(chain.from_iterable(map(_CONTENT, messages)))
        ids, sizes = list(map(_ID, messages)), list(map(len, map(_CONTENT, messages)))
        types, said = list(map(type, blocks)), contents(blocks)
        same = min(_common(self._ids, ids), _common(self._sizes, sizes))
        ends = list(accumulate(sizes[:same]))
        alike = min(_common(self._types, types), _common(self._said, said))
        while same and ends[same - 1] > alike:
            same -= 1
        kept_parts, kept_blocks = (self._ends[same - 1], ends[same - 1]) if same else (0, 0)
        known = {part.key: part for part in self._parts[kept_parts:]}
        if same:
            self._messages[:] = messages
        else:
            self._messages = messages
        del self._parts[kept_parts:], self._ends[same:]
        del self._said[kept_blocks:]
        self._said += copied(list(said[kept_blocks:]))
        self._ids, self._sizes, self._types = ids, sizes, types
        for at in range(same, len(messages)):
            kept_blocks = self._take(at, kept_blocks, known)
            self._ends.append(len(self._parts))

    def _take(self, at: int, first: int, known: dict[Any, _PlacedPart]) -> int:
        """Put the parts of one message behind the others; where its blocks end, among those of all, is returned."""
        message, start = self._messages[at], 0
        for blocks, framed in self._split(message):
            stop = start + len(blocks)
            key = message.id, start, framed, *self._types[first + start : first + stop]
            said = self._said[first + start : first + stop]
            held = known.get(key)
            if held is None or not equal(held.said, said):
                facts = part_of(message, blocks, framed=framed).facts
                held = _PlacedPart(self._messages, at, (start, stop), key, said, facts)
            elif not held.stands(self._messages, at):
                held = _PlacedPart(self._messages, at, (start, stop), key, said, held.facts)
            self._parts.append(held)
            start = stop
        return first + start


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many both begin with."""
    shorter = min(len(one), len(other))
    if equal(one[:shorter], other[:shorter]):
        return shorter
    return next(compress(count(), map(ne, one, other)), shorter)
