"""Safe terminal output: texts without escape sequences, symbols that the encoding has, and closed pipes."""

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

__all__ = ["ASCII", "UNICODE", "Glyphs", "discard_output", "ignore_closed_pipe", "safe_text"]

# The body of a sequence ends at the next escape character, so that matching takes linear time even if many sequences
# are not terminated.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colors, cursor movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"  # titles, links, clipboard
    r"|\x1b[ -/]*[0-~]"
)
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def safe_text(value: Any) -> str:
    """Return a value as text that has no control effects on a terminal.

    Escape sequences, control characters, direction marks and lone surrogates are removed. Line breaks and tabs become
    spaces.
    """
    text = re.sub(r"\s", " ", _SEQUENCES.sub("", str(value)))
    return text if text.isascii() and text.isprintable() else "".join(filter(_printable, text))


def _printable(character: str) -> bool:
    return unicodedata.category(character) not in _UNPRINTABLE


def discard_output() -> None:
    """Redirect standard output to the null device, so that Python's flush at exit does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextmanager
def ignore_closed_pipe() -> Iterator[None]:
    """Continue without output if the reader of standard output, such as ``head``, closes the pipe in this block."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The symbols of terminal output. `plain` is true if all other text has to be ASCII, too."""

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
        """Return a value as safe text of at most `longest` characters, in ASCII if `plain`."""
        # Truncate before cleaning: cleaning a megabyte takes about a second.
        raw = str(value)[: 8 * longest]
        text = safe_text(raw)
        if len(text) > longest or len(raw) < len(str(value)):
            text = text[:longest] + self.ellipsis
        return text.encode("ascii", "replace").decode() if self.plain else text


UNICODE = Glyphs("├─ ", "└─ ", "│  ", "⚠", "✖", "•", "→", "×", "·", "┃", "µs", "≥", "…", plain=False)
ASCII = Glyphs("|- ", "`- ", "|  ", "!", "x", "*", "->", "x", ".", "|", "us", ">=", "...", plain=True)
