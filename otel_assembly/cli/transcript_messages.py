"""Convert recorded messages of all supported formats into messages that `otel_assembly.messages` reads.

Two formats are converted: AutoGen's ``LLMMessage`` in saved states, and the messages of OpenTelemetry's GenAI
conventions (``role`` and typed ``parts``). Fields that were never sent to the model are removed, such as AutoGen's
``is_error`` and the ``thought`` of a text message, so that the tokens are those of the request. Other formats stay
unchanged: OpenAI's chat messages and Responses items, and messages of Anthropic, Bedrock and Gemini.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from otel_assembly.cli.transcript_json import MalformedError, excerpt, kind_of
from otel_assembly.errors import DescribeError
from otel_assembly.messages import ITEMS, ROLES
from otel_assembly.messages.event_facts import describe

__all__ = ["AUTOGEN_TYPES", "Converter", "as_name", "is_item"]

AUTOGEN_TYPES = ("SystemMessage", "UserMessage", "AssistantMessage", "FunctionExecutionResultMessage")

_MEDIA_TYPES = frozenset({"blob", "uri", "file"})


class Converter:
    """Converts the messages of one conversation, in their order.

    Some providers, such as Gemini, have no ids of tool calls. A tool result without an id is assigned to the oldest
    tool call without an id that has no result yet.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._unanswered: deque[str] = deque()

    def convert(self, message: Any) -> list[dict[str, Any]]:
        """Convert a recorded message into messages: one for each tool result in it, and one for its other content.

        Raises:
            MalformedError: The format is not supported, or a field has a wrong type.
        """
        if not isinstance(message, dict):
            raise MalformedError(f"is {kind_of(message)}, expected an object with a 'role'")
        if "role" not in message and message.get("type") in AUTOGEN_TYPES:
            converted = _from_autogen(message)
        elif "parts" in message and message.get("content") is None and not _is_gemini_parts(message["parts"]):
            converted = self._from_parts(message)
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
        return _call(call_id, _field(part, "name", str, "a string"), part.get("arguments"))

    def _result(self, part: dict[str, Any]) -> dict[str, Any]:
        key = "response" if "response" in part else "result"
        if key not in part:
            raise MalformedError("a tool_call_response part has neither a 'response' nor a 'result'")
        call_id = as_name(part.get("id"))
        if call_id is None and self._unanswered:
            call_id = self._unanswered.popleft()
        call = {} if call_id is None else {"tool_call_id": call_id}
        return {"role": "tool", **call, "content": _as_text(part[key])}


def is_item(value: Any) -> bool:
    """Return whether a value is a message without a role: an item of OpenAI's Responses, or a Gemini content."""
    if not isinstance(value, dict) or "role" in value:
        return False
    return value.get("type") in ITEMS if isinstance(value.get("type"), str) else _is_gemini_parts(value.get("parts"))


def _is_gemini_parts(parts: Any) -> bool:
    """Return whether a message's parts have the format of Gemini: without a ``type``."""
    return isinstance(parts, list) and any(isinstance(part, dict) and "type" not in part for part in parts)


def _check(message: dict[str, Any]) -> None:
    role = message.get("role")
    is_supported = is_item(message) or (role == "model" and _is_gemini_parts(message.get("parts")))
    if not is_supported and (not isinstance(role, str) or role not in ROLES):
        role_text = f"its 'role' is {excerpt(role) if isinstance(role, str) else kind_of(role)}"
        raise MalformedError(
            f"{role_text if 'role' in message else 'it has no role'}, expected one of {', '.join(ROLES)}"
        )
    try:
        describe(message)
    except DescribeError as error:
        raise MalformedError(error.problem) from None


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
                _call(
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
    return _text(content if isinstance(content, str) else _as_text(part))


def _joined_content(content: list[dict[str, Any]], calls: list[dict[str, Any]]) -> str | list[dict[str, Any]] | None:
    if not content:
        return None if calls else ""
    if len(content) == 1 and content[0]["type"] == "text":
        text = content[0]["text"]
        return text if isinstance(text, str) else None
    return content[:]


def _text(text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": text}


def _call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    text = "" if arguments is None else _as_text(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


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
