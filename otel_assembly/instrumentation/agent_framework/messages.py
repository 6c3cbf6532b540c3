"""How agent-framework's messages are read, and how others stand for them; imported once agent-framework is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from agent_framework import Content, Message

from otel_assembly.messages import ROLES, edited, register_results, register_summaries, result_text, spelled
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.messages.replacements import OUR_SUMMARY
from otel_assembly.messages.rows import answers, asks, holds, is_silent, read_each, register_parts, says, shows, thinks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.messages import Draft
    from otel_assembly.messages.rows import Row

#: An id that a compaction has given to a message by its place, and that another message has in another list.
_PLACE: Final = re.compile(r"msg_\d+")
#: A message that does nothing but answer or ask for an approval is for the framework, and not for the model.
_APPROVALS: Final = frozenset({"function_approval_response", "oauth_consent_request"})


def _shown(content: Content) -> Sequence[Content]:
    """What a tool has given beside the text that is its result."""
    return [item for item in content.items or () if item.type != "text"]


def _saying(content: Content, text: str) -> Content:
    return edited(content, result=text, items=[Content.from_text(text), *_shown(content)])


def _given_id(message: Message) -> str | None:
    own = message.message_id
    return own if own is not None and _PLACE.fullmatch(own) is None else None


def _kind(message: Message, draft: Draft) -> EventKind:
    if is_summary(message):
        return EventKind.SUMMARY
    if message.contents and all(content.type in _APPROVALS for content in message.contents):
        return EventKind.OTHER
    if draft.closes and not draft.said:
        return EventKind.TOOL_RESULT
    return ROLES.get(message.role, EventKind.RESPONSE)


def _known(message: Message) -> dict[str, Any]:
    return {"id": _given_id(message), "name": message.author_name or "" if message.role != "tool" else ""}


def is_summary(message: Message) -> bool:
    """Whether a message stands for others that a compaction has left out."""
    known = message.additional_properties
    group = known.get("_group")  # where a compaction of the framework's writes what it says of a message
    return OUR_SUMMARY in known or (isinstance(group, dict) and bool(group.get("_summary_of_message_ids")))


def _type(value: Any) -> str | None:
    """What a content says that it is; a tool of the provider's may be given, and give, whatever else."""
    return value.type if isinstance(value, Content) else None


def _provider_call(draft: Draft, content: Any) -> None:
    """A tool that the provider runs itself: nobody owes it a result."""
    draft.spell(content.tool_name or content.type.removesuffix("_tool_call"), content.arguments)
    read_each(draft, _ROWS, _type, (content.inputs, content.commands))


_PROVIDERS: Final = ("code_interpreter", "image_generation", "mcp_server", "search", "shell")
_ROWS: dict[str | None, Row] = {
    None: lambda draft, value: draft.text(spelled(value)),
    "text": says("text"),
    "text_reasoning": thinks("text", sealed="protected_data"),
    "error": says("message"),
    "shell_command_output": says("stdout", "stderr"),
    **dict.fromkeys(("data", "uri", "hosted_file"), shows),
    **dict.fromkeys(("usage", "hosted_vector_store", *_APPROVALS), is_silent),
    "function_call": asks("call_id", "name", "arguments"),
    "function_approval_request": asks(
        "function_call.call_id", "function_call.name", "function_call.arguments", awaiting=True
    ),
    "computer_tool_call": lambda draft, content: draft.call(content.call_id, "computer", content.actions),
    **{f"{name}_tool_call": _provider_call for name in _PROVIDERS},
}
_given = holds(lambda content: (content.outputs, content.output, content.items or content.result), _ROWS, _type)
_ROWS |= {f"{name}_tool_result": _given for name in _PROVIDERS}
# Older releases have no screenshots.
_answer = holds(lambda one: (one.result, _shown(one), getattr(one, "screenshot", None)), _ROWS, _type)
_ROWS |= dict.fromkeys(("function_result", "computer_tool_result"), answers("call_id", held=_answer))


# What a compaction notes on a message is no part of what is read of it.
register_parts(Message, "contents", "type", _ROWS, _kind, _known, lambda message: (message.role, is_summary(message)))
# Nothing of a message's additional properties is sent.
register_summaries(lambda said: Message("user", [said], additional_properties={OUR_SUMMARY: True}), Message)

register_results(Message, "contents", result_text("type", "function_result", "result"), _saying)
