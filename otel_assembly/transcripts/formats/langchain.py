"""LangChain's messages as JSON, and the states of LangGraph that contain them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.conversation import Conversation
from otel_assembly.transcripts.formats.conversations import conversation_of
from otel_assembly.transcripts.langchain_messages import chat_message, is_langchain_message
from otel_assembly.transcripts.log_records import fields_of, log_objects
from otel_assembly.transcripts.messages import as_name
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_assembly.transcripts.json_values import MalformedError
    from otel_assembly.transcripts.records import Record

__all__ = ["LANGCHAIN", "LANGGRAPH"]


def _conversation(name: str | None, messages: Iterable[Any]) -> Conversation | MalformedError:
    converted = (chat_message(message) if isinstance(message, dict) else message for message in messages)
    return conversation_of(name, converted, unknown=("tools",))


def _read(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    skipped: Counter[str] = Counter()
    conversation = _conversation(None, log_objects(records, skipped))
    if isinstance(conversation, Conversation):
        conversation.skipped.update(skipped)
    yield conversation


def _messages_of(value: Any) -> list[Any] | None:
    """Return the messages of a state; None for any other value."""
    state = fields_of(value)
    state = fields_of(state["values"]) if "values" in state else fields_of(state.get("channel_values")) or state
    messages = state.get("messages")
    return messages if isinstance(messages, list) and any(map(is_langchain_message, messages)) else None


def _read_states(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    for record in records:
        configurable = fields_of(fields_of(record.value.get("config")).get("configurable"))
        yield _conversation(as_name(configurable.get("thread_id")), _messages_of(record.value) or [])


def _are_messages(sample: Sample) -> bool:
    return bool(sample.values) and all(map(is_langchain_message, sample.values))


LANGCHAIN = TranscriptFormat(
    "LangChain messages",
    (Check("messages with 'type' and 'content', 'data' or 'kwargs'", _are_messages),),
    _read,
    is_log=True,
)
LANGGRAPH = TranscriptFormat(
    "LangGraph state",
    (
        Check(
            "an object with LangChain messages under 'messages' or 'values'",
            lambda sample: bool(sample.values) and all(_messages_of(value) is not None for value in sample.values),
        ),
    ),
    _read_states,
)
