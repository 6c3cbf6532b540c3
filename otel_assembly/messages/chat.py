"""Plain dicts that are no role with one text: a content of parts, and the forms of other providers.

Which form a dict has, its keys say: a role with a ``content`` (OpenAI's chat, Anthropic's, Bedrock's), a role with
``parts`` (Gemini's, OpenTelemetry's), or a ``type`` alone (an item of OpenAI's Responses).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import DescribeError
from otel_assembly.messages.describe import (
    ROLES,
    EventFacts,
    EventKind,
    answers,
    chat_row,
    describe,
    speaker,
    thoughts,
    tool_calls,
)
from otel_assembly.messages.draft import Draft
from otel_assembly.messages.keyed_parts import GEMINI
from otel_assembly.messages.parts import read_content, read_parts
from otel_assembly.messages.replacements import summary_like, summary_text
from otel_assembly.messages.responses import ITEMS, read_item

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Gemini's roles; a content without one is the user's.
_GEMINI: Final[Mapping[Any, EventKind]] = {**ROLES, "model": EventKind.RESPONSE, None: EventKind.REQUEST}
#: So much of what stands in the place of a role is quoted.
_LONGEST_ROLE: Final = 40


def _read_other(message: dict[str, Any], kind: EventKind | None) -> EventFacts:
    content = message.get("content")
    if kind is None or (content is None and (message.get("parts") is not None or _is_item(message))):
        return _by_keys(message, message.get("role"))
    if content is None:
        return _read_chat({**message, "content": ""})
    draft = Draft()
    read_content(draft, content)
    return _read(draft, message, kind)


_read_chat = describe.register(dict, chat_row(_read_other))


def _by_keys(message: dict[str, Any], role: Any) -> EventFacts:
    """A message whose role and content do not say what it is."""
    kind = message.get("type")
    if isinstance(kind, str) and kind != "message" and (role is None or _is_item(message)):
        return read_item(message, kind)
    parts = message.get("parts")
    meant = _GEMINI.get(role) if role is None or isinstance(role, str) else None
    if meant is None or not isinstance(parts, (list, tuple)):
        if meant is None or role is None:
            found = repr(role[:_LONGEST_ROLE]) if isinstance(role, str) else type(role).__name__.removesuffix("Type")
            raise DescribeError(dict, f"its 'role' is {found}, expected one of {', '.join(ROLES)}")
        raise DescribeError(dict, f"its 'parts' are a {type(parts).__name__}, expected a list")
    draft = Draft()
    read_parts(draft, parts, GEMINI)
    return _read(draft, message, meant)


def _is_item(message: Mapping[str, Any]) -> bool:
    kind = message.get("type")
    return isinstance(kind, str) and kind in ITEMS


def _read(draft: Draft, message: Mapping[str, Any], kind: EventKind) -> EventFacts:
    """What is told of a message with parts; one of the user's that only answers tools is no request."""
    if "refusal" in message:
        draft.text(message["refusal"])
    if kind is EventKind.RESPONSE:
        for thought in thoughts(message):
            draft.text(thought)
    if "tool_calls" in message or "function_call" in message:
        said = tuple(draft.opens)
        for call in tool_calls(message, draft.awaiting):
            if call.id not in said:  # one that stands in both is one
                draft.call(*call)
    if kind is EventKind.REQUEST and draft.results and not draft.said:
        kind = EventKind.TOOL_RESULT
    elif kind is EventKind.TOOL_RESULT:
        draft.closes += answers(message)
    return draft.facts(kind, message, speaker(message))


class ChatSummary(dict[str, Any]):
    """A system message that says what earlier messages said; a dict like any other to whoever sends it."""


@describe.register(ChatSummary)
def _(message: ChatSummary) -> EventFacts:
    return EventFacts(EventKind.SUMMARY, message["content"])


@summary_like.register(dict)
def _(message: dict[str, Any], text: str, events: Sequence[Any]) -> dict[str, Any]:
    return ChatSummary(role="system", content=summary_text(text))
