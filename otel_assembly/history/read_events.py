"""Events that contain their facts: the items of blocks, which are laid out again on every turn."""

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
    """An immutable event with known facts.

    Args:
        facts: The facts of the event.
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
            selected: list[Any] = []
            for first, (events, start, stop) in zip(self.starts, self.parts, strict=False):
                selected += events[start + max(0, low - first) : max(start, min(stop, start + high - first))]
            return selected if step == 1 else list(self)[index]
        position = range(len(self))[index]
        part = bisect_right(self.starts, position) - 1
        return self.parts[part][0][self.parts[part][1] + position - self.starts[part]]

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(events[start:stop] for events, start, stop in self.parts)


class ReadHistory(ListHistory):
    """The history of one turn's events, whose columns are computed on the first access to one of them.

    Args:
        events: The events.
    """

    def __init__(self, events: ReadEvents) -> None:
        self.events = cast("list[Any]", events)  # a read-only sequence
        self.all = ascending(len(events))
        self.lock = new_lock(self, ReadHistory._reset_after_fork)
        self.strict = False
        self.of_dicts = False
        #: None, because the next turn does not extend this one: no billed number is compared with counted tokens.
        self.billed = None
        self._tables = {}
        self._last_table: tuple[Any, int, TokenTable | None] = (None, 0, None)

    def __getattr__(self, name: str) -> Any:
        if name not in _COLUMNS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        history = ListHistory(self.events, [event.facts for event in self.events])
        for column, value in vars(history).items():
            vars(self).setdefault(column, value)
        return vars(self)[name]

    def facts(self, position: int) -> EventFacts:
        facts: EventFacts = self.events[position].facts
        return facts

    def _reset_after_fork(self) -> None:
        """Discard the token counts: the process was forked while another thread was counting."""
        self._tables = {}
        self._last_table = (None, 0, None)


#: The attributes of a history, which `ReadHistory` sets on the first access.
_COLUMNS = frozenset(vars(History()))
