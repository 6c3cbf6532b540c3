"""How LlamaIndex's messages are read, and what stands for them; imported once ``llama_index.core`` is."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.llms.types import ChatMessage, TextBlock

from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.tool_schemas import ToolSchemas
from otel_assembly.messages import ROLES, edited, register_results, register_summaries
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.messages.rows import asks, holds, is_silent, register_parts, result_text, says, shows, thinks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.messages import Draft
    from otel_assembly.messages.rows import Row

_ROLES: Final = {**ROLES, "chatbot": EventKind.RESPONSE, "model": EventKind.RESPONSE}
_RESULTS: Final = {role for role, kind in _ROLES.items() if kind is EventKind.TOOL_RESULT}
#: What of a message's keywords is read; others are for stores, and for the program.
_CALL_KEYS: Final = frozenset({"tool_calls", "function_call"})
_KEYWORDS: Final = ("tool_calls", "function_call", "tool_call_id", "name")
_BLOCKS: dict[str, Row] = {
    "text": says("text"),
    **dict.fromkeys(("image", "audio", "video", "document"), shows),
    "cache": is_silent,
    "thinking": thinks("content", sealed=lambda block: block.additional_information.get("signature")),
    "tool_call": asks("tool_call_id", "tool_name", "tool_kwargs"),
}
_BLOCKS |= {
    # A source that a model may cite is sent with its title.
    "citable": holds(lambda block: [block.title, block.source, block.content], _BLOCKS, "block_type"),
    "citation": holds("cited_content", _BLOCKS, "block_type"),
}
#: The messages of which it is known that they are summaries: nothing in them says so, and all that is in them is sent.
_SUMMARIES: Final[IdentityWeakMap[bool]] = IdentityWeakMap()


def _kind(message: ChatMessage, draft: Draft) -> EventKind:
    for call in _calls(message.additional_kwargs):
        if call[0] not in draft.opens:  # one that stands in a block as well is one
            draft.call(*call)
    if _role(message) in _RESULTS:
        draft.result(message.additional_kwargs.get("tool_call_id"))
    return EventKind.SUMMARY if _SUMMARIES.get(message) else _ROLES.get(_role(message), EventKind.OTHER)


def _calls(keywords: Mapping[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """The calls that a model's class has kept beside the blocks, in the form of its provider or of LlamaIndex."""
    calls = keywords.get("tool_calls")
    for call in (*(calls if isinstance(calls, list) else ()), *filter(None, [keywords.get("function_call")])):
        asked = _first(call, "function") or call
        yield (
            _first(call, "id", "tool_id"),
            _first(asked, "name", "tool_name"),
            _first(asked, "arguments", "tool_kwargs", "input"),
        )


def _first(held: Any, *names: str) -> Any:
    found = (held.get(name) if isinstance(held, Mapping) else getattr(held, name, None) for name in names)
    return next((one for one in found if one is not None), None)


def _role(message: ChatMessage) -> str:
    return str(message.role.value)


def _name(message: ChatMessage) -> dict[str, str]:
    """The speaker: LlamaIndex's clients send what a message's keywords hold only if they hold calls."""
    keywords = message.additional_kwargs
    sent = _role(message) not in _RESULTS and not _CALL_KEYS.isdisjoint(keywords)
    return {"name": str(keywords.get("name") or "") if sent else ""}


def _read(message: ChatMessage) -> Any:
    return _role(message), [message.additional_kwargs.get(name) for name in _KEYWORDS], _SUMMARIES.get(message)


register_parts(ChatMessage, "blocks", "block_type", _BLOCKS, _kind, _name, _read)


def as_summary(message: ChatMessage) -> ChatMessage:
    """This message is a summary."""
    _SUMMARIES.put(message, True)
    return message


def snapshot(message: ChatMessage) -> ChatMessage:
    """The same message, which stays as it is whatever is written into that one."""
    return as_summary(copy(message)) if _SUMMARIES.get(message) else copy(message)


# A summary is a user's message: it means the same to every provider.
register_summaries(lambda said: as_summary(ChatMessage(said, role="user")), ChatMessage)
register_results(
    ChatMessage,
    lambda message: message.blocks if _role(message) in _RESULTS else (),
    result_text("block_type", "text", "text"),
    "text",
    lambda message, blocks: edited(message, blocks=blocks),
)


def prompt_of(message: Any) -> str | None:
    """What a system prompt says; None of any other message, and of one that is more than text."""
    system = isinstance(message, ChatMessage) and _ROLES.get(_role(message)) is EventKind.SYSTEM
    said = system and all(isinstance(block, TextBlock) for block in message.blocks)
    return message.content or "" if said else None


#: The schemas of the tools that a model is offered, as its class has them or as LlamaIndex's own.
schemas_of: Final = ToolSchemas(lambda tool: tool.metadata.to_openai_tool()).of
