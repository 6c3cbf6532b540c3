"""Store the rows of a live page in SQLite, in memory or in a file, up to a size.

A row is JSON text in the form of `page_model`. Rows are much smaller than spans: 10,000 turns take about 10 MB.
"""

from __future__ import annotations

import json
import os
import sqlite3
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MAX_BYTES: Final = 128 << 20
"""The most bytes of a store. A page loads all of them, and Chromium needs about three times as much memory."""

#: The form of the tables, and the number by which SQLite recognizes a file of this application ("otAw").
_VERSION: Final = 1
_APPLICATION: Final = 0x6F744177
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS conversations (key TEXT PRIMARY KEY, id TEXT, place INTEGER, updated INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ledgers (id TEXT PRIMARY KEY, conversation TEXT, place INTEGER, head TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turns (ledger TEXT, n INTEGER, span TEXT, row TEXT, PRIMARY KEY (ledger, n)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (ledger TEXT, o TEXT, t INTEGER, row TEXT, PRIMARY KEY (ledger, o)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS texts (id INTEGER PRIMARY KEY, conversation TEXT, digest BLOB, entry TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS digests ON texts (conversation, digest);
CREATE INDEX IF NOT EXISTS members ON ledgers (conversation);
"""


class StoredTurn(NamedTuple):
    """A stored turn: the id of its assembly's span, and its row as JSON text."""

    span: str
    row: str


class RowStore:
    """The rows of all conversations: turns, items and texts.

    Changes are stored together by `commit`; a process that is killed leaves the state of the last commit. An object may
    be used in one thread at a time.

    Args:
        path: The file, which only its owner can read (mode 0600); None keeps the rows in memory.
        max_bytes: The size at which `shrink` removes rows.

    Raises:
        ConfigurationError: The file cannot be opened, belongs to another program, or is in use by another process.
    """

    def __init__(self, path: Path | None = None, *, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        try:
            self._connection = _open(path)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            if "locked" in reason:
                reason = "another process uses it; end that process, or name another file"
            raise ConfigurationError(f"{path}: cannot be opened: {reason}") from error
        self._changes = sum(self._count(table) for table in ("conversations", "texts")) + 1

    def _count(self, table: str) -> int:
        column = {"conversations": "updated", "texts": "id"}[table]
        (newest,) = self._connection.execute(f"SELECT max({column}) FROM {table}").fetchone()  # noqa: S608  # fixed names
        return newest or 0

    def add_ledger(self, ledger: str, conversation: str, conversation_id: str | None, head: str) -> None:
        """Add or replace a ledger, and mark its conversation as the newest."""
        self._changes += 1
        self._connection.execute(
            "INSERT INTO conversations VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET updated = excluded.updated",
            (conversation, conversation_id, self._changes, self._changes),
        )
        self._connection.execute(
            "INSERT INTO ledgers VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET head = excluded.head",
            (ledger, conversation, self._changes, head),
        )

    def ledger(self, ledger: str) -> tuple[str, dict[str, Any]] | None:
        """Return the conversation and the head of a ledger; None if it is not stored."""
        found = self._connection.execute("SELECT conversation, head FROM ledgers WHERE id = ?", (ledger,)).fetchone()
        return None if found is None else (found[0], json.loads(found[1]))

    def turn(self, ledger: str, number: int) -> StoredTurn | None:
        """Return a turn; None if it is not stored."""
        found = self._connection.execute("SELECT span, row FROM turns WHERE ledger = ? AND n = ?", (ledger, number))
        return next((StoredTurn(*row) for row in found), None)

    def sent_before(self, ledger: str, number: int) -> dict[str, Any] | None:
        """Return the row of the last turn before a number that sent a prompt; None if no such turn is stored."""
        return self._sent("n < ? ORDER BY n DESC", ledger, number)

    def sent_after(self, ledger: str, number: int) -> dict[str, Any] | None:
        """Return the row of the first turn after a number that sent a prompt; None if no such turn is stored."""
        return self._sent("n > ? ORDER BY n", ledger, number)

    def _sent(self, condition: str, ledger: str, number: int) -> dict[str, Any] | None:
        query = f"SELECT row FROM turns WHERE ledger = ? AND {condition}"  # noqa: S608  # one of the two conditions above
        rows = (json.loads(row) for (row,) in self._connection.execute(query, (ledger, number)))
        return next((row for row in rows if not row.get("unsent")), None)

    def put_turn(self, ledger: str, number: int, span: str, row: str) -> None:
        """Add or replace a turn."""
        self._connection.execute("INSERT OR REPLACE INTO turns VALUES (?, ?, ?, ?)", (ledger, number, span, row))

    def item(self, ledger: str, item: str) -> dict[str, Any] | None:
        """Return the row of an item; None if it is not stored."""
        found = self._connection.execute("SELECT row FROM items WHERE ledger = ? AND o = ?", (ledger, item)).fetchone()
        return None if found is None else json.loads(found[0])

    def put_item(self, ledger: str, row: dict[str, Any]) -> None:
        """Add or replace an item."""
        values = (ledger, row["o"], row.get("t", 0), compact(row))
        self._connection.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)", values)

    def put_text(self, conversation: str, text: str, entry: list[Any]) -> tuple[int, bool]:
        """Return the number of a text of a conversation, and whether it is new. If it is, `entry` is stored."""
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        found = self._connection.execute(
            "SELECT id FROM texts WHERE conversation = ? AND digest = ?", (conversation, digest)
        ).fetchone()
        if found is not None:
            return found[0], False
        added = self._connection.execute(
            "INSERT INTO texts (conversation, digest, entry) VALUES (?, ?, ?)", (conversation, digest, compact(entry))
        )
        return added.lastrowid or 0, True

    def commit(self) -> None:
        """Store the changes since the last commit."""
        self._connection.commit()

    def shrink(self, current: Iterable[str]) -> tuple[list[str], dict[str, int]]:
        """Remove rows until the store is within its size: the oldest conversations, then the oldest turns.

        Args:
            current: The conversations that are not removed, because they have just changed.

        Returns:
            The removed conversations; and for each ledger that lost its oldest turns, the number of its first turn.
        """
        removed: list[str] = []
        trimmed: dict[str, int] = {}
        kept = set(current)
        oldest = (
            key for (key,) in self._connection.execute("SELECT key FROM conversations ORDER BY updated").fetchall()
        )
        while self._used() > self._max_bytes:
            key = next((key for key in oldest if key not in kept), None)
            if key is not None:
                self.remove(key)
                removed.append(key)
            elif not (cut := self._trim()):
                break
            else:
                trimmed |= cut
        return removed, trimmed

    def _used(self) -> int:
        sizes = (self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
        pages, free = sizes
        return int(pages - free) * int(self._connection.execute("PRAGMA page_size").fetchone()[0])

    def remove(self, key: str) -> None:
        """Remove a conversation with its ledgers."""
        execute = self._connection.execute
        for table in ("turns", "items"):
            execute(f"DELETE FROM {table} WHERE ledger IN (SELECT id FROM ledgers WHERE conversation = ?)", (key,))  # noqa: S608
        execute("DELETE FROM ledgers WHERE conversation = ?", (key,))
        execute("DELETE FROM texts WHERE conversation = ?", (key,))
        execute("DELETE FROM conversations WHERE key = ?", (key,))

    def _trim(self) -> dict[str, int]:
        """Remove the oldest eighth of the turns of the longest ledger, and the items and texts of these turns."""
        execute = self._connection.execute
        longest = execute("SELECT ledger, count(*) FROM turns GROUP BY ledger ORDER BY 2 DESC LIMIT 1").fetchone()
        if longest is None or longest[1] < 2:
            return {}
        ledger, count = longest
        place = max(1, count // 8)
        (first,) = execute(
            "SELECT n FROM turns WHERE ledger = ? ORDER BY n LIMIT 1 OFFSET ?", (ledger, place)
        ).fetchone()
        items = execute("SELECT row FROM items WHERE ledger = ? AND t < ?", (ledger, first)).fetchall()
        texts = {(row.get("x"),) for row in (json.loads(item) for (item,) in items) if "x" in row}
        self._connection.executemany("DELETE FROM texts WHERE id = ?", texts)
        execute("DELETE FROM items WHERE ledger = ? AND t < ?", (ledger, first))
        execute("DELETE FROM turns WHERE ledger = ? AND n < ?", (ledger, first))
        return {ledger: first}

    def conversations(self) -> list[tuple[str, str | None]]:
        """Return the key and the id of each conversation, in the order in which they were added."""
        return self._connection.execute("SELECT key, id FROM conversations ORDER BY place").fetchall()

    def ledgers(self, conversation: str) -> list[tuple[str, str]]:
        """Return the id and the head of each ledger of a conversation, in the order in which they were added."""
        query = "SELECT id, head FROM ledgers WHERE conversation = ? ORDER BY place"
        return self._connection.execute(query, (conversation,)).fetchall()

    def turns(self, ledger: str, first: int, limit: int) -> list[tuple[int, str]]:
        """Return the number and the row of at most `limit` turns of a ledger, from the turn `first` on."""
        query = "SELECT n, row FROM turns WHERE ledger = ? AND n >= ? ORDER BY n LIMIT ?"
        return self._connection.execute(query, (ledger, first, limit)).fetchall()

    def items(self, ledger: str) -> Iterator[str]:
        """Yield the rows of a ledger's items."""
        return (row for (row,) in self._connection.execute("SELECT row FROM items WHERE ledger = ?", (ledger,)))

    def texts(self, conversation: str) -> Iterator[tuple[int, str]]:
        """Yield the number and the entry of each text of a conversation."""
        yield from self._connection.execute("SELECT id, entry FROM texts WHERE conversation = ?", (conversation,))

    def turn_count(self) -> int:
        """Return the number of stored turns."""
        return int(self._connection.execute("SELECT count(*) FROM turns").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def compact(value: Any) -> str:
    """Return a value as JSON without spaces, in ASCII, so that lone surrogates can be stored."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        # SQLite gives the mode of the database to its journal files.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        path.chmod(0o600)
    connection = sqlite3.connect(path or ":memory:", check_same_thread=False, timeout=0)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if not is_empty and (application, version) != (_APPLICATION, _VERSION):
            raise sqlite3.DatabaseError("it is not a store of this version of otel-assembly watch; name another file")
        connection.execute("PRAGMA journal_mode = WAL")
        # A killed process loses nothing; a machine that loses power may lose the last commits.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_TABLES)
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection
