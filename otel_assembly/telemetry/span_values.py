"""What is read of exported spans, whichever backend they come from: values, arrays, and runs of item ids.

An array may go on in the `list_items` spans below its span.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Collection
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_registry as registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class SpanLike(Protocol):
    """What is read of a span; a `StoredSpan` has it."""

    @property
    def trace_id(self) -> str: ...
    @property
    def span_id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def name(self) -> str: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...


S = TypeVar("S", bound=SpanLike)


def as_list(value: Any) -> list[Any]:
    """An array attribute as a list, whether it came as an array (OTLP) or as its JSON text (Jaeger's ``/api/traces``).

    None is an empty list, and any other single value a list of it.
    """
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str) and value.startswith("["):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return [value]
        return parsed if isinstance(parsed, list) else [value]
    return [value]


def integer(value: Any) -> int | None:
    """A count, also where a backend made a text or a float of it; None where it is none."""
    try:
        return None if value is None or isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def text(value: Any) -> str | None:
    """A text; None where there is none."""
    return None if value is None else str(value)


def pairs(named: Any, counts: Any) -> list[list[Any]]:
    """Two parallel arrays, entry by entry; an entry whose count is none is left out."""
    rows = ((str(name), integer(count)) for name, count in zip(as_list(named), as_list(counts), strict=False))
    return [[name, count] for name, count in rows if count is not None]


def children_of(spans: Iterable[S]) -> dict[tuple[str, str | None], list[S]]:
    """Spans by their trace and parent, by start; of spans that were delivered twice only one."""
    held: dict[tuple[str, str | None], dict[str, S]] = {}
    for span in spans:
        held.setdefault((span.trace_id, span.parent_id), {}).setdefault(span.span_id, span)
    return {key: sorted(found.values(), key=attrgetter("start_ns")) for key, found in held.items()}


def below(span: SpanLike, children: Mapping[tuple[str, str | None], Sequence[S]]) -> Sequence[S]:
    """The spans right below a span, of those that `children_of` has arranged."""
    return children.get((span.trace_id, span.span_id), ())


def whole_attributes(span: SpanLike, children: Iterable[SpanLike]) -> dict[str, Any]:
    """A span's attributes, each array with what stands of it on the `list_items` spans among its children."""
    attributes = dict(span.attributes)
    rest = [child for child in children if child.name == names.SPAN_LIST_ITEMS]
    for name in _arrays():
        entries = as_list(attributes.get(name))
        for child in rest:
            entries += as_list(child.attributes.get(name))
        if entries:
            attributes[name] = entries
    return attributes


@cache
def _arrays() -> tuple[str, ...]:
    return tuple(name for name, attribute in registry.attributes().items() if attribute.type.endswith("[]"))


class ItemRuns(Collection[str]):
    """Item ids as a span states them: runs such as ``7``, ``7-9`` and ``m0-m2``, in their order.

    What came in is numbered from 0, and so is what policies made, behind an ``m``. Whether an item is among them costs
    a search among the runs, however many items there are.

    Args:
        runs: The value of a span's attribute; None is none.

    Raises:
        ValueError: One of them is no run.
    """

    __slots__ = ("_ascending", "_runs", "_starts")

    def __init__(self, runs: Any = None) -> None:
        self._runs = [_run(str(run)) for run in as_list(runs)]
        self._ascending = sorted(self._runs)
        self._starts = [run[:2] for run in self._ascending]

    def __iter__(self) -> Iterator[str]:
        for made, first, last in self._runs:
            yield from (f"{'m' * made}{number}" for number in range(first, last + 1))

    def __len__(self) -> int:
        return sum(last - first + 1 for _, first, last in self._runs)

    def __contains__(self, item: object) -> bool:
        made, number = item_key(str(item))
        place = bisect_right(self._starts, (made, number)) - 1
        return place >= 0 and self._ascending[place][0] == made and number <= self._ascending[place][2]

    @property
    def texts(self) -> list[str]:
        """The runs as they are written."""
        return [_run_text(*run) for run in self._runs]


def item_key(item: str) -> tuple[bool, int]:
    """What items are sorted by: those that came in by their number, then those that policies made.

    Raises:
        ValueError: It is no item's id.
    """
    made, first, last = _run(item)
    if first != last or "-" in item:
        raise ValueError(item)
    return made, first


def runs_of(items: Iterable[str]) -> list[str]:
    """Item ids as runs, in their own order."""
    runs: list[tuple[bool, int, int]] = []
    for made, number in map(item_key, items):
        if runs and runs[-1][0] == made and runs[-1][2] + 1 == number:
            runs[-1] = (made, runs[-1][1], number)
        else:
            runs.append((made, number, number))
    return [_run_text(*run) for run in runs]


def by_item_id(runs: Any, values: Any) -> dict[str, Any]:
    """The entry of a parallel array for every item that the runs name."""
    pairs = zip(as_list(runs), as_list(values), strict=False)
    return {item: value for run, value in pairs for item in ItemRuns([run])}


#: Items that one run may name: more than any conversation has.
_MOST: Final = 1_000_000
_RUN: Final = re.compile(r"(m?)([0-9]{1,15})(?:-(m?)([0-9]{1,15}))?", re.ASCII)


def _run(text: str) -> tuple[bool, int, int]:
    found = _RUN.fullmatch(text)
    if found is None or (found[4] and found[1] != found[3]):
        raise ValueError("no run of items")
    first, last = int(found[2]), int(found[4] or found[2])
    if not 0 <= last - first < _MOST:
        raise ValueError("no run of items")
    return found[1] == "m", first, last


def _run_text(made: bool, first: int, last: int) -> str:
    mark = "m" * made
    return f"{mark}{first}" if first == last else f"{mark}{first}-{mark}{last}"
