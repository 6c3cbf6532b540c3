"""Rows for parts of messages that are objects: what a `Draft` is told of each, by what a part calls itself.

Where a part holds its text, its call or its file differs by framework; what is made of that does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.messages.draft import Draft

    #: Reads one part.
    Row: TypeAlias = Callable[[Draft, Any], None]


def says(*texts: str, sealed: str | None = None) -> Row:
    """The row of a part that is said.

    Args:
        texts: The attributes that hold its texts.
        sealed: The one that holds what only the provider can read.
    """

    def row(draft: Draft, part: Any) -> None:
        for text in texts:
            draft.text(getattr(part, text))
        if sealed is not None:
            draft.encrypted(getattr(part, sealed))

    return row


def asks(call: str, name: str, arguments: str) -> Row:
    """The row of a tool's call, by the attributes that hold its id, the tool's name and the arguments."""

    def row(draft: Draft, part: Any) -> None:
        draft.call(getattr(part, call), getattr(part, name), getattr(part, arguments))

    return row


def shows(draft: Draft, _: Any) -> None:
    """The row of an image, a clip or a file."""
    draft.file()


def is_silent(draft: Draft, _: Any) -> None:
    """The row of what no model reads."""


def read_part(draft: Draft, rows: Mapping[Any, Row], kind: Any, part: Any) -> None:
    """Read a part by its row; one of a kind that has none counts by what it holds."""
    row = rows.get(kind)
    if row is not None:
        row(draft, part)
    else:
        name = kind if isinstance(kind, str) else type(part).__name__
        draft.other(name, getattr(part, "__dict__", str(part)))
