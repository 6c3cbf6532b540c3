"""`PostgresSessionLog`: a log of sessions in PostgreSQL, for hubs on several machines."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from otel_assembly._internal.fork_safety import after_fork_in_child
from otel_assembly.errors import (
    ConfigurationError,
    LogConflictError,
    LogDamagedError,
    LogUnavailableError,
    LogUnsureError,
    SessionLogError,
)
from otel_assembly.sessions.log import Cursor, checksum_of
from otel_assembly.sessions.log_rows import (
    Press,
    check_appended,
    check_first,
    current_press,
    duplicate_row_error,
    duplicate_session_error,
    hold_press,
    lost_claim_error,
    read_ids,
    read_metadata,
    read_row,
    read_rows,
    read_snapshot,
    read_turn,
    read_work,
    stale_position_error,
)
from otel_assembly.sessions.log_sql import (
    ADD_WORK,
    BY_ID,
    BY_KEY,
    CLAIM,
    COUNT_WORK,
    CURSORS,
    FINISH,
    FINISHED,
    FIRST_CLAIM,
    METADATA,
    MOVE_CURSOR,
    NOW,
    RELEASE,
    RENEW,
    ROWS_FROM,
    SAVE_SNAPSHOT,
    SESSION_IDS,
    SNAPSHOT,
    TURN,
    WITHOUT_LIMIT,
    WORK,
)
from otel_assembly.sessions.postgres_connections import LOCKS, Connections, is_damage, psycopg, statement_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from otel_assembly.sessions.log import LogPosition, LogRow, Snapshot, StoredTurn, TurnClaim, WorkEntry
    from otel_assembly.sessions.postgres_connections import Connection

#: The notification channel of PostgreSQL; the payload of a notification is the id of a session with new rows.
_CHANNEL: Final = "otel_assembly_sessions"


def _append_statement(ended: str = "", of_ended: str = "") -> str:
    """Return the SQL statement that appends rows to a session.

    One statement writes the rows and sends the notification in one commit, so that the notification is sent only for
    stored rows. The statement takes the shared advisory lock before its row locks; the other order would deadlock with
    `PostgresSessionLog.press`.

    Args:
        ended: A table expression named ``ended``, without whose row nothing is appended; "" for no condition.
        of_ended: The name of that table in the FROM clause; "" for no condition.
    """
    return f"""WITH queue AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared({LOCKS}, hashtext(%(id)s))),
    base AS (SELECT newest.session FROM otel_assembly_session_rows AS newest
        JOIN otel_assembly_sessions AS sessions ON sessions.number = newest.session
        WHERE sessions.id = %(id)s AND newest.seq = %(on_seq)s AND newest.envelope_id = %(on_id)s),{ended}
    added AS (INSERT INTO otel_assembly_session_rows
        (session, seq, envelope_id, sender_id, key, body, checksum)
        SELECT base.session, row.* FROM queue, base,{of_ended} unnest(%(seqs)s::bigint[], %(ids)s::text[],
            %(senders)s::text[], %(keys)s::text[], %(bodies)s::text[], %(checksums)s::bigint[]) AS row
        RETURNING seq)
    SELECT pg_notify('{_CHANNEL}', %(id)s) FROM added LIMIT 1"""  # noqa: S608  # of constants


_CLEARED: Final = """cleared AS (DELETE FROM otel_assembly_session_work AS work USING ended
        WHERE work.session = ended.session AND work.participant_id = %(participant)s)"""
_APPEND: Final = _append_statement()
# An answer ends the claim on its turn in the same commit. A server that concurrently takes the turn over changes the
# same row, so that one of the two waits for the other and is then refused.
_APPEND_ANSWER: Final = _append_statement(
    f"""
    ended AS ({FINISHED} FROM queue, base WHERE turn.session = base.session
        AND turn.participant_id = %(participant)s AND turn.token = %(token)s RETURNING turn.session),
    {_CLEARED},""",
    " ended,",
)
_CREATE: Final = f"""WITH made AS (INSERT INTO otel_assembly_sessions (id, metadata, checksum)
        VALUES (%(id)s, %(metadata)s, %(metadata_checksum)s) RETURNING number),
    added AS (INSERT INTO otel_assembly_session_rows
        (session, seq, envelope_id, sender_id, key, body, checksum)
        SELECT made.number, row.* FROM made, unnest(%(seqs)s::bigint[], %(ids)s::text[], %(senders)s::text[],
            %(keys)s::text[], %(bodies)s::text[], %(checksums)s::bigint[]) AS row
        RETURNING seq)
    SELECT pg_notify('{_CHANNEL}', %(id)s) FROM added LIMIT 1"""  # noqa: S608


def _for_postgres(statement: str) -> str:
    """Convert a statement of `log_sql` for psycopg: named arguments, and the server's clock for the current time."""
    return re.sub(
        r"(?<!:):([a-z]+)", r"%(\1)s", statement.replace(NOW, "CAST(extract(epoch FROM clock_timestamp()) AS FLOAT8)")
    )


_TURN: Final = _for_postgres(TURN)
_FIRST_CLAIM: Final = _for_postgres(FIRST_CLAIM)
_CLAIM: Final = _for_postgres(CLAIM)
_RENEW: Final = _for_postgres(RENEW)
_RELEASE: Final = _for_postgres(RELEASE)
_FINISH: Final = f"WITH ended AS ({_for_postgres(FINISH)}), {_CLEARED} SELECT 1 FROM ended"  # noqa: S608
_ADD_WORK: Final = f"WITH counted AS ({_for_postgres(COUNT_WORK)}) {_for_postgres(ADD_WORK)} counted RETURNING 1"
_WORK: Final = _for_postgres(WORK)
_PRESS: Final = f"SELECT pg_advisory_lock({LOCKS}, hashtext(%s))"
_UNPRESS: Final = f"SELECT pg_advisory_unlock({LOCKS}, hashtext(%s))"


class PostgresSessionLog:
    """A `SessionLog` in PostgreSQL 13 or later, for any number of hubs on any number of machines; extra ``postgres``.

    The six tables, ``otel_assembly_session…``, are created at first use, in the first schema of the search path. A
    connection pooler must use session pooling, because `changes` uses ``LISTEN`` and `press` uses advisory locks.

    An envelope is *accepted* when its commit is synced to the disk of the primary, so that it survives a crash or a
    power loss. A standby may not have it yet. After a failover to an asynchronous standby, the last accepted
    commits can be missing. A hub that has read them raises `LogRegressed`; a hub that starts later cannot detect the
    loss. If ``synchronous_standby_names`` lists standbys and ``synchronous_commit`` is ``on`` or above, an accepted
    envelope is synced there too. Without synchronous standbys, fail over manually, and only to a standby that has
    received every commit.

    A lost connection is reopened. An append whose connection was lost raises `LogUnsureError`; an append that the
    server refused wrote nothing. Reads, cursors and snapshots are retried for at most `patience`. The log refuses a
    server whose ``fsync`` or ``synchronous_commit`` is off.

    ``close()``, or the end of an ``async with``, closes the connections. A forked child opens its own.

    Args:
        dsn: The server's connection string for libpq: ``postgresql://user:password@host:5432/database``, or
            ``host=… dbname=…``. With several hosts, ``target_session_attrs=read-write`` selects the primary.
        patience: The seconds to wait for a connection, and for an answer.
        connections: The most concurrent statements; `changes` uses one more connection.

    Raises:
        ConfigurationError: The extra is not installed, the DSN cannot be read, or a number is not above 0.
    """

    def __init__(self, dsn: str, *, patience: float = 10.0, connections: int = 4) -> None:
        if not patience > 0 or connections < 1:
            raise ConfigurationError(f"patience is {patience} s, connections {connections}; give numbers above 0")
        self._connections = Connections(dsn, patience, connections)
        self._patience = patience
        self._errors = psycopg(".errors")
        self._reset_locks()
        after_fork_in_child(self._reset_locks)

    def _reset_locks(self) -> None:
        self._press_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def create(self, session_id: str, metadata: str, first: LogRow) -> None:
        """Write a session's metadata and its first row in one transaction; see `SessionLog.create`."""
        check_first(session_id, first)
        arguments = {"metadata": metadata, "metadata_checksum": checksum_of(metadata)}
        try:
            await self._write(f"session {session_id!r}: row 1", _CREATE, _arguments([first]) | arguments)
        except LogConflictError:
            raise duplicate_session_error(session_id) from None

    async def metadata(self, session_id: str) -> str | None:
        """Return the metadata (JSON) that `create` wrote for a session; None if there is no such session."""
        rows = await self._ask(f"session {session_id!r}: its metadata", METADATA, session_id)
        return read_metadata(session_id, *rows[0]) if rows else None

    async def session_ids(self) -> Sequence[str]:
        """Return the ids of all sessions, in the order of their creation."""
        return read_ids(await self._ask("the list of sessions", SESSION_IDS))

    async def append(self, rows: Sequence[LogRow], on: LogPosition, claim: TurnClaim | None = None) -> None:
        """Append rows of one session after its newest row `on`; see `SessionLog.append`."""
        check_appended(rows, on)
        session_id, seq = rows[0].session_id, rows[0].seq
        arguments = _arguments(rows) | {"on_seq": on.seq, "on_id": on.envelope_id}
        statement = _APPEND
        if claim is not None:
            statement = _APPEND_ANSWER
            arguments |= {"participant": claim.participant_id, "token": claim.token}
        try:
            notifications = await self._write(f"session {session_id!r}: row {seq}", statement, arguments)
        except LogConflictError:
            raise duplicate_row_error(session_id, seq) from None
        if not notifications:
            if claim is not None and not await self._holds(claim):
                raise lost_claim_error(claim)
            raise stale_position_error(session_id, on)

    async def rows_from(self, session_id: str, first_seq: int, limit: int | None = None) -> Sequence[LogRow]:
        """Return a session's rows from row number `first_seq` on, in order: at most `limit` rows, or all if None."""
        what = f"session {session_id!r}: the rows from {first_seq} on"
        rows = await self._ask(what, ROWS_FROM, session_id, first_seq, WITHOUT_LIMIT if limit is None else limit)
        return read_rows(session_id, first_seq, rows)

    async def by_id(self, session_id: str, envelope_id: str) -> LogRow | None:
        """Return the row with this envelope id; None if there is none."""
        rows = await self._ask(f"session {session_id!r}: row of id {envelope_id!r}", BY_ID, session_id, envelope_id)
        return read_row(session_id, rows[0]) if rows else None

    async def by_key(self, session_id: str, sender_id: str, key: str) -> LogRow | None:
        """Return the row that this sender posted with this idempotency key; None if there is none."""
        rows = await self._ask(f"session {session_id!r}: row of key {key!r}", BY_KEY, session_id, sender_id, key)
        return read_row(session_id, rows[0]) if rows else None

    async def cursors(self, session_id: str) -> Mapping[str, Cursor]:
        """Return, by participant id, the newest position that each participant has confirmed."""
        rows = await self._ask(f"session {session_id!r}: its cursors", CURSORS, session_id)
        return {participant_id: Cursor(seq, count) for participant_id, seq, count in rows}

    async def move_cursor(self, session_id: str, participant_id: str, cursor: Cursor) -> None:
        """Store the position that a participant has confirmed, unless a newer position is stored."""
        what = f"session {session_id!r}: a cursor"
        await self._ask(what, MOVE_CURSOR, participant_id, cursor.seq, cursor.count, session_id)

    async def snapshot(self, session_id: str, adapter: str) -> Snapshot | None:
        """Return the session's stored snapshot for an adapter; None if there is none."""
        rows = await self._ask(f"session {session_id!r}: a snapshot", SNAPSHOT, session_id, adapter)
        return read_snapshot(session_id, *rows[0]) if rows else None

    async def save_snapshot(self, session_id: str, adapter: str, snapshot: Snapshot) -> None:
        """Store a session's snapshot for an adapter, unless the stored one includes as many rows or more."""
        arguments = (adapter, snapshot.seq, snapshot.state, checksum_of(snapshot.state), session_id)
        await self._ask(f"session {session_id!r}: a snapshot", SAVE_SNAPSHOT, *arguments)

    async def turn(self, session_id: str, participant_id: str, now: float) -> StoredTurn | None:
        """Return a participant's newest turn; None if it never had one. PostgreSQL's clock is used and not `now`."""
        arguments = {"id": session_id, "participant": participant_id}
        rows = await self._ask_named(f"session {session_id!r}: a turn", _TURN, arguments)
        return read_turn(session_id, participant_id, rows[0]) if rows else None

    async def _holds(self, claim: TurnClaim) -> bool:
        """Return True if a claim is valid: no other server has claimed the turn since, and the turn has not ended."""
        turn = await self.turn(claim.session_id, claim.participant_id, 0.0)
        return turn is not None and turn.claim.token == claim.token

    async def claim_turn(self, claim: TurnClaim, seen: StoredTurn | None, now: float, seconds: float) -> bool:
        """Claim a turn unless it has changed since `turn` returned `seen`; return True if the claim is stored.

        The lease begins at the time of PostgreSQL's clock; `now` is not used. See `SessionLog.claim_turn`.
        """
        arguments = _claim_arguments(claim) | {"seconds": seconds, "version": seen.version if seen is not None else 0}
        statement = _FIRST_CLAIM if seen is None else _CLAIM
        # If the answer to an earlier try was lost, the log may already contain this claim.
        return bool(await self._ask_named(_what(claim), statement, arguments)) or await self._holds(claim)

    async def renew_turn(self, claim: TurnClaim, now: float, seconds: float) -> bool:
        """Extend a claim's lease to `seconds` from now, by PostgreSQL's clock; return False if it is not valid."""
        return bool(await self._ask_named(_what(claim), _RENEW, _claim_arguments(claim) | {"seconds": seconds}))

    async def end_turn(self, claim: TurnClaim, *, finished: bool) -> bool:
        """Release the claim of a turn, finished or not; return False if it was not valid. See `SessionLog.end_turn`."""
        return bool(await self._ask_named(_what(claim), _FINISH if finished else _RELEASE, _claim_arguments(claim)))

    async def add_work(self, claim: TurnClaim, number: int, body: str) -> bool:
        """Store a step of a claimed turn; return False if the claim is not valid. See `SessionLog.add_work`."""
        arguments = _claim_arguments(claim) | {"number": number, "body": body, "checksum": checksum_of(body)}
        what = f"session {claim.session_id!r}: step {number} of a turn"
        if await self._write(what, _ADD_WORK, arguments):
            return True
        turn = await self.turn(claim.session_id, claim.participant_id, 0.0)
        return turn is not None and turn.claim.token == claim.token and turn.entries >= number

    async def work(self, session_id: str, participant_id: str) -> Sequence[WorkEntry]:
        """Return the steps of a participant's unfinished turns, in order."""
        arguments = {"id": session_id, "participant": participant_id}
        rows = await self._ask_named(f"session {session_id!r}: the steps of a turn", _WORK, arguments)
        return read_work(session_id, participant_id, rows)

    async def changes(self) -> AsyncGenerator[str | None]:
        """Yield the id of each session that gets new rows; None, which means all sessions, if ids may have been missed.

        None is the first item, and it follows each reconnection, because notifications may be lost.
        """
        self._connections.check_open()
        while not self._connections.closed:
            connection = await self._connections.open_connection()
            try:
                await connection.execute(f"LISTEN {_CHANNEL}")
                yield None
                while not self._connections.closed:
                    # Notifications between two calls are kept and returned by the next call.
                    async with aclosing(connection.notifies(timeout=0.5)) as notices:
                        async for notice in notices:
                            yield notice.payload
            except self._errors.Error:
                await asyncio.sleep(0.05)
            finally:
                await connection.close()

    @asynccontextmanager
    async def press(self, session_id: str) -> AsyncIterator[None]:
        """Return a context manager that locks a session for reading, deciding and appending.

        The lock is an advisory lock, which the server releases if the connection is lost.
        """
        if current_press(self) is not None:
            yield
            return
        # Tasks of one process wait here, so that waiting tasks do not occupy all connections.
        async with (
            self._press_locks.setdefault(session_id, asyncio.Lock()),
            self._connections.connection() as connection,
        ):
            what = f"session {session_id!r}: its lock"
            try:
                await self._execute(connection, what, _PRESS, (session_id,))
                async with hold_press(Press(self, connection)):
                    yield
            finally:
                await self._unlock(connection, what, session_id)

    async def _unlock(self, connection: Connection, what: str, session_id: str) -> None:
        """Release the lock of a session; if that fails, close the connection, so that the server releases the lock."""
        if connection.closed:
            return
        try:
            await self._execute(connection, what, _UNPRESS, (session_id,))
        except SessionLogError:
            await connection.close()
        except BaseException:
            await connection.close()
            raise

    async def close(self) -> None:
        """Close the connections; a second call does nothing."""
        await self._connections.close()

    async def _write(self, what: str, statement: str, arguments: dict[str, Any]) -> list[Any]:
        """Run a statement without retries, and return its rows."""
        async with self._connection() as connection:
            return await self._execute(connection, what, statement, arguments)

    async def _ask(self, what: str, statement: str, *arguments: Any) -> list[Any]:
        return await self._ask_named(what, statement.replace("?", "%s"), arguments)

    async def _ask_named(self, what: str, statement: str, arguments: Any) -> list[Any]:
        """Run a statement that can safely run twice, and return its rows; retry it after a lost connection."""
        try:
            async with asyncio.timeout(statement_seconds(self._patience)):
                while True:
                    try:
                        async with self._connection() as connection:
                            return await self._execute(connection, what, statement, arguments)
                    except LogUnsureError:
                        await asyncio.sleep(0.02)
        except TimeoutError:
            raise LogUnavailableError(f"{what} is not available: PostgreSQL does not answer") from None

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """Yield the connection with which this task has locked a session; if there is none, one of the pool."""
        press = current_press(self)
        if press is not None and not press.connection.closed:
            yield press.connection
            return
        async with self._connections.connection() as connection:
            yield connection

    async def _execute(self, connection: Connection, what: str, statement: str, arguments: Any) -> list[Any]:
        """Run a statement and return its rows.

        Raises:
            LogConflictError: A concurrent write was first; nothing was written.
            LogUnavailableError: The server refused the statement; nothing was written.
            LogUnsureError: The answer was lost, so the statement may have been executed.
            LogDamagedError: The server reports that its files are damaged.
        """
        seconds = statement_seconds(self._patience)
        query: Any = statement
        try:
            async with asyncio.timeout(seconds):
                cursor = await connection.execute(query, arguments)
                return await cursor.fetchall() if cursor.description else []
        except TimeoutError:
            await connection.close()
            raise LogUnsureError(f"{what}: PostgreSQL has not answered for {seconds} s") from None
        except self._errors.Error as error:
            log_error = self._log_error(connection, what, error)
            if isinstance(error, self._errors.ReadOnlySqlTransaction):
                await connection.close()  # no longer the primary: the next connection finds the new primary
            raise log_error from error

    def _log_error(self, connection: Connection, what: str, error: Any) -> Exception:
        """Return the error of this library for an error of psycopg."""
        codes = self._errors
        if isinstance(error, codes.UniqueViolation | codes.SerializationFailure | codes.DeadlockDetected):
            return LogConflictError(f"{what}: a concurrent write was first")
        if is_damage(error):
            return LogDamagedError(f"{what} cannot be read or written: {error}; restore the database")
        # After an error that ends the connection, the outcome of the statement is unknown.
        if connection.closed or error.diag.severity_nonlocalized in ("FATAL", "PANIC"):
            return LogUnsureError(f"{what}: the connection was lost: {error}")
        return LogUnavailableError(f"{what}: PostgreSQL refused it: {error}")


def _what(claim: TurnClaim) -> str:
    return f"session {claim.session_id!r}: a turn"


def _claim_arguments(claim: TurnClaim) -> dict[str, Any]:
    return {
        "id": claim.session_id,
        "participant": claim.participant_id,
        "seq": claim.seq,
        "continues": int(claim.continues),
        "token": claim.token,
    }


def _arguments(rows: Sequence[LogRow]) -> dict[str, Any]:
    """Return the arguments of an append: each column of the rows is an array, so that one statement fits all counts."""
    return {
        "id": rows[0].session_id,
        "seqs": [row.seq for row in rows],
        "ids": [row.envelope_id for row in rows],
        "senders": [row.sender_id for row in rows],
        "keys": [row.key for row in rows],
        "bodies": [row.body for row in rows],
        "checksums": [row.checksum for row in rows],
    }
