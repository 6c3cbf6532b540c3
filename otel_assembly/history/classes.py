"""The classes that each item of a history is in one of, as columns; what becomes of a view where an item goes over.

An item goes over to another class where a tool call is given up, or is answered after all. That is rare: views that are
made of either class stay as they are, and the history goes on with other columns.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from otel_assembly.history.view import PositionColumn, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class ClassColumn(PositionColumn):
    """The positions of one of the classes that each item is in one of; an item may go over to another class."""

    __slots__ = ()

    def holds(self, position: int) -> bool:
        """Whether an item is in this class."""
        index = bisect_left(self.held, position)
        return index < len(self.held) and self.held[index] == position

    def edited(self, gone: Iterable[int], came: Iterable[int]) -> ClassColumn:
        """The class without some items and with others: this column, or a new one where a view is made of it."""
        column = ClassColumn(self.history, self.held[:], self.place) if self.seen else self
        column.division = self.division
        for position in gone:
            del column.held[bisect_left(column.held, position)]
        for position in came:
            column.held.insert(bisect_left(column.held, position), position)
        return column

    def renewed(self, start: int, stop: int) -> Iterator[Segment]:
        if self.outdated < 0:
            yield self, start, stop
            return
        history, first, last = self.history, self.position(start), self.position(stop - 1)
        now = history.classes[self.place]
        at, end = now.index(first), now.index(last + 1)
        for position in sorted({one for one in history.moved[self.outdated :] if first <= one <= last}):
            stays = now.holds(position)
            if stays is self.holds(position):
                continue
            index = now.index(position)
            if at < index:
                yield now, at, index
            at = index + stays
            if not stays:
                other = next(one for one in history.classes if one.holds(position))
                yield other, other.index(position), other.index(position) + 1
        if at < end:
            yield now, at, end
