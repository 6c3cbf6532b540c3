"""`SessionSummary`: the state of a stored session that can be read without the code of the session's protocol."""

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
    """The state of a stored session.

    Attributes:
        session_id: The session's id.
        metadata: The session's metadata; None if the metadata cannot be read.
        state: The lifecycle state after the last readable row, such as active or closed.
        joined: The participants who have joined.
        envelopes: The number of rows up to the last readable row.
        last_at: The time of the last readable row, in seconds since the epoch.
        damage: A description of the first unreadable data; None if all data is readable.
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
                stored_state = _state_from_snapshot(state)
                folded = stored_state if stored_state is not None and stored_state.seq > folded.seq else folded
        for stored_row in reader.rows(stored, folded.seq + 1):
            row = read_row(stored.id, stored_row)
            envelope = envelope_of(row)
            moved = folded.moved(envelope, metadata.participants)
            folded = FoldedSession(
                None, moved.state, moved.joined, (), row.seq, row.envelope_id, created_at=envelope.created_at
            )
    except LogDamagedError as error:
        damage = str(error)
    return SessionSummary(stored.id, metadata, folded.state, folded.joined, folded.seq, folded.created_at, damage)


def _state_from_snapshot(state: str) -> FoldedSession | None:
    """Return the state in a snapshot, without the protocol's own state; None if the snapshot has another format."""
    try:
        content: dict[str, Any] = json.loads(state)
        return FoldedSession(
            None,
            SessionState(content["state"]),
            tuple(content["joined"]),
            (),
            int(content["seq"]),
            content["envelope_id"],
            created_at=float(content["created_at"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
