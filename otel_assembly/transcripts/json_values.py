"""Parse JSON strictly: duplicate keys, ``NaN``, infinite numbers and deep nesting are errors.

Python's parser would drop the first value of a duplicate key, and deep nesting would exhaust the stack. Half of a
surrogate pair, which occurs in logs that cut an emoji, is accepted.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

__all__ = ["MAX_DEPTH", "MalformedError", "excerpt", "kind_of", "parse", "skip_space", "value_at"]

#: The deepest nesting of objects and lists.
MAX_DEPTH = 100

_EXCERPT = 40
_SPACE = re.compile(r"[ \t\n\r]*")


class MalformedError(ValueError):
    """An error in a transcript, with a message of one line: what was found, and what was expected.

    Attributes:
        at: The position of the error in the text, in characters from 0; None if unknown.
        end: The end of the value, if the value is well-formed JSON but not accepted; else None.
        line: The line of the error in the file, from 1; None if unknown.
    """

    def __init__(self, problem: str, *, at: int | None = None, end: int | None = None, line: int | None = None) -> None:
        self.at = at
        self.end = end
        self.line = line
        super().__init__(problem)


def kind_of(value: Any) -> str:
    """Return the JSON type of a parsed value, with its article, such as ``an object``."""
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
    """Return a text in quotes for an error message, truncated to 40 characters and without line breaks."""
    quoted = repr(value[:_EXCERPT])
    return quoted if len(value) <= _EXCERPT and len(quoted) <= _EXCERPT else f"{quoted[: _EXCERPT - 1]}…"


def skip_space(text: str, at: int) -> int:
    """Return the position of the first character from `at` on that is not white space."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


def parse(text: str) -> Any:
    """Parse a text that is one JSON value.

    Raises:
        MalformedError: The text is not JSON, has more than one value, or has JSON that is not accepted.
    """
    value, end = value_at(text, skip_space(text, 0))
    rest = skip_space(text, end)
    if rest != len(text):
        raise MalformedError(f"text after the JSON value at column {rest + 1}, expected its end", at=rest)
    return value


def value_at(text: str, start: int) -> tuple[Any, int]:
    """Parse the JSON value that begins at `start`; return the value and the position after it.

    Raises:
        MalformedError: As for `parse`; `end` is set if the value is well-formed but not accepted.
    """
    reader = _Reader()
    try:
        value, end = reader.decoder.raw_decode(text, start)
        problem = reader.problem or _depth_problem(value)
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
    """A JSON decoder that records the first problem and continues, so that it finds the end of the value."""

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
        fields = dict(pairs)
        if len(fields) != len(pairs):
            keys: set[str] = set()
            duplicate = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
            self._fault(f"the key {excerpt(duplicate)} occurs twice in one object, expected once")
        return fields

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


def _depth_problem(value: Any) -> str | None:
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
