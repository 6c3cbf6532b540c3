"""What is read of exported spans, whichever backend they come from: values, arrays, and runs of item ids.

An array may go on in the `list_items` spans below its span.
"""

from __future__ import annotations

import json
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from otel_assembly.ledger.snapshot import FIRST_MADE
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_registry as registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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


def item_ids(runs: Any) -> list[int]:
    """Every item id that these runs (``7``, ``7-9``) name, in their order."""
    return [item for run in as_list(runs) for item in _run(str(run))]


def by_item_id(runs: Any, values: Any) -> dict[int, Any]:
    """The entry of a parallel array for every item id that the runs name."""
    found: dict[int, Any] = {}
    for run, value in zip(as_list(runs), as_list(values), strict=False):
        found.update(dict.fromkeys(_run(str(run)), value))
    return found


def _run(text: str) -> range:
    first, dash, last = text.partition("-")
    return range(item_id(first), item_id(last if dash else first) + 1)


def item_id(text: str) -> int:
    """The number that stands for an item id."""
    return FIRST_MADE + int(text[1:]) if text.startswith("m") else int(text)
