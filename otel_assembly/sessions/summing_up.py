"""`SessionSummary`: where a session of a log stands, read without the code of its protocol."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import LogDamagedError
from otel_assembly.sessions.folded import FoldedSession
from otel_assembly.sessions.known import envelope_of
from otel_assembly.sessions.log import checksum_of
from otel_assembly.sessions.log_rows import read_row
from otel_assembly.sessions.metadata import SessionState
from otel_assembly.sessions.verifying import metadata_of

if TYPE_CHECKING:
    from otel_assembly.sessions.log_reader import LogReader, StoredSession
    from otel_assembly.sessions.metadata import SessionMetadata


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """Where a session stands.

    Attributes:
        session_id: Its id.
        metadata: What was settled when it was created; None where that cannot be read.
        state: Where it stands, after the last row that can be read.
        joined: The participants who have joined.
        envelopes: How many rows it has, up to there.
        last_at: When the last of them was accepted, in seconds since the epoch.
        damage: What cannot be read; None where all can.
    """

    session_id: str
    metadata: SessionMetadata | None = None
    state: SessionState | None = None
    joined: tuple[str, ...] = ()
    envelopes: int = 0
    last_at: float = 0.0
    damage: str | None = None


def summed_up(reader: LogReader, stored: StoredSession) -> SessionSummary:
    """Where a session stands: its newest snapshot, and what was appended since."""
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
    """What a snapshot says besides its adapter's state; None where it is of another form."""
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
