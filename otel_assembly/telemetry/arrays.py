"""Arrays of a span, cut so that no span holds more than 16 KiB of them; the rest goes on `list_items` spans."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_assembly.telemetry.conventions import MAX_ARRAY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: What an element costs beside its text, in OTLP's protobuf; an integer costs no more than this.
_OVERHEAD = 8


@dataclass(slots=True)
class Arrays:
    """Parallel arrays in groups; the arrays of a group are cut at the same entry."""

    _groups: list[dict[str, list[Any]]] = field(default_factory=list)

    def add(self, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Add a group: one array for each name, one entry of each for a row."""
        columns: list[list[Any]] = [[] for _ in names]
        for row in rows:
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        if columns and columns[0]:
            self._groups.append(dict(zip(names, columns, strict=True)))

    def chunks(self, limit: int = MAX_ARRAY_BYTES) -> Iterator[dict[str, list[Any]]]:
        """The attributes of the span itself, then of each `list_items` span that it needs."""
        chunk: dict[str, list[Any]] = {}
        room = limit
        for group in self._groups:
            columns = list(group.items())
            start = 0
            length = len(columns[0][1])
            for index in range(length):
                cost = sum(_cost(column[index]) for _, column in columns)
                if cost > room and (chunk or index > start):
                    _take(chunk, columns, start, index)
                    yield chunk
                    chunk, room, start = {}, limit, index
                room -= cost
            _take(chunk, columns, start, length)
        yield chunk


def _take(chunk: dict[str, list[Any]], columns: list[tuple[str, list[Any]]], start: int, stop: int) -> None:
    if start < stop:
        chunk.update((name, column[start:stop]) for name, column in columns)


def _cost(value: Any) -> int:
    return _OVERHEAD + (len(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else 0)


def run_text(first: int, last: int) -> str:
    """A run of ordinals as it is written: ``7``, or ``7-9``."""
    return str(first) if first == last else f"{first}-{last}"
