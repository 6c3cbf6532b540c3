"""Checks that all logs share: no gaps in appended rows, and verified checksums in rows that are read."""

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

#: The presses that the running task holds, or inherited from the task that started it.
_held: ContextVar[tuple[Press, ...]] = ContextVar("held", default=())


class Press:
    """One hold of `SessionLog.press`.

    Attributes:
        log: The log.
        held: True until the press is released, also for tasks that outlive it.
        by: The lock or connection that the log uses for this press.
    """

    __slots__ = ("by", "held", "log")

    def __init__(self, log: object, by: Any = None) -> None:
        self.log = log
        self.by = by
        self.held = True


@asynccontextmanager
async def holding(press: Press) -> AsyncIterator[None]:
    """Hold a press in this task and in the tasks that it starts."""
    before = _held.get()
    _held.set((*before, press))
    try:
        yield
    finally:
        press.held = False
        _held.set(before)


def current_press(log: object) -> Press | None:
    """Return the running task's innermost press of a log."""
    return next((press for press in reversed(_held.get()) if press.log is log and press.held), None)


def check_appended(rows: Sequence[LogRow], on: LogPosition) -> None:
    """Refuse rows that would leave a gap, or that are not of one session.

    Raises:
        SessionLogError: They are not the next rows of one session.
    """
    if not rows or [(row.session_id, row.seq) for row in rows] != [
        (rows[0].session_id, on.seq + number) for number in range(1, len(rows) + 1)
    ]:
        found = ", ".join(f"{row.session_id!r} {row.seq}" for row in rows[:5])
        raise SessionLogError(f"rows on top of row {on.seq} are the next ones of one session, not [{found}]")


def check_first(session_id: str, first: LogRow) -> None:
    """Refuse a first row that is not row 1 of the session.

    Raises:
        SessionLogError: It is not row 1 of the session.
    """
    if (first.session_id, first.seq) != (session_id, 1):
        raise SessionLogError(f"the first row of session {session_id!r} is {first.session_id!r} {first.seq}")


def text_of(found: bytes) -> str:
    """Decode a text column; bytes that are not UTF-8 become surrogates, so that no checksum agrees with the text."""
    return found.decode("utf-8", "surrogateescape")


def read_ids(found: Iterable[Sequence[Any]]) -> list[str]:
    """Return the ids of sessions, without those that no statement can name; each of these is logged."""
    ids = []
    for (session_id,) in found:
        if isinstance(session_id, str) and not _SURROGATE.search(session_id):
            ids.append(session_id)
        else:
            logger.error("the id of a session is damaged: %a; the session is skipped", session_id)
    return ids


def read_row(session_id: str, found: Sequence[Any]) -> LogRow:
    """Return a verified row from stored columns: seq, envelope id, sender, key, body, checksum.

    Raises:
        LogDamagedError: The checksum is wrong.
    """
    seq, envelope_id, sender_id, key, body, checksum = found
    texts = (envelope_id, sender_id, body) if key is None else (envelope_id, sender_id, body, key)
    if type(seq) is not int or not all(isinstance(text, str) for text in texts) or checksum_of(body) != checksum:
        raise LogDamagedError(f"session {session_id!r}: row {seq} is damaged; restore the log")
    return LogRow(session_id, seq, envelope_id, sender_id, key, body, checksum)


def read_rows(session_id: str, first_seq: int, found: Iterable[Sequence[Any]]) -> list[LogRow]:
    """Return verified rows in order, without gaps from `first_seq` on.

    Raises:
        LogDamagedError: A row is missing, or a checksum is wrong.
    """
    rows = []
    for seq, one in enumerate(found, max(first_seq, 1)):
        row = read_row(session_id, one)
        if row.seq != seq:
            raise LogDamagedError(f"session {session_id!r}: row {seq} is missing, but row {row.seq} exists")
        rows.append(row)
    return rows


def read_metadata(session_id: str, metadata: Any, checksum: Any) -> str:
    """Return the verified metadata of a session.

    Raises:
        LogDamagedError: The checksum is wrong.
    """
    if not isinstance(metadata, str) or checksum_of(metadata) != checksum:
        raise LogDamagedError(f"session {session_id!r}: its metadata are damaged; restore the log")
    return metadata


def read_snapshot(session_id: str, seq: Any, state: Any, checksum: Any) -> Snapshot | None:
    """Return a verified snapshot; None, with a warning, if it is damaged, because the rows suffice."""
    if type(seq) is int and isinstance(state, str) and checksum_of(state) == checksum:
        return Snapshot(seq, state)
    logger.warning(
        "session %r: a snapshot is damaged; it is ignored, and the session is read from its rows", session_id
    )
    return None


def not_on_top(session_id: str, on: LogPosition) -> LogConflictError:
    """Return the error of an append that does not follow the newest row."""
    return LogConflictError(f"session {session_id!r}: row {on.seq} with this id is not the newest one")


def already_used(session_id: str, first_seq: int) -> LogConflictError:
    """Return the error of an append whose row number, id or key is already used."""
    return LogConflictError(f"session {session_id!r}: row {first_seq}, its id or its key already exists")


def already_exists(session_id: str) -> LogConflictError:
    """Return the error of creating a session that exists."""
    return LogConflictError(f"session {session_id!r} already exists")


def claim_lost(claim: TurnClaim) -> TurnClaimLostError:
    """Return the error of a write whose claim is no longer valid."""
    return TurnClaimLostError(
        f"session {claim.session_id!r}: the turn of {claim.participant_id!r} that answers row {claim.seq} was taken "
        "over by another server, or has ended; nothing was written"
    )


def read_turn(session_id: str, participant_id: str, found: Sequence[Any]) -> StoredTurn:
    """Return a turn from the columns that `log_sql.TURN` selects."""
    seq, continues, token, version, seconds, remaining, entries, answered, continued = found
    claim = TurnClaim(session_id, participant_id, seq, bool(continues), token)
    return StoredTurn(claim, version, seconds, remaining, entries, answered, continued)


def read_work(session_id: str, participant_id: str, found: Iterable[Sequence[Any]]) -> list[WorkEntry]:
    """Entries of work: number, row, body, checksum.

    Raises:
        LogDamagedError: A row is missing, or a checksum is wrong.
    """
    entries = []
    for expected, (number, seq, body, checksum) in enumerate(found, 1):
        if number != expected or not isinstance(body, str) or checksum_of(body) != checksum:
            raise LogDamagedError(
                f"session {session_id!r}: step {expected} of the turn of {participant_id!r} is missing "
                "or damaged; restore the log"
            )
        entries.append(WorkEntry(seq, number, body))
    return entries
