"""Arrays of a span, cut so that no span holds more than `MAX_ARRAY_BYTES`; the rest goes on `list_items` spans."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.intervals import to_runs
from otel_assembly.telemetry.conventions import MAX_ARRAY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: What an element costs in OTLP's protobuf, beside its text; a count costs no more than this, a −1 costs 13.
_OVERHEAD = 8
_NEGATIVE = 13


@dataclass(slots=True)
class Arrays:
    """Parallel arrays in groups; the arrays of a group are cut at the same entry."""

    _groups: list[tuple[Sequence[str], Sequence[list[Any]]]] = field(default_factory=list)

    def add(self, names: Sequence[str], columns: Sequence[list[Any]]) -> None:
        """Add a group: one array for each name, all of one length; nothing where they are empty."""
        if columns[0]:
            self._groups.append((names, columns))

    def __bool__(self) -> bool:
        return bool(self._groups)

    def chunks(self, limit: int = MAX_ARRAY_BYTES) -> Iterator[dict[str, list[Any]]]:
        """The attributes of the span itself, then of each `list_items` span that it needs."""
        chunk: dict[str, list[Any]] = {}
        if sum(_at_most(column) for _, columns in self._groups for column in columns) <= limit:
            for names, columns in self._groups:
                chunk.update(zip(names, columns, strict=True))
            yield chunk
            return
        room = limit
        for names, columns in self._groups:
            costs = list(map(sum, zip(*map(_costs, columns), strict=True)))
            total = sum(costs)
            if total <= room:
                chunk.update(zip(names, columns, strict=True))
                room -= total
                continue
            upto = [0, *accumulate(costs)]
            start, length = 0, len(costs)
            while start < length:
                stop = start
                while stop < length and upto[stop + 1] - upto[start] <= room:
                    stop += 1
                if stop == start and not chunk:
                    stop += 1  # one entry that is over the limit by itself, such as a captured text
                if start < stop:
                    chunk.update((name, column[start:stop]) for name, column in zip(names, columns, strict=True))
                    room -= upto[stop] - upto[start]
                if stop < length:
                    yield chunk
                    chunk, room = {}, limit
                start = stop
        yield chunk


def _at_most(column: list[Any]) -> int:
    """What a column costs at most: a character takes no more than four bytes."""
    if isinstance(column[0], str):
        return _OVERHEAD * len(column) + 4 * sum(map(len, column))
    return _NEGATIVE * len(column)


def _costs(column: list[Any]) -> list[int]:
    if isinstance(column[0], str):
        return [
            _OVERHEAD + (len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))) for text in column
        ]
    return [_OVERHEAD if number >= 0 else _NEGATIVE for number in column]


def run_text(first: int, last: int) -> str:
    """A run of ordinals as it is written: ``7``, or ``7-9``."""
    return str(first) if first == last else f"{first}-{last}"


def runs_of(ordinals: Iterable[int]) -> list[str]:
    """Ordinals as runs, ascending."""
    return [run_text(start, stop - 1) for start, stop in to_runs(sorted(set(ordinals)))]
