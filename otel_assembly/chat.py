"""How OpenAI-style chat messages (plain dicts) are read: roles, parts, tool calls, tool results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import DescribeError
from otel_assembly.facts import EventFacts, EventKind, ToolCallFacts, describe
from otel_assembly.stand_ins import shortened, summary_like

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROLES: Mapping[str, EventKind] = {
    "system": EventKind.SYSTEM,
    "developer": EventKind.SYSTEM,
    "user": EventKind.REQUEST,
    "assistant": EventKind.RESPONSE,
    "tool": EventKind.TOOL_RESULT,
    "function": EventKind.TOOL_RESULT,
}

#: What an image, audio clip or file is counted as, where its size in tokens cannot be read from the message: the cost
#: of a 1024 × 1024 image at high detail in OpenAI's published rule.
MEDIA_TOKENS = 765

_LEGACY_CALL_ID = "function_call"


@describe.register
def _(message: dict) -> EventFacts:  # type: ignore[type-arg]  # singledispatch registers by the bare class
    role = message.get("role")
    kind = ROLES.get(role) if isinstance(role, str) else None
    if kind is None:
        raise DescribeError(dict, f"its 'role' is {role!r}, expected one of {', '.join(ROLES)}")
    texts, media = _content(message.get("content"))
    refusal = message.get("refusal")
    if isinstance(refusal, str):
        texts.append(refusal)
    calls, awaiting = _tool_calls(message)
    return EventFacts(
        kind,
        texts[0] if texts else "",
        fields=texts[1:] + [text for call in calls for text in call[1:]],
        opens=[call.id for call in calls],
        closes=_answers(message) if kind is EventKind.TOOL_RESULT else (),
        awaiting=awaiting,
        id=message["id"] if isinstance(message.get("id"), str) else None,
        name=message["name"] if isinstance(message.get("name"), str) else "",
        media_tokens=media,
        calls=calls,
    )


class ChatSummary(dict[str, Any]):
    """A system message that says what earlier messages said; a dict like any other to whoever sends it."""


@describe.register(ChatSummary)
def _(message: ChatSummary) -> EventFacts:
    return EventFacts(EventKind.SUMMARY, message["content"])


@summary_like.register(dict)
def _(message: dict[str, Any], text: str, events: Sequence[Any]) -> dict[str, Any]:
    return ChatSummary(role="system", content=f"[Earlier messages, summarised: details may be missing]\n{text}")


@shortened.register(dict)
def _(message: dict[str, Any], text: str) -> dict[str, Any] | None:
    return {**message, "content": text} if isinstance(message.get("content"), str) else None


def _content(content: Any) -> tuple[list[str], int]:
    if content is None:
        return [], 0
    if isinstance(content, str):
        return [content], 0
    if not isinstance(content, list):
        raise DescribeError(dict, f"its 'content' is a {type(content).__name__}, expected a string, a list or null")
    texts: list[str] = []
    media = 0
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(text := part.get("text", part.get("refusal")), str):
            texts.append(text)
        elif isinstance(part, dict) and isinstance(part.get("type"), str):
            media += MEDIA_TOKENS
        else:
            raise DescribeError(dict, "a part of its 'content' has neither a 'text' nor a 'type'")
    return texts, media


def _tool_calls(message: Mapping[str, Any]) -> tuple[list[ToolCallFacts], list[str]]:
    made: list[ToolCallFacts] = []
    awaiting: list[str] = []
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)):
        raise DescribeError(dict, f"its 'tool_calls' is a {type(calls).__name__}, expected a list")
    for call in calls:
        function = call.get("function") or call.get("custom") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(call.get("id"), str):
            raise DescribeError(dict, "a tool call has no 'id' or no 'function'")
        made.append(ToolCallFacts(call["id"], *_spell(function)))
        if call.get("awaiting_approval") is True:
            awaiting.append(call["id"])
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        made.append(ToolCallFacts(_LEGACY_CALL_ID, *_spell(legacy)))
    return made, awaiting


def _spell(function: Mapping[str, Any]) -> tuple[str, str]:
    arguments = function.get("arguments", function.get("input", ""))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return str(function.get("name", "")), arguments


def _answers(message: Mapping[str, Any]) -> list[str]:
    """The calls a tool message answers; some recorders join parallel results and write ``tool_call_ids``."""
    several = message.get("tool_call_ids")
    if isinstance(several, list):
        return [str(one) for one in several]
    one = message.get("tool_call_id")
    if isinstance(one, str):
        return [one]
    return [_LEGACY_CALL_ID] if message.get("role") == "function" else []
