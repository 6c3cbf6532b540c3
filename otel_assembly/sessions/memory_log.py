"""A log of sessions in memory, for tests and for sessions that do not outlive the process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import LogUnavailableError
from otel_assembly.sessions.log import StoredTurn, WorkEntry
from otel_assembly.sessions.log_rows import (
    Press,
    already_exists,
    already_used,
    check_appended,
    check_first,
    claim_lost,
    current_press,
    holding,
    not_on_top,
    read_row,
    read_rows,
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
    #: The newest turn of each participant, and the time at which its lease expires.
    turns: dict[str, tuple[StoredTurn, float]] = field(default_factory=dict)
    work: dict[str, list[WorkEntry]] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def add(self, row: LogRow) -> None:
        self.rows.append(row)
        self.by_id[row.envelope_id] = row
        if row.key is not None:
            self.by_key[row.sender_id, row.key] = row


class MemorySessionLog:
    """A `SessionLog` that lives as long as this object, for any number of hubs of one event loop.

    *Accepted* means only that the row is in memory. The log is lost when the process ends.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._listeners: set[_Listener] = set()
        self._closed = False

    async def create(self, session_id: str, metadata: str, first: LogRow) -> None:
        """See `SessionLog.create`."""
        check_first(session_id, first)
        self._check_open()
        if session_id in self._sessions:
            raise already_exists(session_id)
        session = self._sessions[session_id] = _Session(metadata)
        session.add(first)
        self._tell(session_id)

    async def metadata(self, session_id: str) -> str | None:
        """See `SessionLog.metadata`."""
        session = self._session(session_id)
        return session.metadata if session is not None else None

    async def session_ids(self) -> Sequence[str]:
        """See `SessionLog.session_ids`."""
        self._check_open()
        return list(self._sessions)

    async def append(self, rows: Sequence[LogRow], on: LogPosition, claim: TurnClaim | None = None) -> None:
        """See `SessionLog.append`."""
        check_appended(rows, on)
        session_id = rows[0].session_id
        session = self._session(session_id)
        if session is None:
            raise not_on_top(session_id, on)
        async with session.lock if current_press(self) is None else nullcontext():
            self._check_open()
            newest = session.rows[-1]
            if (newest.seq, newest.envelope_id) != (on.seq, on.envelope_id):
                raise not_on_top(session_id, on)
            ids = {row.envelope_id for row in rows}
            keys = [(row.sender_id, row.key) for row in rows if row.key is not None]
            if len(ids) < len(rows) or len(set(keys)) < len(keys) or ids & session.by_id.keys():
                raise already_used(session_id, rows[0].seq)
            if session.by_key.keys() & set(keys):
                raise already_used(session_id, rows[0].seq)
            if claim is not None and not self._end(session, claim, finished=True):
                raise claim_lost(claim)
            for row in rows:
                session.add(row)
        self._tell(session_id)

    async def tail(self, session_id: str, first_seq: int, limit: int | None = None) -> Sequence[LogRow]:
        """See `SessionLog.tail`."""
        session = self._session(session_id)
        if session is None:
            return []
        first = max(first_seq, 1) - 1
        found = session.rows[first:] if limit is None else session.rows[first : first + limit]
        return read_rows(session_id, first_seq, map(_columns, found))

    async def by_id(self, session_id: str, envelope_id: str) -> LogRow | None:
        """See `SessionLog.by_id`."""
        session = self._session(session_id)
        row = session.by_id.get(envelope_id) if session is not None else None
        return read_row(session_id, _columns(row)) if row is not None else None

    async def by_key(self, session_id: str, sender_id: str, key: str) -> LogRow | None:
        """See `SessionLog.by_key`."""
        session = self._session(session_id)
        row = session.by_key.get((sender_id, key)) if session is not None else None
        return read_row(session_id, _columns(row)) if row is not None else None

    async def cursors(self, session_id: str) -> Mapping[str, Cursor]:
        """See `SessionLog.cursors`."""
        session = self._session(session_id)
        return dict(session.cursors) if session is not None else {}

    async def move_cursor(self, session_id: str, participant_id: str, cursor: Cursor) -> None:
        """See `SessionLog.move_cursor`."""
        session = self._session(session_id)
        if session is not None:
            before = session.cursors.get(participant_id)
            if before is None or cursor.seq > before.seq:
                session.cursors[participant_id] = cursor

    async def snapshot(self, session_id: str, adapter: str) -> Snapshot | None:
        """See `SessionLog.snapshot`."""
        session = self._session(session_id)
        return session.snapshots.get(adapter) if session is not None else None

    async def save_snapshot(self, session_id: str, adapter: str, snapshot: Snapshot) -> None:
        """See `SessionLog.save_snapshot`."""
        session = self._session(session_id)
        if session is not None:
            before = session.snapshots.get(adapter)
            if before is None or snapshot.seq > before.seq:
                session.snapshots[adapter] = snapshot

    async def turn(self, session_id: str, participant_id: str, now: float) -> StoredTurn | None:
        """See `SessionLog.turn`."""
        session = self._session(session_id)
        found = session.turns.get(participant_id) if session is not None else None
        return replace(found[0], remaining=found[1] - now) if found is not None else None

    async def claim_turn(self, claim: TurnClaim, seen: StoredTurn | None, now: float, seconds: float) -> bool:
        """See `SessionLog.claim_turn`."""
        session = self._session(claim.session_id)
        if session is None:
            return False
        found = session.turns.get(claim.participant_id)
        if (found[0].version if found is not None else None) != (seen.version if seen is not None else None):
            return False
        before = found[0] if found is not None else StoredTurn(claim, 0, seconds, seconds, 0, 0, 0)
        turn = replace(before, claim=claim, version=before.version + 1, seconds=seconds)
        session.turns[claim.participant_id] = turn, now + seconds
        return True

    async def renew_turn(self, claim: TurnClaim, now: float, seconds: float) -> bool:
        """See `SessionLog.renew_turn`."""
        session = self._session(claim.session_id)
        turn = _held(session, claim)
        if session is None or turn is None:
            return False
        session.turns[claim.participant_id] = replace(turn, version=turn.version + 1), now + seconds
        return True

    async def end_turn(self, claim: TurnClaim, *, finished: bool) -> bool:
        """See `SessionLog.end_turn`."""
        session = self._session(claim.session_id)
        return session is not None and self._end(session, claim, finished=finished)

    def _end(self, session: _Session, claim: TurnClaim, *, finished: bool) -> bool:
        turn = _held(session, claim)
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
        """See `SessionLog.add_work`."""
        session = self._session(claim.session_id)
        turn = _held(session, claim)
        if session is None or turn is None:
            return False
        if number == turn.entries + 1:
            turn = replace(turn, entries=number, version=turn.version + 1)
            session.turns[claim.participant_id] = turn, session.turns[claim.participant_id][1]
            session.work.setdefault(claim.participant_id, []).append(WorkEntry(claim.seq, number, body))
        return number <= turn.entries

    async def work(self, session_id: str, participant_id: str) -> Sequence[WorkEntry]:
        """See `SessionLog.work`."""
        session = self._session(session_id)
        return list(session.work.get(participant_id, ())) if session is not None else []

    async def changes(self) -> AsyncGenerator[str | None]:
        """See `SessionLog.changes`."""
        self._check_open()
        listener = _Listener()
        self._listeners.add(listener)
        try:
            yield None
            while not self._closed:
                await listener.told.wait()
                listener.told.clear()
                changed, listener.changed = listener.changed, {}
                for session_id in changed:
                    yield session_id
        finally:
            self._listeners.discard(listener)

    @asynccontextmanager
    async def press(self, session_id: str) -> AsyncIterator[None]:
        """See `SessionLog.press`."""
        session = self._session(session_id)
        if session is None or current_press(self) is not None:
            yield
            return
        async with session.lock, holding(Press(self)):
            yield

    async def close(self) -> None:
        """See `SessionLog.close`."""
        self._closed = True
        self._sessions = {}
        for listener in self._listeners:
            listener.told.set()

    def _session(self, session_id: str) -> _Session | None:
        self._check_open()
        return self._sessions.get(session_id)

    def _check_open(self) -> None:
        if self._closed:
            raise LogUnavailableError("the log is closed")

    def _tell(self, session_id: str) -> None:
        for listener in self._listeners:
            listener.changed[session_id] = None
            listener.told.set()


class _Listener:
    """The changed sessions that one `changes` iterator has not yielded yet, each once."""

    def __init__(self) -> None:
        self.changed: dict[str, None] = {}
        self.told = asyncio.Event()


def _held(session: _Session | None, claim: TurnClaim) -> StoredTurn | None:
    """Return the turn of a claim; None if the claim is no longer valid."""
    found = session.turns.get(claim.participant_id) if session is not None else None
    return found[0] if found is not None and found[0].claim.token == claim.token else None


def _columns(row: LogRow) -> tuple[Any, ...]:
    return row.seq, row.envelope_id, row.sender_id, row.key, row.body, row.checksum
