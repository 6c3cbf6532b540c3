"""Interval arithmetic: runs of whole numbers, each ``(start, stop)`` without its stop, ascending and disjoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Run: TypeAlias = tuple[int, int]


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
