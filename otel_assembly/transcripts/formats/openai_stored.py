"""Lists of OpenAI's API: the messages of a stored chat completion, and the input items of a stored response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.formats.conversations import conversation_of
from otel_assembly.transcripts.log_records import fields_of, objects_in
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.json_values import MalformedError
    from otel_assembly.transcripts.records import Record

__all__ = ["OPENAI_STORED"]


def _message(message: Any) -> Any:
    """Return a stored message without the fields that the API adds."""
    if not isinstance(message, dict) or "role" not in message:
        return message
    content = message.get("content_parts") or message.get("content")
    kept = {key: message[key] for key in ("role", "name", "tool_calls", "tool_call_id") if message.get(key)}
    return kept | {"content": content}


def _read(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    for record in records:
        data = record.value["data"]
        if record.value.get("object") == "list" and all("type" in item for item in objects_in(data)):
            data = data[::-1]  # input items are listed from the newest to the oldest
        yield conversation_of(None, map(_message, data), is_request=True, unknown=("tools",))


def _is_list(sample: Sample) -> bool:
    return all(fields_of(value).get("object") == "list" for value in sample.values)


def _has_messages(sample: Sample) -> bool:
    return all(
        isinstance(fields_of(value).get("data"), list) and any("role" in item for item in objects_in(value["data"]))
        for value in sample.values
    )


OPENAI_STORED = TranscriptFormat(
    "OpenAI stored messages",
    (Check("'object' is 'list'", _is_list), Check("a list 'data' of messages", _has_messages)),
    _read,
)
