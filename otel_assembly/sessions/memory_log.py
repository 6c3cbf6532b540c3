"""`MemorySessionLog`: a log in memory, for tests and for sessions that need not outlive the process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import LogUnavailableError
from otel_assembly.sessions.log import StoredTurn, WorkEntry
from otel_assembly.sessions.log_rows import (
    Press,
    check_appended,
    check_first,
    current_press,
    duplicate_row_error,
    duplicate_session_error,
    hold_press,
    lost_claim_error,
    read_row,
    read_rows,
    stale_position_error,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from otel_assembly.sessions.log import Cursor, LogPosition, LogRow, Snapshot, TurnClaim


@dataclass
class _Session:
    metadata: str
    rows: list[LogRow] = field(default_factory=list)
    by_id: dict[str, LogRow] = field(default_factory=dict)
    by_key: dict[tuple[str, str], LogRow] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    #: The newest turn of each participant, and the time at which its lease expires, in seconds since the epoch.
    turns: dict[str, tuple[StoredTurn, float]] = field(default_factory=dict)
    work: dict[str, list[WorkEntry]] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def add(self, row: LogRow) -> None:
        self.rows.append(row)
        self.by_id[row.envelope_id] = row
        if row.key is not None:
            self.by_key[row.sender_id, row.key] = row


class MemorySessionLog:
    """A `SessionLog` in memory, which any number of hubs of one event loop can share.

    All sessions are lost when the object or the process ends: an *accepted* row is in memory only.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._listeners: set[_Listener] = set()
        self._closed = False

    async def create(self, session_id: str, metadata: str, first: LogRow) -> None:
        """Write a session's metadata and its first row; see `SessionLog.create`."""
        check_first(session_id, first)
        self._check_open()
        if session_id in self._sessions:
            raise duplicate_session_error(session_id)
        session = self._sessions[session_id] = _Session(metadata)
        session.add(first)
        self._notify(session_id)

    async def metadata(self, session_id: str) -> str | None:
        """Return the metadata (JSON) that `create` wrote for a session; None if there is no such session."""
        session = self._session(session_id)
        return session.metadata if session is not None else None

    async def session_ids(self) -> Sequence[str]:
        """Return the ids of all sessions in the order of their creation."""
        self._check_open()
        return list(self._sessions)

    async def append(self, rows: Sequence[LogRow], on: LogPosition, claim: TurnClaim | None = None) -> None:
        """Append rows of one session after its newest row `on`; see `SessionLog.append`."""
        check_appended(rows, on)
        session_id = rows[0].session_id
        session = self._session(session_id)
        if session is None:
            raise stale_position_error(session_id, on)
        async with session.lock if current_press(self) is None else nullcontext():
            self._check_open()
            newest = session.rows[-1]
            if (newest.seq, newest.envelope_id) != (on.seq, on.envelope_id):
                raise stale_position_error(session_id, on)
            ids = {row.envelope_id for row in rows}
            keys = [(row.sender_id, row.key) for row in rows if row.key is not None]
            if len(ids) < len(rows) or len(set(keys)) < len(keys) or ids & session.by_id.keys():
                raise duplicate_row_error(session_id, rows[0].seq)
            if session.by_key.keys() & set(keys):
                raise duplicate_row_error(session_id, rows[0].seq)
            if claim is not None and not self._end_turn(session, claim, finished=True):
                raise lost_claim_error(claim)
            for row in rows:
                session.add(row)
        self._notify(session_id)

    async def rows_from(self, session_id: str, first_seq: int, limit: int | None = None) -> Sequence[LogRow]:
        """Return a session's rows from row number `first_seq` on, in order: at most `limit` rows, or all if None."""
        session = self._session(session_id)
        if session is None:
            return []
        first = max(first_seq, 1) - 1
        rows = session.rows[first:] if limit is None else session.rows[first : first + limit]
        return read_rows(session_id, first_seq, map(_columns, rows))

    async def by_id(self, session_id: str, envelope_id: str) -> LogRow | None:
        """Return the row with this envelope id; None if there is none."""
        session = self._session(session_id)
        row = session.by_id.get(envelope_id) if session is not None else None
        return read_row(session_id, _columns(row)) if row is not None else None

    async def by_key(self, session_id: str, sender_id: str, key: str) -> LogRow | None:
        """Return the row that this sender posted with this idempotency key; None if there is none."""
        session = self._session(session_id)
        row = session.by_key.get((sender_id, key)) if session is not None else None
        return read_row(session_id, _columns(row)) if row is not None else None

    async def cursors(self, session_id: str) -> Mapping[str, Cursor]:
        """Return, by participant id, the newest position that each participant has confirmed."""
        session = self._session(session_id)
        return dict(session.cursors) if session is not None else {}

    async def move_cursor(self, session_id: str, participant_id: str, cursor: Cursor) -> None:
        """Store the position that a participant has confirmed, unless a newer position is stored."""
        session = self._session(session_id)
        if session is not None:
            stored = session.cursors.get(participant_id)
            if stored is None or cursor.seq > stored.seq:
                session.cursors[participant_id] = cursor

    async def snapshot(self, session_id: str, adapter: str) -> Snapshot | None:
        """Return the session's stored snapshot for an adapter; None if there is none."""
        session = self._session(session_id)
        return session.snapshots.get(adapter) if session is not None else None

    async def save_snapshot(self, session_id: str, adapter: str, snapshot: Snapshot) -> None:
        """Store a session's snapshot for an adapter, unless the stored one includes as many rows or more."""
        session = self._session(session_id)
        if session is not None:
            stored = session.snapshots.get(adapter)
            if stored is None or snapshot.seq > stored.seq:
                session.snapshots[adapter] = snapshot

    async def turn(self, session_id: str, participant_id: str, now: float) -> StoredTurn | None:
        """Return a participant's newest turn, even if its lease has expired; None if it never had one.

        The turn's `remaining` is the seconds from `now` until its lease expires, at most 0 if the lease has expired.
        See `SessionLog.turn`.
        """
        session = self._session(session_id)
        if session is None or participant_id not in session.turns:
            return None
        turn, expires_at = session.turns[participant_id]
        return replace(turn, remaining=expires_at - now)

    async def claim_turn(self, claim: TurnClaim, seen: StoredTurn | None, now: float, seconds: float) -> bool:
        """Claim a turn unless it has changed since `turn` returned `seen`; return True if the claim is stored."""
        session = self._session(claim.session_id)
        if session is None:
            return False
        stored, _ = session.turns.get(claim.participant_id, (None, 0.0))
        if (stored.version if stored is not None else None) != (seen.version if seen is not None else None):
            return False
        turn = stored if stored is not None else StoredTurn(claim, 0, seconds, seconds, 0, 0, 0)
        turn = replace(turn, claim=claim, version=turn.version + 1, seconds=seconds)
        session.turns[claim.participant_id] = turn, now + seconds
        return True

    async def renew_turn(self, claim: TurnClaim, now: float, seconds: float) -> bool:
        """Extend a claim's lease to `seconds` after `now`; return False if the claim is not valid."""
        session = self._session(claim.session_id)
        turn = _turn_of_claim(session, claim)
        if session is None or turn is None:
            return False
        session.turns[claim.participant_id] = replace(turn, version=turn.version + 1), now + seconds
        return True

    async def end_turn(self, claim: TurnClaim, *, finished: bool) -> bool:
        """Release the claim of a turn, finished or not; return False if it was not valid. See `SessionLog.end_turn`."""
        session = self._session(claim.session_id)
        return session is not None and self._end_turn(session, claim, finished=finished)

    def _end_turn(self, session: _Session, claim: TurnClaim, *, finished: bool) -> bool:
        """Release a claim, and delete the turn's steps if it is finished; return False if the claim is not valid."""
        turn = _turn_of_claim(session, claim)
        if turn is None:
            return False
        turn = replace(turn, claim=replace(turn.claim, token=""), version=turn.version + 1)
        if finished:
            answered = turn.answered if claim.continues else claim.seq
            continued = claim.seq if claim.continues else turn.continued
            turn = replace(turn, entries=0, answered=answered, continued=continued)
            session.work.pop(claim.participant_id, None)
        session.turns[claim.participant_id] = turn, 0.0
        return True

    async def add_work(self, claim: TurnClaim, number: int, body: str) -> bool:
        """Store a step of a claimed turn; return False if the claim is not valid. See `SessionLog.add_work`."""
        session = self._session(claim.session_id)
        turn = _turn_of_claim(session, claim)
        if session is None or turn is None:
            return False
        if number == turn.entries + 1:
            turn = replace(turn, entries=number, version=turn.version + 1)
            session.turns[claim.participant_id] = turn, session.turns[claim.participant_id][1]
            session.work.setdefault(claim.participant_id, []).append(WorkEntry(claim.seq, number, body))
        return number <= turn.entries

    async def work(self, session_id: str, participant_id: str) -> Sequence[WorkEntry]:
        """Return the steps of a participant's unfinished turns, in order."""
        session = self._session(session_id)
        return list(session.work.get(participant_id, ())) if session is not None else []

    async def changes(self) -> AsyncGenerator[str | None]:
        """Yield the id of each session that gets new rows; the first item is None, which means all sessions."""
        self._check_open()
        listener = _Listener()
        self._listeners.add(listener)
        try:
            yield None
            while not self._closed:
                await listener.available.wait()
                listener.available.clear()
                changed, listener.changed = listener.changed, {}
                for session_id in changed:
                    yield session_id
        finally:
            self._listeners.discard(listener)

    @asynccontextmanager
    async def press(self, session_id: str) -> AsyncIterator[None]:
        """Return a context manager that locks a session for reading, deciding and appending."""
        session = self._session(session_id)
        if session is None or current_press(self) is not None:
            yield
            return
        async with session.lock, hold_press(Press(self)):
            yield

    async def close(self) -> None:
        """Delete all sessions and end all iterators of `changes`; later calls raise `LogUnavailableError`."""
        self._closed = True
        self._sessions = {}
        for listener in self._listeners:
            listener.available.set()

    def _session(self, session_id: str) -> _Session | None:
        self._check_open()
        return self._sessions.get(session_id)

    def _check_open(self) -> None:
        if self._closed:
            raise LogUnavailableError("the log is closed")

    def _notify(self, session_id: str) -> None:
        for listener in self._listeners:
            listener.changed[session_id] = None
            listener.available.set()


class _Listener:
    """The ids of changed sessions that one `changes` iterator has not yielded yet, each once."""

    def __init__(self) -> None:
        self.changed: dict[str, None] = {}
        self.available = asyncio.Event()


def _turn_of_claim(session: _Session | None, claim: TurnClaim) -> StoredTurn | None:
    """Return the turn of a claim; None if the claim is no longer valid."""
    if session is None or claim.participant_id not in session.turns:
        return None
    turn, _ = session.turns[claim.participant_id]
    return turn if turn.claim.token == claim.token else None


def _columns(row: LogRow) -> tuple[Any, ...]:
    return row.seq, row.envelope_id, row.sender_id, row.key, row.body, row.checksum
