"""The SQLite file of a session log: its connections, and the lock file of its writers. All calls block."""

from __future__ import annotations

import importlib
import logging
import os
import sqlite3
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.fork_safety import after_fork_in_child
from otel_assembly.errors import ConfigurationError, LogDamagedError, LogUnavailableError, LogUnsureError
from otel_assembly.sessions.log_rows import already_exists, already_used, claim_lost, not_on_top, text_of
from otel_assembly.sessions.log_sql import (
    ADD_WORK,
    COUNT_WORK,
    DELETE_WORK,
    FINISH,
    RELEASE,
    TABLES,
    TURN,
    TURN_TABLES,
)
from otel_assembly.sessions.sqlite_newest import forget_newest, missing_newest, note_newest, noted_newest
from otel_assembly.sessions.sqlite_wal import look_at_wal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.sessions.log import LogPosition, LogRow, TurnClaim

logger = logging.getLogger("otel_assembly")

#: The version of the file format, stored in the file.
FILE_VERSION: Final = 1

STANDS_ON: Final = """SELECT session FROM otel_assembly_session_rows
    WHERE session = (SELECT number FROM otel_assembly_sessions WHERE id = ?) AND seq = ? AND envelope_id = ?"""
_ADD_SESSION: Final = "INSERT INTO otel_assembly_sessions (id, metadata, checksum) VALUES (?, ?, ?) RETURNING number"
_ADD_ROW: Final = "INSERT INTO otel_assembly_session_rows VALUES (?, ?, ?, ?, ?, ?, ?)"

_HAS_TURNS: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'otel_assembly_session_work'"

#: Connections of the parent process; they are kept open and never used.
_of_parents: list[sqlite3.Connection] = []


class SqliteFile:
    """One process's access to the file.

    Writes, checkpoints and closes happen between `take` and `give`, which queue on a lock of the kernel across
    processes (the turn). No writer finds the file busy and backs off, which can starve writers for seconds. The kernel
    releases the turn of a killed process. No commit runs during a checkpoint of another process, because that can lose
    commits in SQLite before 3.51.3 (https://www.sqlite.org/wal.html#walresetbug). Readers need no turn.
    """

    def __init__(self, path: str, busy_timeout: float) -> None:
        try:
            self._fcntl: Any = importlib.import_module("fcntl")
        except ModuleNotFoundError as missing:
            raise ConfigurationError(
                "SqliteSessionLog queues its writers with flock, which this system lacks; use PostgresSessionLog"
            ) from missing
        self.path = path
        self._busy_timeout = busy_timeout
        self._queue: int | None = None
        self._writer: sqlite3.Connection | None = None
        self._readers: list[sqlite3.Connection] = []
        self._identity: tuple[int, int] | None = None
        self._ending = False
        after_fork_in_child(self._leave)

    def take(self) -> None:
        """Acquire the turn in the order of requests; raise if the file is closed."""
        if self._queue is None:
            if self._ending:
                return
            self._queue = os.open(f"{self.path}.queue", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._fcntl.flock(self._queue, self._fcntl.LOCK_EX)

    def give(self) -> None:
        """Release the turn."""
        if self._queue is not None:
            self._fcntl.flock(self._queue, self._fcntl.LOCK_UN)

    def open(self) -> None:
        """Create the file if it is missing, and check it for damage; needs the turn."""
        with self.telling("the log"):
            self._writing()

    def end(self) -> None:
        """Refuse new connections; `close` closes the open ones."""
        self._ending = True

    def reader(self) -> sqlite3.Connection:
        """Return a new connection for reading; the file must be open."""
        self._refuse_after_the_end()
        with self.telling("the log"):
            connection = self._connected()
            self._readers.append(connection)
            return connection

    def close_reader(self, connection: sqlite3.Connection) -> None:
        """Close a reader; needs the turn, because closing the last connection runs a checkpoint."""
        if connection in self._readers:
            self._readers.remove(connection)
            connection.close()

    def create(self, session_id: str, metadata: str, checksum: int, first: LogRow) -> None:
        """Write a session and its first row; needs the turn."""
        with self.telling(f"session {session_id!r}: row 1", writing=True), self._transaction() as db:
            try:
                ((number,),) = db.execute(_ADD_SESSION, (session_id, metadata, checksum)).fetchall()
                db.execute(_ADD_ROW, _columns(number, first))
            except sqlite3.IntegrityError:
                raise already_exists(session_id) from None
        self._note(first)

    def append(self, rows: Sequence[LogRow], on: LogPosition, claim: TurnClaim | None) -> None:
        """Append rows after the newest row, and finish the turn of a claim; needs the turn."""
        session_id, seq = rows[0].session_id, rows[0].seq
        with self.telling(f"session {session_id!r}: row {seq}", writing=True), self._transaction() as db:
            found = db.execute(STANDS_ON, (session_id, on.seq, on.envelope_id)).fetchone()
            if found is None:
                raise not_on_top(session_id, on)
            try:
                db.executemany(_ADD_ROW, [_columns(found[0], row) for row in rows])
            except sqlite3.IntegrityError:
                raise already_used(session_id, seq) from None
            if claim is not None and not _end(db, claim_arguments(claim), finished=True):
                raise claim_lost(claim)
        self._note(rows[-1])

    def end_turn(self, claim: TurnClaim, finished: bool) -> bool:
        """Release a claim, or finish its turn; needs the turn."""
        with self.telling(f"session {claim.session_id!r}: a turn"), self._transaction() as db:
            return _end(db, claim_arguments(claim), finished=finished)

    def add_work(self, claim: TurnClaim, number: int, body: str, checksum: int) -> bool:
        """Store a step of a turn, unless it is stored already; needs the turn."""
        arguments = claim_arguments(claim) | {"number": number, "body": body, "checksum": checksum, "now": 0.0}
        what = f"session {claim.session_id!r}: step {number} of a turn"
        with self.telling(what, writing=True), self._transaction() as db:
            counted = db.execute(COUNT_WORK, arguments).fetchall()
            if counted:
                ((session, seq),) = counted
                db.execute(
                    f"{ADD_WORK}(SELECT :session AS session, :row AS seq)",
                    {**arguments, "session": session, "row": seq},
                )
                return True
            found = db.execute(TURN, arguments).fetchone()
            return found is not None and found[2] == claim.token and found[6] >= number

    def _note(self, newest: LogRow) -> None:
        if self._queue is not None:
            note_newest(self._queue, newest)

    def write(self, what: str, statement: str, arguments: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
        """Run one idempotent writing statement and return its rows; needs the turn."""
        with self.telling(what), self._transaction() as db:
            return db.execute(statement, arguments).fetchall()

    def close(self) -> None:
        """Close all connections and the lock file; needs the turn."""
        for connection in self._readers:
            connection.close()
        self._readers.clear()
        self._drop()
        self._leave_queue()

    def _leave_queue(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            os.close(queue)

    @contextmanager
    def telling(self, what: str, *, writing: bool = False) -> Iterator[None]:
        """Translate errors of SQLite to log errors."""
        with telling(self.path, what, writing=writing):
            yield

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._writing()
        try:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        except BaseException as error:
            try:
                if db.in_transaction:
                    db.execute("ROLLBACK")
            except sqlite3.Error:
                self._drop()
            if isinstance(error, sqlite3.OperationalError):
                self._drop()
            raise

    def _writing(self) -> sqlite3.Connection:
        """Return the connection for writing; check that the path still names the same file."""
        if self._writer is None:
            self._refuse_after_the_end()
            self._writer = self._made()
            self._identity = self._found()
        elif self._found() != self._identity:
            raise LogUnavailableError(f"{self.path} was moved or deleted while it was in use; put it back")
        return self._writer

    def _refuse_after_the_end(self) -> None:
        if self._ending:
            raise LogUnavailableError(f"the log in {self.path} is closed")

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _made(self) -> sqlite3.Connection:
        if self._queue is not None and not os.path.exists(self.path):
            forget_newest(self._queue)
        check_whole(self.path)
        db = self._connected()
        try:
            ((mode,),) = db.execute("PRAGMA journal_mode = WAL").fetchall()
            if mode != "wal":
                raise LogUnavailableError(
                    f"SQLite cannot keep a write-ahead log next to {self.path}; move the file to a local disk"
                )
            db.execute("PRAGMA synchronous = FULL")
            ((version,),) = db.execute("PRAGMA user_version").fetchall()
            if version == 0:
                db.execute("BEGIN IMMEDIATE")
                for table in (*TABLES, *TURN_TABLES):
                    db.execute(table.format(number="INTEGER"))
                db.execute(f"PRAGMA user_version = {FILE_VERSION}")
                db.execute("COMMIT")
            elif version != FILE_VERSION:
                raise LogUnavailableError(
                    f"{self.path} has form {version}, of another release; this one reads {FILE_VERSION}"
                )
            if db.execute(_HAS_TURNS).fetchone() is None:
                db.execute("BEGIN IMMEDIATE")
                for table in TURN_TABLES:
                    db.execute(table)
                db.execute("COMMIT")
            self._check_newest(db)
        except BaseException:
            db.close()
            raise
        return db

    def _check_newest(self, db: sqlite3.Connection) -> None:
        """Refuse a file that ends before a row that was accepted."""
        noted = noted_newest(self._queue) if self._queue is not None else None
        if noted is not None and db.execute(STANDS_ON, noted).fetchone() is None:
            raise LogDamagedError(missing_newest(self.path, noted))

    def _connected(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False)
        db.text_factory = text_of
        return db

    def _drop(self) -> None:
        connection, self._writer = self._writer, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _leave(self) -> None:
        """Drop the parent's connections and turn: SQLite forbids a child to use or close them.

        The child closes the lock's descriptor without unlocking it, because the lock belongs to the parent.
        """
        _of_parents.extend(self._readers)
        if self._writer is not None:
            _of_parents.append(self._writer)
        self._readers, self._writer = [], None
        self._leave_queue()


@contextmanager
def telling(path: str, what: str, *, writing: bool = False) -> Iterator[None]:
    """Translate errors of SQLite to log errors that name the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        # SQLite's own message quotes bytes of the damaged file, and Python cannot decode the message.
        raise LogDamagedError(f"{what} cannot be read or written in {path}: it is damaged; restore the file") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise LogDamagedError(f"{what} cannot be read or written in {path}: {error}; restore the file") from error
        if code == sqlite3.SQLITE_IOERR and writing:
            # The file may contain complete frames, which SQLite recovers after a crash.
            raise LogUnsureError(f"{what} may or may not be written in {path}: {error}") from error
        raise LogUnavailableError(f"{what} is not available in {path}: {error}") from error


def check_whole(path: str) -> None:
    """Refuse a file from which SQLite would silently omit rows; no process may be writing to it.

    Raises:
        LogDamagedError: Accepted rows are damaged, or their file is missing.
    """
    wal = f"{path}-wal"
    with suppress(FileNotFoundError):
        if os.path.getsize(wal) and not (os.path.exists(path) and os.path.getsize(path)):
            raise LogDamagedError(f"{path} is empty, but {wal} contains rows; restore the file")
    state = look_at_wal(wal)
    if not state.readable:
        raise LogDamagedError(f"the header of {wal} is damaged; restore the file")
    if state.behind > 1:
        raise LogDamagedError(
            f"frame {state.whole + 1} of {wal} is damaged, and {state.behind} transactions follow "
            "it, of which all but at most one were accepted; restore the file"
        )
    if state.torn:
        logger.warning("%s ends with an incomplete transaction, which was not accepted and is ignored", wal)


def claim_arguments(claim: TurnClaim) -> dict[str, Any]:
    """Return the arguments of a statement on a turn."""
    return {
        "id": claim.session_id,
        "participant": claim.participant_id,
        "seq": claim.seq,
        "continues": int(claim.continues),
        "token": claim.token,
    }


def _end(db: sqlite3.Connection, arguments: Mapping[str, Any], *, finished: bool) -> bool:
    """Release a claim; return False if it is not valid."""
    ended = db.execute(FINISH if finished else RELEASE, arguments).fetchall()
    if ended and finished:
        db.execute(DELETE_WORK, arguments)
    return bool(ended)


def _columns(number: int, row: LogRow) -> tuple[Any, ...]:
    return number, row.seq, row.envelope_id, row.sender_id, row.key, row.body, row.checksum
