"""Registers how `describe` reads agent-framework's messages, and how summaries and shortened results are created.

This module imports agent-framework, so it is imported only if the program imports agent-framework.
"""

from __future__ import annotations

import re
from operator import attrgetter
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

#: Ids that compaction assigns to messages by position. They are not unique across lists of messages.
_POSITION_ID: Final = re.compile(r"msg_\d+")
#: Contents for the framework. A message that has only these is not sent to the model.
_APPROVALS: Final = frozenset({"function_approval_response", "oauth_consent_request"})


def _files(content: Content) -> Sequence[Content]:
    return [item for item in content.items or () if item.type != "text"]


def _with_text(content: Content, text: str) -> Content:
    return edited(content, result=text, items=[Content.from_text(text), *_files(content)])


def _kind(message: Message, draft: Draft) -> EventKind:
    _, _, _, is_summary = _compared_values([message])[0]
    if is_summary:
        return EventKind.SUMMARY
    if message.contents and all(content.type in _APPROVALS for content in message.contents):
        return EventKind.OTHER
    if draft.closes and not draft.said:
        return EventKind.TOOL_RESULT
    return ROLES.get(message.role, EventKind.RESPONSE)


def _fields(message: Message) -> dict[str, Any]:
    _, own_id, name, _ = _compared_values([message])[0]
    return {"id": own_id, "name": name}


def _compared_values(messages: Sequence[Message]) -> list[Any]:
    """Return the role, id and name of each message, and whether it is a summary, of the framework or of otel-assembly.

    All messages are compared by these values at each model call, so no Python function is called per message.
    """
    return [
        (
            role,
            None if own_id and _POSITION_ID.fullmatch(own_id) else own_id,
            "" if role == "tool" else author or "",
            # Additional properties are not sent to the model. The framework's compaction sets `_group`.
            OUR_SUMMARY in properties
            or (isinstance(group := properties.get("_group"), dict) and bool(group.get("_summary_of_message_ids"))),
        )
        for role, own_id, author, properties in map(
            attrgetter("role", "message_id", "author_name", "additional_properties"), messages
        )
    ]


def _type(value: Any) -> str | None:
    """Return the type of a content; None for other values, which tools of a provider can receive and return."""
    return value.type if isinstance(value, Content) else None


def _provider_call(draft: Draft, content: Any) -> None:
    """Read the call of a tool that the provider runs itself, so that it needs no result."""
    draft.spell(content.tool_name or content.type.removesuffix("_tool_call"), content.arguments)
    read_each(draft, _ROWS, _type, (content.inputs, content.commands))


def _provider_outputs(contents: Sequence[Content]) -> list[Any]:
    return [(content.outputs, content.output, content.items or content.result) for content in contents]


def _results(contents: Sequence[Content]) -> list[Any]:
    """Return the result, the files and the screenshot of each tool result."""
    return [
        (
            content.result,
            [] if _TEXT.issuperset(map(_TYPE, content.items or ())) else _files(content),
            getattr(content, "screenshot", None),  # older releases have no screenshots
        )
        for content in contents
    ]


_TEXT: Final = frozenset({"text"})
_TYPE: Final = attrgetter("type")
_PROVIDER_TOOLS: Final = ("code_interpreter", "image_generation", "mcp_server", "search", "shell")
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
    **{f"{name}_tool_call": _provider_call for name in _PROVIDER_TOOLS},
}
_provider_result = holds(lambda content: _provider_outputs([content])[0], _ROWS, _type, contents=_provider_outputs)
_ROWS |= {f"{name}_tool_result": _provider_result for name in _PROVIDER_TOOLS}
_result = holds(lambda content: _results([content])[0], _ROWS, _type, contents=_results)
_ROWS |= dict.fromkeys(("function_result", "computer_tool_result"), answers("call_id", held=_result))


register_parts(Message, "contents", "type", _ROWS, _kind, _fields, read_all=_compared_values)
register_summaries(lambda text: Message("user", [text], additional_properties={OUR_SUMMARY: True}), Message)

register_results(Message, "contents", result_text("type", "function_result", "result"), _with_text)
