"""`SessionSummary`: the state of a stored session, read without the code of its protocol."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import LogDamagedError
from otel_assembly.sessions.folded_session import FoldedSession
from otel_assembly.sessions.hub_session import envelope_of
from otel_assembly.sessions.log import checksum_of
from otel_assembly.sessions.log_rows import read_row
from otel_assembly.sessions.metadata import SessionState
from otel_assembly.sessions.session_check import metadata_of

if TYPE_CHECKING:
    from otel_assembly.sessions.log_reader import LogReader, StoredSession
    from otel_assembly.sessions.metadata import SessionMetadata


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """The state of a session.

    Attributes:
        session_id: Its id.
        metadata: Its metadata; None if it cannot be read.
        state: Its lifecycle state after the last readable row.
        joined: The participants who have joined.
        envelopes: The number of rows up to the last readable row.
        last_at: The time of the last readable row, in seconds since the epoch.
        damage: A description of unreadable data; None if all is readable.
    """

    session_id: str
    metadata: SessionMetadata | None = None
    state: SessionState | None = None
    joined: tuple[str, ...] = ()
    envelopes: int = 0
    last_at: float = 0.0
    damage: str | None = None


def read_summary(reader: LogReader, stored: StoredSession) -> SessionSummary:
    """Return the state of a session, from its newest snapshot and the rows after it."""
    try:
        metadata = metadata_of(stored)
    except LogDamagedError as error:
        return SessionSummary(stored.id, damage=str(error))
    folded, damage = FoldedSession(None, SessionState.PENDING, (metadata.creator_id,), ()), None
    try:
        for _, _, state, checksum in reader.snapshots(stored):
            if isinstance(state, str) and checksum_of(state) == checksum:
                kept = _kept(state)
                folded = kept if kept is not None and kept.seq > folded.seq else folded
        for found in reader.rows(stored, folded.seq + 1):
            row = read_row(stored.id, found)
            envelope = envelope_of(row)
            moved = folded.moved(envelope, metadata.participants)
            folded = FoldedSession(
                None, moved.state, moved.joined, (), row.seq, row.envelope_id, created_at=envelope.created_at
            )
    except LogDamagedError as error:
        damage = str(error)
    return SessionSummary(stored.id, metadata, folded.state, folded.joined, folded.seq, folded.created_at, damage)


def _kept(state: str) -> FoldedSession | None:
    """Return a snapshot's fields without the adapter's state; None if its format version differs."""
    try:
        found: dict[str, Any] = json.loads(state)
        return FoldedSession(
            None,
            SessionState(found["state"]),
            tuple(found["joined"]),
            (),
            int(found["seq"]),
            found["envelope_id"],
            created_at=float(found["created_at"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
