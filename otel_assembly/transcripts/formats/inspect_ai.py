"""Logs of inspect-ai: the JSON log of an evaluation, and the samples in an ``.eval`` file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.formats.conversations import conversation_of
from otel_assembly.transcripts.log_records import fields_of, objects_in
from otel_assembly.transcripts.messages import as_name, function_call
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.json_values import MalformedError
    from otel_assembly.transcripts.records import Record

__all__ = ["INSPECT_LOG", "INSPECT_SAMPLE"]


def _message(message: Any) -> Any:
    """Return a message whose tool calls have the form of OpenAI's chat messages."""
    if not isinstance(message, dict):
        return message
    fields = {key: message[key] for key in ("role", "content", "tool_call_id") if message.get(key) is not None}
    calls = [
        function_call(as_name(call.get("id")) or f"call {index}", str(call.get("function")), call.get("arguments"))
        for index, call in enumerate(objects_in(message.get("tool_calls")))
    ]
    return fields | ({"tool_calls": calls} if calls else {})


def _conversation(sample: dict[str, Any]) -> Conversation | MalformedError:
    name, epoch = as_name(sample.get("id")), as_name(sample.get("epoch"))
    messages = sample.get("messages")
    return conversation_of(
        f"{name}-{epoch}" if name and epoch else name,
        map(_message, messages if isinstance(messages, list) else ()),
        place=f"sample {name}",
        unknown=("tools",),
    )


def _read_log(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    for record in records:
        yield from map(_conversation, objects_in(record.value["samples"]))


def _read_sample(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    for record in records:
        yield _conversation(record.value)


def _has_eval(sample: Sample) -> bool:
    return all(isinstance(fields_of(value).get("eval"), dict) for value in sample.values)


def _has_samples(sample: Sample) -> bool:
    return all(isinstance(fields_of(value).get("samples"), list) for value in sample.values)


def _is_sample(sample: Sample) -> bool:
    return all(
        isinstance(fields_of(value).get("messages"), list) and isinstance(fields_of(value).get("epoch"), int)
        for value in sample.values
    )


INSPECT_LOG = TranscriptFormat(
    "inspect-ai log", (Check("an object 'eval'", _has_eval), Check("a list 'samples'", _has_samples)), _read_log
)
INSPECT_SAMPLE = TranscriptFormat(
    "inspect-ai sample", (Check("'messages' and a number 'epoch'", _is_sample),), _read_sample
)
