"""Reads the items of OpenAI's Responses API. The type of an item determines its kind."""

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
    """Return the facts of an item that is not a message.

    Args:
        item: The item.
        kind: Its type.

    Raises:
        DescribeError: A field of it is missing.
    """
    draft = Draft()
    row = ITEMS.get(kind)
    if row is None:
        draft.other(kind, item)
        return draft.facts(EventKind.OTHER, item)
    return draft.facts(row(draft, item), item)


def _call_id(item: Mapping[str, Any]) -> str:
    for key in _CALL_IDS:
        found = item.get(key)
        if isinstance(found, str):
            return found
    raise DescribeError(dict, f"an item of type {item['type']!r} has no 'call_id'")


def _called(name: str, *arguments: str) -> Row:
    """Return the row of tool calls with the keys of the name and the arguments."""

    def row(draft: Draft, item: Mapping[str, Any]) -> EventKind:
        given = next((item[key] for key in arguments if item.get(key) is not None), None)
        waits = item.get("awaiting_approval") is True
        draft.call(_call_id(item), item.get(name) if name else "", given, awaiting=waits)
        return EventKind.TOOL_CALL

    return row


def _searched(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    """Read a search for tools. The client or the server answers it."""
    if item.get("execution") != "client" or not isinstance(item.get("call_id"), str):
        return _ran(draft, item)
    draft.call(item["call_id"], "", item.get("arguments"))
    return EventKind.TOOL_CALL


def _tools_found(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    if item.get("execution") == "client" and isinstance(item.get("call_id"), str):
        draft.result(item["call_id"])
        draft.text(spelled(item.get("tools")))
        return EventKind.TOOL_RESULT
    draft.text(spelled(item.get("tools")))
    return EventKind.TOOL_CALL


def _answered(*outputs: str) -> Row:
    """Return the row of tool results. The result is the first of these keys that is set."""

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


def _asked(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    draft.call(_call_id(item), item.get("name"), item.get("arguments"), awaiting=True)
    return EventKind.TOOL_CALL


def _approved(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    draft.result(item.get("approval_request_id"))
    draft.text(item.get("reason"))
    return EventKind.TOOL_RESULT


def _ran(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    """Read a call that the provider runs itself, with its result."""
    read_hosted(draft, item)
    return EventKind.TOOL_CALL


def _of(kind: EventKind, *contents: str) -> Row:
    """Return the row of items with content under these keys, and encrypted content."""

    def row(draft: Draft, item: Mapping[str, Any]) -> EventKind:
        for key in contents:
            read_content(draft, item.get(key))
        draft.encrypted(item.get("encrypted_content"))
        return kind

    return row


def _reasoned(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    with draft.thinking():
        return _of(EventKind.RESPONSE, "summary", "content")(draft, item)


def _pictured(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    draft.file()
    return EventKind.TOOL_CALL


def _listed(draft: Draft, item: Mapping[str, Any]) -> EventKind:
    """Tools that are added on the way."""
    draft.text(spelled(item.get("tools")))
    return EventKind.SYSTEM if item.get("role") in ("developer", "system") else EventKind.TOOL_CALL


#: The row of each type of item. A row reads the item and returns its kind.
ITEMS: Final[Mapping[str, Row]] = {
    "function_call": _called("name", "arguments"),
    "custom_tool_call": _called("name", "input"),
    "computer_call": _called("", "action", "actions"),
    "local_shell_call": _called("", "action"),
    "shell_call": _called("", "action"),
    "apply_patch_call": _called("", "operation"),
    "program": _called("", "code"),
    "tool_search_call": _searched,
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
        _answered("output", "result"),
    ),
    "tool_search_output": _tools_found,
    "mcp_approval_request": _asked,
    "mcp_approval_response": _approved,
    **dict.fromkeys(HOSTED, _ran),
    "image_generation_call": _pictured,
    **dict.fromkeys(("mcp_list_tools", "additional_tools"), _listed),
    "reasoning": _reasoned,
    "compaction": _of(EventKind.SUMMARY),
    # Only the provider has the referenced item, but it is part of the conversation.
    "item_reference": _of(EventKind.RESPONSE),
    # What the provider is to do: no part of the prompt.
    **dict.fromkeys(("compaction_trigger", "configuration_update"), _of(EventKind.OTHER)),
}
