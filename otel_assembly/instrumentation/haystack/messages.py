"""How Haystack's messages are read, and how others stand for them; imported once Haystack is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from haystack.dataclasses import ChatMessage, ToolCallResult

from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.messages import ROLES, function_schema, register_results, register_summaries
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.messages.replacements import OUR_SUMMARY
from otel_assembly.messages.rows import answers, asks, holds, register_parts, result_text, says, shows, thinks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from haystack.tools.tool import Tool

    from otel_assembly.messages import Draft
    from otel_assembly.messages.rows import Row

#: Where a compaction of Haystack's notes on a message what made it; such a message of the user's nobody has said.
COMPACTION: Final = "context_compaction"


def is_summary(message: ChatMessage) -> bool:
    """Whether a message stands for others that a compaction has left out, or says that it has."""
    return bool(message.meta.get(OUR_SUMMARY)) or (COMPACTION in message.meta and message.is_from("user"))


def behind_prompts(messages: Sequence[ChatMessage]) -> tuple[list[str], list[ChatMessage]]:
    """The system prompts in front of everything else, and the messages behind them."""
    prompts, held = in_front(messages, lambda message: message.is_from("system") and not is_summary(message))
    return ["\n".join(prompt.texts) for prompt in prompts], list(held)


def given_to(messages: Any) -> list[Any]:
    """The messages that a generator is called with; what is none is its own to refuse."""
    messages = [ChatMessage.from_user(messages)] if isinstance(messages, str) else messages
    well = isinstance(messages, list) and all(isinstance(one, ChatMessage) for one in messages)
    return messages if well else []


def schema_of(tool: Tool) -> dict[str, Any]:
    """The schema of a tool, as generators offer it."""
    return function_schema(tool.name, tool.description, tool.parameters)


def _name(part: Any) -> str:
    return type(part).__name__


def _sealed(part: Any) -> Any:
    return part.extra.get("encrypted_content") or part.extra.get("signature")


def _used(message: ChatMessage, *names: str) -> Any:
    used = message.meta.get("usage")
    return next((used[name] for name in names if used.get(name)), None) if isinstance(used, dict) else None


def _known(message: ChatMessage) -> dict[str, Any]:
    return {
        "name": message.name or "",
        "billed_tokens": _used(message, "prompt_tokens", "input_tokens"),
        "output_tokens": _used(message, "completion_tokens", "output_tokens"),
    }


def _kind(message: ChatMessage, draft: Draft) -> EventKind:
    return EventKind.SUMMARY if is_summary(message) else ROLES.get(message.role.value, EventKind.OTHER)


_ITEMS: Final[Mapping[str, Row]] = {"TextContent": says("text"), "ImageContent": shows, "FileContent": shows}
_ROWS: Final[Mapping[str, Row]] = {
    **_ITEMS,
    # As generators write the arguments.
    "ToolCall": asks("id", "tool_name", lambda call: json.dumps(call.arguments, ensure_ascii=False, default=str)),
    "ToolCallResult": answers("origin.id", held=holds("result", _ITEMS, _name)),
    "ReasoningContent": thinks("reasoning_text", sealed=_sealed),
}

register_parts(ChatMessage, "_content", _name, _ROWS, _kind, _known, lambda one: (one.role, is_summary(one)))
# Haystack's own compaction takes a message for nobody's request that is so marked. Nothing of it is sent.
register_summaries(
    lambda said: ChatMessage.from_user(said, meta={OUR_SUMMARY: True, COMPACTION: {"strategy": "otel_assembly"}}),
    ChatMessage,
)
register_results(
    ChatMessage,
    "_content",
    result_text(_name, ToolCallResult.__name__, "result"),
    lambda part, said: replace(part, result=said),
    lambda message, parts: replace(message, _content=parts),
)
