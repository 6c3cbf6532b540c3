"""Functions that all `SessionLog` classes share: checks of written and read rows, and the lock of `press`."""

from __future__ import annotations

import logging
import re
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import LogConflictError, LogDamagedError, SessionLogError, TurnClaimLostError
from otel_assembly.sessions.log import LogRow, Snapshot, StoredTurn, TurnClaim, WorkEntry, checksum_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from otel_assembly.sessions.log import LogPosition

logger = logging.getLogger("otel_assembly")

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

#: The locks that the running task holds, or the task that started it; the innermost is the last.
_presses: ContextVar[tuple[Press, ...]] = ContextVar("presses", default=())


class Press:
    """One lock of a session that `SessionLog.press` holds.

    Attributes:
        log: The log of the session.
        active: True until the lock is released; then False, also in tasks that the holder started and that still run.
        connection: The database connection that holds the lock; None if the log uses no connection for it.
    """

    __slots__ = ("active", "connection", "log")

    def __init__(self, log: object, connection: Any = None) -> None:
        self.log = log
        self.connection = connection
        self.active = True


@asynccontextmanager
async def hold_press(press: Press) -> AsyncIterator[None]:
    """Register a lock as held by this task, and by the tasks that it starts, for the duration of the block."""
    outer = _presses.get()
    _presses.set((*outer, press))
    try:
        yield
    finally:
        press.active = False
        _presses.set(outer)


def current_press(log: object) -> Press | None:
    """Return the lock of a log that the running task holds; None if it holds none."""
    return next((press for press in reversed(_presses.get()) if press.log is log and press.active), None)


def check_appended(rows: Sequence[LogRow], on: LogPosition) -> None:
    """Check the rows of an append to a log, before they are written.

    Args:
        rows: The rows.
        on: The row that they follow.

    Raises:
        SessionLogError: The rows are not the next rows of one session.
    """
    if not rows or [(row.session_id, row.seq) for row in rows] != [
        (rows[0].session_id, on.seq + number) for number in range(1, len(rows) + 1)
    ]:
        names = ", ".join(f"row {row.seq} of session {row.session_id!r}" for row in rows[:5]) or "none"
        raise SessionLogError(f"an append after row {on.seq} takes the next rows of one session, not: {names}")


def check_first(session_id: str, first: LogRow) -> None:
    """Raise `SessionLogError` if a new session's first row is not row 1 of that session."""
    if (first.session_id, first.seq) != (session_id, 1):
        raise SessionLogError(
            f"the first row of session {session_id!r} is row {first.seq} of session {first.session_id!r}; give row 1"
        )


def text_of(data: bytes) -> str:
    """Decode a text column. Invalid UTF-8 becomes surrogates: its checksum then differs, and the damage is found."""
    return data.decode("utf-8", "surrogateescape")


def read_ids(rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the ids of sessions from rows with one column; log each damaged id as an error and leave it out."""
    ids = []
    for (session_id,) in rows:
        if isinstance(session_id, str) and not _SURROGATE.search(session_id):
            ids.append(session_id)
        else:
            logger.error(
                "the id of a session is damaged: %a; the session is skipped; restore the log from a backup", session_id
            )
    return ids


def read_row(session_id: str, columns: Sequence[Any]) -> LogRow:
    """Build a row from its stored columns (seq, envelope id, sender, key, body, checksum) and verify the checksum.

    Raises:
        LogDamagedError: The checksum is wrong, or a column has the wrong type.
    """
    seq, envelope_id, sender_id, key, body, checksum = columns
    texts = (envelope_id, sender_id, body) if key is None else (envelope_id, sender_id, body, key)
    if type(seq) is not int or not all(isinstance(text, str) for text in texts) or checksum_of(body) != checksum:
        raise LogDamagedError(f"session {session_id!r}: row {seq} is damaged; restore the log")
    return LogRow(session_id, seq, envelope_id, sender_id, key, body, checksum)


def read_rows(session_id: str, first_seq: int, stored_rows: Iterable[Sequence[Any]]) -> list[LogRow]:
    """Build the rows from `first_seq` on from their columns; verify checksums, and that no row is missing.

    Raises:
        LogDamagedError: A row is missing, or a checksum is wrong.
    """
    rows = []
    for seq, columns in enumerate(stored_rows, max(first_seq, 1)):
        row = read_row(session_id, columns)
        if row.seq != seq:
            raise LogDamagedError(
                f"session {session_id!r}: row {seq} is missing, but row {row.seq} exists; restore the log"
            )
        rows.append(row)
    return rows


def read_metadata(session_id: str, metadata: Any, checksum: Any) -> str:
    """Return the metadata of a session after verifying its checksum.

    Raises:
        LogDamagedError: The checksum is wrong.
    """
    if not isinstance(metadata, str) or checksum_of(metadata) != checksum:
        raise LogDamagedError(f"session {session_id!r}: its metadata are damaged; restore the log")
    return metadata


def read_snapshot(session_id: str, seq: Any, state: Any, checksum: Any) -> Snapshot | None:
    """Build a snapshot from its columns and verify the checksum; log a warning and return None if it is damaged.

    A snapshot is optional: a session's state can also be computed from its rows.
    """
    if type(seq) is int and isinstance(state, str) and checksum_of(state) == checksum:
        return Snapshot(seq, state)
    logger.warning(
        "session %r: a snapshot is damaged; it is ignored, and the session is read from its rows", session_id
    )
    return None


def stale_position_error(session_id: str, on: LogPosition) -> LogConflictError:
    """Return the error of an append that does not follow the newest row."""
    return LogConflictError(
        f"session {session_id!r}: cannot append after row {on.seq}: it is not the newest row, or has another id"
    )


def duplicate_row_error(session_id: str, first_seq: int) -> LogConflictError:
    """Return the error of an append whose row number, envelope id or idempotency key is already used."""
    return LogConflictError(f"session {session_id!r}: row {first_seq}, its id or its key already exists")


def duplicate_session_error(session_id: str) -> LogConflictError:
    """Return the error of creating a session whose id is already used."""
    return LogConflictError(f"session {session_id!r} already exists")


def lost_claim_error(claim: TurnClaim) -> TurnClaimLostError:
    """Return the error of a write for a turn that another server has claimed, or that has ended."""
    return TurnClaimLostError(
        f"session {claim.session_id!r}: the turn of {claim.participant_id!r} that answers row {claim.seq} was taken "
        "over by another server, or has ended; nothing was written"
    )


def read_turn(session_id: str, participant_id: str, columns: Sequence[Any]) -> StoredTurn:
    """Build a turn from the columns that the statement `log_sql.TURN` selects."""
    seq, continues, token, version, seconds, remaining, entries, answered, continued = columns
    claim = TurnClaim(session_id, participant_id, seq, bool(continues), token)
    return StoredTurn(claim, version, seconds, remaining, entries, answered, continued)


def read_work(session_id: str, participant_id: str, stored_rows: Iterable[Sequence[Any]]) -> list[WorkEntry]:
    """Build the steps of a turn from stored columns (number, seq, body, checksum) and verify the checksums.

    Raises:
        LogDamagedError: A step is missing, or a checksum is wrong.
    """
    entries = []
    for expected, (number, seq, body, checksum) in enumerate(stored_rows, 1):
        if number != expected or not isinstance(body, str) or checksum_of(body) != checksum:
            raise LogDamagedError(
                f"session {session_id!r}: step {expected} of the turn of {participant_id!r} is missing "
                "or damaged; restore the log"
            )
        entries.append(WorkEntry(seq, number, body))
    return entries
