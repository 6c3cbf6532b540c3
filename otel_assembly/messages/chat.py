"""How plain dicts are read as messages: roles, contents, tool calls, tool results, in the form of each provider.

Which form a dict has, its keys say: a role with a ``content`` (OpenAI's chat, Anthropic's, Bedrock's), a role with
``parts`` (Gemini's, OpenTelemetry's), or a ``type`` alone (an item of OpenAI's Responses).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import DescribeError
from otel_assembly.messages.describe import EventFacts, EventKind, ToolCallFacts, describe
from otel_assembly.messages.draft import Draft, spelled
from otel_assembly.messages.keyed_parts import GEMINI
from otel_assembly.messages.parts import read_content, read_parts
from otel_assembly.messages.replacements import summary_like
from otel_assembly.messages.responses import ITEMS, read_item

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROLES: Mapping[str, EventKind] = {
    "system": EventKind.SYSTEM,
    "developer": EventKind.SYSTEM,
    "user": EventKind.REQUEST,
    "assistant": EventKind.RESPONSE,
    "tool": EventKind.TOOL_RESULT,
    "function": EventKind.TOOL_RESULT,
}

#: Gemini's roles; a content without one is the user's.
_GEMINI: Final[Mapping[Any, EventKind]] = {**ROLES, "model": EventKind.RESPONSE, None: EventKind.REQUEST}
#: So much of what stands in the place of a role is quoted.
_LONGEST_ROLE: Final = 40
_LEGACY_CALL_ID: Final = "function_call"


@describe.register
def _(message: dict) -> EventFacts:  # type: ignore[type-arg]  # singledispatch registers by the bare class
    role = message.get("role")
    kind = ROLES.get(role) if isinstance(role, str) else None
    content = message.get("content")
    if kind is None or (content is None and (message.get("parts") is not None or _is_item(message))):
        return _by_keys(message, role)
    if content is not None and type(content) is not str:
        draft = Draft()
        read_content(draft, content)
        return _read(draft, message, kind)
    # By far the most messages are of one text: nothing has to be collected for them.
    fields: list[str] = []
    refusal = message.get("refusal")
    if isinstance(refusal, str):
        fields.append(refusal)
    opens: list[str] = []
    awaiting: list[str] = []
    calls: list[ToolCallFacts] = []
    if "tool_calls" in message or "function_call" in message:
        calls = _tool_calls(message, awaiting)
        for call in calls:
            opens.append(call.id)
            fields += call[1:]
    return EventFacts(
        kind,
        content or "",
        fields=fields,
        opens=opens,
        closes=_answers(message) if kind is EventKind.TOOL_RESULT else (),
        awaiting=awaiting,
        id=message["id"] if isinstance(message.get("id"), str) else None,
        name=_name(message),
        calls=calls,
    )


def _by_keys(message: dict[str, Any], role: Any) -> EventFacts:
    """A message whose role and content do not say what it is."""
    kind = message.get("type")
    if isinstance(kind, str) and kind != "message" and (role is None or _is_item(message)):
        return read_item(message, kind)
    parts = message.get("parts")
    meant = _GEMINI.get(role) if role is None or isinstance(role, str) else None
    if meant is None or not isinstance(parts, (list, tuple)):
        if meant is None or role is None:
            found = repr(role[:_LONGEST_ROLE]) if isinstance(role, str) else type(role).__name__.removesuffix("Type")
            raise DescribeError(dict, f"its 'role' is {found}, expected one of {', '.join(ROLES)}")
        raise DescribeError(dict, f"its 'parts' are a {type(parts).__name__}, expected a list")
    draft = Draft()
    read_parts(draft, parts, GEMINI)
    return _read(draft, message, meant)


def _is_item(message: Mapping[str, Any]) -> bool:
    kind = message.get("type")
    return isinstance(kind, str) and kind in ITEMS


def _read(draft: Draft, message: Mapping[str, Any], kind: EventKind) -> EventFacts:
    """What is told of a message with parts; one of the user's that only answers tools is no request."""
    if "refusal" in message:
        draft.text(message["refusal"])
    if "tool_calls" in message or "function_call" in message:
        said = tuple(draft.opens)
        for call in _tool_calls(message, draft.awaiting):
            if call.id not in said:  # one that stands in both is one
                draft.call(*call)
    if kind is EventKind.REQUEST and draft.results and not draft.said:
        kind = EventKind.TOOL_RESULT
    elif kind is EventKind.TOOL_RESULT:
        draft.closes += _answers(message)
    return draft.facts(kind, message, _name(message))


class ChatSummary(dict[str, Any]):
    """A system message that says what earlier messages said; a dict like any other to whoever sends it."""


@describe.register(ChatSummary)
def _(message: ChatSummary) -> EventFacts:
    return EventFacts(EventKind.SUMMARY, message["content"])


@summary_like.register(dict)
def _(message: dict[str, Any], text: str, events: Sequence[Any]) -> dict[str, Any]:
    return ChatSummary(role="system", content=f"[Earlier messages, summarised: details may be missing]\n{text}")


def _name(message: Mapping[str, Any]) -> str:
    """Who speaks; the result of a tool is sent with the call's id, and has no name to send."""
    name = message.get("name")
    return name if isinstance(name, str) and message.get("role") != "tool" else ""


def _tool_calls(message: Mapping[str, Any], awaiting: list[str]) -> list[ToolCallFacts]:
    """The calls that a message has beside its content; those that wait for an approval are put into `awaiting`."""
    made: list[ToolCallFacts] = []
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)):
        raise DescribeError(dict, f"its 'tool_calls' is a {type(calls).__name__}, expected a list")
    for call in calls:
        function = call.get("function") or call.get("custom") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(call.get("id"), str):
            raise DescribeError(dict, "a tool call has no 'id' or no 'function'")
        made.append(ToolCallFacts(call["id"], *_spell(function)))
        if call.get("awaiting_approval") is True:
            awaiting.append(call["id"])
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        made.append(ToolCallFacts(_LEGACY_CALL_ID, *_spell(legacy)))
    return made


def _spell(function: Mapping[str, Any]) -> tuple[str, str]:
    arguments = function.get("arguments", function.get("input", ""))
    return str(function.get("name", "")), arguments if isinstance(arguments, str) else spelled(arguments)


def _answers(message: Mapping[str, Any]) -> list[str]:
    """The calls a tool message answers; some recorders join parallel results and write ``tool_call_ids``."""
    several = message.get("tool_call_ids")
    if isinstance(several, list):
        return [str(one) for one in several]
    one = message.get("tool_call_id")
    if isinstance(one, str):
        return [one]
    return [_LEGACY_CALL_ID] if message.get("role") == "function" else []
