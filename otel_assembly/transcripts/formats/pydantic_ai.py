"""Pydantic AI's message history: the JSON of ``ModelMessagesTypeAdapter``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.conversation import Conversation, arrived_messages
from otel_assembly.transcripts.log_records import count_unknown, log_objects, objects_in, text_in
from otel_assembly.transcripts.messages import as_name, as_text, call_message, function_call, readable
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.records import Record

__all__ = ["PYDANTIC_AI"]

_SILENT = frozenset({"thinking", "builtin-tool-call", "builtin-tool-return"})


def _user_content(content: Any) -> Any:
    """Return the content of a user's prompt; media become parts whose tokens are estimated."""
    if not isinstance(content, list):
        return as_text(content)
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("kind") if isinstance(part, dict) else None
        is_media = kind in ("image-url", "audio-url", "video-url", "document-url", "binary")
        parts.append({"type": "file"} if is_media else {"type": "text", "text": as_text(part)})
    return parts


def _request(message: dict[str, Any], skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    for part in objects_in(message.get("parts")):
        content = part.get("content")
        match part.get("part_kind"):
            case "system-prompt":
                yield {"role": "system", "content": as_text(content)}
            case "user-prompt":
                yield {"role": "user", "content": _user_content(content)}
            case "tool-return":
                yield {"role": "tool", "tool_call_id": as_name(part.get("tool_call_id")), "content": as_text(content)}
            case "retry-prompt" if part.get("tool_name"):
                yield {"role": "tool", "tool_call_id": as_name(part.get("tool_call_id")), "content": as_text(content)}
            case "retry-prompt":
                yield {"role": "user", "content": as_text(content)}
            case kind:
                count_unknown(skipped, "part", kind)


def _response(message: dict[str, Any], skipped: Counter[str]) -> dict[str, Any]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in objects_in(message.get("parts")):
        kind = text_in(part, "part_kind")
        if kind == "text":
            texts.append(as_text(part.get("content")))
        elif kind == "tool-call":
            call_id = as_name(part.get("tool_call_id")) or f"call {len(calls)}"
            calls.append(function_call(call_id, str(part.get("tool_name")), part.get("args")))
        elif kind not in _SILENT:
            count_unknown(skipped, "part", kind)
    return call_message("".join(texts) or ("" if not calls else None), calls)


def _read(records: Iterator[Record]) -> Iterator[Conversation]:
    skipped: Counter[str] = Counter()
    messages: list[dict[str, Any]] = []
    instructions = ""
    for message in log_objects(records, skipped):
        if message.get("kind") == "request":
            instructions = message["instructions"] if isinstance(message.get("instructions"), str) else instructions
            messages += [readable(part, skipped) for part in _request(message, skipped)]
        elif message.get("kind") == "response":
            messages.append(readable(_response(message, skipped), skipped))
        else:
            count_unknown(skipped, "message", message.get("kind"))
    has_system = any(message.get("role") == "system" for message in messages)
    yield Conversation(
        None,
        arrived_messages((), messages),
        prompts=[instructions] if instructions else [],
        unknown=("tools",) if has_system or instructions else ("system prompt", "tools"),
        skipped=skipped,
    )


def _has_kind(sample: Sample) -> bool:
    return any(isinstance(value, dict) and value.get("kind") in ("request", "response") for value in sample.values)


def _has_part_kinds(sample: Sample) -> bool:
    parts = (part for value in sample.values if isinstance(value, dict) for part in objects_in(value.get("parts")))
    return any("part_kind" in part for part in parts)


PYDANTIC_AI = TranscriptFormat(
    "Pydantic AI",
    (
        Check("messages of kind 'request' and 'response'", _has_kind),
        Check("parts with 'part_kind'", _has_part_kinds),
    ),
    _read,
    is_log=True,
)
