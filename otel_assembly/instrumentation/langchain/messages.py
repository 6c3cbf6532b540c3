"""How LangChain's messages are read, and what stands for them; importing this module imports ``langchain_core``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
)

from otel_assembly.chat import MEDIA_TOKENS, ROLES
from otel_assembly.facts import EventFacts, EventKind, ToolCallFacts, describe
from otel_assembly.readings import read_from
from otel_assembly.stand_ins import shortened, summary_like

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: What LangChain's own summaries are marked with, in ``additional_kwargs``.
SUMMARY_SOURCE: Final = {"lc_source": "summarization"}

_KINDS: Final = {
    "human": EventKind.REQUEST,
    "ai": EventKind.RESPONSE,
    "system": EventKind.SYSTEM,
    "tool": EventKind.TOOL_RESULT,
    "function": EventKind.TOOL_RESULT,
}
#: The type of a chunk is the class's name.
_CHUNK: Final = "MessageChunk"
#: Calls of the form that came before tool calls have no id.
_LEGACY_CALL_ID: Final = "function_call"
#: Content blocks that repeat a tool call which the message holds in ``tool_calls``.
_CALLS: Final = frozenset({"tool_use", "tool_call", "tool_call_chunk", "function_call", "input_json_delta"})
_TEXTS: Final = ("text", "refusal", "thinking", "reasoning")
_MEDIA: Final = (
    "image",
    "image_url",
    "input_image",
    "audio",
    "input_audio",
    "video",
    "file",
    "input_file",
    "media",
    "document",
)


@describe.register(BaseMessage)
def _(message: BaseMessage) -> EventFacts:
    texts, media = _content(message.content)
    opens, calls = _calls(message)
    refusal = message.additional_kwargs.get("refusal")
    if isinstance(refusal, str):
        texts.append(refusal)
    usage: Mapping[str, Any] = getattr(message, "usage_metadata", None) or {}
    return EventFacts(
        _kind(message),
        texts[0] if texts else "",
        fields=(*texts[1:], *(text for call in calls for text in call[1:])),
        opens=opens,
        closes=_closes(message),
        id=message.id or None,
        name=message.name or "",
        media_tokens=media,
        billed_tokens=usage.get("input_tokens") or None,
        output_tokens=usage.get("output_tokens") or None,
        calls=calls,
    )


_READ: Final = ("id", "content", "name", "additional_kwargs")
read_from(BaseMessage, *_READ)
read_from(AIMessage, *_READ, "tool_calls", "invalid_tool_calls", "usage_metadata")
read_from(ToolMessage, *_READ, "tool_call_id")
read_from(ChatMessage, *_READ, "role")


@describe.register(RemoveMessage)
def _(_: RemoveMessage) -> EventFacts:
    return EventFacts(EventKind.OTHER)


@summary_like.register(BaseMessage)
def _(_: BaseMessage, text: str, events: Sequence[Any]) -> HumanMessage:
    """A user's message, as LangChain's own summaries are: several providers take system messages only in front."""
    return HumanMessage(
        content=f"[Earlier messages, summarised: details may be missing]\n{text}",
        additional_kwargs=dict(SUMMARY_SOURCE),
    )


@shortened.register(ToolMessage)
@shortened.register(FunctionMessage)
def _(message: ToolMessage | FunctionMessage, text: str) -> BaseMessage | None:
    return message.model_copy(update={"content": text}) if isinstance(message.content, str) else None


def _kind(message: BaseMessage) -> EventKind:
    if message.additional_kwargs.get("lc_source") == SUMMARY_SOURCE["lc_source"]:
        return EventKind.SUMMARY
    name = message.type.removesuffix(_CHUNK).lower()
    role = getattr(message, "role", None)
    if name == "chat" and isinstance(role, str):
        return ROLES.get(role, EventKind.OTHER)
    return _KINDS.get(name, EventKind.OTHER)


def _content(content: Any) -> tuple[list[str], int]:
    """The texts of a content, and what its images, clips and files are counted as."""
    if isinstance(content, str):
        return ([content] if content else []), 0
    texts: list[str] = []
    media = 0
    for block in content or ():
        if isinstance(block, str):
            texts.append(block)
            continue
        if block.get("type") in _CALLS:
            continue
        text = next((block[key] for key in _TEXTS if isinstance(block.get(key), str)), None)
        if text is not None:
            texts.append(text)
        elif block.get("type") in _MEDIA:
            media += MEDIA_TOKENS
        else:
            texts.append(json.dumps(block, ensure_ascii=False, default=str))
    return texts, media


def _calls(message: BaseMessage) -> tuple[list[str], list[ToolCallFacts]]:
    """The ids of the calls that a message asks for, and all its calls: one that is invalid may have no id."""
    opens: list[str] = []
    calls: list[ToolCallFacts] = []
    for call in _each_call(message):
        known = call.get("id")
        if isinstance(known, str):
            opens.append(known)
        arguments = call.get("args")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False, default=str)
        calls.append(ToolCallFacts(known or "", str(call.get("name") or ""), arguments))
    legacy = message.additional_kwargs.get("function_call")
    if isinstance(legacy, dict) and not opens:
        opens.append(_LEGACY_CALL_ID)
        calls.append(ToolCallFacts(_LEGACY_CALL_ID, str(legacy.get("name", "")), str(legacy.get("arguments", ""))))
    return opens, calls


def _each_call(message: BaseMessage) -> Iterator[Mapping[str, Any]]:
    yield from getattr(message, "tool_calls", None) or ()
    yield from getattr(message, "invalid_tool_calls", None) or ()


def _closes(message: BaseMessage) -> tuple[str, ...]:
    answered = getattr(message, "tool_call_id", None)
    if isinstance(answered, str):
        return (answered,)
    return (_LEGACY_CALL_ID,) if isinstance(message, FunctionMessage) else ()
