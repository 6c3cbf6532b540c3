"""`SqliteFile`: the SQLite file of a session log, and the lock file of its writers. All calls block."""

from __future__ import annotations

import importlib
import logging
import os
import sqlite3
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.fork_safety import after_fork_in_child
from otel_assembly.errors import ConfigurationError, LogDamagedError, LogUnavailableError, LogUnsureError
from otel_assembly.sessions.log_rows import (
    duplicate_row_error,
    duplicate_session_error,
    lost_claim_error,
    stale_position_error,
    text_of,
)
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
from otel_assembly.sessions.sqlite_newest import forget_newest, missing_newest, record_newest, recorded_newest
from otel_assembly.sessions.sqlite_wal import check_wal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.sessions.log import LogPosition, LogRow, TurnClaim

logger = logging.getLogger("otel_assembly")

#: The version of the file format, which SQLite stores in the file as its ``user_version``.
FILE_VERSION: Final = 1

HAS_ROW: Final = """SELECT session FROM otel_assembly_session_rows
    WHERE session = (SELECT number FROM otel_assembly_sessions WHERE id = ?) AND seq = ? AND envelope_id = ?"""
_ADD_SESSION: Final = "INSERT INTO otel_assembly_sessions (id, metadata, checksum) VALUES (?, ?, ?) RETURNING number"
_ADD_ROW: Final = "INSERT INTO otel_assembly_session_rows VALUES (?, ?, ?, ?, ?, ?, ?)"

_HAS_TURNS: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'otel_assembly_session_work'"

#: Connections of the parent process: SQLite forbids a forked child to use or close them.
_parent_connections: list[sqlite3.Connection] = []


class SqliteFile:
    """The connections of one `SqliteSessionLog` to its file, with the statements that read and write it.

    Writes, checkpoints and closes need the write lock: call `take` before them and `give` after them. The write lock is
    a ``flock`` of the lock file ``path.queue``, so that the writers of all processes wait in the kernel. (SQLite's own
    locking lets writers poll, which can starve one of them for seconds.) The kernel releases the write lock of a killed
    process. Because of the write lock, no commit runs during a checkpoint of another process; in SQLite before 3.51.3,
    that can lose commits (https://www.sqlite.org/wal.html#walresetbug). Reads need no lock.
    """

    def __init__(self, path: str, busy_timeout: float) -> None:
        try:
            self._fcntl: Any = importlib.import_module("fcntl")
        except ModuleNotFoundError as missing:
            raise ConfigurationError(
                "SqliteSessionLog locks its file with flock, which this system lacks; use PostgresSessionLog"
            ) from missing
        self.path = path
        self._busy_timeout = busy_timeout
        self._lock_file: int | None = None
        self._writer: sqlite3.Connection | None = None
        self._readers: list[sqlite3.Connection] = []
        self._identity: tuple[int, int] | None = None
        self._closed = False
        after_fork_in_child(self._drop_parent_state)

    def take(self) -> None:
        """Acquire the write lock; do nothing if the file is closed."""
        if self._lock_file is None:
            if self._closed:
                return
            self._lock_file = os.open(f"{self.path}.queue", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._fcntl.flock(self._lock_file, self._fcntl.LOCK_EX)

    def give(self) -> None:
        """Release the write lock."""
        if self._lock_file is not None:
            self._fcntl.flock(self._lock_file, self._fcntl.LOCK_UN)

    def open(self) -> None:
        """Create the file if it is missing, and check it for damage; needs the write lock."""
        with self.translated_errors("the log"):
            self._write_connection()

    def end(self) -> None:
        """Refuse new connections; `close` then closes the open connections."""
        self._closed = True

    def reader(self) -> sqlite3.Connection:
        """Return a new connection for reading; the file must be open."""
        self._check_open()
        with self.translated_errors("the log"):
            connection = self._connect()
            self._readers.append(connection)
            return connection

    def close_reader(self, connection: sqlite3.Connection) -> None:
        """Close a connection for reading; needs the write lock, because SQLite may run a checkpoint."""
        if connection in self._readers:
            self._readers.remove(connection)
            connection.close()

    def create(self, session_id: str, metadata: str, checksum: int, first: LogRow) -> None:
        """Store a session and its first row; needs the write lock.

        Raises:
            LogConflictError: A session with this id exists.
        """
        with self.translated_errors(f"session {session_id!r}: row 1", writing=True), self._transaction() as db:
            try:
                ((number,),) = db.execute(_ADD_SESSION, (session_id, metadata, checksum)).fetchall()
                db.execute(_ADD_ROW, _columns(number, first))
            except sqlite3.IntegrityError:
                raise duplicate_session_error(session_id) from None
        self._record_newest(first)

    def append(self, rows: Sequence[LogRow], on: LogPosition, claim: TurnClaim | None) -> None:
        """Append rows after the newest row, and end the claim of the turn that they answer; needs the write lock.

        Args:
            rows: The rows.
            on: The position of the session's newest row, as the caller knows it.
            claim: The claim of the turn that the rows answer; None for rows that answer no turn.
        """
        session_id, seq = rows[0].session_id, rows[0].seq
        with self.translated_errors(f"session {session_id!r}: row {seq}", writing=True), self._transaction() as db:
            newest = db.execute(HAS_ROW, (session_id, on.seq, on.envelope_id)).fetchone()
            if newest is None:
                raise stale_position_error(session_id, on)
            try:
                db.executemany(_ADD_ROW, [_columns(newest[0], row) for row in rows])
            except sqlite3.IntegrityError:
                raise duplicate_row_error(session_id, seq) from None
            if claim is not None and not _end_claim(db, claim_arguments(claim), finished=True):
                raise lost_claim_error(claim)
        self._record_newest(rows[-1])

    def end_turn(self, claim: TurnClaim, finished: bool) -> bool:
        """Release the claim of a turn, and delete the turn's steps if it is finished; needs the write lock.

        Returns:
            False if another server has claimed the turn meanwhile.
        """
        with self.translated_errors(f"session {claim.session_id!r}: a turn"), self._transaction() as db:
            return _end_claim(db, claim_arguments(claim), finished=finished)

    def add_work(self, claim: TurnClaim, number: int, body: str, checksum: int) -> bool:
        """Store a step of a claimed turn, unless it is stored already; needs the write lock.

        Returns:
            False if another server has claimed the turn meanwhile, so that nothing was stored.
        """
        arguments = claim_arguments(claim) | {"number": number, "body": body, "checksum": checksum, "now": 0.0}
        what = f"session {claim.session_id!r}: step {number} of a turn"
        with self.translated_errors(what, writing=True), self._transaction() as db:
            rows = db.execute(COUNT_WORK, arguments).fetchall()
            if rows:
                ((session, seq),) = rows
                db.execute(
                    f"{ADD_WORK}(SELECT :session AS session, :row AS seq)",
                    {**arguments, "session": session, "row": seq},
                )
                return True
            turn = db.execute(TURN, arguments).fetchone()
            return turn is not None and turn[2] == claim.token and turn[6] >= number

    def _record_newest(self, newest: LogRow) -> None:
        if self._lock_file is not None:
            record_newest(self._lock_file, newest)

    def write(self, what: str, statement: str, arguments: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
        """Run a statement that writes and can safely run twice, and return its rows; needs the write lock."""
        with self.translated_errors(what), self._transaction() as db:
            return db.execute(statement, arguments).fetchall()

    def close(self) -> None:
        """Close all connections and the lock file; needs the write lock."""
        for connection in self._readers:
            connection.close()
        self._readers.clear()
        self._drop_writer()
        self._close_lock_file()

    def _close_lock_file(self) -> None:
        lock_file, self._lock_file = self._lock_file, None
        if lock_file is not None:
            os.close(lock_file)

    @contextmanager
    def translated_errors(self, what: str, *, writing: bool = False) -> Iterator[None]:
        """Raise errors of SQLite in the block as errors of the log; see the function `translated_errors`."""
        with translated_errors(self.path, what, writing=writing):
            yield

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction of the connection for writing, which is committed at the end of the block.

        If the block raises, the transaction is rolled back. After an error of SQLite's environment, such as a full
        disk, the connection is closed, and the next write opens a new one.
        """
        db = self._write_connection()
        try:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        except BaseException as error:
            try:
                if db.in_transaction:
                    db.execute("ROLLBACK")
            except sqlite3.Error:
                self._drop_writer()
            if isinstance(error, sqlite3.OperationalError):
                self._drop_writer()
            raise

    def _write_connection(self) -> sqlite3.Connection:
        """Return the connection for writing, which is opened at the first call.

        Raises:
            LogUnavailableError: The log is closed, or the file was moved or deleted.
        """
        if self._writer is None:
            self._check_open()
            self._writer = self._open_writer()
            self._identity = self._current_identity()
        elif self._current_identity() != self._identity:
            raise LogUnavailableError(f"{self.path} was moved or deleted while it was in use; put it back")
        return self._writer

    def _check_open(self) -> None:
        if self._closed:
            raise LogUnavailableError(f"the log in {self.path} is closed")

    def _current_identity(self) -> tuple[int, int] | None:
        """Return the device and inode of the file, which change if the file is replaced; None if it does not exist."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _open_writer(self) -> sqlite3.Connection:
        """Open the connection for writing: check the file for damage, and create missing tables.

        Raises:
            LogDamagedError: Accepted rows are missing or damaged.
            LogUnavailableError: The file has another format version, or cannot have a write-ahead log.
        """
        if self._lock_file is not None and not os.path.exists(self.path):
            forget_newest(self._lock_file)
        check_undamaged(self.path)
        db = self._connect()
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
                    f"{self.path} has form {version}, of another release; this release reads form {FILE_VERSION}"
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
        """Raise `LogDamagedError` if the newest accepted row, which the lock file records, is not in the file."""
        newest = recorded_newest(self._lock_file) if self._lock_file is not None else None
        if newest is not None and db.execute(HAS_ROW, newest).fetchone() is None:
            raise LogDamagedError(missing_newest(self.path, newest))

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False)
        db.text_factory = text_of
        return db

    def _drop_writer(self) -> None:
        connection, self._writer = self._writer, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _drop_parent_state(self) -> None:
        """Drop the parent's connections in a forked child, because SQLite forbids the child to use or close them.

        The child closes the descriptor of the lock file but does not unlock it, because the parent may have the lock.
        """
        _parent_connections.extend(self._readers)
        if self._writer is not None:
            _parent_connections.append(self._writer)
        self._readers, self._writer = [], None
        self._close_lock_file()


@contextmanager
def translated_errors(path: str, what: str, *, writing: bool = False) -> Iterator[None]:
    """Raise errors of SQLite in the block as errors of the log that name the file.

    Args:
        path: The SQLite file.
        what: The data that the block reads or writes, for the message.
        writing: True if the block appends data, so that after an I/O error it is unknown whether the data was written.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        # The message of SQLite quotes bytes of the damaged file that Python cannot decode.
        raise LogDamagedError(f"{what} cannot be read or written in {path}: it is damaged; restore the file") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise LogDamagedError(f"{what} cannot be read or written in {path}: {error}; restore the file") from error
        if code == sqlite3.SQLITE_IOERR and writing:
            # The write-ahead log may contain the complete transaction, which SQLite then recovers after a crash.
            raise LogUnsureError(f"{what} may or may not be written in {path}: {error}") from error
        raise LogUnavailableError(f"{what} is not available in {path}: {error}") from error


def check_undamaged(path: str) -> None:
    """Raise an error for a damaged file from which SQLite would silently omit rows; no process may be writing to it.

    Raises:
        LogDamagedError: Accepted rows are damaged, or the file is missing but its write-ahead log is not.
    """
    wal = f"{path}-wal"
    with suppress(FileNotFoundError):
        if os.path.getsize(wal) and not (os.path.exists(path) and os.path.getsize(path)):
            raise LogDamagedError(f"{path} is empty, but {wal} contains rows; restore the file")
    state = check_wal(wal)
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
    """Return the arguments of an SQL statement on the turn of a claim."""
    return {
        "id": claim.session_id,
        "participant": claim.participant_id,
        "seq": claim.seq,
        "continues": int(claim.continues),
        "token": claim.token,
    }


def _end_claim(db: sqlite3.Connection, arguments: Mapping[str, Any], *, finished: bool) -> bool:
    """Release a claim, and delete the turn's steps if it is finished; return False if another server has the turn."""
    rows = db.execute(FINISH if finished else RELEASE, arguments).fetchall()
    if rows and finished:
        db.execute(DELETE_WORK, arguments)
    return bool(rows)


def _columns(number: int, row: LogRow) -> tuple[Any, ...]:
    return number, row.seq, row.envelope_id, row.sender_id, row.key, row.body, row.checksum
