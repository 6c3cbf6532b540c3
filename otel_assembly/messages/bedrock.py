"""The parts of Bedrock's Converse: each is named by its only key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import DescribeError
from otel_assembly.messages.draft import Draft, spelled

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Reads the content of a result or a document.
    Content = Callable[[Draft, Any], None]


def _text(draft: Draft, value: Any, content: Content) -> None:
    if not isinstance(value, str):
        raise DescribeError(dict, f"the 'text' of a part is a {type(value).__name__}, expected a string")
    draft.text(value)


def _media(draft: Draft, value: Any, content: Content) -> None:
    draft.file()


def _document(draft: Draft, value: Any, content: Content) -> None:
    """A file, or a text that is passed as one."""
    source = value.get("source") if isinstance(value, dict) else None
    if isinstance(source, dict) and isinstance(source.get("text"), str):
        draft.text(source["text"])
    elif isinstance(source, dict) and isinstance(source.get("content"), list):
        content(draft, source["content"])
    else:
        draft.file()


def _call(draft: Draft, value: Any, content: Content) -> None:
    if not isinstance(value, dict) or not isinstance(value.get("toolUseId"), str):
        raise DescribeError(dict, "a 'toolUse' has no 'toolUseId'")
    if value.get("type") == "server_tool_use":
        draft.spell(value.get("name"), value.get("input"))
        return
    waits = value.get("awaiting_approval") is True
    draft.call(value["toolUseId"], value.get("name"), value.get("input"), awaiting=waits)


def _result(draft: Draft, value: Any, content: Content) -> None:
    if not isinstance(value, dict):
        raise DescribeError(dict, f"a 'toolResult' is a {type(value).__name__}, expected an object")
    said = draft.said
    if not str(value.get("type") or "").endswith("_tool_result"):  # else the provider ran it
        draft.result(value.get("toolUseId"))
    content(draft, value.get("content"))
    draft.said = said


def _json(draft: Draft, value: Any, content: Content) -> None:
    draft.text(spelled(value))


def _reasoning(draft: Draft, value: Any, content: Content) -> None:
    said = value.get("reasoningText") if isinstance(value, dict) else None
    if isinstance(said, dict):
        draft.text(said.get("text"))
    elif isinstance(value, dict):
        draft.encrypted(value.get("redactedContent"))


def _guarded(draft: Draft, value: Any, content: Content) -> None:
    said = value.get("text") if isinstance(value, dict) else None
    if isinstance(said, dict):
        draft.text(said.get("text"))
    else:
        draft.file()


def _cited(draft: Draft, value: Any, content: Content) -> None:
    content(draft, value.get("content") if isinstance(value, dict) else None)


def _found(draft: Draft, value: Any, content: Content) -> None:
    if isinstance(value, dict):
        draft.text(value.get("title"))
        draft.text(value.get("source"))
        content(draft, value.get("content"))


def _nothing(draft: Draft, value: Any, content: Content) -> None:
    pass


#: How a part is read, by its key.
BEDROCK: Final[dict[str, Callable[[Draft, Any, Content], None]]] = {
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
