"""Read the protobuf form of OTLP export requests, with the readers of the JSON form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_assembly.telemetry.otlp_json import Line, StoredLogEvent, read_log_events, read_request

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["read_log_request", "read_trace_request"]


def read_trace_request(body: bytes, *, wanted: Callable[[Any], bool] = lambda span: True) -> Line:
    """Read the spans of an ``ExportTraceServiceRequest``; never raise.

    Args:
        body: The serialized request.
        wanted: Whether to read a span message. A wanted span takes about 10 µs per attribute.
    """
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


def read_log_request(body: bytes) -> list[StoredLogEvent] | None:
    """Read the log records with an event name from an ``ExportLogsServiceRequest``; None if it cannot be read."""
    try:
        request = ExportLogsServiceRequest.FromString(body)
    except DecodeError:
        return None
    records = [
        MessageToDict(record)
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
        if record.event_name
    ]
    return read_log_events({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]})
