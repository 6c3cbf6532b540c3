"""What may be sent to a terminal, and with which characters; and what happens where nobody takes it."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ASCII", "UNICODE", "Glyphs", "discard_output", "reader_may_leave", "safe_text"]

# Bodies end at the next escape, so that a text made of nothing but beginnings is still read in one pass.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, movements of the cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"  # titles, links, clipboard
    r"|\x1b[ -/]*[0-~]"
)
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def safe_text(value: Any) -> str:
    """A value from outside as text that a terminal can only print.

    Escape sequences go whole, and so does what has no glyph of its own: control characters, marks that turn the
    direction of writing, lone surrogates. Line breaks and tabs become spaces.
    """
    text = re.sub(r"\s", " ", _SEQUENCES.sub("", str(value)))
    return text if text.isascii() and text.isprintable() else "".join(filter(_printable, text))


def _printable(character: str) -> bool:
    return unicodedata.category(character) not in _UNPRINTABLE


def discard_output() -> None:
    """Standard output goes nowhere from now on: what waits for it would be an error once more as Python exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Whoever reads what is printed here, such as ``head``, may have enough of it: what is done beside it goes on."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of a drawing that are not in every encoding; `plain` where none other may be printed either."""

    branch: str
    last: str
    down: str
    warning: str
    stop: str
    note: str
    arrow: str
    times: str
    free: str
    limit: str
    micro: str
    at_least: str
    ellipsis: str
    plain: bool

    def printable(self, value: Any, longest: int) -> str:
        """The value as safe text in this set's characters, cut at `longest` of them."""
        # Cleaning a megabyte only to cut it would cost a second a span.
        raw = str(value)[: 8 * longest]
        text = safe_text(raw)
        if len(text) > longest or len(raw) < len(str(value)):
            text = text[:longest] + self.ellipsis
        return text.encode("ascii", "replace").decode() if self.plain else text


UNICODE = Glyphs("├─ ", "└─ ", "│  ", "⚠", "✖", "•", "→", "×", "·", "┃", "µs", "≥", "…", plain=False)
ASCII = Glyphs("|- ", "`- ", "|  ", "!", "x", "*", "->", "x", ".", "|", "us", ">=", "...", plain=True)
