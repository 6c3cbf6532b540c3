"""Registers how LlamaIndex's messages are read, and creates its summary messages.

Also reads system prompts and tool schemas. Importing this module imports ``llama_index.core``.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock

from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.tool_schemas import ToolSchemas
from otel_assembly.messages import ROLES, edited, register_results, register_summaries
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.messages.rows import asks, holds, is_silent, register_parts, result_text, says, shows, thinks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.messages import Draft
    from otel_assembly.messages.rows import Row

_ROLES: Final = {**ROLES, "chatbot": EventKind.RESPONSE, "model": EventKind.RESPONSE}
_RESULT_ROLES: Final = {role for role, kind in _ROLES.items() if kind is EventKind.TOOL_RESULT}
_SYSTEM_ROLES: Final = [role for role in MessageRole if _ROLES.get(role.value) is EventKind.SYSTEM]
#: Keys in a message's ``additional_kwargs`` that contain tool calls.
_CALL_KEYS: Final = frozenset({"tool_calls", "function_call"})
#: Keys in ``additional_kwargs`` that affect what the model receives.
_READ_KEYS: Final = ("tool_calls", "function_call", "tool_call_id", "name")
_BLOCKS: dict[str, Row] = {
    "text": says("text"),
    **dict.fromkeys(("image", "audio", "video", "document"), shows),
    "cache": is_silent,
    "thinking": thinks("content", sealed=lambda block: block.additional_information.get("signature")),
    "tool_call": asks("tool_call_id", "tool_name", "tool_kwargs"),
}
_BLOCKS |= {
    # A source that the model may cite is sent with its title.
    "citable": holds(lambda block: [block.title, block.source, block.content], _BLOCKS, "block_type"),
    "citation": holds("cited_content", _BLOCKS, "block_type"),
}
#: The messages that are summaries. A mark inside a message is not possible, because its whole content is sent.
_SUMMARIES: Final[IdentityWeakMap[bool]] = IdentityWeakMap()


def _kind(message: ChatMessage, draft: Draft) -> EventKind:
    """Return a message's kind; add to the draft the tool calls and the result that its blocks do not contain."""
    for call in _calls(message.additional_kwargs):
        if call[0] not in draft.opens:  # some messages contain a call in a block, too
            draft.call(*call)
    if _role(message) in _RESULT_ROLES:
        draft.result(message.additional_kwargs.get("tool_call_id"))
    return EventKind.SUMMARY if _SUMMARIES.get(message) else _ROLES.get(_role(message), EventKind.OTHER)


def _calls(keywords: Mapping[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the id, name and arguments of each tool call in ``additional_kwargs``, in any provider's format."""
    calls = keywords.get("tool_calls")
    for call in (*(calls if isinstance(calls, list) else ()), *filter(None, [keywords.get("function_call")])):
        function = _first_value(call, "function") or call
        yield (
            _first_value(call, "id", "tool_id"),
            _first_value(function, "name", "tool_name"),
            _first_value(function, "arguments", "tool_kwargs", "input"),
        )


def _first_value(source: Any, *names: str) -> Any:
    """Return the first of these keys or attributes that is not None."""
    values = (source.get(name) if isinstance(source, Mapping) else getattr(source, name, None) for name in names)
    return next((value for value in values if value is not None), None)


def _role(message: ChatMessage) -> str:
    return str(message.role.value)


def _author(message: ChatMessage) -> dict[str, str]:
    keywords = message.additional_kwargs  # LlamaIndex's clients send the name only with calls in them
    is_sent = _role(message) not in _RESULT_ROLES and not _CALL_KEYS.isdisjoint(keywords)
    return {"name": str(keywords.get("name") or "") if is_sent else ""}


def _compared_values(message: ChatMessage) -> Any:
    """Return the values outside the blocks in which unequal messages can differ."""
    return _role(message), [message.additional_kwargs.get(name) for name in _READ_KEYS], _SUMMARIES.get(message)


register_parts(ChatMessage, "blocks", "block_type", _BLOCKS, _kind, _author, _compared_values)


def as_summary(message: ChatMessage) -> ChatMessage:
    _SUMMARIES.put(message, True)
    return message


def snapshot(message: ChatMessage) -> ChatMessage:
    return as_summary(copy(message)) if _SUMMARIES.get(message) else copy(message)


# A summary is a user message, because all providers treat user messages the same.
register_summaries(lambda text: as_summary(ChatMessage(text, role="user")), ChatMessage)
register_results(
    ChatMessage,
    lambda message: message.blocks if _role(message) in _RESULT_ROLES else (),
    result_text("block_type", "text", "text"),
    "text",
    lambda message, blocks: edited(message, blocks=blocks),
)


def system_messages(messages: Sequence[Any]) -> list[Any]:
    return [message for message in messages if getattr(message, "role", None) in _SYSTEM_ROLES]


def prompt_of(message: Any) -> str | None:
    """Return the text of a system message; None for other messages, and for one with other content than text."""
    is_system = isinstance(message, ChatMessage) and _ROLES.get(_role(message)) is EventKind.SYSTEM
    is_prompt = is_system and all(isinstance(block, TextBlock) for block in message.blocks)
    return message.content or "" if is_prompt else None


#: Returns the schemas of tools, which are LlamaIndex's tools or already schemas of the provider.
schemas_of: Final = ToolSchemas(lambda tool: tool.metadata.to_openai_tool()).of
