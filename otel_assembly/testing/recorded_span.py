"""`RecordedSpan`: a finished span, with properties for assertions on the items that it records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.otlp_json import StatusName, StoredEvent, StoredLink, StoredSpan
from otel_assembly.telemetry.span_values import ItemRanges, below, by_item_id, whole_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import ReadableSpan


class Arrived(NamedTuple):
    """What a span records about an item that is new or changed on its turn.

    Attributes:
        kind: The kind of content, such as ``request``.
        tokens: The item's tokens; None if they are not counted yet.
        bytes: The size of its texts in UTF-8.
        atom: The group of items with which it is kept or dropped, such as a tool call and its results.
    """

    kind: str
    tokens: int | None
    bytes: int
    atom: str


@dataclass(frozen=True, slots=True)
class RecordedSpan(StoredSpan):
    """A finished span, with properties for the items that it records.

    A long list continues on child spans named ``list_items``; the properties include these children.
    """

    _among: dict[tuple[str, str | None], list[RecordedSpan]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def parent(self) -> RecordedSpan | None:
        """The parent span, if it has ended."""
        everything = (span for spans in self._among.values() for span in spans)
        return next((s for s in everything if (s.trace_id, s.span_id) == (self.trace_id, self.parent_id)), None)

    @property
    def children(self) -> list[RecordedSpan]:
        """The child spans, by start time."""
        return list(below(self, self._among))

    @property
    def whole(self) -> dict[str, Any]:
        """The span's attributes, in which long arrays are completed from its ``list_items`` spans."""
        return whole_attributes(self, self.children)

    def events_named(self, name: str) -> list[StoredEvent]:
        """Return the span events with this name, in order."""
        return [event for event in self.events if event.name == name]

    @property
    def offered(self) -> list[str]:
        """The ids of the items in the input, in the caller's order."""
        return self._ids(names.OFFERED_ITEMS)

    @property
    def kept(self) -> list[str]:
        """The ids of all items in the output, in the order of the prompt."""
        return self._ids(names.KEPT_ITEMS)

    @property
    def arrived(self) -> dict[str, Arrived]:
        """The descriptions of the items that are new or changed on this turn, by item id."""
        attributes = self.whole
        columns = (names.ARRIVED_ITEMS, names.ARRIVED_KINDS, names.ARRIVED_TOKENS, names.ARRIVED_BYTES)
        rows = zip(*(attributes.get(name, ()) for name in (*columns, names.ARRIVED_ATOMS)), strict=True)
        return {
            item: Arrived(kind, tokens if tokens >= 0 else None, size, atom) for item, kind, tokens, size, atom in rows
        }

    @property
    def contents(self) -> dict[str, str]:
        """The captured texts of the `arrived` items, by item id; empty if content is not captured."""
        return self._by_id(names.ARRIVED_ITEMS, names.ARRIVED_CONTENTS)

    @property
    def dropped_reasons(self) -> dict[str, str]:
        """The reason of each dropped item that the span lists, by item id."""
        return self._by_id(names.DROPPED_ITEMS, names.DROPPED_REASONS)

    @property
    def compacted(self) -> list[str]:
        """The ids of the items that were replaced by shorter ones."""
        return self._ids(names.COMPACTED_ITEMS)

    @property
    def injected(self) -> list[str]:
        """The ids of the items that a policy added."""
        return self._ids(names.INJECTED_ITEMS)

    def _ids(self, items: str) -> list[str]:
        return list(ItemRanges(self.whole.get(items)))

    def _by_id(self, items: str, values: str) -> dict[str, Any]:
        attributes = self.whole
        return by_item_id(attributes.get(items), attributes.get(values))


def recorded_span(span: ReadableSpan, among: dict[tuple[str, str | None], list[RecordedSpan]]) -> RecordedSpan:
    """Convert a span of the SDK; `among` maps the trace id and the id of each parent span to its child spans."""
    context = span.get_span_context()
    if context is None:  # pragma: no cover - the SDK's type allows it, its spans never are
        raise AssertionError("a span without a context")
    status = cast("StatusName", span.status.status_code.name)
    scope = span.instrumentation_scope
    return RecordedSpan(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent is not None else None,
        name=span.name,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        attributes=plain(span.attributes),
        events=[StoredEvent(event.name, event.timestamp, plain(event.attributes)) for event in span.events],
        links=[
            StoredLink(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}", plain(link.attributes))
            for link in span.links
        ],
        status=status,
        status_message=span.status.description or "",
        scope=scope.name if scope is not None else "",
        scope_version=(scope.version or "") if scope is not None else "",
        dropped_attributes=span.dropped_attributes,
        dropped_events=span.dropped_events,
        _among=among,
    )


def plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return attributes of the SDK as in a stored span: a dictionary, with lists in place of tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in (attributes or {}).items()}
