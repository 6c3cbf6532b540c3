"""The parts of Bedrock's Converse: each is named by its only key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import DescribeError
from otel_assembly.messages.reading import Reading, spelled

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Reads the content of a result or a document.
    Content = Callable[[Reading, Any], None]


def _text(reading: Reading, value: Any, content: Content) -> None:
    if not isinstance(value, str):
        raise DescribeError(dict, f"the 'text' of a part is a {type(value).__name__}, expected a string")
    reading.text(value)


def _media(reading: Reading, value: Any, content: Content) -> None:
    reading.file()


def _document(reading: Reading, value: Any, content: Content) -> None:
    """A file, or a text that is passed as one."""
    source = value.get("source") if isinstance(value, dict) else None
    if isinstance(source, dict) and isinstance(source.get("text"), str):
        reading.text(source["text"])
    elif isinstance(source, dict) and isinstance(source.get("content"), list):
        content(reading, source["content"])
    else:
        reading.file()


def _call(reading: Reading, value: Any, content: Content) -> None:
    if not isinstance(value, dict) or not isinstance(value.get("toolUseId"), str):
        raise DescribeError(dict, "a 'toolUse' has no 'toolUseId'")
    if value.get("type") == "server_tool_use":
        reading.spell(value.get("name"), value.get("input"))
        return
    waits = value.get("awaiting_approval") is True
    reading.call(value["toolUseId"], value.get("name"), value.get("input"), awaiting=waits)


def _result(reading: Reading, value: Any, content: Content) -> None:
    if not isinstance(value, dict):
        raise DescribeError(dict, f"a 'toolResult' is a {type(value).__name__}, expected an object")
    said = reading.said
    if not str(value.get("type") or "").endswith("_tool_result"):  # else the provider ran it
        reading.result(value.get("toolUseId"))
    content(reading, value.get("content"))
    reading.said = said


def _json(reading: Reading, value: Any, content: Content) -> None:
    reading.text(spelled(value))


def _reasoning(reading: Reading, value: Any, content: Content) -> None:
    said = value.get("reasoningText") if isinstance(value, dict) else None
    if isinstance(said, dict):
        reading.text(said.get("text"))
    elif isinstance(value, dict):
        reading.encrypted(value.get("redactedContent"))


def _guarded(reading: Reading, value: Any, content: Content) -> None:
    said = value.get("text") if isinstance(value, dict) else None
    if isinstance(said, dict):
        reading.text(said.get("text"))
    else:
        reading.file()


def _cited(reading: Reading, value: Any, content: Content) -> None:
    content(reading, value.get("content") if isinstance(value, dict) else None)


def _found(reading: Reading, value: Any, content: Content) -> None:
    if isinstance(value, dict):
        reading.text(value.get("title"))
        reading.text(value.get("source"))
        content(reading, value.get("content"))


def _nothing(reading: Reading, value: Any, content: Content) -> None:
    pass


#: How a part is read, by its key.
BEDROCK: Final[dict[str, Callable[[Reading, Any, Content], None]]] = {
    "text": _text,
    "image": _media,
    "audio": _media,
    "video": _media,
    "document": _document,
    "toolUse": _call,
    "toolResult": _result,
    "json": _json,
    "reasoningContent": _reasoning,
    "guardContent": _guarded,
    "citationsContent": _cited,
    "searchResult": _found,
    "cachePoint": _nothing,
}
