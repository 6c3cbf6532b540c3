"""The parts of Gemini: each is named by its key, in the spelling of its JSON or of its Python client.

A call is paired by its tool's name. Its id is optional on either side, the client leaves it out of the results that it
makes, and Gemini takes the results of a message in the message right behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import DescribeError
from otel_assembly.messages.reading import Reading, spelled

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Reads the content of a result.
    Content = Callable[[Reading, Any], None]


def _text(reading: Reading, value: Any, content: Content) -> None:
    if not isinstance(value, str):
        raise DescribeError(dict, f"the 'text' of a part is a {type(value).__name__}, expected a string")
    reading.text(value)


def _media(reading: Reading, value: Any, content: Content) -> None:
    reading.file()


def _named(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise DescribeError(dict, f"a {key!r} has no 'name'")
    return value


def _call(reading: Reading, value: Any, content: Content) -> None:
    call = _named(value, "functionCall")
    waits = call.get("awaiting_approval") is True
    reading.call(call["name"], call["name"], call.get("args"), awaiting=waits)


def _result(reading: Reading, value: Any, content: Content) -> None:
    result = _named(value, "functionResponse")
    said = reading.said
    reading.result(result["name"])
    response = result.get("response")
    if isinstance(response, dict) and len(response) == 1 and isinstance(text := next(iter(response.values())), str):
        response = text  # what its client makes of a function that returns a text
    reading.text(response if isinstance(response, str) or response is None else spelled(response))
    for part in result.get("parts") or ():  # pictures that a tool returns
        if isinstance(part, dict) and not part.keys().isdisjoint(_FILES):
            reading.file()
    reading.said = said


def _code(reading: Reading, value: Any, content: Content) -> None:
    if isinstance(value, dict):
        reading.text(value.get("code"))


def _ran(reading: Reading, value: Any, content: Content) -> None:
    if isinstance(value, dict):
        reading.text(value.get("output"))


def _server(reading: Reading, value: Any, content: Content) -> None:
    """A call that Gemini answers itself, or its answer."""
    reading.text(spelled(value))


_FILES: Final = ("inlineData", "inline_data", "fileData", "file_data")

#: How a part is read, by its key.
GEMINI: Final[dict[str, Callable[[Reading, Any, Content], None]]] = {
    "text": _text,
    **dict.fromkeys(_FILES, _media),
    **dict.fromkeys(("functionCall", "function_call"), _call),
    **dict.fromkeys(("functionResponse", "function_response"), _result),
    **dict.fromkeys(("executableCode", "executable_code"), _code),
    **dict.fromkeys(("codeExecutionResult", "code_execution_result"), _ran),
    **dict.fromkeys(("toolCall", "tool_call", "toolResponse", "tool_response"), _server),
}
