"""`LogReader`: the interface for reading a whole log without writing, while hubs may append to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import LogDamagedError
from otel_assembly.sessions.log import Cursor
from otel_assembly.sessions.log_sql import (
    CURSORS_OF,
    PAGE_OF_ROWS,
    PAGE_OF_SESSIONS,
    REPEATED_KEYS,
    ROWS_WITHOUT_SESSION,
    SESSION_OF_ID,
    SNAPSHOTS,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

#: The number of rows in memory at a time; a row may have a megabyte.
_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as a log stores it; the checksum is not verified.

    Attributes:
        number: The session's number, which grows in the order of creation.
        id: The session's id.
        metadata: The session's metadata, as JSON.
        checksum: The stored checksum of the metadata.
    """

    number: int
    id: str
    metadata: Any
    checksum: Any


class LogReader(ABC):
    """Reads a session log one page of rows at a time, without verifying checksums.

    The reader is a context manager that closes itself at the end of the block. All methods block.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the file or the database connection."""

    @abstractmethod
    def ask(self, what: str, statement: str, *arguments: object) -> list[Any]:
        """Return the rows that an SQL statement selects.

        Args:
            what: The name of the rows, for error messages.
            statement: The statement; ``?`` is an argument.
            arguments: The statement's arguments.

        Raises:
            LogDamagedError: The rows cannot be read.
            LogUnavailableError: The database does not answer.
        """

    def problems(self) -> Iterator[str]:
        """Yield a message for each damage that belongs to no stored session, such as rows of a missing session."""
        for number, count in self.ask("the rows of all sessions", ROWS_WITHOUT_SESSION):
            rows = "1 row" if count == 1 else f"{count:,} rows"
            yield f"{rows} of session number {number}, which does not exist; restore the log from a backup"

    def sessions(self) -> Iterator[StoredSession]:
        """Yield all sessions, in the order of their creation."""
        number = -1
        while True:
            page = self.ask("the list of sessions", PAGE_OF_SESSIONS, number, _PAGE)
            for columns in page:
                yield StoredSession(*columns)
            if len(page) < _PAGE:
                return
            number = page[-1][0]

    def session(self, session_id: str) -> StoredSession | None:
        """Return the session with this id; None if there is none."""
        rows = self.ask(f"session {session_id!r}", SESSION_OF_ID, session_id)
        return StoredSession(*rows[0]) if rows else None

    def rows(self, session: StoredSession, first_seq: int = 1) -> Iterator[Sequence[Any]]:
        """Yield a session's rows from `first_seq` on, each as (seq, envelope id, sender, key, body, checksum).

        Raises:
            LogDamagedError: A row cannot be read; the message names the row. All rows before it were yielded.
        """
        size = _PAGE
        while True:
            what = f"session {session.id!r}: row {first_seq}"
            try:
                page = self.ask(what, PAGE_OF_ROWS, session.number, first_seq, size)
            except LogDamagedError:
                if size == 1:
                    raise
                # Read row by row, so that the rows before the unreadable one are yielded.
                size = 1
                continue
            yield from page
            if len(page) < size or type(page[-1][0]) is not int:
                return
            first_seq = max(page[-1][0], first_seq) + 1

    def snapshots(self, session: StoredSession) -> list[tuple[str, Any, Any, Any]]:
        """Return a session's snapshots, each as (adapter, seq, state, checksum)."""
        return self.ask(f"session {session.id!r}: its snapshots", SNAPSHOTS, session.number)

    def cursors(self, session: StoredSession) -> dict[str, Cursor]:
        """Return, by participant id, the newest position in the session that each participant has confirmed."""
        rows = self.ask(f"session {session.id!r}: its cursors", CURSORS_OF, session.number)
        return {participant_id: Cursor(seq, count) for participant_id, seq, count in rows}

    def posted_twice(self, session: StoredSession) -> list[tuple[str, str, int]]:
        """Return the idempotency keys that a sender used for several rows, each as (sender, key, last row).

        A log without damage has none.
        """
        return self.ask(f"session {session.id!r}: its keys", REPEATED_KEYS, session.number)
