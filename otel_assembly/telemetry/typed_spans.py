"""Convert the attributes of stored spans to the types that the registry defines.

Backends may change types, for example integers to strings. A value that cannot be converted is removed, and an unknown
kind becomes ``other``. A `Flaw` reports both by span and attribute, but never quotes the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_registry as registry
from otel_assembly.telemetry.otlp_json import StoredSpan
from otel_assembly.telemetry.span_values import ItemRanges, as_list, integer, item_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_assembly.telemetry.span_values import SpanLike

__all__ = ["Flaw", "typed_spans"]

#: Replaces an unknown kind.
_OTHER: Final = "other"
_RANGES: Final = frozenset(
    {
        names.OFFERED_ITEMS,
        names.KEPT_ITEMS,
        names.DROPPED_ITEMS,
        names.COMPACTED_ITEMS,
        names.INJECTED_ITEMS,
        names.BLOCK_ITEMS,
        names.TOKENS_ESTIMATED_ITEMS,
    }
)
_ITEMS: Final = frozenset(
    {
        names.ARRIVED_ITEMS,
        names.ARRIVED_ATOMS,
        names.BLOCK_RANKED_ITEMS,
        names.BLOCK_SUPERSEDED_ITEMS,
        names.BLOCK_SUPERSEDED_BY,
    }
)


@dataclass(frozen=True, slots=True)
class Flaw:
    """The attributes of one span that do not match the registry.

    Attributes:
        span: The span's id.
        name: The span's name.
        lost: Attributes that were removed because their values could not be converted.
        renamed: Attributes in which an unknown kind became ``other``.
    """

    span: str
    name: str
    lost: frozenset[str]
    renamed: frozenset[str]

    def __str__(self) -> str:
        sentences = []
        if self.lost:
            sentences.append(f"{', '.join(sorted(self.lost))} has an invalid value and is ignored")
        if self.renamed:
            sentences.append(f"an unknown kind in {', '.join(sorted(self.renamed))} is read as {_OTHER!r}")
        return f"span {self.span} ({self.name}): {'; '.join(sentences)}"


def typed_spans(spans: Iterable[SpanLike]) -> tuple[list[SpanLike], dict[tuple[str, str], Flaw]]:
    """Convert the attributes of spans to their registered types.

    Returns:
        The spans, and the flaws by trace id and span id.
    """
    typed: list[SpanLike] = []
    flaws: dict[tuple[str, str], Flaw] = {}
    for span in spans:
        converted, lost, renamed = _typed(span.attributes)
        if lost or renamed:
            flaws[span.trace_id, span.span_id] = Flaw(span.span_id, span.name, frozenset(lost), frozenset(renamed))
        typed.append(span if converted is None else _with_attributes(span, converted))
    return typed, flaws


def _typed(attributes: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str], list[str]]:
    """Return the converted attributes, the names of the removed ones, and the names of those with unknown kinds.

    The converted attributes are None if nothing had to change.
    """
    changed: dict[str, Any] = {}
    lost: list[str] = []
    renamed: list[str] = []
    kinds = _kinds()
    for name, value in attributes.items():
        read = _readers().get(name)
        if read is None:
            continue
        try:
            converted = read(value)
        except (ValueError, TypeError, OverflowError, RecursionError):
            lost.append(name)
            continue
        if name in kinds and (known := _known_kinds(converted, kinds[name])) != converted:
            renamed.append(name)
            converted = known
        if not _is_same(converted, value):
            changed[name] = converted
    if not lost and not changed:
        return None, lost, renamed
    return {name: changed.get(name, value) for name, value in attributes.items() if name not in lost}, lost, renamed


def _with_attributes(span: SpanLike, attributes: dict[str, Any]) -> StoredSpan:
    return StoredSpan(
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.name,
        span.start_ns,
        span.end_ns,
        attributes,
        list(getattr(span, "events", ())),
    )


def _is_same(converted: Any, value: Any) -> bool:
    if isinstance(converted, list):
        return isinstance(value, list | tuple) and all(map(_is_same, converted, value))
    return type(converted) is type(value) and bool(converted == value)


def _known_kinds(value: Any, kinds: frozenset[str]) -> Any:
    if isinstance(value, list):
        return [kind if kind in kinds else _OTHER for kind in value]
    return value if value in kinds else _OTHER


def _integer(value: Any) -> int:
    read = integer(value)
    if read is None or (isinstance(value, float) and value != read):
        raise ValueError
    return read


def _string(value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise TypeError
    return str(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool) and value not in ("true", "false"):
        raise ValueError
    return value is True or value == "true"


def _kind_name(value: Any) -> str:
    """Return a kind's name; a value that is not a string is an unknown kind and not an error."""
    return value if isinstance(value, str) else ""


def _list_of(read: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def read_list(value: Any) -> list[Any]:
        if value is None or isinstance(value, dict):
            raise TypeError
        return [read(element) for element in as_list(value)]

    return read_list


def _ranges(value: Any) -> list[str]:
    ranges = _list_of(_string)(value)
    ItemRanges(ranges)
    return ranges


def _item(value: Any) -> str:
    item_key(_string(value))
    return _string(value)


def _sources(value: Any) -> str:
    sources = _string(value)
    ItemRanges(sources.split(",") if sources else None)
    return sources


_TYPES: Final[dict[str, Callable[[Any], Any]]] = {
    "int": _integer,
    "string": _string,
    "boolean": _boolean,
    "double": float,
}


@cache
def _readers() -> Mapping[str, Callable[[Any], Any]]:
    """Return the converter of each registered attribute; a converter raises if it cannot convert the value."""
    readers: dict[str, Callable[[Any], Any]] = {}
    for name, attribute in registry.attributes().items():
        read = _kind_name if name in _kinds() else _TYPES[attribute.type.removesuffix("[]")]
        readers[name] = _list_of(read) if attribute.type.endswith("[]") else read
    readers |= dict.fromkeys(_RANGES, _ranges)
    readers |= dict.fromkeys(_ITEMS, _list_of(_item))
    readers[names.ARRIVED_SOURCES] = _list_of(_sources)
    return readers


@cache
def _kinds() -> Mapping[str, frozenset[str]]:
    """Map each attribute whose allowed values include ``other`` to its allowed values."""
    values = {name: frozenset(attribute.values) for name, attribute in registry.attributes().items()}
    return {name: kinds for name, kinds in values.items() if _OTHER in kinds}
