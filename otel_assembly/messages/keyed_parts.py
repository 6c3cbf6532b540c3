"""Rows of parts that a single key identifies: those of Bedrock's Converse and of Gemini.

Gemini matches calls and results by the tool's name. Ids are optional, and its client omits them in results. Gemini
expects the results in the message directly after the calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import DescribeError
from otel_assembly.messages.event_facts import spelled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.messages.draft import Draft

    #: Reads the content of a result or a document.
    Content = Callable[[Draft, Any], None]
    #: Reads one part from the value of its key.
    Row = Callable[[Draft, Any, Content], None]


def _text(draft: Draft, value: Any, content: Content) -> None:
    if not isinstance(value, str):
        raise DescribeError(dict, f"the 'text' of a part is a {type(value).__name__}, expected a string")
    draft.text(value)


def _media(draft: Draft, value: Any, content: Content) -> None:
    draft.file()


def _document(draft: Draft, value: Any, content: Content) -> None:
    """Read a document: a file or a text."""
    source = value.get("source") if isinstance(value, dict) else None
    if isinstance(source, dict) and isinstance(source.get("text"), str):
        draft.text(source["text"])
    elif isinstance(source, dict) and isinstance(source.get("content"), list):
        content(draft, source["content"])
    else:
        draft.file()


def _bedrock_call(draft: Draft, value: Any, content: Content) -> None:
    if not isinstance(value, dict) or not isinstance(value.get("toolUseId"), str):
        raise DescribeError(dict, "a 'toolUse' has no 'toolUseId'")
    if value.get("type") == "server_tool_use":
        draft.spell(value.get("name"), value.get("input"))
        return
    waits = value.get("awaiting_approval") is True
    draft.call(value["toolUseId"], value.get("name"), value.get("input"), awaiting=waits)


def _bedrock_result(draft: Draft, value: Any, content: Content) -> None:
    if not isinstance(value, dict):
        raise DescribeError(dict, f"a 'toolResult' is a {type(value).__name__}, expected an object")
    if not str(value.get("type") or "").endswith("_tool_result"):  # otherwise the provider ran the tool
        draft.result(value.get("toolUseId"))
    with draft.aside():
        content(draft, value.get("content"))


def _json(draft: Draft, value: Any, content: Content) -> None:
    draft.text(spelled(value))


def _reasoning(draft: Draft, value: Any, content: Content) -> None:
    said = value.get("reasoningText") if isinstance(value, dict) else None
    with draft.thinking():
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


#: The rows of Bedrock's parts, by key.
BEDROCK: Final[Mapping[str, Row]] = {
    "text": _text,
    "image": _media,
    "audio": _media,
    "video": _media,
    "document": _document,
    "toolUse": _bedrock_call,
    "toolResult": _bedrock_result,
    "json": _json,
    "reasoningContent": _reasoning,
    "guardContent": _guarded,
    "citationsContent": _cited,
    "searchResult": _found,
    "cachePoint": _nothing,
}


def _named(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise DescribeError(dict, f"a {key!r} has no 'name'")
    return value


def response_text(response: Any) -> str:
    """Return the text of a function's response: its JSON, or the only text inside the object."""
    if isinstance(response, dict) and len(response) == 1 and isinstance(text := next(iter(response.values())), str):
        response = text
    return response if isinstance(response, str) else "" if response is None else spelled(response)


def _gemini_call(draft: Draft, value: Any, content: Content) -> None:
    call = _named(value, "functionCall")
    waits = call.get("awaiting_approval") is True
    draft.call(call["name"], call["name"], call.get("args"), awaiting=waits)


def _gemini_result(draft: Draft, value: Any, content: Content) -> None:
    result = _named(value, "functionResponse")
    draft.result(result["name"])
    draft.texts.append(result["name"])
    with draft.aside():
        response = result.get("response")
        draft.text("" if response is None else response if isinstance(response, str) else spelled(response))
        for part in result.get("parts") or ():  # images in a tool result
            if isinstance(part, dict) and not part.keys().isdisjoint(_FILES):
                draft.file()


def _code(draft: Draft, value: Any, content: Content) -> None:
    if isinstance(value, dict):
        draft.text(value.get("code"))


def _ran(draft: Draft, value: Any, content: Content) -> None:
    if isinstance(value, dict):
        draft.text(value.get("output"))


def _server(draft: Draft, value: Any, content: Content) -> None:
    """Read a call that Gemini runs itself, or its result."""
    draft.text(spelled(value))


_FILES: Final = ("inlineData", "inline_data", "fileData", "file_data")

#: The rows of Gemini's parts, by key, as spelled in JSON or in its Python client.
GEMINI: Final[Mapping[str, Row]] = {
    "text": _text,
    **dict.fromkeys(_FILES, _media),
    **dict.fromkeys(("functionCall", "function_call"), _gemini_call),
    **dict.fromkeys(("functionResponse", "function_response"), _gemini_result),
    **dict.fromkeys(("executableCode", "executable_code"), _code),
    **dict.fromkeys(("codeExecutionResult", "code_execution_result"), _ran),
    **dict.fromkeys(("toolCall", "tool_call", "toolResponse", "tool_response"), _server),
}

#: Keys of Gemini's reasoning parts.
_SIGNATURES: Final = frozenset({"thought", "thoughtSignature", "thought_signature"})


def is_thought(part: Mapping[str, Any]) -> bool:
    """Return True if a Gemini part is reasoning, or only a signature, as at the end of streams.

    Args:
        part: The part, without keys that are not set.
    """
    if part.keys() <= _SIGNATURES:
        return bool(part)
    return part.get("thought") is True and part.keys() <= _SIGNATURES | {"text"} and isinstance(part["text"], str)
