"""`View`: a part of a `History`, as intervals over its columns; slicing, filtering and cutting copy nothing.

A *column* lists positions of a history in order: all of them, or those of one class of event, kept as events arrive. A
filter over a hundred thousand events is therefore one interval, and what it left out is another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from otel_assembly.history import History

Run = tuple[int, int]


class Column:
    """Every position of a history."""

    __slots__ = ("history",)

    def __init__(self, history: History) -> None:
        self.history = history

    def __len__(self) -> int:
        return len(self.history)

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """The positions at indexes ``start`` to ``stop``."""
        return range(start, stop)

    def position(self, index: int) -> int:
        """The position at one index."""
        return index

    def index(self, position: int) -> int:
        """The index at which a position stands or would stand."""
        return position


class PositionColumn(Column):
    """The positions that a class of events has; ascending."""

    __slots__ = ("held",)

    def __init__(self, history: History, held: Sequence[int]) -> None:
        super().__init__(history)
        self.held = held

    def __len__(self) -> int:
        return len(self.held)

    def positions(self, start: int, stop: int) -> Sequence[int]:
        return self.held[start:stop]

    def position(self, index: int) -> int:
        return self.held[index]

    def index(self, position: int) -> int:
        return bisect_left(self.held, position)


Segment = tuple[Column, int, int]


class View(Sequence[Any]):
    """An immutable sequence of a history's events, in order; the very objects."""

    __slots__ = ("_length", "history", "segments")

    def __init__(self, history: History, segments: Iterable[Segment]) -> None:
        self.history = history
        self.segments = tuple(segment for segment in segments if segment[1] < segment[2])
        self._length = sum(stop - start for _, start, stop in self.segments)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        event = self.history.event
        return (event(position) for position in self.positions())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step != 1:
                return [self[i] for i in range(start, stop, step)]
            return self.pick([(start, stop)])
        if index < 0:
            index += self._length
        return self.history.event(self.position(index))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a sequence that compares by its items has no hash

    def __repr__(self) -> str:
        return f"View({len(self)} of {len(self.history)} events)"

    def position(self, index: int) -> int:
        """The position in the history of the view's item at `index`."""
        if 0 <= index < self._length:
            for column, start, stop in self.segments:
                if index < stop - start:
                    return column.position(start + index)
                index -= stop - start
        raise IndexError(index)

    def positions(self) -> Iterator[int]:
        """Positions of all items, in order."""
        for column, start, stop in self.segments:
            yield from column.positions(start, stop)

    def backward(self) -> Iterator[int]:
        """Positions from the newest item, on demand."""
        for column, start, stop in reversed(self.segments):
            for upper in range(stop, start, -256):
                yield from reversed(column.positions(max(start, upper - 256), upper))

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The index of the first item that is, or else equals, `value`."""
        return list(self).index(value, start, self._length if stop is None else stop)

    def index_of(self, position: int) -> int:
        """The view's index of a position of the history; −1 where it is not in the view."""
        before = 0
        for column, start, stop in self.segments:
            index = column.index(position)
            if start <= index < stop and column.position(index) == position:
                return before + index - start
            before += stop - start
        return -1

    def holds(self, position: int) -> bool:
        """Whether a position of the history is in this view."""
        return self.index_of(position) >= 0

    @property
    def end(self) -> int:
        """One past the newest position."""
        return self.position(self._length - 1) + 1 if self._length else 0

    @property
    def whole(self) -> bool:
        """Whether this is all of the history, as long as it was when the view was made."""
        return not self.segments or (
            len(self.segments) == 1 and type(self.segments[0][0]) is Column and self.segments[0][1] == 0
        )

    def pick(self, runs: Iterable[Run]) -> View:
        """The part of this view that runs ``[start, stop)`` of its own indexes name, ascending and disjoint."""
        segments: list[Segment] = []
        pieces = iter(self.segments)
        piece = next(pieces, None)
        before = 0
        for start, stop in runs:
            while piece is not None and start < stop:
                column, low, high = piece
                length = high - low
                if start >= before + length:
                    before += length
                    piece = next(pieces, None)
                    continue
                upto = min(stop, before + length)
                _extend(segments, (column, low + start - before, low + upto - before))
                start = upto
        return View(self.history, segments)

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


def to_runs(indexes: Iterable[int]) -> list[Run]:
    """Ascending indexes as runs ``[start, stop)``."""
    runs: list[Run] = []
    for index in indexes:
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def without(length: int, runs: Iterable[Run]) -> list[Run]:
    """What ascending, disjoint runs leave of ``[0, length)``."""
    left: list[Run] = []
    at = 0
    for start, stop in runs:
        if at < start:
            left.append((at, start))
        at = max(at, stop)
    if at < length:
        left.append((at, length))
    return left
