"""Readers of parts that a single key identifies, as in Bedrock's Converse API and in Gemini's API.

Gemini matches calls and results by the tool's name. Ids are optional, and Gemini's client omits them in results. Gemini
expects the results in the message directly after the calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import DescribeError
from otel_assembly.messages.event_facts import spelled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.messages.draft import Draft

    #: Adds the content of a tool result or a document to a draft (`parts.read_content`).
    Content = Callable[[Draft, Any], None]
    #: Adds one part, the value of its key, to a draft.
    Row = Callable[[Draft, Any, Content], None]


def _text(draft: Draft, value: Any, content: Content) -> None:
    if not isinstance(value, str):
        raise DescribeError(dict, f"the 'text' of a part is a {type(value).__name__}, expected a string")
    draft.text(value)


def _media(draft: Draft, value: Any, content: Content) -> None:
    draft.file()


def _document(draft: Draft, value: Any, content: Content) -> None:
    """Read a document part: a text, a list of parts, or a file."""
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
    if not str(value.get("type") or "").endswith("_tool_result"):  # with such a type, the provider ran the tool
        draft.result(value.get("toolUseId"))
    with draft.aside():
        content(draft, value.get("content"))


def _json(draft: Draft, value: Any, content: Content) -> None:
    draft.text(spelled(value))


def _reasoning(draft: Draft, value: Any, content: Content) -> None:
    reasoning = value.get("reasoningText") if isinstance(value, dict) else None
    with draft.thinking():
        if isinstance(reasoning, dict):
            draft.text(reasoning.get("text"))
        elif isinstance(value, dict):
            draft.encrypted(value.get("redactedContent"))


def _guard_content(draft: Draft, value: Any, content: Content) -> None:
    text = value.get("text") if isinstance(value, dict) else None
    if isinstance(text, dict):
        draft.text(text.get("text"))
    else:
        draft.file()


def _citations(draft: Draft, value: Any, content: Content) -> None:
    content(draft, value.get("content") if isinstance(value, dict) else None)


def _search_result(draft: Draft, value: Any, content: Content) -> None:
    if isinstance(value, dict):
        draft.text(value.get("title"))
        draft.text(value.get("source"))
        content(draft, value.get("content"))


def _nothing(draft: Draft, value: Any, content: Content) -> None:
    pass


#: The readers of Bedrock's parts, by key.
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
    "guardContent": _guard_content,
    "citationsContent": _citations,
    "searchResult": _search_result,
    "cachePoint": _nothing,
}


def _checked_name(value: Any, key: str) -> dict[str, Any]:
    """Return the value of a part's key, after checking that it is an object with a name."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise DescribeError(dict, f"a {key!r} has no 'name'")
    return value


def response_text(response: Any) -> str:
    """Return the text of a function's response: the object's only value if that is a text, else the object's JSON."""
    if isinstance(response, dict) and len(response) == 1 and isinstance(text := next(iter(response.values())), str):
        response = text
    return response if isinstance(response, str) else "" if response is None else spelled(response)


def _gemini_call(draft: Draft, value: Any, content: Content) -> None:
    call = _checked_name(value, "functionCall")
    waits = call.get("awaiting_approval") is True
    draft.call(call["name"], call["name"], call.get("args"), awaiting=waits)


def _gemini_result(draft: Draft, value: Any, content: Content) -> None:
    result = _checked_name(value, "functionResponse")
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


def _code_result(draft: Draft, value: Any, content: Content) -> None:
    if isinstance(value, dict):
        draft.text(value.get("output"))


def _server_tool(draft: Draft, value: Any, content: Content) -> None:
    """Read a call of a tool that Gemini runs itself, or the result of such a call."""
    draft.text(spelled(value))


_FILES: Final = ("inlineData", "inline_data", "fileData", "file_data")

#: The readers of Gemini's parts, by key: as in the JSON of the API and as in Gemini's Python client.
GEMINI: Final[Mapping[str, Row]] = {
    "text": _text,
    **dict.fromkeys(_FILES, _media),
    **dict.fromkeys(("functionCall", "function_call"), _gemini_call),
    **dict.fromkeys(("functionResponse", "function_response"), _gemini_result),
    **dict.fromkeys(("executableCode", "executable_code"), _code),
    **dict.fromkeys(("codeExecutionResult", "code_execution_result"), _code_result),
    **dict.fromkeys(("toolCall", "tool_call", "toolResponse", "tool_response"), _server_tool),
}

#: Keys of Gemini's reasoning parts.
_SIGNATURES: Final = frozenset({"thought", "thoughtSignature", "thought_signature"})


def is_thought(part: Mapping[str, Any]) -> bool:
    """Return True if a Gemini part is reasoning, or contains only a signature of reasoning, as at the end of streams.

    Args:
        part: The part, without keys that are not set.
    """
    if part.keys() <= _SIGNATURES:
        return bool(part)
    return part.get("thought") is True and part.keys() <= _SIGNATURES | {"text"} and isinstance(part["text"], str)
