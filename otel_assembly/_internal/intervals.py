"""Interval arithmetic: runs of whole numbers, each ``(start, stop)`` without its stop.

Where a function takes or returns several runs, they are ascending and disjoint, and none is empty, if it says nothing
else. Each function looks only at the runs that it needs, found by bisection, so that the cost is that of the answer.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Run: TypeAlias = tuple[int, int]

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
