"""A record of the newest accepted row in the lock file of an SQLite log, so that a truncated log is detected.

SQLite does not detect this: a file that is truncated at the end of a transaction is valid, and one that is truncated
elsewhere looks as after a crash. The record is written after the commit is synced, and is not synced itself. The record
may therefore be older than the log, but never newer.
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
_MOST_BYTES: Final = 8_192


def record_newest(descriptor: int, row: LogRow) -> None:
    """Record an accepted row in the lock file; if this fails, the older record is still valid."""
    record = json.dumps([row.session_id, row.seq, row.envelope_id])
    with suppress(OSError):
        os.pwrite(descriptor, f"{checksum_of(record):08x} {record}\n".encode(), 0)


def recorded_newest(descriptor: int) -> tuple[str, int, str] | None:
    """Return the session id, row number and envelope id of the recorded row; None without a complete record."""
    line, newline, _ = os.pread(descriptor, _MOST_BYTES, 0).decode("ascii", "replace").partition("\n")
    checksum, _, record = line.partition(" ")
    if not newline or checksum != f"{checksum_of(record):08x}":
        return None
    content: list[Any] = json.loads(record)
    session_id, seq, envelope_id = content
    return session_id, seq, envelope_id


def missing_newest(path: str, newest: tuple[str, int, str]) -> str:
    """Return the error message for a log without the recorded row."""
    return (
        f"session {newest[0]!r}: row {newest[1]} was accepted, and is not in {path}: the file was cut, or is an older "
        f"copy; restore the file, or delete {path}.queue while no process has the log open, to accept the loss"
    )


def forget_newest(descriptor: int) -> None:
    """Delete the record. Call this function before a missing log is created, because the new log lacks the row."""
    os.ftruncate(descriptor, 0)
