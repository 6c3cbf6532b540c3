"""ShareGPT's training data: ``conversations`` of turns with ``from`` and ``value``, also with tool calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.formats.conversations import conversation_of
from otel_assembly.transcripts.json_values import MalformedError, parse
from otel_assembly.transcripts.log_records import fields_of, objects_in, text_in
from otel_assembly.transcripts.messages import as_name, as_text, call_message, function_call
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.records import Record

__all__ = ["SHAREGPT"]

_ROLES = {
    "human": "user",
    "user": "user",
    "system": "system",
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bing", "bard"), "assistant"),
}
_RESULTS = frozenset({"observation", "function", "tool", "function_response"})


def _messages(record: dict[str, Any]) -> Iterator[Any]:
    if isinstance(record.get("system"), str) and record["system"]:
        yield {"role": "system", "content": record["system"]}
    unanswered: list[str] = []
    for index, turn in enumerate(record["conversations"]):
        fields = fields_of(turn)
        speaker, text = text_in(fields, "from"), as_text(fields.get("value"))
        if speaker == "function_call":
            call_id = f"call_{index}"
            unanswered.append(call_id)
            call = _parsed_call(text)
            arguments = call.get("arguments", text)
            yield call_message(None, [function_call(call_id, str(call.get("name", "")), arguments)])
        elif speaker in _RESULTS:
            # Without a call, the result is a text for the model; ToolBench has the call in the assistant's text.
            answer = {"role": "tool", "tool_call_id": unanswered.pop(0)} if unanswered else {"role": "user"}
            yield answer | {"content": text}
        else:
            role = _ROLES.get(speaker, speaker)
            yield {"role": role, "content": text}


def _parsed_call(text: str) -> dict[str, Any]:
    try:
        return fields_of(parse(text))
    except MalformedError:
        return {}


def _read(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    for record in records:
        tools = objects_in(record.value.get("tools"))
        yield conversation_of(as_name(record.value.get("id")), _messages(record.value), tools=tools)


def _has_turns(sample: Sample) -> bool:
    return all(isinstance(fields_of(value).get("conversations"), list) for value in sample.values)


def _has_speakers(sample: Sample) -> bool:
    return all(
        any("from" in turn for turn in objects_in(fields_of(value).get("conversations"))) for value in sample.values
    )


SHAREGPT = TranscriptFormat(
    "ShareGPT",
    (Check("a list 'conversations'", _has_turns), Check("turns with 'from' and 'value'", _has_speakers)),
    _read,
)
