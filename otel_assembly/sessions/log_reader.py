"""`LogReader`: reads a whole log without writing, while hubs may append to it. All methods block."""

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
    SESSION_OF_ID,
    SNAPSHOTS,
    STRAYS,
    TWICE,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

#: How many rows are held at a time; a row may be a megabyte.
_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as a log stores it, unverified.

    Attributes:
        number: Its number in the order of creation.
        id: Its id.
        metadata: Its metadata, as JSON.
        checksum: The checksum of the metadata.
    """

    number: int
    id: str
    metadata: Any
    checksum: Any


class LogReader(ABC):
    """Reads the unverified content of a log, one page at a time. It is a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the log."""

    @abstractmethod
    def ask(self, what: str, statement: str, *arguments: object) -> list[Any]:
        """Return the rows that a statement selects.

        Raises:
            LogDamagedError: The rows cannot be read; the message contains `what`.
            LogUnavailableError: The log does not answer.
        """

    def problems(self) -> Iterator[str]:
        """Yield descriptions of damage to the log that concerns no single session."""
        for number, count in self.ask("the rows of all sessions", STRAYS):
            rows = "1 row" if count == 1 else f"{count:,} rows"
            yield f"{rows} of session number {number}, which is not there; restore the log"

    def sessions(self) -> Iterator[StoredSession]:
        """Yield all sessions, in the order of their creation."""
        number = -1
        while True:
            found = self.ask("the list of sessions", PAGE_OF_SESSIONS, number, _PAGE)
            for one in found:
                yield StoredSession(*one)
            if len(found) < _PAGE:
                return
            number = found[-1][0]

    def session(self, session_id: str) -> StoredSession | None:
        """Return the session with this id."""
        found = self.ask(f"session {session_id!r}", SESSION_OF_ID, session_id)
        return StoredSession(*found[0]) if found else None

    def rows(self, session: StoredSession, first_seq: int = 1) -> Iterator[Sequence[Any]]:
        """Yield pages of rows from `first_seq` on: seq, envelope id, sender, key, body, checksum.

        Raises:
            LogDamagedError: A row cannot be read; the message names it. All rows before it were yielded.
        """
        size = _PAGE
        while True:
            what = f"session {session.id!r}: row {first_seq}"
            try:
                found = self.ask(what, PAGE_OF_ROWS, session.number, first_seq, size)
            except LogDamagedError:
                if size == 1:
                    raise
                size = 1
                continue
            yield from found
            if len(found) < size or type(found[-1][0]) is not int:
                return
            first_seq = max(found[-1][0], first_seq) + 1

    def snapshots(self, session: StoredSession) -> list[tuple[str, Any, Any, Any]]:
        """Return a session's snapshots: the adapter's name, the row, the state and its checksum."""
        return self.ask(f"session {session.id!r}: its snapshots", SNAPSHOTS, session.number)

    def cursors(self, session: StoredSession) -> dict[str, Cursor]:
        """Return the cursor of each participant."""
        found = self.ask(f"session {session.id!r}: its cursors", CURSORS_OF, session.number)
        return {participant_id: Cursor(seq, count) for participant_id, seq, count in found}

    def posted_twice(self, session: StoredSession) -> list[tuple[str, str, int]]:
        """Return idempotency keys that a sender used for several rows: sender, key, last row."""
        return self.ask(f"session {session.id!r}: its keys", TWICE, session.number)
