"""Helpers for formats whose records together are one log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.transcripts.json_values import MalformedError, excerpt

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator

    from otel_assembly.transcripts.records import Record

__all__ = [
    "INCOMPLETE",
    "count_unknown",
    "fields_of",
    "log_objects",
    "objects_in",
    "text_in",
    "texts_of",
    "unparsed_problem",
]


def log_objects(records: Iterable[Record], skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield the records that are objects, and count the others.

    A last line that is not JSON is counted separately, because a program may still be writing the log.
    """
    bad: Record | None = None
    for record in records:
        if bad is not None:
            skipped[unparsed_problem(bad)] += 1
            bad = None
        if isinstance(record.value, MalformedError):
            bad = record
        elif isinstance(record.value, dict):
            yield record.value
        else:
            skipped["record that is not an object"] += 1
    if bad is not None:
        skipped[INCOMPLETE] += 1


#: The description of a last line that is not JSON: a program may still be writing it.
INCOMPLETE: Final = "incomplete last line"


def unparsed_problem(record: Record) -> str:
    """Return the problem of a line without its position, so that equal problems are counted together."""
    problem = str(record.value)
    return "line that is not JSON" if problem.startswith("not JSON") else f"line that cannot be read: {problem}"


def count_unknown(skipped: Counter[str], what: str, kind: Any) -> None:
    """Count a record or part of an unknown type.

    Args:
        skipped: The counts by description.
        what: The noun, such as ``record``.
        kind: The type; any value other than a text counts as none.
    """
    has_type = isinstance(kind, str) and kind
    skipped[f"{what} of type {excerpt(kind)}" if has_type else f"{what} without a type"] += 1


def fields_of(value: Any) -> dict[str, Any]:
    """Return a value that is an object; an empty object for any other value."""
    return value if isinstance(value, dict) else {}


def text_in(fields: dict[str, Any], key: str) -> str:
    """Return a field that is a text; an empty text for any other value."""
    value = fields.get(key)
    return value if isinstance(value, str) else ""


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; an empty list for any other value."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts_of(content: Any) -> str:
    """Return the text of a content: a string, or the texts of its parts, joined."""
    if isinstance(content, str):
        return content
    parts = [content] if isinstance(content, dict) else objects_in(content)
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
