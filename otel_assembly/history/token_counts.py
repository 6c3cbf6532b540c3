"""What one meter counted of a history: tokens by position, and sums that need not be added up each time."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from otel_assembly.history.view import Column
from otel_assembly.messages.describe import EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.history.history import History
    from otel_assembly.history.view import View
    from otel_assembly.tokens import TokenMeter


class _Sums:
    """What has been added up of a column: the tokens of its first `length` items, of which so many are counted."""

    __slots__ = ("counted", "counts", "length", "tokens")

    def __init__(self) -> None:
        self.length = self.tokens = self.counted = self.counts = 0


class TokenTable:
    """What one meter counted of a history: tokens by position, and their sums by column."""

    __slots__ = (
        "_above",
        "_base",
        "_below",
        "_counts",
        "_history",
        "_meter",
        "_settled",
        "_sums",
        "counted",
        "order",
        "totals",
    )

    def __init__(self, history: History, meter: TokenMeter) -> None:
        self._history = history
        self._meter = meter
        #: One more than the tokens of each position, and 0 where they are not counted: one look-up tells both.
        self._counts = array("I")
        #: Around the first position that was counted: the tokens from there to each one above it, and below it, as far
        #: as all between are counted, so that a sum over any of it is a difference.
        self._base = -1
        self._settled = (0, 0)
        self._above = array("Q", [0])
        self._below = array("Q", [0])
        self._sums: WeakKeyDictionary[Column, _Sums] = WeakKeyDictionary()
        #: Positions in the order in which they were counted.
        self.order = array("I")
        self.totals: dict[Column, int] = dict.fromkeys(history.columns, 0)
        self.counted: dict[Column, int] = dict.fromkeys(history.columns, 0)

    def _reach(self) -> array[int]:
        history, counts = self._history, self._counts
        if len(history.events) > len(counts):
            with history.lock:
                start = len(counts)
                counts.extend(array("I", bytes(4 * (len(history.events) - start))))
                for position in history.zero_token[bisect_left(history.zero_token, start) :]:
                    counts[position] = 1
                    for column in history.column_sets[history.column_set[position]]:
                        self.counted[column] += 1
        return counts

    def tokens(self, position: int) -> int:
        """The tokens of an item; counted now if they were not."""
        counts = self._counts
        return ((position < len(counts) and counts[position]) or self._count(position)) - 1

    def known(self, position: int) -> int:
        """The tokens of an item, or −1 if nobody has counted it."""
        return self._reach()[position] - 1

    def peek(self, positions: Iterable[int]) -> list[int]:
        """One more than the tokens of each item, and 0 where nobody has counted it."""
        return list(map(self._reach().__getitem__, positions))

    def count(self, view: View) -> None:
        """Count every item of a view that is not counted."""
        if type(view.segments[0][0]) is not Column and self.complete(view) if view.segments else True:
            return
        low, high = self._settle()
        for column, start, stop in view.segments:
            if type(column) is Column:
                for position in (*range(start, min(stop, low)), *range(max(start, high), stop)):
                    self.tokens(position)
            elif not (column.position(start) >= low and column.position(stop - 1) < high):
                for position in column.positions(start, stop):
                    self.tokens(position)

    def each(self, view: View) -> list[int]:
        """The tokens of every item of a view, in its order; counted now where they were not."""
        positions = list(view.positions())
        counts = self.peek(positions)
        if 0 in counts:
            return list(map(self.tokens, positions))
        return [count - 1 for count in counts]

    def by_kind(self, view: View) -> list[int]:
        """The tokens of a view's items, added up by kind, in the order of `EventKind`."""
        sums, codes = [0] * len(EventKind), self._history.kind_codes
        for code, tokens in zip(map(codes.__getitem__, view.positions()), self.each(view), strict=True):
            sums[code] += tokens
        return sums

    def _count(self, position: int) -> int:
        history, counts = self._history, self._reach()
        if counts[position]:
            return counts[position]
        facts, digests = history.fresh_facts.get(position), history.known_digests
        if facts is not None and not history.passing and position < len(digests) and digests[position]:
            history.fresh_facts.pop(position, None)  # nobody will read them again
        if facts is None:
            facts = describe(history.events[position])
        tokens = self._meter.event(facts, remember=history.passing)
        with history.lock:
            if not counts[position]:
                counts[position] = tokens + 1
                self.order.append(position)
                for column in history.column_sets[history.column_set[position]]:
                    self.totals[column] += tokens
                    self.counted[column] += 1
        return counts[position]

    def _settle(self) -> tuple[int, int]:
        """From where to where all is counted, without a gap, around what was counted first."""
        counts, above, below = self._reach(), self._above, self._below
        if self._base < 0:
            if not self.order:
                return 0, 0
            self._base = self.order[0]
        low, high = self._base - len(below) + 1, self._base + len(above) - 1
        if self._settled == (len(self.order), len(counts)):
            return low, high
        while high < len(counts) and counts[high]:
            above.append(above[-1] + counts[high] - 1)
            high += 1
        while low and counts[low - 1]:
            low -= 1
            below.append(below[-1] + counts[low] - 1)
        self._settled = len(self.order), len(counts)
        return low, high

    def _upto(self, position: int) -> int:
        """The tokens from the base up to a position, or, below 0, from it up to the base."""
        at = position - self._base
        return self._above[at] if at >= 0 else -self._below[-at]

    def sum(self, view: View) -> int:
        """Tokens of a view, as far as they are counted.

        The cost is that of its segments where all around is counted, else that of the view or of the rest.
        """
        tokens = 0
        for column, start, stop in view.segments:
            tokens += self._between(start, stop) if type(column) is Column else self._segment(column, start, stop)
        return tokens

    def _segment(self, column: Column, start: int, stop: int) -> int:
        history = self._history
        if column is history.conversational:
            # Its neighbours are few where there is much of it.
            low, high = column.position(start), column.position(stop - 1) + 1
            beside = [(one, one.index(low), one.index(high)) for one in (history.non_conversation, history.orphans)]
            if sum(upto - at for _, at, upto in beside) * 2 < stop - start:
                return self._between(low, high) - sum(self._direct(*one) for one in beside)
        if start == 0 and column not in self.totals:
            return self._grown(column, stop)[0]
        length = len(column)
        if column in self.totals and stop - start > length - (stop - start):
            return self.totals[column] - self._direct(column, 0, start) - self._direct(column, stop, length)
        return self._direct(column, start, stop)

    def _grown(self, column: Column, stop: int) -> tuple[int, int]:
        """The tokens of a column's first items, as far as they are counted, and how many of them are.

        A column that somebody keeps grows: only what is new in it, or was counted since, is added up.
        """
        sums = self._sums.get(column)
        if sums is None:
            sums = self._sums[column] = _Sums()
        counts = self._reach()
        for position in self.order[sums.counts :]:
            at = column.index(position)
            if at < sums.length and column.position(at) == position:
                sums.tokens += counts[position] - 1
                sums.counted += 1
        sums.counts = len(self.order)
        for position in column.positions(sums.length, max(stop, sums.length)):
            sums.tokens += max(0, counts[position] - 1)
            sums.counted += counts[position] > 0
        sums.length = max(stop, sums.length)
        behind = self._of(column, stop, sums.length) if stop < sums.length else ()
        tokens = sum(max(0, count - 1) for count in behind)
        return sums.tokens - tokens, sums.counted - sum(count > 0 for count in behind)

    def _between(self, start: int, stop: int) -> int:
        low, high = self._settle()
        if start >= low and stop <= high:
            return self._upto(stop) - self._upto(start)
        first, last = max(start, low), min(stop, high)
        if first >= last:
            return self._scattered(start, stop, low, high)
        inside = self._upto(last) - self._upto(first)
        return inside + self._scattered(start, first, low, high) + self._scattered(last, stop, low, high)

    def _scattered(self, start: int, stop: int, low: int, high: int) -> int:
        """Tokens of positions outside of what is counted without a gap."""
        whole = self._history.all
        if start >= stop or (self.counted[whole] == high - low):
            return 0
        if self.totals[whole] == (self._upto(high) - self._upto(low) if high > low else 0):
            return 0
        length = len(self._counts)
        if stop - start > length - (stop - start):
            return self.totals[whole] - self._direct(whole, 0, start) - self._direct(whole, stop, length)
        return self._direct(whole, start, stop)

    def _direct(self, column: Column, start: int, stop: int) -> int:
        if start >= stop:
            return 0
        counts = self._of(column, start, stop)
        return sum(counts) - len(counts) + counts.count(0)

    def _of(self, column: Column, start: int, stop: int) -> Sequence[int]:
        counts = self._reach()
        positions = column.positions(start, stop)
        if isinstance(positions, range):
            return counts[positions.start : positions.stop]
        return list(map(counts.__getitem__, positions))

    def complete(self, view: View) -> bool:
        """Whether every item of the view is counted."""
        low, high = self._settle()
        for column, start, stop in view.segments:
            if column.position(start) >= low and column.position(stop - 1) < high:
                continue
            if column in self.counted and start == 0 and stop == len(column):
                if self.counted[column] < stop:
                    return False
            elif type(column) is not Column and start == 0 and column not in self.counted:
                if self._grown(column, stop)[1] < stop:
                    return False
            elif self.counted[self._history.all] == high - low or 0 in self._of(column, start, stop):
                return False
        return True
