"""`SqliteReader`: reads a log in SQLite; it creates, checkpoints and deletes nothing."""

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
from otel_assembly.sessions.sqlite_file import FILE_VERSION, STANDS_ON, check_whole, telling
from otel_assembly.sessions.sqlite_newest import missing_newest, noted_newest

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds to wait while a writer locks the file.
_PATIENCE: Final = 30.0
_TABLE: Final = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'otel_assembly_session_rows'"


class SqliteReader(LogReader):
    """Reads the log in a file.

    Hubs can use the file at the same time. Without a write-ahead log next to the file, no process has it open, and an
    ordinary connection would create one. The file is then opened as immutable, until a process begins to write.

    Args:
        path: The file.

    Raises:
        ConfigurationError: There is no such file, or it is not a log of this format version.
        LogDamagedError: Accepted rows are missing.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        if os.path.isdir(path):
            raise ConfigurationError(f"{path} is a folder; give the file of a log of sessions")
        if not os.path.exists(path):
            raise ConfigurationError(f"{path} does not exist; give the file of a log of sessions, or postgresql://…")
        with _nobody_writes(path):
            check_whole(path)
        self._connection = self._opened()
        try:
            self._check_form()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def ask(self, what: str, statement: str, *arguments: object) -> list[Any]:
        """See `LogReader.ask`."""
        while True:
            try:
                with telling(self._path, what):
                    found = self._connection.execute(statement, arguments).fetchall()
            except LogDamagedError:
                if self._is_as_it_was():
                    raise
            else:
                if self._is_as_it_was():
                    return found
            # A hub began to write, so the rows may mix states from before and after.
            self._connection.close()
            self._connection = self._opened()

    def problems(self) -> Iterator[str]:
        """Yield damaged pages and indexes, a missing newest row, and rows without a session."""
        for (found,) in self.ask("the file", "PRAGMA integrity_check(20)"):
            if found != "ok":
                yield f"{self._path}: {found}; restore the file"
        if (noted := self._noted()) and not self.ask(f"session {noted[0]!r}: row {noted[1]}", STANDS_ON, *noted):
            yield missing_newest(self._path, noted)
        yield from super().problems()

    def _noted(self) -> tuple[str, int, str] | None:
        """Return the writers' record of the newest row; read it before the rows, because it is written after them."""
        try:
            queue = os.open(f"{self._path}.queue", os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return noted_newest(queue)
        finally:
            os.close(queue)

    def _opened(self) -> sqlite3.Connection:
        alone = not os.path.exists(f"{self._path}-wal")
        #: The file's state if no process had it open; else None.
        self._unchanged = self._state() if alone else None
        with telling(self._path, "the log"):
            name = f"{Path(self._path).absolute().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"
            db = sqlite3.connect(name, uri=True, timeout=_PATIENCE, isolation_level=None)
        db.text_factory = text_of
        return db

    def _is_as_it_was(self) -> bool:
        return self._unchanged is None or self._unchanged == self._state()

    def _state(self) -> tuple[Any, ...]:
        found = os.stat(self._path)
        return os.path.exists(f"{self._path}-wal"), found.st_ino, found.st_size, found.st_mtime_ns

    def _check_form(self) -> None:
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
            raise ConfigurationError(f"{self._path} is not a log of sessions")
        if version != FILE_VERSION:
            raise ConfigurationError(
                f"{self._path} has form {version}, of another release; this one reads {FILE_VERSION}"
            )


@contextmanager
def _nobody_writes(path: str) -> Iterator[None]:
    """Block writers briefly, if there can be any, so that their writes are read completely."""
    try:
        queue = os.open(f"{path}.queue", os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl: Any = importlib.import_module("fcntl")
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(queue, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise LogUnavailableError(f"another process has locked {path} for {_PATIENCE:.0f} s") from None
                time.sleep(0.005)
        yield
    finally:
        os.close(queue)
