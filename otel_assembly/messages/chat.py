"""Reads messages that are dicts, in the formats of all providers.

The keys identify the format: a role with ``content`` (OpenAI's chat, Anthropic, Bedrock), a role with ``parts``
(Gemini, OpenTelemetry), or only a ``type`` (an item of OpenAI's Responses API).
"""

from __future__ import annotations

from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_assembly.errors import DescribeError
from otel_assembly.messages.draft import Draft
from otel_assembly.messages.event_facts import (
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
from otel_assembly.messages.keyed_parts import GEMINI
from otel_assembly.messages.parts import read_content, read_parts
from otel_assembly.messages.provider_rules import RULES, Provider, tool_name
from otel_assembly.messages.replacements import SUMMARY_READ, summary_like, summary_reply, summary_text
from otel_assembly.messages.responses import ITEMS, read_item

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Gemini's roles. A message without a role is from the user.
_GEMINI: Final[Mapping[Any, EventKind]] = {**ROLES, "model": EventKind.RESPONSE, None: EventKind.REQUEST}
#: The most characters of an invalid role in an error message.
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
    """Return the facts of a dict that is an item of OpenAI's Responses API or a message with ``parts``.

    Raises:
        DescribeError: The dict has no known format.
    """
    kind = message.get("type")
    if isinstance(kind, str) and kind != "message" and (role is None or _is_item(message)):
        return read_item(message, kind)
    parts = message.get("parts")
    role_kind = _GEMINI.get(role) if role is None or isinstance(role, str) else None
    if role_kind is None or not isinstance(parts, (list, tuple)):
        if role_kind is None or role is None:
            shown = repr(role[:_LONGEST_ROLE]) if isinstance(role, str) else type(role).__name__.removesuffix("Type")
            raise DescribeError(dict, f"its 'role' is {shown}, expected one of {', '.join(ROLES)}")
        raise DescribeError(dict, f"its 'parts' are a {type(parts).__name__}, expected a list")
    draft = Draft()
    read_parts(draft, parts, GEMINI)
    return _read(draft, message, role_kind)


def _is_item(message: Mapping[str, Any]) -> bool:
    kind = message.get("type")
    return isinstance(kind, str) and kind in ITEMS


def _read(draft: Draft, message: Mapping[str, Any], kind: EventKind) -> EventFacts:
    """Return the facts of a message whose parts are already in a draft.

    Args:
        draft: The facts of the parts.
        message: The message, which is read for its calls, reasoning and id.
        kind: The kind for the message's role. A user message that contains only tool results gets their kind instead.
    """
    if "refusal" in message:
        draft.text(message["refusal"])
    if kind is EventKind.RESPONSE:
        for thought in thoughts(message):
            draft.text(thought)
    if "tool_calls" in message or "function_call" in message:
        calls_in_parts = tuple(draft.opens)
        for call in tool_calls(message, draft.awaiting):
            if call.id not in calls_in_parts:  # a call can be in both places
                draft.call(call.id, tool_name(call.name), call.arguments)
                draft.calls[-1] = call
    if kind is EventKind.REQUEST and draft.results and not draft.said:
        kind = EventKind.TOOL_RESULT
    elif kind is EventKind.TOOL_RESULT:
        draft.closes += answers(message)
    return draft.facts(kind, message, speaker(message), provider=draft.provider)


class ChatSummary(dict[str, Any]):
    """A user message that contains a summary of earlier messages; for clients it is a plain dict."""


@describe.register(ChatSummary)
def _(message: ChatSummary) -> EventFacts:
    return _read_chat(message)._replace(kind=EventKind.SUMMARY)


class MessageForm(StrEnum):
    """The format of a conversation's messages as dicts."""

    CHAT = "chat"  # OpenAI's Chat Completions and Responses, and Anthropic: same format of texts
    BEDROCK = "bedrock"
    GEMINI = "gemini"
    GENAI = "genai"  # OpenTelemetry's GenAI conventions


def _untyped(parts: Any) -> bool | None:
    """Return True if a part of a message has no ``type``; None if there are no parts that are dicts."""
    if not isinstance(parts, (list, tuple)):
        return None
    types = [isinstance(part.get("type"), str) for part in parts if isinstance(part, dict)]
    return not all(types) if types else None


def message_form(messages: Iterable[Any]) -> MessageForm:
    """Return the format of a conversation's messages, by the first message whose keys identify a format.

    System messages are skipped, because their format often differs from that of the other messages.

    Args:
        messages: Messages of one conversation, in order.
    """
    for message in messages:
        if not isinstance(message, dict) or ROLES.get(message.get("role", "")) is EventKind.SYSTEM:
            continue
        untyped = _untyped(message.get("parts"))
        if untyped is not None:
            return MessageForm.GEMINI if untyped else MessageForm.GENAI
        if _untyped(message.get("content")):
            return MessageForm.BEDROCK
        if isinstance(message.get("content"), str):
            return MessageForm.CHAT
    return MessageForm.CHAT


def text_message(form: MessageForm, role: Literal["user", "assistant"], text: str) -> dict[str, Any]:
    """Return a message dict that contains one text.

    Args:
        form: The format of the message.
        role: The message's role.
        text: The text.
    """
    match form:
        case MessageForm.GEMINI:
            return {"role": "model" if role == "assistant" else role, "parts": [{"text": text}]}
        case MessageForm.GENAI:
            return {"role": role, "parts": [{"type": "text", "content": text}]}
        case MessageForm.BEDROCK:
            return {"role": role, "content": [{"text": text}]}
        case MessageForm.CHAT:
            return {"role": role, "content": text}


@summary_like.register(dict)
def _(message: dict[str, Any], text: str, events: Sequence[Any]) -> dict[str, Any]:
    # The summary is a user message: Anthropic, Bedrock and Gemini have no system messages in a conversation, and
    # servers of open models accept one only at the beginning.
    form = message_form(chain((message,), events))
    return ChatSummary(text_message(form, "user", summary_text(text)))


@summary_reply.register(ChatSummary)
def _(summary: ChatSummary, following: Any) -> dict[str, Any] | None:
    form = message_form((summary,))
    if form is not MessageForm.BEDROCK or not RULES[Provider.BEDROCK].alternates:
        return None
    is_user = isinstance(following, dict) and following.get("role") == "user"
    return text_message(form, "assistant", SUMMARY_READ) if is_user else None
