"""Ordinals: the number that an item of a conversation has from first sight on, by its position now."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class ItemIds:
    """The ordinals of a history's positions, as runs of consecutive ones."""

    __slots__ = ("_ordinals", "_positions", "_upto")

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._ordinals: list[int] = []
        self._upto = 0

    def extend(self, count: int, first: int) -> None:
        """The next `count` positions have the ordinals from `first` on."""
        if count <= 0:
            return
        if not self._positions or self._ordinals[-1] + self._upto - self._positions[-1] != first:
            self._positions.append(self._upto)
            self._ordinals.append(first)
        self._upto += count

    def of(self, position: int) -> int:
        """The ordinal of a position."""
        run = bisect_right(self._positions, position) - 1
        return self._ordinals[run] + position - self._positions[run]

    def find(self, ordinals: Iterable[int]) -> Iterator[int]:
        """The positions that have these ordinals; those that none has are passed over."""
        if any(one > other for one, other in pairwise(self._ordinals)):
            wanted = sorted(set(ordinals))
            for start, first, stop in zip(
                self._positions, self._ordinals, [*self._positions[1:], self._upto], strict=True
            ):
                low, high = bisect_left(wanted, first), bisect_left(wanted, first + stop - start)
                yield from (start + ordinal - first for ordinal in wanted[low:high])
            return
        ends = [*self._positions[1:], self._upto]
        for ordinal in ordinals:
            run = bisect_right(self._ordinals, ordinal) - 1
            if run >= 0 and (position := self._positions[run] + ordinal - self._ordinals[run]) < ends[run]:
                yield position

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The ordinals of positions ``[start, stop)``, as runs ``[first, last]``."""
        run = bisect_right(self._positions, start) - 1
        while start < stop:
            upto = min(stop, self._positions[run + 1] if run + 1 < len(self._positions) else self._upto)
            first = self._ordinals[run] + start - self._positions[run]
            yield first, first + upto - start - 1
            start, run = upto, run + 1

    def __len__(self) -> int:
        return self._upto

    def all(self) -> Iterator[int]:
        """Every ordinal, by position."""
        for first, last in self.spans(0, self._upto):
            yield from range(first, last + 1)
