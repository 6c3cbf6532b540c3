"""Spans that Phoenix exports, in the conventions of OpenInference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.transcripts.call_log import CallLog
from otel_assembly.transcripts.log_records import fields_of, log_objects
from otel_assembly.transcripts.messages import as_name
from otel_assembly.transcripts.span_messages import conversation_id, span_call
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.records import Record

__all__ = ["PHOENIX"]


def _read(records: Iterator[Record]) -> Iterator[Conversation]:
    log = CallLog()
    for span in log_objects(records, log.skipped):
        attributes = fields_of(span.get("attributes"))
        call = span_call(attributes, ())
        if call is not None:
            context, name = fields_of(span.get("context")), conversation_id(attributes)
            group = "" if name is not None else as_name(context.get("trace_id")) or ""
            log.add(name, group, as_name(context.get("span_id")) or "", call.messages, call.answer, call.tools)
    yield from log.conversations()


def _has_context(sample: Sample) -> bool:
    return any("span_id" in fields_of(fields_of(value).get("context")) for value in sample.values)


def _has_attributes(sample: Sample) -> bool:
    return any(isinstance(fields_of(value).get("attributes"), dict) for value in sample.values)


PHOENIX = TranscriptFormat(
    "Phoenix spans",
    (
        Check("a span with 'attributes'", _has_attributes),
        Check("a span with 'context' and 'span_id'", _has_context),
    ),
    _read,
    is_log=True,
)
