"""LlamaIndex's ``SimpleChatStore``: the chat messages of several users or sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.formats.conversations import conversation_of
from otel_assembly.transcripts.json_values import excerpt
from otel_assembly.transcripts.log_records import fields_of, objects_in
from otel_assembly.transcripts.messages import as_name, as_text, function_call
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.json_values import MalformedError
    from otel_assembly.transcripts.records import Record

__all__ = ["LLAMA_INDEX"]


def _message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    blocks = objects_in(message.get("blocks"))
    more = fields_of(message.get("additional_kwargs"))
    texts = [as_text(block.get("text", "")) for block in blocks if block.get("block_type") == "text"]
    media = [{"type": "file"} for block in blocks if block.get("block_type") in ("image", "audio", "video", "document")]
    content: Any = "\n".join(texts) if blocks or "content" not in message else message["content"]
    if media:
        content = [{"type": "text", "text": content}, *media]
    converted = {"role": message.get("role"), "content": content}
    calls = [
        function_call(
            as_name(block.get("tool_call_id")) or str(block.get("tool_name")),
            str(block.get("tool_name")),
            block.get("tool_kwargs"),
        )
        for block in blocks
        if block.get("block_type") == "tool_call"
    ] or objects_in(more.get("tool_calls"))
    if calls:
        converted["tool_calls"] = calls
    if (call_id := as_name(more.get("tool_call_id"))) is not None:
        converted["tool_call_id"] = call_id
    return converted


def _read(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    for record in records:
        for key, messages in record.value["store"].items():
            yield conversation_of(key or None, map(_message, messages), place=f"key {excerpt(key)}", unknown=("tools",))


def _has_store(sample: Sample) -> bool:
    return all(isinstance(fields_of(value).get("store"), dict) for value in sample.values)


def _has_lists(sample: Sample) -> bool:
    return all(all(isinstance(item, list) for item in value["store"].values()) for value in sample.values)


LLAMA_INDEX = TranscriptFormat(
    "LlamaIndex chat store",
    (Check("an object 'store'", _has_store), Check("lists of messages in 'store'", _has_lists)),
    _read,
)
