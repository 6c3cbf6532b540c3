"""A knowledge store in one SQLite file."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from otel_assembly._internal.fork_safety import after_fork_in_child, new_lock
from otel_assembly.errors import ConfigurationError, KnowledgePathError, KnowledgeStoreError
from otel_assembly.knowledge.files import StoreOfFiles, remaining_patience

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

#: The id of the root directory's row.
_ROOT = 0

#: The most bytes of one piece. A file is stored in pieces, so that a range is read without the rest of the file.
_PIECE_BYTES = 1 << 20

#: An append extends the last piece if that is shorter than this number of bytes; else it adds a new piece.
_FULL_BYTES = 1 << 16

# The entries are a tree of directories and files, so that listing a directory reads only its children. The size of a
# directory is NULL.
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS knowledge_entries (
        id INTEGER PRIMARY KEY,
        parent INTEGER REFERENCES knowledge_entries (id) ON DELETE CASCADE,
        name TEXT NOT NULL,
        size INTEGER,
        UNIQUE (parent, name))""",
    """CREATE TABLE IF NOT EXISTS knowledge_pieces (
        file INTEGER NOT NULL REFERENCES knowledge_entries (id) ON DELETE CASCADE,
        start INTEGER NOT NULL,
        content BLOB NOT NULL,
        PRIMARY KEY (file, start))""",
    "INSERT OR IGNORE INTO knowledge_entries VALUES (0, NULL, '', NULL)",
)


#: Connections of the parent process, kept because SQLite forbids a child to close them.
_parent_connections: list[sqlite3.Connection] = []


class SqliteKnowledgeStore(StoreOfFiles):
    """A `KnowledgeStore` in an SQLite file.

    Any number of stores, tasks, threads and processes may share one file. An append rewrites at most the last 64 KiB of
    a stored text. Close the store with ``close()``, or use it as an async context manager. A forked child opens the
    file again; of a store in memory, the child has a copy.

    Args:
        path: The SQLite file, which is created with its directory at the first use. ``":memory:"``: the texts are in
            this object's memory.
        busy_timeout: The seconds that a change waits for other changes; 0 or more.

    Raises:
        ConfigurationError: `busy_timeout` is negative.
    """

    _raises = (OSError, UnicodeDecodeError, sqlite3.Error)
    __slots__ = ("__weakref__", "_closed", "_connection", "_lock", "_lost", "_path")

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout: float = 30.0) -> None:
        if busy_timeout < 0:
            raise ConfigurationError(f"busy_timeout is {busy_timeout}; give seconds from 0")
        self._path = os.fspath(path)
        super().__init__(busy_timeout)
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        self._lost = False
        self._lock = new_lock(self, SqliteKnowledgeStore._drop_busy_connection, awaited=True)
        after_fork_in_child(self._drop_parent_connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the file; afterwards, other calls raise `KnowledgeStoreError`. Closing twice is no error."""

        def work() -> None:
            with self._lock:
                self._closed = True
                connection, self._connection = self._connection, None
                if connection is not None:
                    connection.close()

        await self._run("close", self._path, work)

    def _write(self, path: str, names: tuple[str, ...], data: bytes) -> None:
        with self._transaction("write", path, "IMMEDIATE") as db:
            _write(db, path, names, data)

    def _replace(self, path: str, names: tuple[str, ...], old: bytes | None, new: bytes | None) -> bool:
        with self._transaction("replace", path, "IMMEDIATE") as db:
            if _read(db, names, 0, None) != old:
                return False
            if new is not None:
                _write(db, path, names, new)
            elif old is not None:
                _delete(db, names)
            return True

    def _list(self, path: str, names: tuple[str, ...]) -> list[str]:
        with self._transaction("list", path) as db:
            entry, _ = _find_entry(db, names)
            rows = db.execute("SELECT name, size IS NULL FROM knowledge_entries WHERE parent = ?", (entry,))
            return sorted(f"{name}/" if directory else name for name, directory in rows)

    def _delete(self, path: str, names: tuple[str, ...]) -> None:
        with self._transaction("delete", path, "IMMEDIATE") as db:
            _delete(db, names)

    def _exists(self, path: str, names: tuple[str, ...]) -> bool:
        with self._transaction("look up", path) as db:
            return _find_entry(db, names)[0] is not None

    def _append(self, path: str, names: tuple[str, ...], data: bytes) -> int:
        with self._transaction("append to", path, "IMMEDIATE") as db:
            file, size = _find_or_make_file(db, path, names)
            last = db.execute(
                "SELECT start, content FROM knowledge_pieces WHERE file = ? AND ? - start < ?"
                " ORDER BY start DESC LIMIT 1",
                (file, size, _FULL_BYTES),
            ).fetchone()
            _store_pieces(db, file, last[0] if last else size, last[1] + data if last else data)
            return size

    def _bytes(self, path: str, names: tuple[str, ...], first: int, last: int | None) -> bytes | None:
        with self._transaction("read", path) as db:
            return _read(db, names, first, last)

    @contextmanager
    def _transaction(self, action: str, path: str, mode: str = "DEFERRED") -> Iterator[sqlite3.Connection]:
        if not self._lock.acquire(timeout=remaining_patience()):
            raise KnowledgeStoreError(
                f"cannot {action} {path!r}: other calls of this store kept the file for {self._busy_timeout:g} s; try "
                "again, or give a longer busy_timeout"
            )
        try:
            if self._closed:
                raise KnowledgeStoreError(f"cannot {action} {path!r}: the store is closed")
            if self._lost:
                raise KnowledgeStoreError(
                    f"cannot {action} {path!r}: this process was forked while another thread was using the store in "
                    "memory; fork before the store is used, or give the store a file"
                )
            if self._connection is None:
                self._connection = self._connect()
            db = self._connection
            db.execute(f"BEGIN {mode}")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        finally:
            self._lock.release()

    def _drop_parent_connection(self) -> None:
        """Drop the parent's connection in a forked child, because SQLite forbids the child to use or close it."""
        if self._connection is not None and self._path != ":memory:":
            _parent_connections.append(self._connection)
            self._connection = None

    def _drop_busy_connection(self) -> None:
        """Drop the parent's connection in a child that was forked while another thread was using the connection."""
        if self._connection is not None:
            _parent_connections.append(self._connection)
            self._connection = None
            self._lost = self._path == ":memory:"

    def _connect(self) -> sqlite3.Connection:
        if self._path != ":memory:":
            os.makedirs(os.path.dirname(os.path.abspath(self._path)), exist_ok=True)
        db = sqlite3.connect(self._path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False)
        try:
            self._use_wal(db)
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        return db

    def _use_wal(self, db: sqlite3.Connection) -> None:
        """Switch the file to a write-ahead log; retry while it is locked.

        SQLite's busy timeout does not cover this change if two connections create the file concurrently.
        """
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
                time.sleep(0.01)
            else:
                return


def _find_entry(db: sqlite3.Connection, names: tuple[str, ...]) -> tuple[int | None, int | None]:
    """Return the id and the size of an entry; the size of a directory is None, and both are None without an entry."""
    entry, size = _ROOT, None
    for name in names:
        row = db.execute(
            "SELECT id, size FROM knowledge_entries WHERE parent = ? AND name = ?", (entry, name)
        ).fetchone()
        if row is None:
            return None, None
        entry, size = row
    return entry, size


def _find_or_make_file(db: sqlite3.Connection, path: str, names: tuple[str, ...]) -> tuple[int, int]:
    """Return the id and the size of a file; create the file and its directories if they are missing."""
    parent = _ROOT
    for depth in range(1, len(names) + 1):
        entry, size = _find_entry(db, names[:depth])
        is_file = depth == len(names)
        if entry is None:
            size = 0 if is_file else None
            db.execute(
                "INSERT INTO knowledge_entries (parent, name, size) VALUES (?, ?, ?)", (parent, names[depth - 1], size)
            )
            (entry,) = db.execute("SELECT last_insert_rowid()").fetchone()
        if size is not None and not is_file:
            raise KnowledgePathError(f"path {path!r} is below '/{'/'.join(names[:depth])}', which is a file")
        if size is None and is_file:
            raise KnowledgePathError(f"path {path!r} is a directory; delete it first, or write to a file in it")
        parent = entry
    return parent, size or 0


def _read(db: sqlite3.Connection, names: tuple[str, ...], first: int, last: int | None) -> bytes | None:
    file, size = _find_entry(db, names)
    if file is None or size is None:
        return None
    last = size if last is None else min(last, size)
    if first >= last:
        return b""
    rows = db.execute(
        "SELECT start, content FROM knowledge_pieces WHERE file = ? AND start < ? AND start >="
        " (SELECT max(start) FROM knowledge_pieces WHERE file = ? AND start <= ?) ORDER BY start",
        (file, last, file, first),
    ).fetchall()
    return b"".join(content for _, content in rows)[first - rows[0][0] : last - rows[0][0]]


def _write(db: sqlite3.Connection, path: str, names: tuple[str, ...], data: bytes) -> None:
    file, _ = _find_or_make_file(db, path, names)
    db.execute("DELETE FROM knowledge_pieces WHERE file = ?", (file,))
    _store_pieces(db, file, 0, data)


def _delete(db: sqlite3.Connection, names: tuple[str, ...]) -> None:
    if not names:
        db.execute("DELETE FROM knowledge_entries WHERE parent = ?", (_ROOT,))
    chain = [_find_entry(db, names[:depth])[0] for depth in range(len(names), 0, -1)]
    if chain and chain[0] is not None:
        db.execute("DELETE FROM knowledge_entries WHERE id = ?", (chain[0],))
        _prune(db, [entry for entry in chain[1:] if entry is not None])


def _store_pieces(db: sqlite3.Connection, file: int, start: int, data: bytes) -> None:
    """Store `data` as the file's content from `start` to its end; a piece that begins at `start` is replaced."""
    db.executemany(
        "INSERT OR REPLACE INTO knowledge_pieces VALUES (?, ?, ?)",
        [(file, start + at, data[at : at + _PIECE_BYTES]) for at in range(0, len(data), _PIECE_BYTES)],
    )
    db.execute("UPDATE knowledge_entries SET size = ? WHERE id = ?", (start + len(data), file))


def _prune(db: sqlite3.Connection, directories: list[int]) -> None:
    """Remove empty directories; `directories` are the ids from the innermost to the outermost."""
    for directory in directories:
        db.execute(
            "DELETE FROM knowledge_entries WHERE id = ? AND NOT EXISTS"
            " (SELECT 1 FROM knowledge_entries WHERE parent = ?)",
            (directory, directory),
        )
