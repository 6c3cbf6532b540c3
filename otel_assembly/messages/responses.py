"""Readers of the items of OpenAI's Responses API that are not messages, by the item's type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import DescribeError
from otel_assembly.messages.draft import Draft
from otel_assembly.messages.event_facts import EventFacts, EventKind, spelled
from otel_assembly.messages.parts import HOSTED, read_content, read_hosted, read_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Row = Callable[[Draft, Mapping[str, Any]], EventKind]

#: Keys of a call's id. `local_shell_call_output` has the call's id as its own ``id``.
_CALL_IDS: Final = ("call_id", "id")


def read_item(item: Mapping[str, Any], kind: str) -> EventFacts:
    """Return the facts of an item of OpenAI's Responses API that is not a message, such as a function call.

    Args:
        item: The item.
        kind: The item's type.

    Raises:
        DescribeError: A required field of the item is missing.
    """
    draft = Draft()
    row = ITEMS.get(kind)
    if row is None:
        draft.other(kind, item)
        return draft.facts(EventKind.OTHER, item)
    return draft.facts(row(draft, item), item)


def _call_id(item: Mapping[str, Any]) -> str:
    for key in _CALL_IDS:
        call_id = item.get(key)
        if isinstance(call_id, str):
            return call_id
    raise DescribeError(dict, f"an item of type {item['type']!r} has no 'call_id'")


def _call_row(name: str, *arguments: str) -> Row:
    """Return a reader for items that are tool calls.

    Args:
        name: The item's key with the tool's name; empty if the item has none.
        arguments: The item's keys that can contain the arguments; the first that is set is used.
    """

    def row(draft: Draft, item: Mapping[str, Any]) -> EventKind:
        value = next((item[key] for key in arguments if item.get(key) is not None), None)
        waits = item.get("awaiting_approval") is True
        draft.call(_call_id(item), item.get(name) if name else "", value, awaiting=waits)
        return EventKind.TOOL_CALL

    return row


def _tool_search(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    """Read a search for tools: a tool call if the client runs it, else a call that OpenAI runs itself."""
    if item.get("execution") != "client" or not isinstance(item.get("call_id"), str):
        return _hosted_call(draft, item)
    draft.call(item["call_id"], "", item.get("arguments"))
    return EventKind.TOOL_CALL


def _tool_search_result(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    if item.get("execution") == "client" and isinstance(item.get("call_id"), str):
        draft.result(item["call_id"])
        draft.text(spelled(item.get("tools")))
        return EventKind.TOOL_RESULT
    draft.text(spelled(item.get("tools")))
    return EventKind.TOOL_CALL


def _result_row(*outputs: str) -> Row:
    """Return a reader for items that are tool results.

    Args:
        outputs: The item's keys that can contain the result; the first that is set is used.
    """

    def row(draft: Draft, item: Mapping[str, Any]) -> EventKind:
        draft.result(_call_id(item))
        output = next((item[key] for key in outputs if item.get(key) is not None), None)
        if isinstance(output, dict):
            output = [output]
        if isinstance(output, list) and not all(isinstance(part, dict) and "type" in part for part in output):
            read_leaves(draft, output)
        else:
            read_content(draft, output)
        return EventKind.TOOL_RESULT

    return row


def _approval_request(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    draft.call(_call_id(item), item.get("name"), item.get("arguments"), awaiting=True)
    return EventKind.TOOL_CALL


def _approval_response(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    draft.result(item.get("approval_request_id"))
    draft.text(item.get("reason"))
    return EventKind.TOOL_RESULT


def _hosted_call(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    """Read a call of a tool that OpenAI runs itself, with its result."""
    read_hosted(draft, item)
    return EventKind.TOOL_CALL


def _content_row(kind: EventKind, *contents: str) -> Row:
    """Return a reader for items that consist of texts or encrypted content.

    Args:
        kind: The kind of the items.
        contents: The item's keys with texts or parts.
    """

    def row(draft: Draft, item: Mapping[str, Any]) -> EventKind:
        for key in contents:
            read_content(draft, item.get(key))
        draft.encrypted(item.get("encrypted_content"))
        return kind

    return row


def _reasoning(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    with draft.thinking():
        return _content_row(EventKind.RESPONSE, "summary", "content")(draft, item)


def _image_call(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    draft.file()
    return EventKind.TOOL_CALL


def _tool_list(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    """Read a list of tools that was added during the conversation."""
    draft.text(spelled(item.get("tools")))
    return EventKind.SYSTEM if item.get("role") in ("developer", "system") else EventKind.TOOL_CALL


#: The reader of each type of item. A reader adds the item to a `Draft` and returns the item's kind.
ITEMS: Final[Mapping[str, Row]] = {
    "function_call": _call_row("name", "arguments"),
    "custom_tool_call": _call_row("name", "input"),
    "computer_call": _call_row("", "action", "actions"),
    "local_shell_call": _call_row("", "action"),
    "shell_call": _call_row("", "action"),
    "apply_patch_call": _call_row("", "operation"),
    "program": _call_row("", "code"),
    "tool_search_call": _tool_search,
    **dict.fromkeys(
        (
            "function_call_output",
            "custom_tool_call_output",
            "computer_call_output",
            "local_shell_call_output",
            "shell_call_output",
            "apply_patch_call_output",
            "program_output",
        ),
        _result_row("output", "result"),
    ),
    "tool_search_output": _tool_search_result,
    "mcp_approval_request": _approval_request,
    "mcp_approval_response": _approval_response,
    **dict.fromkeys(HOSTED, _hosted_call),
    "image_generation_call": _image_call,
    **dict.fromkeys(("mcp_list_tools", "additional_tools"), _tool_list),
    "reasoning": _reasoning,
    "compaction": _content_row(EventKind.SUMMARY),
    # Only the provider has the content of the referenced item, but the item is part of the conversation.
    "item_reference": _content_row(EventKind.RESPONSE),
    # Instructions to the provider, which are not in the prompt.
    **dict.fromkeys(("compaction_trigger", "configuration_update"), _content_row(EventKind.OTHER)),
}
