"""Langfuse's exports: generations, alone or as the observations of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.call_log import CallLog, parsed
from otel_assembly.transcripts.langchain_messages import chat_message
from otel_assembly.transcripts.log_records import fields_of, log_objects, objects_in
from otel_assembly.transcripts.messages import as_name, as_text
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.records import Record

__all__ = ["LANGFUSE"]


def _messages(value: Any, role: str) -> list[Any]:
    """Return the messages of an input or output: a list, an object with ``messages``, a message, or a text."""
    value = parsed(value)
    if isinstance(value, list):
        wrapped = (item if isinstance(item, dict) else {"role": role, "content": as_text(item)} for item in value)
        return [chat_message(message) for message in wrapped]
    fields = fields_of(value)
    if isinstance(fields.get("messages"), list):
        system = [{"role": "system", "content": fields["system"]}] if fields.get("system") else []
        return [*system, *_messages(fields["messages"], role)]
    if "role" in fields:
        return [fields]
    return [] if value is None else [{"role": role, "content": as_text(value)}]


def _observations(record: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Yield the observations of a record, each with the id of its session."""
    session = as_name(record.get("sessionId"))
    if isinstance(record.get("observations"), list):
        for observation in objects_in(record["observations"]):
            yield observation, session
    else:
        yield record, session


def _read(records: Iterator[Record]) -> Iterator[Conversation]:
    log = CallLog()
    for record in log_objects(records, log.skipped):
        found = sorted(_observations(record), key=lambda pair: as_text(pair[0].get("startTime") or ""))
        for generation, session in found:
            if generation.get("type") == "GENERATION":
                request = fields_of(parsed(generation.get("input")))
                tools = request.get("tools")
                log.add(
                    session,
                    "" if session is not None else as_name(generation.get("traceId")) or "",
                    as_name(generation.get("id")) or "",
                    _messages(generation.get("input"), "user"),
                    _messages(generation.get("output"), "assistant"),
                    objects_in(tools) if isinstance(tools, list) else None,
                )
    yield from log.conversations()


def _has_trace(sample: Sample) -> bool:
    return any("traceId" in fields_of(value) or "observations" in fields_of(value) for value in sample.values)


def _has_generations(sample: Sample) -> bool:
    return any(
        observation.get("type") == "GENERATION"
        for value in sample.values
        if isinstance(value, dict)
        for observation, _ in _observations(value)
    )


LANGFUSE = TranscriptFormat(
    "Langfuse",
    (
        Check("observations with 'traceId'", _has_trace),
        Check("an observation of type 'GENERATION'", _has_generations),
    ),
    _read,
    is_log=True,
)
