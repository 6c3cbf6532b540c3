"""Readers for Haystack's `ChatMessage`, and functions that create summaries and shortened results.

Importing this module registers them. It imports Haystack, so it is imported only after Haystack itself.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from haystack.dataclasses import ChatMessage, ChatRole, ToolCallResult

from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.messages import ROLES, function_schema, register_results, register_summaries
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.messages.replacements import OUR_SUMMARY
from otel_assembly.messages.rows import answers, asks, holds, register_parts, result_text, says, shows, thinks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from haystack.tools.tool import Tool

    from otel_assembly.messages.rows import Row

#: The key in a message's `meta` by which Haystack's compaction marks the messages that it creates.
COMPACTION: Final = "context_compaction"


def is_summary(message: ChatMessage) -> bool:
    """Return whether a message is a summary, or a notice by Haystack's compaction that messages were removed."""
    return bool(_compared_values([message])[0][1])


def split_prompts(messages: Sequence[ChatMessage]) -> tuple[list[str], list[ChatMessage]]:
    """Return the system prompts at the start of a list of messages, and the messages that follow them."""
    prompts, others = in_front(messages, lambda message: message.is_from("system") and not is_summary(message))
    return ["\n".join(prompt.texts) for prompt in prompts], list(others)


def input_messages(messages: Any) -> list[Any] | None:
    """Return the input of a generator as messages; None for an invalid input, which the generator rejects."""
    messages = [ChatMessage.from_user(messages)] if isinstance(messages, str) else messages
    is_valid = isinstance(messages, list) and all(map(isinstance, messages, repeat(ChatMessage)))
    return messages if is_valid else None


def schema_of(tool: Tool) -> dict[str, Any]:
    return function_schema(tool.name, tool.description, tool.parameters)


_NOTHING: Final[Mapping[str, Any]] = {}
#: Returns the name of a part's type.
_TYPE_NAME: Final = attrgetter("__class__.__name__")


def _compared_values(messages: Sequence[ChatMessage]) -> list[Any]:
    """Return the role of each message, whether it is a summary, its name, and its input and output tokens.

    All messages are compared by these values at each model call, so no Python function is called per message.
    """
    return [
        (
            role,
            bool(meta.get(OUR_SUMMARY)) or (COMPACTION in meta and role is ChatRole.USER),
            name or "",
            usage.get("prompt_tokens") or usage.get("input_tokens") or None,
            usage.get("completion_tokens") or usage.get("output_tokens") or None,
        )
        for role, name, meta in map(attrgetter("_role", "_name", "_meta"), messages)
        for usage in [meta["usage"] if isinstance(meta.get("usage"), dict) else _NOTHING]
    ]


_ITEMS: Final[Mapping[str, Row]] = {"TextContent": says("text"), "ImageContent": shows, "FileContent": shows}
_ROWS: Final[Mapping[str, Row]] = {
    **_ITEMS,
    # Generators serialize the arguments of a call like this.
    "ToolCall": asks("id", "tool_name", lambda call: json.dumps(call.arguments, ensure_ascii=False, default=str)),
    "ToolCallResult": answers("origin.id", held=holds("result", _ITEMS, _TYPE_NAME)),
    "ReasoningContent": thinks(
        "reasoning_text", sealed=lambda part: part.extra.get("encrypted_content") or part.extra.get("signature")
    ),
}

register_parts(
    ChatMessage,
    "_content",
    _TYPE_NAME,
    _ROWS,
    lambda message, _: EventKind.SUMMARY if is_summary(message) else ROLES.get(message.role.value, EventKind.OTHER),
    lambda message: dict(
        zip(("name", "billed_tokens", "output_tokens"), _compared_values([message])[0][2:], strict=True)
    ),
    read_all=_compared_values,
)
# With the mark, Haystack's compaction does not treat the summary as a user's request. `meta` is not sent to the model.
register_summaries(
    lambda text: ChatMessage.from_user(text, meta={OUR_SUMMARY: True, COMPACTION: {"strategy": "otel_assembly"}}),
    ChatMessage,
)
register_results(
    ChatMessage,
    "_content",
    result_text(_TYPE_NAME, ToolCallResult.__name__, "result"),
    lambda part, text: replace(part, result=text),
    lambda message, parts: replace(message, _content=parts),
)
