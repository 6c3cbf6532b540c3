"""Read attribute values from spans of any backend: numbers, arrays, and ranges of item ids such as ``4-9``.

An array that did not fit on its span continues on ``list_items`` child spans.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Collection
from functools import cache
from itertools import islice, starmap
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_registry as registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class SpanLike(Protocol):
    """The part of a span that readers use; `StoredSpan` is one implementation."""

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
    """Return an array attribute as a list, whether it is an array (OTLP) or JSON text (Jaeger's ``/api/traces``).

    None becomes an empty list, and any other value a list with one element.
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
    """Return a count as an integer, even if a backend stored it as text or float; None if it is not a number."""
    try:
        return None if value is None or isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def text(value: Any) -> str | None:
    """Return an attribute's value as text; None if the attribute is missing (None)."""
    return None if value is None else str(value)


def pairs(keys: Any, counts: Any) -> list[list[Any]]:
    """Return ``[name, count]`` pairs from the parallel arrays `keys` and `counts`; skip counts that are no numbers."""
    rows = ((str(name), integer(count)) for name, count in zip(as_list(keys), as_list(counts), strict=False))
    return [[name, count] for name, count in rows if count is not None]


def children_of(spans: Iterable[S]) -> dict[tuple[str, str | None], list[S]]:
    """Group spans by trace id and parent id, each group sorted by start time and without duplicates."""
    groups: dict[tuple[str, str | None], dict[str, S]] = {}
    for span in spans:
        groups.setdefault((span.trace_id, span.parent_id), {}).setdefault(span.span_id, span)
    return {key: sorted(group.values(), key=attrgetter("start_ns")) for key, group in groups.items()}


def below(span: SpanLike, children: Mapping[tuple[str, str | None], Sequence[S]]) -> Sequence[S]:
    """Return the children of a span; `children` is the result of `children_of`."""
    return children.get((span.trace_id, span.span_id), ())


def whole_attributes(span: SpanLike, children: Iterable[SpanLike]) -> dict[str, Any]:
    """Return a span's attributes, with arrays completed from the ``list_items`` spans among its children."""
    attributes = dict(span.attributes)
    continuations = [child for child in children if child.name == names.SPAN_LIST_ITEMS]
    for name in _arrays():
        entries = as_list(attributes.get(name))
        for child in continuations:
            entries += as_list(child.attributes.get(name))
        if entries:
            attributes[name] = entries
    return attributes


@cache
def _arrays() -> tuple[str, ...]:
    return tuple(name for name, attribute in registry.attributes().items() if attribute.type.endswith("[]"))


class ItemRanges(Collection[str]):
    """A collection of item ids, stored as ranges such as ``7``, ``7-9`` and ``m0-m2``, in the order of the attribute.

    Input items are numbered from 0. Items made by policies are also numbered from 0, with the prefix ``m``. A
    membership test is a binary search over the ranges.

    Args:
        ranges: The value of a span's attribute; None for an empty collection.

    Raises:
        ValueError: An entry is not a range of item ids.
    """

    __slots__ = ("_ascending", "_ranges", "_starts")

    def __init__(self, ranges: Any = None) -> None:
        self._ranges = [_parsed(str(text)) for text in as_list(ranges)]
        self._ascending = sorted(self._ranges)
        self._starts = [(is_made, first) for is_made, first, _ in self._ascending]

    def __iter__(self) -> Iterator[str]:
        for is_made, first, last in self._ranges:
            yield from _ids(is_made, first, last)

    def __len__(self) -> int:
        return sum(last - first + 1 for _, first, last in self._ranges)

    def __contains__(self, item: object) -> bool:
        is_made, number = item_key(str(item))
        place = bisect_right(self._starts, (is_made, number)) - 1
        return place >= 0 and self._ascending[place][0] == is_made and number <= self._ascending[place][2]

    def without(self, others: ItemRanges) -> set[str]:
        """Return the ids that another collection lacks; the cost depends on the number of ranges and of these ids."""
        ids: set[str] = set()
        for is_made, first, last in self._ranges:
            place = max(0, bisect_right(others._starts, (is_made, first)) - 1)
            for other_is_made, other_first, other_last in islice(others._ascending, place, None):
                if (other_is_made, other_first) > (is_made, last):
                    break
                if other_is_made == is_made:
                    ids.update(_ids(is_made, first, min(last, other_first - 1)))
                    first = max(first, other_last + 1)
            ids.update(_ids(is_made, first, last))
        return ids

    @property
    def texts(self) -> list[str]:
        """The ranges as texts such as ``4-9``, as in the attribute."""
        return list(starmap(_range_text, self._ranges))


def _ids(is_made: bool, first: int, last: int) -> list[str]:
    return [f"{'m' * is_made}{number}" for number in range(first, last + 1)]


def item_key(item: str) -> tuple[bool, int]:
    """Return a sort key: input items by number, then items made by policies.

    Raises:
        ValueError: `item` is not an item id.
    """
    is_made, first, last = _parsed(item)
    if first != last or "-" in item:
        raise ValueError(item)
    return is_made, first


def ranges_of(items: Iterable[str]) -> list[str]:
    """Return item ids as ranges such as ``4-9``, in the order of the argument."""
    ranges: list[tuple[bool, int, int]] = []
    for is_made, number in map(item_key, items):
        if ranges and ranges[-1][0] == is_made and ranges[-1][2] + 1 == number:
            ranges[-1] = (is_made, ranges[-1][1], number)
        else:
            ranges.append((is_made, number, number))
    return list(starmap(_range_text, ranges))


def by_item_id(ranges: Any, values: Any) -> dict[str, Any]:
    """Return the value of each item, by item id, from two arrays of the same length.

    Args:
        ranges: Ranges of consecutive item ids, such as ``4-9``, or single ids.
        values: For each range, the value that all its items have.
    """
    pairs = zip(as_list(ranges), as_list(values), strict=False)
    return {item: value for text, value in pairs for item in ItemRanges([text])}


#: The most items in a range: more than any conversation has, so that a corrupt range cannot fill the memory.
_MAX_RANGE: Final = 1_000_000
_RANGE: Final = re.compile(r"(m?)([0-9]{1,15})(?:-(m?)([0-9]{1,15}))?", re.ASCII)


def _parsed(text: str) -> tuple[bool, int, int]:
    """Parse a range such as ``m0-m2``: whether a policy made its items, the first number and the last number."""
    match = _RANGE.fullmatch(text)
    if match is None or (match[4] and match[1] != match[3]):
        raise ValueError("not a range of item ids")
    first, last = int(match[2]), int(match[4] or match[2])
    if not 0 <= last - first < _MAX_RANGE:
        raise ValueError("not a range of item ids")
    return match[1] == "m", first, last


def _range_text(is_made: bool, first: int, last: int) -> str:
    prefix = "m" * is_made
    return f"{prefix}{first}" if first == last else f"{prefix}{first}-{prefix}{last}"
