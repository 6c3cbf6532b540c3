"""Events that were read when they were made: the items of blocks, which are laid out anew on every turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.history.history import History, ListHistory
from otel_assembly.history.view import ascending
from otel_assembly.messages.event_facts import EventFacts, describe

if TYPE_CHECKING:
    from otel_assembly.history.token_counts import TokenTable


class ReadEvent:
    """An event that says what it says for as long as it lives.

    Args:
        facts: What it says.
    """

    __slots__ = ("facts",)

    def __init__(self, facts: EventFacts) -> None:
        self.facts = facts


@describe.register
def _(event: ReadEvent) -> EventFacts:
    return event.facts


#: Consecutive events of a list that only grows: the list, the index of the first event, and the index after the last.
Part: TypeAlias = tuple[list[Any], int, int]


class ReadEvents(Sequence[Any]):
    """The read events of one turn, as parts of lists; a long conversation is not copied on each turn.

    Args:
        parts: The parts, none of which is empty.

    Attributes:
        parts: The parts.
        starts: The index of each part's first event, and the number of events.
    """

    __slots__ = ("parts", "starts")

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self.parts = parts
        self.starts = [0, *accumulate(stop - start for _, start, stop in parts)]

    def __len__(self) -> int:
        return self.starts[-1]

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            low, high, step = index.indices(len(self))
            found: list[Any] = []
            for first, (events, start, stop) in zip(self.starts, self.parts, strict=False):
                found += events[start + max(0, low - first) : max(start, min(stop, start + high - first))]
            return found if step == 1 else list(self)[index]
        position = range(len(self))[index]
        part = bisect_right(self.starts, position) - 1
        return self.parts[part][0][self.parts[part][1] + position - self.starts[part]]

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(events[start:stop] for events, start, stop in self.parts)


class ReadHistory(ListHistory):
    """The history of one turn's events, which reads its columns once somebody asks for one.

    Args:
        events: The events.
    """

    def __init__(self, events: ReadEvents) -> None:
        self.events = cast("list[Any]", events)  # which is only read
        self.all = ascending(len(events))
        self.lock = new_lock(self, ReadHistory._read_again)
        self.strict = False
        self.of_dicts = False
        #: Of no assembly's events the next one's go on from, so that no bill is compared with what was counted.
        self.billed = None
        self._tables = {}
        self._last_table: tuple[Any, int, TokenTable | None] = (None, 0, None)

    def __getattr__(self, name: str) -> Any:
        if name not in _COLUMNS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        read = ListHistory(self.events, [event.facts for event in self.events])
        for column, held in vars(read).items():
            vars(self).setdefault(column, held)
        return vars(self)[name]

    def facts(self, position: int) -> EventFacts:
        facts: EventFacts = self.events[position].facts
        return facts

    def _read_again(self) -> None:
        """A fork caught another thread while it was counting here."""
        self._tables = {}
        self._last_table = (None, 0, None)


#: What is read of a history's events beside them.
_COLUMNS = frozenset(vars(History()))
