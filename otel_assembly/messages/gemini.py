"""The parts of Gemini: each is named by its key, in the spelling of its JSON or of its Python client.

A call is paired by its tool's name. Its id is optional on either side, the client leaves it out of the results that it
makes, and Gemini takes the results of a message in the message right behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import DescribeError
from otel_assembly.messages.draft import Draft, spelled

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Reads the content of a result.
    Content = Callable[[Draft, Any], None]


def _text(draft: Draft, value: Any, content: Content) -> None:
    if not isinstance(value, str):
        raise DescribeError(dict, f"the 'text' of a part is a {type(value).__name__}, expected a string")
    draft.text(value)


def _media(draft: Draft, value: Any, content: Content) -> None:
    draft.file()


def _named(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise DescribeError(dict, f"a {key!r} has no 'name'")
    return value


def _call(draft: Draft, value: Any, content: Content) -> None:
    call = _named(value, "functionCall")
    waits = call.get("awaiting_approval") is True
    draft.call(call["name"], call["name"], call.get("args"), awaiting=waits)


def _result(draft: Draft, value: Any, content: Content) -> None:
    result = _named(value, "functionResponse")
    said = draft.said
    draft.result(result["name"])
    response = result.get("response")
    if isinstance(response, dict) and len(response) == 1 and isinstance(text := next(iter(response.values())), str):
        response = text  # what its client makes of a function that returns a text
    draft.text(response if isinstance(response, str) or response is None else spelled(response))
    for part in result.get("parts") or ():  # pictures that a tool returns
        if isinstance(part, dict) and not part.keys().isdisjoint(_FILES):
            draft.file()
    draft.said = said


def _code(draft: Draft, value: Any, content: Content) -> None:
    if isinstance(value, dict):
        draft.text(value.get("code"))


def _ran(draft: Draft, value: Any, content: Content) -> None:
    if isinstance(value, dict):
        draft.text(value.get("output"))


def _server(draft: Draft, value: Any, content: Content) -> None:
    """A call that Gemini answers itself, or its answer."""
    draft.text(spelled(value))


_FILES: Final = ("inlineData", "inline_data", "fileData", "file_data")

#: How a part is read, by its key.
GEMINI: Final[dict[str, Callable[[Draft, Any, Content], None]]] = {
    "text": _text,
    **dict.fromkeys(_FILES, _media),
    **dict.fromkeys(("functionCall", "function_call"), _call),
    **dict.fromkeys(("functionResponse", "function_response"), _result),
    **dict.fromkeys(("executableCode", "executable_code"), _code),
    **dict.fromkeys(("codeExecutionResult", "code_execution_result"), _ran),
    **dict.fromkeys(("toolCall", "tool_call", "toolResponse", "tool_response"), _server),
}
