"""Reads Semantic Kernel's messages: registers `ChatMessageContent` with `describe`, and finds system prompts.

The instrumentor imports this module when the program imports ``semantic_kernel``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from semantic_kernel.contents.chat_message_content import ChatMessageContent  # the package may be partly imported
from semantic_kernel.contents.streaming_chat_message_content import StreamingChatMessageContent
from semantic_kernel.contents.text_content import TextContent
from semantic_kernel.contents.utils.author_role import AuthorRole

from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.messages import ROLES, edited, register_results, register_summaries, result_text, spelled
from otel_assembly.messages.content_snapshot import written_on
from otel_assembly.messages.event_facts import EventKind, describe
from otel_assembly.messages.replacements import OUR_SUMMARY
from otel_assembly.messages.rows import answers, asks, is_silent, register_parts, says, shows, thinks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.messages import Draft
    from otel_assembly.messages.rows import Row

#: Keys in the metadata of a summary; metadata is not sent to a model.
_SUMMARY_KEYS: Final = frozenset({"__summary__", OUR_SUMMARY})


def is_summary(message: ChatMessageContent) -> bool:
    return not _SUMMARY_KEYS.isdisjoint(message.metadata)


def is_prompt(message: Any) -> bool:
    """Return whether a message can be a system prompt, if it is one of the first messages (see `in_front`).

    A summary has the system role too, but represents messages. A prompt can be represented as text only.
    """
    return (
        isinstance(message, ChatMessageContent)
        and ROLES.get(message.role) is EventKind.SYSTEM
        and not is_summary(message)
        and all(isinstance(item, TextContent) for item in message.items)
    )


def split_prompts(messages: Sequence[Any]) -> tuple[list[str], Sequence[Any]]:
    prompts, rest = in_front(messages, is_prompt)
    return ["\n".join(item.text for item in prompt.items) for prompt in prompts], rest


def with_output(messages: Sequence[Any], prompts: list[str], events: list[Any]) -> list[Any] | None:
    """Return the messages of a history after an assembly with these prompts and events; None if nothing changed."""
    (old_prompts, rest), prompt_messages = split_prompts(messages), in_front(messages, is_prompt)[0]
    if prompts == old_prompts and same_objects(events, rest):
        return None
    message_of = dict(zip(old_prompts, prompt_messages, strict=True))
    front = [message_of.get(text) or ChatMessageContent(role=AuthorRole.SYSTEM, content=text) for text in prompts]
    return [*front, *events]


def is_copy(message: ChatMessageContent, response: ChatMessageContent) -> bool:
    """Return whether a history's message is a copy of a response, such as the joined chunks with the agent's name."""
    copy, original = describe(message), describe(response)
    return message.role == AuthorRole.ASSISTANT and (original.text, original.opens) == (copy.text, copy.opens)


def _kind(message: ChatMessageContent, draft: Draft) -> EventKind:
    if is_summary(message):
        return EventKind.SUMMARY
    if draft.closes and not draft.said:
        return EventKind.TOOL_RESULT
    return ROLES.get(message.role, EventKind.OTHER)


def _compared_values(messages: Sequence[ChatMessageContent]) -> list[Any]:
    """Return the role of each message, whether it is a summary, its name, and its input and output tokens.

    All messages are compared by these values at each model call, so no Python function is called per message.
    """
    return [
        (
            role,
            not _SUMMARY_KEYS.isdisjoint(metadata),
            "" if role == AuthorRole.TOOL else name or "",
            getattr(metadata.get("usage"), "prompt_tokens", None),
            getattr(metadata.get("usage"), "completion_tokens", None),
        )
        for role, name, metadata in map(attrgetter("role", "name", "metadata"), messages)
    ]


def _facts(message: ChatMessageContent) -> Mapping[str, Any]:
    _, _, name, input_tokens, output_tokens = _compared_values([message])[0]
    return {"name": name, "billed_tokens": input_tokens, "output_tokens": output_tokens}


def _arguments(call: Any) -> str:
    arguments = call.arguments
    return "{}" if arguments is None else arguments if isinstance(arguments, str) else spelled(arguments)


def _result(answer: Any) -> str:
    return str(answer.result)


_ROWS: Final[Mapping[str, Row]] = {
    "text": says("text"),
    "reasoning": thinks("text"),
    "function_call": asks("id", "name", _arguments),
    "function_result": answers("id", _result),
    **dict.fromkeys(("image", "audio", "binary", "file_reference", "streaming_file_reference"), shows),
    # Annotations that a provider adds to a response, such as citations, are not sent again.
    **dict.fromkeys(("annotation", "streaming_annotation"), is_silent),
}

register_parts(ChatMessageContent, "items", "content_type", _ROWS, _kind, _facts, read_all=_compared_values)
register_summaries(
    lambda text: ChatMessageContent(role=AuthorRole.USER, content=text, metadata={OUR_SUMMARY: True}),
    ChatMessageContent,
)
register_results(
    ChatMessageContent,
    "items",
    result_text("content_type", "function_result", _result),
    lambda answer, text: edited(answer, result=text),
)
# An agent changes messages in place: at the end of its run, it sets its name on those that the run added.
written_on(ChatMessageContent, StreamingChatMessageContent)
