"""Read the protobuf form of OTLP export requests, with the readers of the JSON form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_assembly.telemetry.otlp_json import Line, StoredLogEvent, read_log_events, read_request

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["read_log_request", "read_trace_request"]

#: The most fields of a request. An export of 21 MB with 100 model calls has about 20,000. The parser needs up to 50
#: bytes of memory per byte of a request that consists of empty fields.
_MAX_FIELDS: Final = 1_000_000
_TOO_MANY: Final = f"more than {_MAX_FIELDS:,} fields"

#: The messages in which fields can repeat: for each message, the numbers of the fields that contain messages.
_MESSAGES: Final[dict[str, dict[int, str]]] = {
    "traces": {1: "resource_spans"},
    "resource_spans": {1: "resource", 2: "scope_spans"},
    "scope_spans": {1: "scope", 2: "span"},
    "span": {9: "pair", 11: "event", 13: "link"},
    "event": {3: "pair"},
    "link": {4: "pair"},
    "logs": {1: "resource_logs"},
    "resource_logs": {1: "resource", 2: "scope_logs"},
    "scope_logs": {1: "scope", 2: "record"},
    "record": {5: "value", 6: "pair"},
    "resource": {1: "pair"},
    "scope": {3: "pair"},
    "pair": {2: "value"},
    "value": {5: "array", 6: "pairs"},
    "array": {1: "value"},
    "pairs": {1: "pair"},
}


def read_trace_request(body: bytes, *, wanted: Callable[[Any], bool] = lambda span: True) -> Line:
    """Read the spans of an ``ExportTraceServiceRequest``; never raise.

    Args:
        body: The serialized request.
        wanted: Whether to read a span message. A wanted span takes about 10 µs per attribute.
    """
    if _has_too_many_fields(body, "traces"):
        return Line(problem=_TOO_MANY)
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        return Line(problem="not an ExportTraceServiceRequest")
    resources = [
        {
            "resource": MessageToDict(resource.resource),
            "scopeSpans": [
                {
                    "scope": MessageToDict(scope.scope),
                    "spans": [MessageToDict(span) for span in scope.spans if wanted(span)],
                }
                for scope in resource.scope_spans
            ],
        }
        for resource in request.resource_spans
    ]
    return read_request({"resourceSpans": resources})


def read_log_request(body: bytes) -> tuple[list[StoredLogEvent], str | None]:
    """Read an ``ExportLogsServiceRequest``; never raise.

    Returns:
        The log records with an event name; and a description of the problem, None if the request was read.
    """
    if _has_too_many_fields(body, "logs"):
        return [], _TOO_MANY
    try:
        request = ExportLogsServiceRequest.FromString(body)
    except DecodeError:
        return [], "not an ExportLogsServiceRequest"
    records = [
        MessageToDict(record)
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
        if record.event_name
    ]
    return read_log_events({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}), None


def _has_too_many_fields(body: bytes, message: str) -> bool:
    """Return whether a serialized request has more than `_MAX_FIELDS` fields; the parser reports damaged requests."""
    fields = 0
    waiting = [(0, len(body), _MESSAGES[message])]
    while waiting:
        place, end, children = waiting.pop()
        while place < end:
            fields += 1
            if fields > _MAX_FIELDS:
                return True
            tag, place = body[place], place + 1
            if tag > 0x7F:
                tag, place = _varint(body, place - 1, end)
            wire = tag & 7
            if wire == 2:
                length, place = _varint(body, place, end)
                child = children.get(tag >> 3)
                if child is not None:
                    waiting.append((place, min(end, place + length), _MESSAGES[child]))
                place += length
            elif wire == 0:
                _, place = _varint(body, place, end)
            else:
                place += {1: 8, 5: 4}.get(wire, end)
    return False


def _varint(body: bytes, place: int, end: int) -> tuple[int, int]:
    """Return an integer of variable length, and the place after it."""
    value = shift = 0
    while place < end:
        octet = body[place]
        place += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80 or shift > 63:
            break
        shift += 7
    return value, place
