"""AutoGen's results: the ``TaskResult`` of a team, and the ``chat_messages`` of an agent in version 0.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.formats.conversations import conversation_of, is_message
from otel_assembly.transcripts.json_values import excerpt
from otel_assembly.transcripts.log_records import fields_of, objects_in, text_in
from otel_assembly.transcripts.messages import as_name, as_text, call_message, function_call
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.json_values import MalformedError
    from otel_assembly.transcripts.records import Record

__all__ = ["AUTOGEN_CHATS", "AUTOGEN_RESULT"]

_TEXTS = frozenset({"HandoffMessage", "MultiModalMessage", "StopMessage", "StructuredMessage", "TextMessage"})
#: Events for observers; `ToolCallSummaryMessage` repeats the results.
_SILENT = frozenset(
    {
        "CodeExecutionEvent",
        "MemoryQueryEvent",
        "ModelClientStreamingChunkEvent",
        "SelectSpeakerEvent",
        "SelectorEvent",
        "ThoughtEvent",
        "ToolCallSummaryMessage",
        "UserInputRequestedEvent",
    }
)


def _messages(messages: list[Any]) -> Iterator[Any]:
    for message in messages:
        fields = fields_of(message)
        kind, content = text_in(fields, "type"), fields.get("content")
        if kind == "ToolCallRequestEvent":
            calls = [
                function_call(as_name(call.get("id")) or "", str(call.get("name")), call.get("arguments"))
                for call in objects_in(content)
            ]
            yield call_message(None, calls)
        elif kind == "ToolCallExecutionEvent":
            for result in objects_in(content):
                call_id = as_name(result.get("call_id"))
                yield {"role": "tool", "tool_call_id": call_id, "content": as_text(result.get("content"))}
        elif kind in _TEXTS:
            role = "user" if fields.get("source") == "user" else "assistant"
            yield {"role": role, "content": content if isinstance(content, str) else as_text(content)}
        elif kind not in _SILENT:
            yield message


def _read_result(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    for record in records:
        yield conversation_of(None, _messages(record.value["messages"]), unknown=("system prompt", "tools"))


def _read_chats(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    for record in records:
        for agent, messages in record.value.items():
            unknown = ("system prompt", "tools")
            yield conversation_of(None, messages, place=f"agent {excerpt(agent)}", agent=agent, unknown=unknown)


def _has_stop_reason(sample: Sample) -> bool:
    return all("stop_reason" in fields_of(value) for value in sample.values)


def _has_sources(sample: Sample) -> bool:
    return all(
        any("source" in message and "type" in message for message in objects_in(fields_of(value).get("messages")))
        for value in sample.values
    )


def _are_chats(sample: Sample) -> bool:
    return all(
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(chat, list) and bool(chat) and all(map(is_message, chat)) for chat in value.values())
        and not {"messages", "history", "traj", "input", "contents"} & value.keys()
        for value in sample.values
    )


AUTOGEN_RESULT = TranscriptFormat(
    "AutoGen TaskResult",
    (Check("'stop_reason'", _has_stop_reason), Check("messages with 'source' and 'type'", _has_sources)),
    _read_result,
)
AUTOGEN_CHATS = TranscriptFormat(
    "AutoGen chat_messages", (Check("lists of messages by the name of the other agent", _are_chats),), _read_chats
)
