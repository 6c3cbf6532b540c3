"""Keep the data of a page small: omit empty fields, and store each captured text once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.span_values import as_list

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TEXT: Final = 8_000
"""The most characters of a captured text on a page."""


def nonempty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without those that are None, False or an empty list, to keep pages of many turns small."""
    return {name: value for name, value in fields.items() if value is not None and value is not False and value != []}


class Texts:
    """The texts of a page, each stored once; the rest of the data refers to a text by its index."""

    def __init__(self, texts: list[list[Any]] | None = None) -> None:
        self._texts = [] if texts is None else texts
        self._numbers = {entry[0]: number for number, entry in enumerate(self._texts) if len(entry) == 1}

    def number(self, text: str) -> int:
        """Return the index of a text; add the text if the page does not contain it."""
        index = self._numbers.get(text)
        if index is None:
            index = self._numbers[text] = len(self._texts)
            self._texts.append([text[:MAX_TEXT], len(text)] if len(text) > MAX_TEXT else [text])
        return index

    def all(self) -> list[list[Any]]:
        """Return a list for each text: the text, and its full length if it was truncated to `MAX_TEXT`."""
        return self._texts

    def instructions(self, attributes: Any) -> list[int]:
        """Return the indexes of the system prompts that the attributes of an assembly contain; add new prompts."""
        captured = attributes.get(names.GEN_AI_SYSTEM_INSTRUCTIONS)
        if isinstance(captured, str):
            try:
                captured = json.loads(captured)
            except (ValueError, RecursionError):
                return [self.number(captured)]
        parts = [part.get("content") if isinstance(part, dict) else part for part in as_list(captured)]
        return [self.number(part) for part in parts if isinstance(part, str)]
