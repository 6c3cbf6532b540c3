"""What the fields of a page's model hold: what the spans say and nothing else, and each captured text once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.span_values import as_list

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TEXT: Final = 8_000
"""Characters of one captured text that a page shows."""


def known(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say something: a page of a thousand turns must not consist of nulls."""
    return {name: value for name, value in fields.items() if value is not None and value is not False and value != []}


class Texts:
    """Texts by their number."""

    def __init__(self, held: list[list[Any]] | None = None) -> None:
        self._held = [] if held is None else held
        self._numbers = {one[0]: number for number, one in enumerate(self._held) if len(one) == 1}

    def number(self, text: str) -> int:
        """The number of this text; a text that is cut keeps its length beside it."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self._held)
            self._held.append([text[:MAX_TEXT], len(text)] if len(text) > MAX_TEXT else [text])
        return found

    def all(self) -> list[list[Any]]:
        """Each text, followed by its whole length where it was cut."""
        return self._held

    def instructions(self, attributes: Any) -> list[int]:
        """The prompts of an assembly, where they were captured."""
        captured = attributes.get(names.GEN_AI_SYSTEM_INSTRUCTIONS)
        if isinstance(captured, str):
            try:
                captured = json.loads(captured)
            except (ValueError, RecursionError):
                return [self.number(captured)]
        parts = [part.get("content") if isinstance(part, dict) else part for part in as_list(captured)]
        return [self.number(part) for part in parts if isinstance(part, str)]
