"""How Semantic Kernel's messages are read, and what stands for them; imported once ``semantic_kernel`` is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from semantic_kernel.contents.chat_message_content import ChatMessageContent  # its package may still be on its way
from semantic_kernel.contents.streaming_chat_message_content import StreamingChatMessageContent
from semantic_kernel.contents.text_content import TextContent
from semantic_kernel.contents.utils.author_role import AuthorRole

from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.messages import ROLES, edited, register_results, register_summaries, result_text, spelled
from otel_assembly.messages.content_snapshot import written_on
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.messages.replacements import OUR_SUMMARY
from otel_assembly.messages.rows import answers, asks, is_silent, register_parts, says, shows, thinks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.messages import Draft
    from otel_assembly.messages.rows import Row

#: By these keys of its metadata, which no model is sent, a message is known that stands for others.
_SUMMARIES: Final = frozenset({"__summary__", OUR_SUMMARY})


def is_summary(message: ChatMessageContent) -> bool:
    """Whether a message stands for others that a reducer has left out."""
    return not _SUMMARIES.isdisjoint(message.metadata)


def is_prompt(message: Any) -> bool:
    """Whether a message is a system prompt, where it stands in front of everything else."""
    return (
        isinstance(message, ChatMessageContent)
        and ROLES.get(message.role) is EventKind.SYSTEM
        and not is_summary(message)
        and all(isinstance(item, TextContent) for item in message.items)
    )


def behind_prompts(messages: Sequence[Any]) -> tuple[list[str], Sequence[Any]]:
    """What the system prompts in front say, and the messages behind them."""
    prompts, held = in_front(messages, is_prompt)
    return ["\n".join(item.text for item in prompt.items) for prompt in prompts], held


def _kind(message: ChatMessageContent, draft: Draft) -> EventKind:
    if is_summary(message):
        return EventKind.SUMMARY
    if draft.closes and not draft.said:
        return EventKind.TOOL_RESULT
    return ROLES.get(message.role, EventKind.OTHER)


def _known(message: ChatMessageContent) -> Mapping[str, Any]:
    usage = message.metadata.get("usage")
    return {
        "name": message.name or "" if message.role != AuthorRole.TOOL else "",
        "billed_tokens": getattr(usage, "prompt_tokens", None),
        "output_tokens": getattr(usage, "completion_tokens", None),
    }


def _arguments(call: Any) -> str:
    given = call.arguments
    return "{}" if given is None else given if isinstance(given, str) else spelled(given)


def _result(answer: Any) -> str:
    return str(answer.result)


_ROWS: Final[Mapping[str, Row]] = {
    "text": says("text"),
    "reasoning": thinks("text"),
    "function_call": asks("id", "name", _arguments),
    "function_result": answers("id", _result),
    **dict.fromkeys(("image", "audio", "binary", "file_reference", "streaming_file_reference"), shows),
    # What a provider says of a text of its own, and is not sent again.
    **dict.fromkeys(("annotation", "streaming_annotation"), is_silent),
}

register_parts(
    ChatMessageContent,
    "items",
    "content_type",
    _ROWS,
    _kind,
    _known,
    lambda message: (message.role, is_summary(message)),
)
register_summaries(
    lambda said: ChatMessageContent(role=AuthorRole.USER, content=said, metadata={OUR_SUMMARY: True}),
    ChatMessageContent,
)
register_results(
    ChatMessageContent,
    "items",
    result_text("content_type", "function_result", _result),
    lambda answer, text: edited(answer, result=text),
)
# An agent writes its name on what was said and called in its run, once that is over.
written_on(ChatMessageContent, StreamingChatMessageContent)
