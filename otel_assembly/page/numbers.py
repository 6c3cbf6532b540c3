"""Attributes as a page shows them: what is not of the form it should be is left out, never repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.telemetry.store_reader import as_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def integer(value: Any) -> int | None:
    """A count, also where a backend made a text or a float of it; None where it is none."""
    try:
        return None if value is None or isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def text(value: Any) -> str | None:
    """A text; None where there is none."""
    return None if value is None else str(value)


def known(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say something: a page of a thousand turns must not consist of nulls."""
    return {name: value for name, value in fields.items() if value is not None and value is not False and value != []}


def pairs(named: Any, counts: Any) -> list[list[Any]]:
    """Two parallel arrays, entry by entry; counts that are none are left out."""
    rows = ((str(name), integer(count)) for name, count in zip(as_list(named), as_list(counts), strict=False))
    return [[name, count] for name, count in rows if count is not None]


def runs(ordinals: Iterable[int]) -> list[str]:
    """Ordinals as runs in their order, ``first-last``; only a step of one goes on a run."""
    made: list[list[int]] = []
    for ordinal in ordinals:
        if made and ordinal == made[-1][1] + 1:
            made[-1][1] = ordinal
        else:
            made.append([ordinal, ordinal])
    return [str(first) if first == last else f"{first}-{last}" for first, last in made]
