"""`View`: some events of a `History`, as ranges of one of its columns; slicing and cutting copy no event.

A *column* is a growing list of positions in a history: of all events, or of the events of one class. Each column lists
its positions once, as events arrive. So a filter over a hundred thousand events is one range of a column.

A *range* of whole numbers is a pair ``(start, stop)``, which excludes its stop. Functions that take or return several
ranges expect them ascending, disjoint and not empty, except where documented.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import accumulate, chain, compress, count, groupby, starmap
from operator import itemgetter, ne, sub
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

if TYPE_CHECKING:
    from otel_assembly.history.history import History

Range: TypeAlias = tuple[int, int]

#: A function that receives and returns each event that the current task reads from a view; None: no function.
reader: Final[ContextVar[Callable[[Any], Any] | None]] = ContextVar("otel_assembly_reader", default=None)
_START: Final = itemgetter(0)
_STOP: Final = itemgetter(1)


def to_ranges(numbers: Iterable[int]) -> list[Range]:
    """Return numbers as ranges, in their order. A range ends where the next number is not one more."""
    ranges, index = list[Range](), 0
    for offset, group in groupby(map(sub, numbers, count())):  # within a range, number and index differ by the same
        stop = index + len(tuple(group))
        ranges.append((index + offset, stop + offset))
        index = stop
    return ranges


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return ascending ranges with gaps between them; `ranges` may be unordered, empty, adjacent or overlapping."""
    result: list[Range] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if result and result[-1][1] >= start:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return result


def is_in(ranges: Sequence[Range], number: int) -> bool:
    """Return True if a number is in one of the ranges."""
    place = bisect_right(ranges, number, key=_START) - 1
    return place >= 0 and number < ranges[place][1]


def intersection(first: Sequence[Range], second: Sequence[Range]) -> list[Range]:
    """Return the numbers that are in both lists of ranges."""
    return difference(first, difference(first, second))


def difference(first: Sequence[Range], second: Sequence[Range]) -> list[Range]:
    """Return the numbers that are in the first list of ranges and not in the second."""
    result: list[Range] = []
    place = bisect_right(second, first[0][0], key=_STOP) if first else 0
    for start, stop in first:
        at = start
        while place < len(second) and second[place][0] < stop:
            low, high = second[place]
            if at < low:
                result.append((at, low))
            at = max(at, high)
            if high > stop:  # it may extend into the next range
                break
            place += 1
        if at < stop:
            result.append((at, stop))
    return result


class Column:
    """Ascending positions of a history's events: of all, or of one class. It grows with the history.

    Attributes:
        positions: The positions.
        is_current: False if another column replaced this one, because events changed their class.
    """

    __slots__ = ("__weakref__", "is_current", "positions")

    def __init__(self, positions: Iterable[int] = ()) -> None:
        self.positions = array("I", positions)
        self.is_current = True

    def __len__(self) -> int:
        return len(self.positions)

    def index(self, position: int) -> int:
        """Return the index of a position, or the index at which it would be inserted."""
        positions = self.positions
        if position < len(positions) and positions[position] == position:
            return position  # the column has all positions before it
        return bisect_left(positions, position, 0, min(position, len(positions)))

    def start_of_range(self, start: int, stop: int) -> int:
        """Return the first index, `start` or later, from which on positions follow one another up to index `stop`."""
        positions, index, step = self.positions, stop - 1, 1
        offset = positions[index] - index  # the same for all indexes of the range
        while index - step >= start and positions[index - step] - index + step == offset:
            index, step = index - step, 2 * step
        while step := step // 2:
            if index - step >= start and positions[index - step] - index + step == offset:
                index -= step
        return index


#: The positions of the longest history for which `ascending` was called.
_ASCENDING: Final = Column()


def ascending(length: int) -> Column:
    """Return a column of the first `length` positions, copied in one step."""
    if len(_ASCENDING) < length:
        _ASCENDING.positions.extend(range(len(_ASCENDING), length))
    column = Column()
    column.positions = _ASCENDING.positions[:length]
    return column


class EventSequence(Sequence[Any]):
    """A sequence of events that `+` concatenates with other events to a list."""

    __slots__ = ()

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        return [*other, *self]


class View(EventSequence):
    """An immutable sequence of events of a history, in their order there. It returns the objects themselves.

    Attributes:
        history: The history.
        column: The column whose positions the view has.
        ranges: Which indexes of the column.
        is_slice: Whether the view was cut without regard to tool pairs: it may have a call without its result.
        end: One past the newest position; 0 if the view is empty.
        length: The number of events.
    """

    __slots__ = ("_starts", "column", "end", "history", "is_slice", "length", "ranges")

    def __init__(self, history: History, column: Column, ranges: Sequence[Range], *, is_slice: bool = False) -> None:
        self.history = history
        self.column = column
        self.ranges = ranges
        self.is_slice = is_slice
        if len(ranges) == 1:
            start, stop = ranges[0]
            self.length = stop - start
        else:
            self.length = sum([stop - start for start, stop in ranges]) if ranges else 0
        self.end = column.positions[ranges[-1][1] - 1] + 1 if ranges else 0
        self._starts: list[int] | None = None

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        events, read = map(self.history.events.__getitem__, self.positions()), reader.get()
        return events if read is None else map(read, events)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(self.length)
            return self.part(start, stop) if step == 1 else [self[i] for i in range(start, stop, step)]
        if index < 0:
            index += self.length
        event, read = self.history.events[self.position(index)], reader.get()
        return event if read is None else read(event)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(left == right for left, right in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a sequence that compares by its items has no hash

    def __repr__(self) -> str:
        return f"View({len(self)} of {len(self.history)} events)"

    def _range_starts(self) -> list[int]:
        """Return the view's index of the first item of each range."""
        if self._starts is None:
            self._starts = [0, *accumulate([stop - start for start, stop in self.ranges])][:-1]
        return self._starts

    def position(self, index: int) -> int:
        """Return the position in the history of the view's item at `index`."""
        if not 0 <= index < self.length:
            raise IndexError(index)
        if len(self.ranges) == 1:
            return self.column.positions[self.ranges[0][0] + index]
        starts = self._range_starts()
        place = bisect_right(starts, index) - 1
        return self.column.positions[self.ranges[place][0] + index - starts[place]]

    def positions(self) -> Iterator[int]:
        """Return the positions of all items, in order."""
        return map(self.column.positions.__getitem__, chain.from_iterable(starmap(range, self.ranges)))

    def select(self, items: Sequence[Any]) -> list[Any]:
        """Return the entries at this view's positions, of a list with one entry per position of the history."""
        positions, found = self.column.positions, list[Any]()
        for start, stop in self.ranges:
            first, last = positions[start], positions[stop - 1]
            are_consecutive = last - first == stop - 1 - start
            found += items[first : last + 1] if are_consecutive else map(items.__getitem__, positions[start:stop])
        return found

    def backward(self) -> Iterator[int]:
        """Return the positions of all items, from the newest on."""
        indexes = chain.from_iterable(map(reversed, starmap(range, reversed(self.ranges))))
        return map(self.column.positions.__getitem__, indexes)

    def index_of(self, position: int) -> int:
        """Return the view's index of a position of the history; −1 if the view does not have it."""
        if position >= self.end:
            return -1
        positions, ranges = self.column.positions, self.ranges
        if position < len(positions) and positions[position] == position:  # the column has all positions before it
            index = position
        else:
            index = bisect_left(positions, position, 0, min(position, len(positions)))
            if positions[index] != position:
                return -1
        if len(ranges) == 1:
            start, stop = ranges[0]
            return index - start if start <= index < stop else -1
        place = bisect_right(ranges, index, key=_START) - 1
        if place < 0 or index >= ranges[place][1]:
            return -1
        return self._range_starts()[place] + index - ranges[place][0]

    def holds(self, position: int) -> bool:
        """Return True if the view has a position of the history."""
        return self.index_of(position) >= 0

    @property
    def whole(self) -> bool:
        """Return True if this is the whole history, as long as it was when the view was created, or an empty view."""
        return not self.ranges or (self.column is self.history.all and len(self.ranges) == 1 and self.ranges[0][0] == 0)

    def part(self, start: int, stop: int) -> View:
        """Return the part of this view from the index `start` to before the index `stop`."""
        if len(self.ranges) != 1:
            return self.pick([(start, stop)])
        low, high = self.ranges[0]
        first, end = low + start, min(low + stop, high)
        is_slice = self.is_slice or end - first < self.length
        return View(self.history, self.column, [(first, end)] if first < end else [], is_slice=is_slice)

    def pick(self, ranges: Iterable[Range], *, is_slice: bool = True) -> View:
        """Return the part of this view at ascending and disjoint ranges of its indexes.

        The part is marked as a slice if it is shorter than this view, or if this view is one. It is not marked if
        `is_slice` is False, because the caller knows that no tool pair is cut.
        """
        starts, found = self._range_starts(), list[Range]()
        for start, stop in ranges:
            place = bisect_right(starts, start) - 1
            while start < min(stop, self.length):
                low, high = self.ranges[place]
                first = low + start - starts[place]
                last = min(high, first + stop - start)
                found.append((first, last))
                start += last - first
                place += 1
        part = View(self.history, self.column, merged(found))
        part.is_slice = is_slice and (self.is_slice or part.length < self.length)
        return part

    def ranges_at(self, positions: Iterable[int]) -> list[Range]:
        """Return the view's indexes of those of the positions that it has, as ranges."""
        return to_ranges(sorted(filter((-1).__lt__, map(self.index_of, positions))))

    def pick_positions(self, positions: Iterable[int]) -> View:
        """Return the part of this view at these positions of its history, in the view's order."""
        return self.pick(self.ranges_at(positions))

    def without(self, positions: Iterable[int]) -> View:
        """Return this view without positions whose removal leaves no half of a tool pair."""
        return self.pick(difference([(0, self.length)], self.ranges_at(positions)), is_slice=False)

    def newest_range(self) -> tuple[int, View]:
        """Return the position from which on the newest events follow one another, and the view before it."""
        start, stop = self.ranges[-1]
        first = self.column.start_of_range(start, stop)
        return self.column.positions[first], self.part(0, self.length - (stop - first))

    def minus(self, view: View) -> View:
        """Return the part of this view that is not in another view; all of it if that has another history.

        Views of one column are compared by their ranges, and views of two classes are disjoint.
        """
        columns = {self.column, view.column}
        if self.history is not view.history or (len(columns) > 1 and columns <= {*self.history.classes}):
            return self
        if self.column is view.column:
            rest = View(self.history, self.column, difference(self.ranges, view.ranges), is_slice=self.is_slice)
            rest.is_slice |= rest.length < self.length
            return rest
        own = {*self.positions()}
        common = own.intersection(view.positions())
        if 2 * len(common) > len(own):
            return self.pick_positions(own - common)
        return self.pick(difference([(0, self.length)], self.ranges_at(common))) if common else self

    def shared_with(self, view: View) -> int:
        """Return how many items two views begin with in common; 0 if they have different histories."""
        if self.history is not view.history:
            return 0
        if self.column is view.column:
            shared = 0
            for (start, stop), (low, high) in zip(self.ranges, view.ranges, strict=False):
                if start != low:
                    break
                shared += min(stop, high) - start
                if stop != high:
                    break
            return shared
        most = min(self.length, view.length)
        return next(compress(count(), map(ne, self.positions(), view.positions())), most)


class EventList(list[Any]):
    """A list of a view's events, for policies whose input is a list. A built-in policy uses the view instead."""

    __slots__ = ("view",)

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.view = view


class Edited(list[Any]):
    """A list of a view's events with new ones inserted at an index, and some replaced; their order is unchanged.

    Args:
        view: The view before the edit.
        index: The index in the view in front of which events are inserted.
        inserted: These events.
        replaced: New events by the position of the event that each replaces.

    Attributes:
        view: The view before the edit.
        positions: The position in the view's history of each event; None for a new event.
    """

    __slots__ = ("positions", "view")

    def __init__(
        self, view: View, index: int, inserted: Sequence[Any], replaced: Mapping[int, Any] | None = None
    ) -> None:
        replaced, events = replaced or {}, view.history.events
        positions = list(view.positions())
        super().__init__(replaced[at] if at in replaced else events[at] for at in positions)
        self[index:index] = inserted
        self.view = view
        self.positions: list[int | None] = [None if at in replaced else at for at in positions]
        self.positions[index:index] = [None] * len(inserted)
