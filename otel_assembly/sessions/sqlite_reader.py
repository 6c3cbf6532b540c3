"""`SqliteReader`: reads a session log in SQLite without changing, creating or deleting any file."""

from __future__ import annotations

import importlib
import os
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import ConfigurationError, LogDamagedError, LogUnavailableError
from otel_assembly.sessions.log_reader import LogReader
from otel_assembly.sessions.log_rows import text_of
from otel_assembly.sessions.sqlite_file import FILE_VERSION, HAS_ROW, check_undamaged, translated_errors
from otel_assembly.sessions.sqlite_newest import missing_newest, recorded_newest

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds to wait while a writer locks the file.
_PATIENCE: Final = 30.0
_TABLE: Final = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'otel_assembly_session_rows'"


class SqliteReader(LogReader):
    """Reads the session log in an SQLite file, also while other processes write to it.

    If there is no write-ahead log next to the file, no process has the file open. An ordinary connection would then
    create a write-ahead log, so the file is opened as immutable until a process begins to write.

    Args:
        path: The file.

    Raises:
        ConfigurationError: The file does not exist, or is not a session log of this release's format.
        LogDamagedError: Accepted rows are missing.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        if os.path.isdir(path):
            raise ConfigurationError(f"{path} is a folder; give the file of a log of sessions")
        if not os.path.exists(path):
            raise ConfigurationError(f"{path} does not exist; give the file of a log of sessions, or postgresql://…")
        with _writers_locked_out(path):
            check_undamaged(path)
        self._connection = self._connect()
        try:
            self._check_format()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def ask(self, what: str, statement: str, *arguments: object) -> list[Any]:
        """Return the rows that an SQL statement selects; the arguments are those of `LogReader.ask`."""
        while True:
            try:
                with translated_errors(self._path, what):
                    rows = self._connection.execute(statement, arguments).fetchall()
            except LogDamagedError:
                if self._is_unchanged():
                    raise
            else:
                if self._is_unchanged():
                    return rows
            # A process has begun to write, so the rows may be a mix from before and after the write.
            self._connection.close()
            self._connection = self._connect()

    def problems(self) -> Iterator[str]:
        """Yield damaged pages and indexes, a missing newest row, and rows without a session."""
        for (result,) in self.ask("the file", "PRAGMA integrity_check(20)"):
            if result != "ok":
                yield f"{self._path}: {result}; restore the file"
        newest = self._recorded_newest()
        if newest and not self.ask(f"session {newest[0]!r}: row {newest[1]}", HAS_ROW, *newest):
            yield missing_newest(self._path, newest)
        yield from super().problems()

    def _recorded_newest(self) -> tuple[str, int, str] | None:
        """Return session id, row number and envelope id of the newest row, from the lock file; None if not recorded.

        Writers update the lock file after they commit a row. So call this method before you read the rows: a recorded
        row that is then not in the log is lost. Read in the other order, it may just be newer than the rows read.
        """
        try:
            lock_file = os.open(f"{self._path}.queue", os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return recorded_newest(lock_file)
        finally:
            os.close(lock_file)

    def _connect(self) -> sqlite3.Connection:
        is_immutable = not os.path.exists(f"{self._path}-wal")
        #: The state of the file when it was opened as immutable; None if it was not.
        self._immutable_state = self._state() if is_immutable else None
        with translated_errors(self._path, "the log"):
            name = f"{Path(self._path).absolute().as_uri()}?mode=ro{'&immutable=1' if is_immutable else ''}"
            db = sqlite3.connect(name, uri=True, timeout=_PATIENCE, isolation_level=None)
        db.text_factory = text_of
        return db

    def _is_unchanged(self) -> bool:
        return self._immutable_state is None or self._immutable_state == self._state()

    def _state(self) -> tuple[Any, ...]:
        status = os.stat(self._path)
        return os.path.exists(f"{self._path}-wal"), status.st_ino, status.st_size, status.st_mtime_ns

    def _check_format(self) -> None:
        try:
            ((tables,),) = self.ask("the log", _TABLE)
            ((version,),) = self.ask("the log", "PRAGMA user_version")
        except LogDamagedError as error:
            if getattr(error.__cause__, "sqlite_errorcode", 0) != sqlite3.SQLITE_NOTADB:
                raise
            raise ConfigurationError(
                f"{self._path} is not an SQLite file; give the file of a log of sessions"
            ) from error
        if not tables:
            raise ConfigurationError(f"{self._path} is not a log of sessions; give the file of one")
        if version != FILE_VERSION:
            raise ConfigurationError(
                f"{self._path} has form {version}, of another release; this release reads form {FILE_VERSION}"
            )


@contextmanager
def _writers_locked_out(path: str) -> Iterator[None]:
    """Lock out writers during the block, if there is a lock file; without one, no process has written to the log."""
    try:
        lock_file = os.open(f"{path}.queue", os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl: Any = importlib.import_module("fcntl")
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(lock_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LogUnavailableError(f"another process has locked {path} for {_PATIENCE:.0f} s") from None
                time.sleep(0.005)
        yield
    finally:
        os.close(lock_file)
