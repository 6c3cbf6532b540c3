"""OpenHands' logs of single completions: the messages of a request to LiteLLM, its arguments and its response."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.transcripts.formats.conversations import conversation_of
from otel_assembly.transcripts.log_records import fields_of, objects_in
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.json_values import MalformedError
    from otel_assembly.transcripts.records import Record

__all__ = ["OPENHANDS_COMPLETION"]


def _read(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    for record in records:
        value = record.value
        choices = objects_in(fields_of(value.get("response")).get("choices"))
        messages = [*value["messages"], *(choice["message"] for choice in choices[:1] if "message" in choice)]
        tools = objects_in(fields_of(value.get("kwargs")).get("tools"))
        yield conversation_of(None, messages, tools=tools, is_request=True)


def _has_request(sample: Sample) -> bool:
    return all(isinstance(fields_of(value).get("messages"), list) for value in sample.values)


def _has_response(sample: Sample) -> bool:
    return all(isinstance(fields_of(value).get("response"), dict) and "kwargs" in value for value in sample.values)


OPENHANDS_COMPLETION = TranscriptFormat(
    "OpenHands completion",
    (Check("a list 'messages'", _has_request), Check("'response' and 'kwargs'", _has_response)),
    _read,
)
