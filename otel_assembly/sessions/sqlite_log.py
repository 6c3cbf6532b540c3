"""`SqliteSessionLog`: a log of sessions in one SQLite file."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import finalize

from otel_assembly._internal.fork_safety import after_fork_in_child
from otel_assembly.errors import ConfigurationError, LogUnavailableError, LogUnsureError
from otel_assembly.sessions.log import Cursor, checksum_of
from otel_assembly.sessions.log_rows import (
    Press,
    check_appended,
    check_first,
    current_press,
    hold_press,
    read_ids,
    read_metadata,
    read_row,
    read_rows,
    read_snapshot,
    read_turn,
    read_work,
)
from otel_assembly.sessions.log_sql import (
    BY_ID,
    BY_KEY,
    CLAIM,
    CURSORS,
    FIRST_CLAIM,
    METADATA,
    MOVE_CURSOR,
    RENEW,
    ROWS_FROM,
    SAVE_SNAPSHOT,
    SESSION_IDS,
    SNAPSHOT,
    TURN,
    WITHOUT_LIMIT,
    WORK,
)
from otel_assembly.sessions.sqlite_file import SqliteFile, claim_arguments
from otel_assembly.sessions.worker_thread import WorkerThread

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from otel_assembly.sessions.log import LogPosition, LogRow, Snapshot, StoredTurn, TurnClaim, WorkEntry

T = TypeVar("T")

_NEWEST = "SELECT coalesce(max(rowid), 0) FROM otel_assembly_session_rows"
_CHANGED_SESSIONS = """SELECT max(added.rowid), sessions.id FROM otel_assembly_session_rows AS added
    JOIN otel_assembly_sessions AS sessions ON sessions.number = added.session
    WHERE added.rowid > ? GROUP BY sessions.id ORDER BY 1"""


class SqliteSessionLog:
    """A `SessionLog` in an SQLite file, which is created at first use; its directory must exist.

    Any number of logs, threads and processes of one machine may share the file, but not on a network file system.
    SQLite keeps ``path-wal`` and ``path-shm`` next to the file. The writers of all processes lock the file
    ``path.queue``; do not delete this lock file while a process has the log open. The lock file also records the newest
    accepted row, so that a truncated log is detected.

    A row is *accepted* when it is synced to this machine's disk, so that it survives a crash of the process or the
    kernel, and a power loss. There is no replica: if the disk is lost, the rows are lost.

    Blocking calls run in the log's own threads. A forked child opens the file again. Close the log with ``close()``, or
    use it as an async context manager.

    Args:
        path: The file.
        patience: The seconds that a call waits for other processes and for the disk.
        poll_seconds: The seconds between two checks for new rows in `changes`; a check without new rows reads no page.

    Raises:
        ConfigurationError: The path is ``:memory:``, a time is not above 0, or the system has no ``flock``.
    """

    def __init__(self, path: str | os.PathLike[str], *, patience: float = 30.0, poll_seconds: float = 0.02) -> None:
        self._path = os.fspath(path)
        if self._path == ":memory:":
            raise ConfigurationError("SqliteSessionLog takes a file; use MemorySessionLog for a log in memory")
        if not (patience > 0 and poll_seconds > 0):
            raise ConfigurationError(f"patience is {patience} s, poll_seconds {poll_seconds}; give seconds above 0")
        self._patience = patience
        self._poll_seconds = poll_seconds
        self._file = SqliteFile(self._path, patience)
        self._write_thread = WorkerThread("otel-assembly-log-writer", self._file.take, self._file.give)
        self._read_thread = WorkerThread("otel-assembly-log-reader")
        self._reset()
        self._closed = False
        after_fork_in_child(self._reset)
        # A log that is never closed ends its threads and closes its file when it is garbage-collected.
        finalize(self, self._write_thread.stop, self._file.close).atexit = False
        finalize(self, self._read_thread.stop).atexit = False

    def _reset(self) -> None:
        self._used = False
        self._opened = False
        self._reader: sqlite3.Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def create(self, session_id: str, metadata: str, first: LogRow) -> None:
        """Write a session's metadata and its first row in one transaction; see `SessionLog.create`."""
        check_first(session_id, first)
        await self._write(partial(self._file.create, session_id, metadata, checksum_of(metadata), first))

    async def metadata(self, session_id: str) -> str | None:
        """Return the metadata (JSON) that `create` wrote for a session; None if there is no such session."""
        rows = await self._rows(f"session {session_id!r}: its metadata", METADATA, session_id)
        return read_metadata(session_id, *rows[0]) if rows else None

    async def session_ids(self) -> Sequence[str]:
        """Return the ids of all sessions, in the order of their creation."""
        return read_ids(await self._rows("the list of sessions", SESSION_IDS))

    async def append(self, rows: Sequence[LogRow], on: LogPosition, claim: TurnClaim | None = None) -> None:
        """Append rows of one session after its newest row `on`; see `SessionLog.append`."""
        check_appended(rows, on)
        await self._write(partial(self._file.append, rows, on, claim))

    async def rows_from(self, session_id: str, first_seq: int, limit: int | None = None) -> Sequence[LogRow]:
        """Return a session's rows from row number `first_seq` on, in order: at most `limit` rows, or all if None."""

        def read() -> list[LogRow]:
            rows: list[Any] = []
            with self._file.translated_errors(f"session {session_id!r}: the rows from {first_seq} on"):
                cursor = self._connection().execute(
                    ROWS_FROM, (session_id, first_seq, WITHOUT_LIMIT if limit is None else limit)
                )
            while True:
                with self._file.translated_errors(f"session {session_id!r}: row {max(first_seq, 1) + len(rows)}"):
                    row = cursor.fetchone()
                if row is None:
                    return read_rows(session_id, first_seq, rows)
                rows.append(row)

        return await self._read(read)

    async def by_id(self, session_id: str, envelope_id: str) -> LogRow | None:
        """Return the row with this envelope id; None if there is none."""
        rows = await self._rows(f"session {session_id!r}: row of id {envelope_id!r}", BY_ID, session_id, envelope_id)
        return read_row(session_id, rows[0]) if rows else None

    async def by_key(self, session_id: str, sender_id: str, key: str) -> LogRow | None:
        """Return the row that this sender posted with this idempotency key; None if there is none."""
        rows = await self._rows(f"session {session_id!r}: row of key {key!r}", BY_KEY, session_id, sender_id, key)
        return read_row(session_id, rows[0]) if rows else None

    async def cursors(self, session_id: str) -> Mapping[str, Cursor]:
        """Return, by participant id, the newest position that each participant has confirmed."""
        rows = await self._rows(f"session {session_id!r}: its cursors", CURSORS, session_id)
        return {participant_id: Cursor(seq, count) for participant_id, seq, count in rows}

    async def move_cursor(self, session_id: str, participant_id: str, cursor: Cursor) -> None:
        """Store the position that a participant has confirmed, unless a newer position is stored."""
        arguments = (participant_id, cursor.seq, cursor.count, session_id)
        await self._write(partial(self._file.write, f"session {session_id!r}: a cursor", MOVE_CURSOR, arguments))

    async def snapshot(self, session_id: str, adapter: str) -> Snapshot | None:
        """Return the session's stored snapshot for an adapter; None if there is none."""
        rows = await self._rows(f"session {session_id!r}: a snapshot", SNAPSHOT, session_id, adapter)
        return read_snapshot(session_id, *rows[0]) if rows else None

    async def save_snapshot(self, session_id: str, adapter: str, snapshot: Snapshot) -> None:
        """Store a session's snapshot for an adapter, unless the stored one includes as many rows or more."""
        arguments = (adapter, snapshot.seq, snapshot.state, checksum_of(snapshot.state), session_id)
        await self._write(partial(self._file.write, f"session {session_id!r}: a snapshot", SAVE_SNAPSHOT, arguments))

    async def turn(self, session_id: str, participant_id: str, now: float) -> StoredTurn | None:
        """Return a participant's newest turn; None if it never had one. See `SessionLog.turn`."""
        arguments = {"id": session_id, "participant": participant_id, "now": now}
        rows = await self._rows(f"session {session_id!r}: a turn", TURN, arguments)
        return read_turn(session_id, participant_id, rows[0]) if rows else None

    async def claim_turn(self, claim: TurnClaim, seen: StoredTurn | None, now: float, seconds: float) -> bool:
        """Claim a turn unless it has changed since `turn` returned `seen`; return True if the claim is stored."""
        arguments = claim_arguments(claim) | {"now": now, "seconds": seconds, "version": seen.version if seen else 0}
        return await self._change_turn(claim, FIRST_CLAIM if seen is None else CLAIM, arguments)

    async def renew_turn(self, claim: TurnClaim, now: float, seconds: float) -> bool:
        """Extend a claim's lease to `seconds` after `now`; return False if the claim is not valid."""
        return await self._change_turn(claim, RENEW, claim_arguments(claim) | {"now": now, "seconds": seconds})

    async def _change_turn(self, claim: TurnClaim, statement: str, arguments: dict[str, Any]) -> bool:
        what = f"session {claim.session_id!r}: a turn"
        return bool(await self._write(partial(self._file.write, what, statement, arguments)))

    async def end_turn(self, claim: TurnClaim, *, finished: bool) -> bool:
        """Release the claim of a turn, finished or not; return False if it was not valid. See `SessionLog.end_turn`."""
        return await self._write(partial(self._file.end_turn, claim, finished))

    async def add_work(self, claim: TurnClaim, number: int, body: str) -> bool:
        """Store a step of a claimed turn; return False if the claim is not valid. See `SessionLog.add_work`."""
        return await self._write(partial(self._file.add_work, claim, number, body, checksum_of(body)))

    async def work(self, session_id: str, participant_id: str) -> Sequence[WorkEntry]:
        """Return the steps of a participant's unfinished turns, in order."""
        arguments = {"id": session_id, "participant": participant_id}
        rows = await self._rows(f"session {session_id!r}: the steps of a turn", WORK, arguments)
        return read_work(session_id, participant_id, rows)

    async def changes(self) -> AsyncGenerator[str | None]:
        """Yield the id of each session that gets new rows; None, which means all sessions, if ids may have been missed.

        None is the first item. The file is checked for new rows every `poll_seconds`.
        """
        follower = await self._read(lambda: _Follower(self._file.reader()))
        try:
            yield None
            while not self._closed:
                for session_id in await self._read(partial(self._changed_sessions, follower)):
                    yield session_id
                await asyncio.sleep(self._poll_seconds)
        finally:
            if not self._closed:
                await self._write_thread.run(partial(self._file.close_reader, follower.connection), self._patience)

    @asynccontextmanager
    async def press(self, session_id: str) -> AsyncIterator[None]:
        """Return a context manager that locks a session for reading, deciding and appending.

        The lock is on the whole file, and so on all sessions, because SQLite has one writer at a time.
        """
        if current_press(self) is not None:
            yield
            return
        await self._open()
        press = Press(self)
        await self._write_thread.hold(press, self._patience)
        try:
            async with hold_press(press):
                yield
        finally:
            self._write_thread.release(press)

    async def close(self) -> None:
        """Close the files, which can then be moved or deleted; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._file.end()
        if self._used:
            await self._read_thread.run(lambda: None, self._patience)
            await self._write_thread.run(self._file.close, self._patience)
        self._read_thread.stop()
        self._write_thread.stop()

    async def _open(self) -> None:
        if self._closed:
            raise LogUnavailableError(f"the log in {self._path} is closed")
        if not self._opened:
            self._used = True
            await self._run_in_write_thread(self._file.open)
            self._opened = True

    async def _write(self, do: Callable[[], T]) -> T:
        await self._open()
        return await self._run_in_write_thread(do)

    async def _run_in_write_thread(self, do: Callable[[], T]) -> T:
        try:
            return await self._write_thread.run(do, self._patience, current_press(self))
        except OSError as error:
            raise LogUnavailableError(f"the lock file of {self._path} is not available: {error}") from error

    async def _read(self, do: Callable[[], T]) -> T:
        await self._open()
        try:
            return await self._read_thread.run(do, self._patience)
        except LogUnsureError as late:
            raise LogUnavailableError(str(late)) from None

    async def _rows(self, what: str, statement: str, *arguments: str | Mapping[str, Any]) -> list[Any]:
        named = arguments[0] if arguments and not isinstance(arguments[0], str) else arguments

        def read() -> list[Any]:
            with self._file.translated_errors(what):
                return self._connection().execute(statement, named).fetchall()

        return await self._read(read)

    def _connection(self) -> sqlite3.Connection:
        """Return the connection for reading; runs in the thread for reads."""
        if self._reader is None:
            self._reader = self._file.reader()
        return self._reader

    def _changed_sessions(self, follower: _Follower) -> list[str | None]:
        with self._file.translated_errors("the newest rows"):
            return follower.changed()


class _Follower:
    """Finds new rows for one iterator of `changes`; SQLite's ``data_version`` changes if another connection writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._version = self._query_number("PRAGMA data_version")
        self._newest = self._query_number(_NEWEST)

    def changed(self) -> list[str | None]:
        """Return the ids of the sessions with new rows since the last call.

        If rows have disappeared because the file was replaced, return one None, which means all sessions.
        """
        version = self._query_number("PRAGMA data_version")
        if version == self._version:
            return []
        self._version = version
        newest = self._query_number(_NEWEST)
        if newest < self._newest:
            self._newest = newest
            return [None]
        rows = self.connection.execute(_CHANGED_SESSIONS, (self._newest,)).fetchall()
        self._newest = rows[-1][0] if rows else newest
        return [session_id for _, session_id in rows]

    def _query_number(self, statement: str) -> int:
        ((answer,),) = self.connection.execute(statement).fetchall()
        return int(answer)
