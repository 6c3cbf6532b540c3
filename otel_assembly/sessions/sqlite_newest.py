"""The newest row that a log in SQLite accepted, noted beside the file, so that a file that was cut is told.

A file that was cut at the end of a transaction is a whole file, and one that was cut elsewhere looks like a crash. The
note is written after a commit was synced, and is not synced itself: it may be behind the file, and never before it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.sessions.log import checksum_of

if TYPE_CHECKING:
    from otel_assembly.sessions.log import LogRow

#: The longest note: an id of 256 characters takes twelve bytes for each at most.
_LONGEST: Final = 8_192


def note_newest(descriptor: int, row: LogRow) -> None:
    """Note a row that was accepted; where that fails, the note before it, or none, says less and nothing wrong."""
    said = json.dumps([row.session_id, row.seq, row.envelope_id])
    with suppress(OSError):
        os.pwrite(descriptor, f"{checksum_of(said):08x} {said}\n".encode(), 0)


def noted_newest(descriptor: int) -> tuple[str, int, str] | None:
    """Session, number and envelope's id of the row that was noted last; None where there is no whole note."""
    line, ended, _ = os.pread(descriptor, _LONGEST, 0).decode("ascii", "replace").partition("\n")
    checksum, _, said = line.partition(" ")
    if not ended or checksum != f"{checksum_of(said):08x}":
        return None
    noted: list[Any] = json.loads(said)
    session_id, seq, envelope_id = noted
    return session_id, seq, envelope_id


def missing_newest(path: str, noted: tuple[str, int, str]) -> str:
    """What is said of a file that ends before the row that was noted."""
    return (
        f"session {noted[0]!r}: row {noted[1]} was accepted, and is not in {path}: the file was cut, or is an older "
        f"copy; restore it, or delete {path}.queue while nobody has the log open, and what is missing is given up"
    )


def forget_newest(descriptor: int) -> None:
    """Note nothing: the file is gone, and another one begins."""
    os.ftruncate(descriptor, 0)
