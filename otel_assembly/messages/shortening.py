"""Shortening of tool results in messages that are dicts, in the formats of all providers.

The texts of a result are joined into one, in the place of the first. Images and files are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.messages.draft import Draft
from otel_assembly.messages.event_facts import spelled
from otel_assembly.messages.parts import read_parts
from otel_assembly.messages.replacements import result_texts, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: The keys of a tool result's content, by the part's type.
_TYPED: Final = {"tool_result": ("content",), "tool_call_response": ("response", "result")}
#: The keys that identify tool results of parts without a type (Bedrock and Gemini).
_KEYED: Final = ("toolResult", "functionResponse", "function_response")
#: Types of text parts that are kept. Other types become ``text``.
_TEXT_TYPES: Final = frozenset({"input_text", "output_text"})


@result_texts.register(dict)
def _(message: dict[str, Any]) -> Sequence[str]:
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    _edited(message, collect)
    return texts


@shortened.register(dict)
def _(message: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    next_text = iter(texts)
    return {**message, **_edited(message, lambda text: next(next_text))}


def _edited(message: Mapping[str, Any], edit: Callable[[str], str]) -> dict[str, Any]:
    """Return the keys of a message that contain tool results, with new values; an empty dict if there are none.

    Args:
        message: The message.
        edit: Takes the text of one tool result, and returns the new text.
    """
    kind = message.get("type")
    if "role" not in message and isinstance(kind, str):
        if not kind.endswith("_output"):
            return {}
        key = "output" if "output" in message else "result"
        return {key: _content(message.get(key), edit, "input_text")}
    if message.get("role") in ("tool", "function") and message.get("content") is not None:
        return {"content": _content(message["content"], edit)}
    key = "parts" if isinstance(message.get("parts"), list) else "content"
    parts = message.get(key)
    return {key: _parts(parts, edit)} if isinstance(parts, list) else {}


def _parts(parts: Sequence[Any], edit: Callable[[str], str]) -> list[Any]:
    return [_part(part, edit) if isinstance(part, dict) else part for part in parts]


def _part(part: dict[str, Any], edit: Callable[[str], str]) -> dict[str, Any]:
    """Return a copy of a part with edited text if it is a tool result; else the part itself."""
    for key in _TYPED.get(str(part.get("type")), ()):
        if part.get(key) is not None:
            return {**part, key: _content(part[key], edit)}
    for name in _KEYED:
        result = part.get(name)
        if isinstance(result, dict):
            key = "content" if name == "toolResult" else "response"
            content = result.get(key)
            edited = _response(content, edit) if key == "response" else _content(content, edit)
            return {**part, name: {**result, key: edited}}
    return part


def _response(response: Any, edit: Callable[[str], str]) -> Any:
    """Return the result of a Gemini function, an object, with edited text.

    The text is the object's only string, or else the JSON of the whole object.
    """
    if response is None or isinstance(response, str):
        return edit(response) if response else response
    if isinstance(response, dict) and len(response) == 1:
        ((key, value),) = response.items()
        if isinstance(value, str):
            return {key: edit(value)} if value else response
    before = spelled(response)
    after = edit(before)
    return response if after == before else {"output": after}


def _content(content: Any, edit: Callable[[str], str], text_type: str = "text") -> Any:
    """Return the content of one tool result after `edit` was applied to its joined texts.

    Args:
        content: A text, or a list of parts.
        edit: Takes the joined texts, and returns the new text.
        text_type: The type of the new text part.
    """
    if content is None or isinstance(content, str):
        return edit(content) if content else content
    if not isinstance(content, (list, tuple)):
        return content
    if any(isinstance(part, dict) and isinstance(part.get("stdout"), str) for part in content):
        return [_command_output(part, edit) for part in content]
    texts = {place: text for place, part in enumerate(content) if (text := _text(part)) is not None}
    if not texts:
        return content
    before = "\n".join(texts.values())
    after = edit(before)
    if after == before:
        return content
    first = min(texts)
    return [
        _with_text(part, after, text_type) if place == first else part
        for place, part in enumerate(content)
        if place == first or place not in texts
    ]


def _command_output(part: Any, edit: Callable[[str], str]) -> Any:
    """Return a shell command's output with an edited ``stdout``."""
    if isinstance(part, dict) and isinstance(part.get("stdout"), str) and part["stdout"]:
        return {**part, "stdout": edit(part["stdout"])}
    return part


def _text(part: Any) -> str | None:
    """Return the text of a part; None if it has no text or contains an image or a file."""
    draft = Draft()
    read_parts(draft, [part])
    return "\n".join(draft.texts) if draft.texts and not draft.media else None


def _with_text(part: Any, text: str, text_type: str) -> Any:
    """Return a text part in the format of `part`, with another text."""
    if isinstance(part, str):
        return text
    kind = part.get("type")
    if kind is None:
        return {"text": text}
    return {"type": kind if kind in _TEXT_TYPES else text_type, "text": text}
