"""`View`: a part of a `History`, as intervals over its columns; slicing, filtering and cutting copy nothing.

A *column* lists positions of a history in order: all of them, or those of one class of event, kept as events arrive. A
filter over a hundred thousand events is therefore one interval, and what it left out is another.

An interval is a *run* of whole numbers, ``(start, stop)`` without its stop. Where a function takes or returns several
runs, they are ascending and disjoint, and none is empty, if it says nothing else. Each looks only at the runs that it
needs, found by bisection, so that the cost is that of the answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from itertools import accumulate, chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

if TYPE_CHECKING:
    from array import array

    from otel_assembly.history.history import History

Run: TypeAlias = tuple[int, int]

#: Positions of a column are copied so many at a time, so that who stops early has not copied them all.
_CHUNK: Final = 64
#: Who is shown each event that this task reads from a view, and hands it on; None for nobody.
reader: Final[ContextVar[Callable[[Any], Any] | None]] = ContextVar("otel_assembly_reader", default=None)
_START: Final = itemgetter(0)
_STOP: Final = itemgetter(1)


def to_runs(numbers: Iterable[int]) -> list[Run]:
    """Numbers in their order, as runs: each run goes on for as long as the next number is one more than the last."""
    runs: list[Run] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def merged(runs: Iterable[Run]) -> list[Run]:
    """Runs in any order, which may be empty, touch or overlap, as ascending and disjoint ones that do not touch."""
    made: list[Run] = []
    for start, stop in sorted(runs):
        if start >= stop:
            continue
        if made and made[-1][1] >= start:
            made[-1] = (made[-1][0], max(stop, made[-1][1]))
        else:
            made.append((start, stop))
    return made


def is_in(runs: Sequence[Run], number: int) -> bool:
    """Whether a number is in one of the runs."""
    place = bisect_right(runs, number, key=_START) - 1
    return place >= 0 and number < runs[place][1]


def intersection(runs: Sequence[Run], other: Sequence[Run]) -> list[Run]:
    """What two lists of runs have in common."""
    found: list[Run] = []
    place = bisect_right(other, runs[0][0], key=_STOP) if runs else 0
    for start, stop in runs:
        while place < len(other) and other[place][1] <= start:
            place += 1
        at = place
        while at < len(other) and other[at][0] < stop:
            found.append((max(start, other[at][0]), min(stop, other[at][1])))
            at += 1
    return found


def difference(runs: Sequence[Run], other: Sequence[Run]) -> list[Run]:
    """What is in the runs and not in the other ones."""
    left: list[Run] = []
    place = bisect_right(other, runs[0][0], key=_STOP) if runs else 0
    for start, stop in runs:
        at = start
        while place < len(other) and other[place][0] < stop:
            low, high = other[place]
            if at < low:
                left.append((at, low))
            at = max(at, high)
            if high > stop:  # it may go on into the next run
                break
            place += 1
        if at < stop:
            left.append((at, stop))
    return left


def complement(length: int, runs: Sequence[Run]) -> list[Run]:
    """What runs leave of ``[0, length)``."""
    return difference([(0, length)], runs)


class Column:
    """Every position of a history."""

    __slots__ = ("__weakref__", "division", "history", "outdated", "seen")

    def __init__(self, history: History) -> None:
        self.history = history
        #: Which column this one is a part of, and an object that all parts of that division share. No position is in
        #: two parts of one division.
        self.division: tuple[Column, object] | None = None
        #: Whether a view is made of it, so that what stands in it stays there.
        self.seen = False
        #: Where another column goes on with its class: how many items had gone over by then; −1 for any other.
        self.outdated = -1

    def __len__(self) -> int:
        return len(self.history.events)

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """The positions at indexes ``start`` to ``stop``."""
        return range(start, stop)

    def position(self, index: int) -> int:
        """The position at one index."""
        return index

    def index(self, position: int) -> int:
        """The index at which a position stands or would stand."""
        return position

    def start_of_run(self, start: int, stop: int) -> int:
        """From which index on, `start` at least, the positions up to an index follow one another."""
        return start

    def renewed(self, start: int, stop: int) -> Iterator[Segment]:
        """The items of a segment over the classes as they are now, in order."""
        yield self, start, stop

    def is_disjoint_from(self, other: Column) -> bool:
        """Return True if it is known that no position is in both columns."""
        parts = {id(division): part for part, division in _divisions(self)}
        return any(parts.get(id(division), part) is not part for part, division in _divisions(other))

    def runs_within(self, other: Column, start: int, stop: int) -> Iterable[Run]:
        """Return the indexes of this column whose positions indexes `start` to `stop` of another column have too."""
        if other is self:
            return ((start, stop),)
        if type(other) is Column:
            return ((self.index(start), self.index(stop)),)
        if other.is_disjoint_from(self):
            return ()
        places = ((self.index(position), position) for position in other.positions(start, stop))
        return to_runs(at for at, position in places if at < len(self) and self.position(at) == position)


def _divisions(column: Column) -> Iterator[tuple[Column, object]]:
    """The parts that a column is in, from the inside out, each with its division.

    Where an item goes over to another class, the outdated class is no part of the division any more.
    """
    while column.division is not None:
        whole, division = column.division
        if column.outdated < 0:
            yield column, division
        column = whole


class PositionColumn(Column):
    """The positions that a class of events has; ascending.

    Args:
        history: Whose.
        held: The positions.
        place: Which of the classes that each item is in one of; −1 for any other.
    """

    __slots__ = ("held", "place")

    def __init__(self, history: History, held: array[int], place: int = -1) -> None:
        super().__init__(history)
        self.held = held
        self.place = place

    def __len__(self) -> int:
        return len(self.held)

    def positions(self, start: int, stop: int) -> Sequence[int]:
        return self.held[start:stop]

    def position(self, index: int) -> int:
        return self.held[index]

    def index(self, position: int) -> int:
        return bisect_left(self.held, position)

    def start_of_run(self, start: int, stop: int) -> int:
        held, at, step = self.held, stop - 1, 1
        ahead = held[at] - at
        while at - step >= start and held[at - step] - at + step == ahead:
            at, step = at - step, 2 * step
        while step := step // 2:
            if at - step >= start and held[at - step] - at + step == ahead:
                at -= step
        return at


Segment: TypeAlias = tuple[Column, int, int]


class View(Sequence[Any]):
    """An immutable sequence of a history's events, in their order there; the very objects.

    Attributes:
        history: Whose events these are.
        segments: Which of them: a column, and the indexes there.
        is_slice: Whether it was cut out with no regard to what belongs together: a call may be in it, and its result
            not.
        end: One past the newest position.
    """

    __slots__ = ("_length", "_places", "end", "history", "is_slice", "segments")

    def __init__(self, history: History, segments: Iterable[Segment], *, is_slice: bool = False) -> None:
        self.history = history
        self.is_slice = is_slice
        held: list[Segment] = []
        length = end = 0
        for segment in segments:
            column, start, stop = segment
            if start < stop:
                held.append(segment)
                length += stop - start
                column.seen = True
                end = stop if type(column) is Column else column.position(stop - 1) + 1
        self.segments = tuple(held)
        self._length = length
        self.end = end
        self._places: tuple[list[int], list[int]] | None = None

    def _starts(self) -> tuple[list[int], list[int]]:
        """Of each segment, the index and the position of its first item."""
        if self._places is None:
            lengths = (stop - start for _, start, stop in self.segments)
            firsts = [column.position(start) for column, start, _ in self.segments]
            self._places = [0, *accumulate(lengths)][:-1], firsts
        return self._places

    @property
    def current(self) -> Sequence[Segment]:
        """The same items over the columns as they are now, to be compared with other views of the history."""
        segments = self.segments
        for column, _, _ in segments:
            if column.outdated >= 0:
                break
        else:
            return segments
        current: list[Segment] = []
        with self.history.lock:
            for segment in segments:
                for renewed in segment[0].renewed(*segment[1:]):
                    renewed[0].seen = True
                    _extend(current, renewed)
        return tuple(current)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        found, read = map(self.history.events.__getitem__, self.positions()), reader.get()
        return found if read is None else map(read, found)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self.pick([(start, stop)]) if step == 1 else [self[i] for i in range(start, stop, step)]
        if index < 0:
            index += self._length
        event, read = self.history.events[self.position(index)], reader.get()
        return event if read is None else read(event)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a sequence that compares by its items has no hash

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        """The events with others behind them, as a list."""
        return [*self, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        """The events with others in front of them, as a list."""
        return [*other, *self]

    def __repr__(self) -> str:
        return f"View({len(self)} of {len(self.history)} events)"

    def position(self, index: int) -> int:
        """The position in the history of the view's item at `index`."""
        if not 0 <= index < self._length:
            raise IndexError(index)
        if len(self.segments) == 1:
            column, start, _ = self.segments[0]
            return column.position(start + index)
        indexes, _ = self._starts()
        place = bisect_right(indexes, index) - 1
        column, start, _ = self.segments[place]
        return column.position(start + index - indexes[place])

    def positions(self) -> Iterator[int]:
        """Positions of all items, in order."""
        return chain.from_iterable(
            column.positions(lower, min(lower + _CHUNK, stop))
            for column, start, stop in self.segments
            for lower in range(start, stop, _CHUNK)
        )

    def backward(self) -> Iterator[int]:
        """Positions from the newest item, on demand."""
        return chain.from_iterable(
            reversed(column.positions(max(start, upper - _CHUNK), upper))
            for column, start, stop in reversed(self.segments)
            for upper in range(stop, start, -_CHUNK)
        )

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The index of the first item that is, or else equals, `value`."""
        return list(self).index(value, start, self._length if stop is None else stop)

    def index_of(self, position: int) -> int:
        """The view's index of a position of the history; −1 where it is not in the view."""
        if len(self.segments) == 1:
            column, start, stop = self.segments[0]
            if type(column) is Column:
                return position - start if start <= position < stop else -1
            index = column.index(position)
            return index - start if start <= index < stop and column.position(index) == position else -1
        indexes, firsts = self._starts()
        place = bisect_right(firsts, position) - 1
        if place < 0:
            return -1
        column, start, stop = self.segments[place]
        index = column.index(position)
        held = index < stop and column.position(index) == position
        return indexes[place] + index - start if held else -1

    def holds(self, position: int) -> bool:
        """Whether a position of the history is in this view."""
        return self.index_of(position) >= 0

    @property
    def whole(self) -> bool:
        """Whether this is all of the history, as long as it was when the view was made."""
        return not self.segments or (
            len(self.segments) == 1 and type(self.segments[0][0]) is Column and self.segments[0][1] == 0
        )

    def pick(self, runs: Iterable[Run]) -> View:
        """The part of this view that runs ``[start, stop)`` of its own indexes name, ascending and disjoint."""
        segments: list[Segment] = []
        if len(self.segments) == 1:
            column, low, high = self.segments[0]
            for start, stop in runs:
                _extend(segments, (column, low + start, min(low + stop, high)))
            return self._cut_out(segments)
        indexes, _ = self._starts()
        for start, stop in runs:
            place = bisect_right(indexes, start) - 1
            while start < min(stop, self._length):
                column, low, high = self.segments[place]
                first = low + start - indexes[place]
                last = min(high, first + stop - start)
                _extend(segments, (column, first, last))
                start += last - first
                place += 1
        return self._cut_out(segments)

    def _cut_out(self, segments: Sequence[Segment]) -> View:
        part = View(self.history, segments, is_slice=self.is_slice)
        part.is_slice |= part._length < self._length
        return part

    def mended(self) -> View:
        """The same view, said to hold no half of a pair: for whoever cut it out and has taken out what that parted."""
        return View(self.history, self.segments)

    def beyond(self, other: View) -> View | None:
        """As `minus`, where both are one interval of one column; None where they are not."""
        mine, theirs = self.current, other.current
        if len(mine) != 1 or len(theirs) != 1:
            return None
        (column, start, stop), (another, low, high) = *mine, *theirs
        if column is not another:
            return None
        left = [(column, start, min(stop, low)), (column, max(start, high), stop)]
        return View(self.history, left if low < stop and start < high else mine)

    def minus(self, other: View) -> View:
        """The part of this view that is not in another one of the same history.

        It costs what the intervals of both are. Where two of their columns overlap, it costs as much as the other
        view has items in that column.
        """
        view = self.beyond(other)
        if view is not None:
            view.is_slice = self.is_slice or len(view) < self._length
            return view
        mine, theirs = self.current, other.current
        held = {
            column: merged(chain.from_iterable(column.runs_within(*segment) for segment in theirs))
            for column in {column for column, _, _ in mine}
        }
        segments: list[Segment] = []
        for column, start, stop in mine:
            segments += ((column, low, high) for low, high in difference([(start, stop)], held[column]))
        return self._cut_out(segments)

    def newest_run(self) -> tuple[int, View]:
        """Return the position from which on the newest events follow one another, and the view in front of it."""
        column, start, stop = self.segments[-1]
        first = column.start_of_run(start, stop)
        return column.position(first), self.pick([(0, len(self) - (stop - first))])

    def shared_with(self, other: View) -> int:
        """How many items it begins with at the same positions as another view, as far as their intervals tell.

        Args:
            other: A view of the same history.
        """
        count = 0
        for (column, start, stop), (its, low, high) in zip(self.current, other.current, strict=False):
            if column is not its or start != low:
                break
            count += min(stop, high) - start
            if stop != high:
                break
        return count

    def pick_positions(self, positions: Iterable[int]) -> View:
        """The part of this view at these positions of its history, in the view's order."""
        indexes = sorted(index for position in positions if (index := self.index_of(position)) >= 0)
        return self.pick(to_runs(indexes))


def _extend(segments: list[Segment], segment: Segment) -> None:
    if segments:
        column, start, stop = segments[-1]
        if column is segment[0] and stop == segment[1]:
            segments[-1] = (column, start, segment[2])
            return
    segments.append(segment)


def runs_of(view: View) -> list[Run]:
    """A view's positions, as runs."""
    if all(type(column) is Column for column, _, _ in view.segments):
        return [(start, stop) for _, start, stop in view.segments]
    return to_runs(view.positions())
