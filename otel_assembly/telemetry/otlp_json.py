"""Parse lines of OTLP JSON into spans, without the OpenTelemetry SDK.

Ids may be in hex (OTLP/JSON) or base64 (plain protobuf JSON). Integers of 64 bits may be strings or numbers.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "Line",
    "StatusName",
    "StoredEvent",
    "StoredLink",
    "StoredLogEvent",
    "StoredSpan",
    "read_line",
    "read_log_events",
    "read_request",
]

StatusName: TypeAlias = Literal["UNSET", "OK", "ERROR"]


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event of a span.

    Attributes:
        name: The event's name.
        time_ns: The time, in nanoseconds since 1970.
        attributes: The event's attributes.
    """

    name: str
    time_ns: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)


class StoredLink(NamedTuple):
    """A link from a span to another span.

    Attributes:
        trace_id: The other span's trace, as lower-case hex digits.
        span_id: The other span's id, as lower-case hex digits.
        attributes: The link's attributes.
    """

    trace_id: str
    span_id: str
    attributes: dict[str, Any]


class StoredLogEvent(NamedTuple):
    """A log record that has an event name.

    Attributes:
        trace_id: The trace in which the record was emitted, as lower-case hex digits.
        span_id: The span in which the record was emitted, as lower-case hex digits.
        event: The name, the time and the attributes of the record.
    """

    trace_id: str
    span_id: str
    event: StoredEvent


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """A span that was read from a file or from Jaeger.

    Attributes:
        trace_id: 32 lower-case hex digits.
        span_id: 16 lower-case hex digits.
        parent_id: The parent's span id; None for the root of a trace.
        name: The span's name.
        start_ns: When the span started, in nanoseconds since 1970; 0 if the stored span has no start time.
        end_ns: When the span ended, in nanoseconds since 1970; 0 if the stored span has no end time.
        attributes: Numbers as numbers, arrays as lists, key-value lists as dicts.
        events: The span's events, in the order in which they were recorded.
        links: The span's links to other spans.
        status: The span's status.
        status_message: The status's description.
        resource: The attributes of the span's resource.
        scope: The name of the instrumentation scope.
        scope_version: The version of the instrumentation scope.
        dropped_attributes: How many attributes the SDK's limits removed.
        dropped_events: How many events the SDK's limits removed.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)
    events: list[StoredEvent] = field(default_factory=list)
    links: list[StoredLink] = field(default_factory=list)
    status: StatusName = "UNSET"
    status_message: str = ""
    resource: dict[str, Any] = field(default_factory=dict)
    scope: str = ""
    scope_version: str = ""
    dropped_attributes: int = 0
    dropped_events: int = 0

    @property
    def duration_s(self) -> float:
        """Seconds from start to end; 0 if the end is missing or before the start."""
        return max(0, self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Line:
    """The parsed contents of one line.

    Attributes:
        spans: The readable spans, each with its readable attributes.
        problem: A description of the unreadable parts, which quotes no value; None if everything was readable.
        other_signal: True if the line contains logs, metrics or profiles instead of spans.
    """

    spans: list[StoredSpan] = field(default_factory=list)
    problem: str | None = None
    other_signal: bool = False


def read_line(line: bytes) -> Line:
    """Parse one line; never raise.

    Unreadable spans and attributes are skipped and reported in `Line.problem`; the others are returned.
    """
    try:
        request = json.loads(line)
    except json.JSONDecodeError as error:
        return Line(problem=f"not JSON (column {error.colno})")
    except (ValueError, RecursionError):
        return Line(problem="not JSON in UTF-8")
    return read_request(request)


def read_request(request: Any) -> Line:
    """Read the spans of an export request, the parsed JSON of one line; never raise."""
    if not isinstance(request, dict):
        return Line(problem="not a JSON object")
    if "resourceSpans" not in request:
        other = bool(request.keys() & {"resourceLogs", "resourceMetrics", "resourceProfiles"})
        return Line(problem=None if other else "no resourceSpans", other_signal=other)
    spans: list[StoredSpan] = []
    problems: list[str] = []
    try:
        for raw, resource, scope in _raw_spans(request, problems):
            try:
                lost: list[str] = []
                span = _span(raw, resource, scope, lost)
            except _UNREADABLE:
                problems.append("a span with a field of the wrong form")
                continue
            spans.append(span)
            if lost:
                problems.append(f"span {span.span_id}: {lost[0]} of the wrong form")
    except _UNREADABLE:
        problems.append("a resource or scope of the wrong form")
    more = f"; and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else ""
    return Line(spans, "; ".join(problems[:_SHOWN]) + more or None)


def read_log_events(request: Any) -> list[StoredLogEvent]:
    """Read the log records with an event name and a span from an export request, the parsed JSON; never raise.

    Unreadable records are skipped.
    """
    events: list[StoredLogEvent] = []
    try:
        for resource_logs in _objects(request, "resourceLogs"):
            for scope_logs in _objects(resource_logs, "scopeLogs"):
                for raw in _objects(scope_logs, "logRecords"):
                    try:
                        name = raw.get("eventName")
                        if name and raw.get("traceId") and raw.get("spanId"):
                            time_ns = int(raw.get("timeUnixNano") or raw.get("observedTimeUnixNano") or 0)
                            event = StoredEvent(_text(name), time_ns, _attributes(raw, []))
                            events.append(StoredLogEvent(_id(raw["traceId"], 16), _id(raw["spanId"], 8), event))
                    except _UNREADABLE:
                        continue
    except _UNREADABLE:
        return events
    return events


#: The number of problems of one line that are described; the rest is only counted.
_SHOWN: Final = 3


_UNREADABLE = (TypeError, ValueError, OverflowError, RecursionError)


def _raw_spans(
    request: dict[str, Any], problems: list[str]
) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    for resource_spans in _objects(request, "resourceSpans"):
        lost: list[str] = []
        resource = _attributes(_object(resource_spans, "resource"), lost)
        problems += [f"a resource: {loss} of the wrong form" for loss in lost[:1]]
        for scope_spans in _objects(resource_spans, "scopeSpans"):
            scope = _object(scope_spans, "scope")
            for raw in _objects(scope_spans, "spans"):
                yield raw, resource, scope


def _span(raw: dict[str, Any], resource: dict[str, Any], scope: dict[str, Any], lost: list[str]) -> StoredSpan:
    status = _object(raw, "status")
    parent = raw.get("parentSpanId")
    return StoredSpan(
        trace_id=_id(raw.get("traceId"), 16),
        span_id=_id(raw.get("spanId"), 8),
        parent_id=None if parent in (None, "", "0" * 16) else _id(parent, 8),
        name=_text(raw.get("name", "")),
        start_ns=int(raw.get("startTimeUnixNano") or 0),
        end_ns=int(raw.get("endTimeUnixNano") or 0),
        attributes=_attributes(raw, lost),
        events=[
            StoredEvent(_text(event.get("name", "")), int(event.get("timeUnixNano") or 0), _attributes(event, lost))
            for event in _objects(raw, "events")
        ],
        links=[
            StoredLink(_id(link.get("traceId"), 16), _id(link.get("spanId"), 8), _attributes(link, lost))
            for link in _objects(raw, "links")
        ],
        status=_STATUS.get(status.get("code") or 0, "UNSET"),
        status_message=_text(status.get("message") or ""),
        resource=resource,
        scope=_text(scope.get("name") or ""),
        scope_version=_text(scope.get("version") or ""),
        dropped_attributes=int(raw.get("droppedAttributesCount") or 0),
        dropped_events=int(raw.get("droppedEventsCount") or 0),
    )


_STATUS: dict[Any, StatusName] = {1: "OK", 2: "ERROR", "STATUS_CODE_OK": "OK", "STATUS_CODE_ERROR": "ERROR"}


def _id(raw: Any, size: int) -> str:
    """Return an id in hex; its length shows whether it is hex (OTLP/JSON) or base64 (plain protobuf JSON)."""
    text = _text(raw)
    octets = bytes.fromhex(text) if len(text) == 2 * size else base64.b64decode(text, validate=True)
    if len(octets) != size:
        raise ValueError
    return octets.hex()


def _object(holder: dict[str, Any], key: str) -> dict[str, Any]:
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError
    return value


def _objects(holder: Any, key: str) -> list[dict[str, Any]]:
    if not isinstance(holder, dict):
        raise TypeError
    value = holder.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(element, dict) for element in value):
        raise TypeError
    return value


def _attributes(holder: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    """Return the attributes of a span, event or resource; an unreadable value becomes None and is added to `lost`."""
    pairs = holder.get("attributes")
    if pairs is None:
        return {}
    attributes: dict[str, Any] = {}
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        try:
            attributes |= _pairs({"values": [pair]}, "values")
        except _UNREADABLE:
            lost.append("an attribute")
            if isinstance(pair, dict) and isinstance(pair.get("key"), str):
                attributes[pair["key"]] = None
    return attributes


def _pairs(holder: Any, key: str) -> dict[str, Any]:
    return {_text(pair["key"]): _value(pair.get("value")) for pair in _objects(holder, key) if "key" in pair}


def _value(raw: Any) -> Any:
    """Return the Python value of an OTLP ``AnyValue`` object; None if the object is empty."""
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise TypeError
    for kind, read in _VALUES.items():
        if raw.get(kind) is not None:
            return read(raw[kind])
    return None


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError
    return raw


def _bool(raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise TypeError
    return raw


def _array(raw: Any) -> list[Any]:
    return [_value(value) for value in _objects(raw, "values")]


_VALUES: dict[str, Callable[[Any], Any]] = {
    "stringValue": _text,
    "intValue": int,
    "boolValue": _bool,
    "doubleValue": float,
    "arrayValue": _array,
    "kvlistValue": lambda raw: _pairs(raw, "values"),
    "bytesValue": base64.b64decode,
}
