"""OTLP JSON: spans of model calls with captured content, in the conventions of six instrumentations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.call_log import CallLog
from otel_assembly.transcripts.log_records import fields_of, log_objects, objects_in
from otel_assembly.transcripts.messages import as_name
from otel_assembly.transcripts.span_messages import conversation_id, span_call
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.records import Record

__all__ = ["OTLP"]

_SCALARS = ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue")


def _value(value: Any) -> Any:
    fields = fields_of(value)
    if "arrayValue" in fields:
        return [_value(item) for item in objects_in(fields_of(fields["arrayValue"]).get("values"))]
    if "kvlistValue" in fields:
        return _attributes(fields_of(fields["kvlistValue"]).get("values"))
    return next((fields[key] for key in _SCALARS if key in fields), None)


def _attributes(attributes: Any) -> dict[str, Any]:
    return {
        item["key"]: _value(item.get("value")) for item in objects_in(attributes) if isinstance(item.get("key"), str)
    }


def _read(records: Iterator[Record]) -> Iterator[Conversation]:
    log = CallLog()
    spans: list[dict[str, Any]] = []
    for record in log_objects(records, log.skipped):
        for resource in objects_in(record.get("resourceSpans")):
            for scope in objects_in(resource.get("scopeSpans")):
                spans += objects_in(scope.get("spans"))
    for span in sorted(spans, key=_start):
        attributes = _attributes(span.get("attributes"))
        events = [
            (as_name(event.get("name")) or "", _attributes(event.get("attributes")))
            for event in objects_in(span.get("events"))
        ]
        call = span_call(attributes, events)
        if call is not None:
            name = conversation_id(attributes)
            agent = as_name(attributes.get("gen_ai.agent.name")) or ""
            group = agent if name is not None else as_name(span.get("traceId")) or ""
            log.add(name, group, as_name(span.get("spanId")) or "", call.messages, call.answer, call.tools)
    yield from log.conversations()


def _start(span: dict[str, Any]) -> int:
    start = str(span.get("startTimeUnixNano"))
    return int(start) if start.isascii() and start.isdigit() and len(start) < 40 else 0


def _has_spans(sample: Sample) -> bool:
    return any(isinstance(fields_of(value).get("resourceSpans"), list) for value in sample.values)


OTLP = TranscriptFormat("OTLP spans", (Check("an object with 'resourceSpans'", _has_spans),), _read, is_log=True)
