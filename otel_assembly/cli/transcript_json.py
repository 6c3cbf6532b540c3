"""JSON as a recording must have it: what other readers would silently change is refused here.

A key that occurs twice loses a value, ``NaN`` and endless numbers are no JSON, and what is nested without end exhausts
the stack of whoever walks it. Half of an escaped character, as logs that cut an emoji have it, is read.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

__all__ = ["MAX_DEPTH", "MalformedError", "excerpt", "kind_of", "parse", "skip_space", "value_at"]

#: How many objects and lists may stand inside one another.
MAX_DEPTH = 100

_EXCERPT = 40
_SPACE = re.compile(r"[ \t\n\r]*")


class MalformedError(ValueError):
    """What was found and what was expected, in one line of text.

    Attributes:
        at: Where in the text, in characters from 0; None where the text is not known.
        end: Where the value ends that could be delimited but not accepted; None where nothing after it can be found.
    """

    def __init__(self, problem: str, *, at: int | None = None, end: int | None = None) -> None:
        self.at = at
        self.end = end
        super().__init__(problem)


def kind_of(value: Any) -> str:
    """What a parsed value is in the words of JSON, with its article."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "a list"
    return "an object"


def excerpt(value: str) -> str:
    """A text from the file in quotes, of at most 40 characters and without line breaks."""
    quoted = repr(value[:_EXCERPT])
    return quoted if len(value) <= _EXCERPT and len(quoted) <= _EXCERPT else f"{quoted[: _EXCERPT - 1]}…"


def skip_space(text: str, at: int) -> int:
    """The first place from `at` on that is not white space."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


def parse(text: str) -> Any:
    """The one JSON value that a text holds.

    Raises:
        MalformedError: The text is no JSON, is more than one value, or is JSON that would not survive a round trip.
    """
    value, end = value_at(text, skip_space(text, 0))
    rest = skip_space(text, end)
    if rest != len(text):
        raise MalformedError(f"more follows the JSON value at column {rest + 1}, expected its end", at=rest)
    return value


def value_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, and where it ends.

    Raises:
        MalformedError: As `parse` does; its `end` is set where only the content of the value is at fault.
    """
    reader = _Reader()
    try:
        value, end = reader.decoder.raw_decode(text, start)
        problem = reader.problem or _unfit(value)
    except json.JSONDecodeError as error:
        raise MalformedError(
            f"not JSON: {error.msg.removesuffix(' at')} (column {error.colno})", at=error.pos
        ) from None
    except RecursionError:
        raise MalformedError(_TOO_DEEP, at=start) from None
    if problem:
        raise MalformedError(problem, at=start, end=end)
    return value, end


class _Reader:
    """Decodes to the end and remembers the first fault, so that the end of a faulty value is known."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.decoder = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_constant=self._constant,
            parse_float=self._float,
            parse_int=self._int,
        )

    def _fault(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            self._fault(f"the key {excerpt(twice)} occurs twice in one object, expected once")
        return found

    def _constant(self, name: str) -> None:
        self._fault(f"not JSON: {name}, expected a number or null")

    def _float(self, digits: str) -> float:
        number = float(digits)
        if math.isinf(number):
            self._fault(f"the number {excerpt(digits)} is too large")
        return number

    def _int(self, digits: str) -> int:
        try:
            return int(digits)
        except ValueError:
            self._fault(f"a number has {len(digits)} digits, which is too large")
            return 0


_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"


def _unfit(value: Any) -> str | None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            if isinstance(parent, (dict, list))
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return None
    return _TOO_DEEP
