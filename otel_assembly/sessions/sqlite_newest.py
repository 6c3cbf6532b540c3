"""A record of the newest accepted row next to an SQLite log, so that a truncated file is detected.

A file truncated at the end of a transaction is valid for SQLite; one truncated elsewhere looks like a crash. The record
is written after the commit is synced and is not synced itself. It may be older than the file, never newer.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.sessions.log import checksum_of

if TYPE_CHECKING:
    from otel_assembly.sessions.log import LogRow

#: The longest record in bytes: an id has up to 256 characters of at most twelve bytes.
_LONGEST: Final = 8_192


def note_newest(descriptor: int, row: LogRow) -> None:
    """Record an accepted row; if that fails, the older record stays valid."""
    said = json.dumps([row.session_id, row.seq, row.envelope_id])
    with suppress(OSError):
        os.pwrite(descriptor, f"{checksum_of(said):08x} {said}\n".encode(), 0)


def noted_newest(descriptor: int) -> tuple[str, int, str] | None:
    """Return session, row number and envelope id of the recorded row; None without a complete record."""
    line, ended, _ = os.pread(descriptor, _LONGEST, 0).decode("ascii", "replace").partition("\n")
    checksum, _, said = line.partition(" ")
    if not ended or checksum != f"{checksum_of(said):08x}":
        return None
    noted: list[Any] = json.loads(said)
    session_id, seq, envelope_id = noted
    return session_id, seq, envelope_id


def missing_newest(path: str, noted: tuple[str, int, str]) -> str:
    """Return the error message for a file that ends before the recorded row."""
    return (
        f"session {noted[0]!r}: row {noted[1]} was accepted, and is not in {path}: the file was cut, or is an older "
        f"copy; restore it, or delete {path}.queue while no process has the log open, to accept the loss"
    )


def forget_newest(descriptor: int) -> None:
    """Delete the record, because a new file replaces the missing one."""
    os.ftruncate(descriptor, 0)
