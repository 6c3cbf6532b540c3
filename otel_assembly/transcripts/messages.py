"""Convert recorded messages into messages that `otel_assembly.messages` reads.

Three forms are converted: AutoGen's ``LLMMessage`` in saved states, the messages of OpenTelemetry's GenAI conventions
(``role`` and typed ``parts``), and the tool parts of Vercel's AI SDK. Fields that were never sent to the model are
removed, such as AutoGen's ``is_error`` and the ``thought`` of a text message, so that the tokens are those of the
request. Other messages stay unchanged: OpenAI's chat messages and Responses items, and messages of Anthropic, Bedrock
and Gemini. A message of an unknown kind becomes an item of the kind ``other``.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from typing import Any

from otel_assembly.errors import DescribeError
from otel_assembly.messages import ITEMS, ROLES, spelled
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe
from otel_assembly.transcripts.json_values import MalformedError, excerpt, kind_of

__all__ = [
    "AUTOGEN_TYPES",
    "Converter",
    "OtherItem",
    "as_name",
    "as_text",
    "call_message",
    "function_call",
    "is_item",
    "readable",
    "unknown_role",
]

AUTOGEN_TYPES = ("SystemMessage", "UserMessage", "AssistantMessage", "FunctionExecutionResultMessage")

_MEDIA_TYPES = frozenset({"blob", "uri", "file"})


class Converter:
    """Converts the messages of one conversation, in their order.

    Some providers, such as Gemini, have no ids of tool calls. A tool result without an id is assigned to the oldest
    tool call without an id that has no result yet.

    Attributes:
        skipped: The number of messages of unknown kinds, by description.
    """

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self._calls = 0
        self._unanswered: deque[str] = deque()

    def convert(self, message: Any) -> list[dict[str, Any]]:
        """Convert a recorded message into messages: one for each tool result in it, and one for its other content.

        Raises:
            MalformedError: A field has a wrong type.
        """
        if not isinstance(message, dict):
            raise MalformedError(f"is {kind_of(message)}, expected an object with a 'role'")
        if not _is_known(message):
            return [_other_item(message, self.skipped)]
        if "role" not in message and message.get("type") in AUTOGEN_TYPES:
            converted = _from_autogen(message)
        elif "parts" in message and message.get("content") is None and not _is_gemini_parts(message["parts"]):
            converted = self._from_parts(message)
        elif _has_vercel_parts(message):
            converted = [_from_vercel(message)]
        else:
            converted = [message]
        for result in converted:
            _check(result)
        return converted

    def _from_parts(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        role = message.get("role")
        parts = _field(message, "parts", list, "a list")
        if role != "assistant":
            # A result has to follow its call directly; the user's text comes after it.
            parts = sorted(parts, key=lambda part: not _is_result(part))
        converted: list[dict[str, Any]] = []
        content: list[dict[str, Any]] = []
        calls: list[dict[str, Any]] = []

        def flush() -> None:
            if role == "tool" and converted and content and not calls:
                converted[-1]["content"] = [_text(converted[-1]["content"]), *content]
            elif content or calls or not converted:
                message_fields = {"role": role, "content": _joined_content(content, calls)}
                name = {"name": message["name"]} if isinstance(message.get("name"), str) else {}
                converted.append(message_fields | name | ({"tool_calls": calls[:]} if calls else {}))
            content.clear()
            calls.clear()

        for part in parts:
            if _is_result(part):
                if content or calls:
                    flush()
                converted.append(self._result(part))
            elif isinstance(part, dict) and part.get("type") == "tool_call":
                calls.append(self._call(part))
            else:
                content.append(_part(part))
        flush()
        return converted

    def _call(self, part: dict[str, Any]) -> dict[str, Any]:
        call_id = as_name(part.get("id"))
        if call_id is None:
            self._calls += 1
            call_id = f"unnamed_call_{self._calls}"
            self._unanswered.append(call_id)
        return function_call(call_id, _field(part, "name", str, "a string"), part.get("arguments"))

    def _result(self, part: dict[str, Any]) -> dict[str, Any]:
        key = "response" if "response" in part else "result"
        if key not in part:
            raise MalformedError("a tool_call_response part has neither a 'response' nor a 'result'")
        call_id = as_name(part.get("id"))
        if call_id is None and self._unanswered:
            call_id = self._unanswered.popleft()
        call = {} if call_id is None else {"tool_call_id": call_id}
        return {"role": "tool", **call, "content": as_text(part[key])}


def is_item(value: Any) -> bool:
    """Return whether a value is a message without a role: an item of OpenAI's Responses, or a Gemini content."""
    if not isinstance(value, dict) or "role" in value:
        return False
    return value.get("type") in ITEMS if isinstance(value.get("type"), str) else _is_gemini_parts(value.get("parts"))


def _is_gemini_parts(parts: Any) -> bool:
    """Return whether a message's parts have the format of Gemini: without a ``type``."""
    return isinstance(parts, list) and any(isinstance(part, dict) and "type" not in part for part in parts)


def _is_known(message: dict[str, Any]) -> bool:
    """Return whether a message has a role of a provider, or a type of an item that has no role."""
    role = message.get("role")
    if "role" in message:
        return isinstance(role, str) and (role in ROLES or (role == "model" and _is_gemini_parts(message.get("parts"))))
    return is_item(message) or message.get("type") in AUTOGEN_TYPES


def unknown_role(message: dict[str, Any]) -> str:
    """Return the problem of a message of an unknown kind, for an error message."""
    if "role" not in message:
        problem = "it has no role"
    else:
        role = message["role"]
        problem = f"its 'role' is {excerpt(role) if isinstance(role, str) else kind_of(role)}"
    return f"{problem}, expected one of {', '.join(ROLES)}"


class OtherItem(dict[str, Any]):
    """A message or record of an unknown kind. Its kind is ``other``, and its tokens are those of its JSON."""


@describe.register(OtherItem)
def _(item: OtherItem) -> EventFacts:
    return EventFacts(EventKind.OTHER, spelled(dict(item)))


def _other_item(message: dict[str, Any], skipped: Counter[str]) -> OtherItem:
    """Return an item of the kind ``other`` for a message of an unknown kind, and count it by its role or type."""
    key = next((key for key in ("role", "type") if isinstance(message.get(key), str)), None)
    name = f"{key} {excerpt(message[key])}" if key is not None else "neither a role nor a type"
    skipped[f"message with {name}"] += 1
    return OtherItem(message)


def readable(message: dict[str, Any], skipped: Counter[str]) -> dict[str, Any]:
    """Return a message, or, if it cannot be read, an item of the kind ``other`` in place of it, which is counted."""
    try:
        facts = describe(message)
    except DescribeError as error:
        skipped[f"message that cannot be read: {error.problem}"] += 1
        return OtherItem(message)
    if facts.kind == EventKind.OTHER and facts.unknown:
        return _other_item(message, skipped)
    return message


def _check(message: dict[str, Any]) -> None:
    try:
        describe(message)
    except DescribeError as error:
        raise MalformedError(error.problem) from None


def _has_vercel_parts(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(isinstance(part, dict) and _kind(part) in _VERCEL for part in content)


def _from_vercel(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of Vercel's AI SDK with its tool parts in the form of Anthropic.

    Version 4 has ``args`` and ``result``; version 5 and later have ``input``, and ``output`` with a type and a value.
    """
    content = [convert(part) if (convert := _VERCEL.get(_kind(part))) else part for part in message["content"]]
    return {**message, "content": content}


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def _vercel_call(part: dict[str, Any]) -> dict[str, Any]:
    arguments = part.get("input", part.get("args"))
    call_id = _field(part, "toolCallId", str, "a string")
    return {"type": "tool_call", "id": call_id, "name": part.get("toolName"), "arguments": arguments}


def _vercel_result(part: dict[str, Any]) -> dict[str, Any]:
    output = part.get("output", part.get("result"))
    if isinstance(output, dict) and isinstance(output.get("type"), str) and "value" in output:
        output = output["value"]
    if isinstance(output, list):
        content: Any = [item for item in output if isinstance(item, dict)] or as_text(output)
    else:
        content = as_text(output)
    return {"type": "tool_result", "tool_use_id": _field(part, "toolCallId", str, "a string"), "content": content}


#: The conversions of the parts of Vercel's AI SDK, by type.
_VERCEL = {"tool-call": _vercel_call, "tool-result": _vercel_result}


def _from_autogen(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    match message["type"]:
        case "SystemMessage":
            return [{"role": "system", "content": _field(message, "content", str, "a string")}]
        case "UserMessage":
            name = {"name": message["source"]} if isinstance(message.get("source"), str) else {}
            if isinstance(content, list):
                content = [_autogen_part(part) for part in content]
            elif not isinstance(content, str):
                raise MalformedError(f"its 'content' is {kind_of(content)}, expected a string or a list")
            return [{"role": "user", **name, "content": content}]
        case "AssistantMessage" if isinstance(content, list):
            calls = [
                function_call(
                    _field(call, "id", str, "a string"),
                    _field(call, "name", str, "a string"),
                    _field(call, "arguments", str, "a string"),
                )
                for call in content
            ]
            thought = message.get("thought")
            if thought is not None and not isinstance(thought, str):
                raise MalformedError(f"its 'thought' is {kind_of(thought)}, expected a string or null")
            return [{"role": "assistant", "content": thought, "tool_calls": calls}]
        case "AssistantMessage":
            if not isinstance(content, str):
                raise MalformedError(f"its 'content' is {kind_of(content)}, expected a string or a list of calls")
            return [{"role": "assistant", "content": content}]
    return [
        {
            "role": "tool",
            "tool_call_id": _field(result, "call_id", str, "a string"),
            "content": _field(result, "content", str, "a string"),
        }
        for result in _field(message, "content", list, "a list of results")
    ]


def _autogen_part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return _text(part)
    data = _field(part, "data", str, "a string")
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_call_response"


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return _text(part)
    kind = _field(part, "type", str, "a string")
    if kind in ("text", "reasoning"):
        return _text(_field(part, "content", str, "a string"), kind)
    if kind in _MEDIA_TYPES:
        # Remove the bytes, which are not text; the tokens of media are estimated.
        return {key: value for key, value in part.items() if key not in ("content", "text", "refusal")}
    content = part.get("content")
    return _text(content if isinstance(content, str) else as_text(part))


def _joined_content(content: list[dict[str, Any]], calls: list[dict[str, Any]]) -> str | list[dict[str, Any]] | None:
    if not content:
        return None if calls else ""
    if len(content) == 1 and content[0]["type"] == "text":
        text = content[0]["text"]
        return text if isinstance(text, str) else None
    return content[:]


def _text(text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": text}


def function_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """Return a tool call in the form of OpenAI's chat messages; arguments that are no text become JSON."""
    text = "" if arguments is None else as_text(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def as_text(value: Any) -> str:
    """Return a value as text: a string unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def call_message(content: Any, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an assistant's message in the form of OpenAI's chat messages, with its tool calls."""
    return {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})


def as_name(value: Any) -> str | None:
    """Return an id or a name in a record as text; None if it is empty, or neither a string nor an integer."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _field(holder: Any, key: str, kind: type, expected: str) -> Any:
    if not isinstance(holder, dict):
        raise MalformedError(f"a part of it is {kind_of(holder)}, expected an object")
    value = holder.get(key)
    if not isinstance(value, kind):
        problem = f"is {kind_of(value)}" if key in holder else "is missing"
        raise MalformedError(f"its '{key}' {problem}, expected {expected}")
    return value
