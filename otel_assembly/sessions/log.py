"""`SessionLog`: what a hub asks of the place that keeps the logs of sessions.

A log is rows, numbered from 1 without gaps for each session. An append names the row that it goes on top of, and its
key, (session, seq), is the only lock: of two that go on top of one row the second is refused. So no hub owns a session,
and any number of hubs in any process may serve it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import Self

    from otel_assembly.sessions.envelope import Envelope


@dataclass(frozen=True, slots=True)
class LogRow:
    """One envelope as a log keeps it.

    Attributes:
        session_id: Its session.
        seq: Its place in the session, from 1.
        envelope_id: Its id, unique in the session.
        sender_id: Who sent it.
        key: The sender's idempotency key, unique for each (session, sender); None for none.
        body: The envelope as JSON in ASCII.
        checksum: The body's CRC-32, so that a damaged row is found when it is read.
    """

    session_id: str
    seq: int
    envelope_id: str
    sender_id: str
    key: str | None
    body: str
    checksum: int

    @classmethod
    def of(cls, envelope: Envelope) -> Self:
        """The row of an envelope that a hub has stamped."""
        body = envelope.to_json()
        names = (envelope.session_id, envelope.seq, envelope.envelope_id, envelope.sender_id, envelope.idempotency_key)
        return cls(*names, body, checksum_of(body))


def checksum_of(text: str) -> int:
    """The CRC-32 of a text; of one that was read wrongly too."""
    return crc32(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The row of a session that an append goes on top of."""

    seq: int
    envelope_id: str


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a participant has confirmed what was addressed to it.

    Attributes:
        seq: The last row of the session that it confirmed.
        count: How many envelopes addressed to it stand up to there, this one included.
    """

    seq: int
    count: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The folded state of a session up to a row, as JSON.

    Attributes:
        seq: The last row that is folded into it.
        state: The state, as its adapter dumped it, with what the hub folds beside it.
    """

    seq: int
    state: str


@runtime_checkable
class SessionLog(Protocol):
    """Where the logs of sessions are kept.

    Every method may raise `LogUnavailableError`, where the place does not answer; `append` and `create` raise it only
    where nothing was written. Those that read raise `LogDamagedError` for a row that is missing or is not what was
    written: a log compares checksums itself, so that whoever reads need not. *Accepted* means that what `append` and
    `create` wrote is synced on the primary when they return. What somebody who is cancelled was writing may be written
    or not, as after `LogUnsureError`; the log goes on working.

    What `press` holds is held by the task that entered it and by those that it starts: their calls go through, and all
    others who append to the session wait. A log belongs to one event loop.
    """

    async def create(self, session_id: str, metadata: str, first: LogRow) -> None:
        """Write a session's metadata (JSON) and its first row, both or none.

        Raises:
            LogConflictError: There is a session of this id.
            LogUnsureError: Whether it was written is not known; `metadata` tells.
        """
        ...

    async def metadata(self, session_id: str) -> str | None:
        """What `create` wrote; None where there is no such session."""
        ...

    async def session_ids(self) -> Sequence[str]:
        """All sessions, in the order of their creation."""
        ...

    async def append(self, rows: Sequence[LogRow], on: LogPosition) -> None:
        """Write rows of one session on top of its row `on`, all or none.

        Raises:
            LogConflictError: `on` is not the newest row, or an id or a key stands in the log: somebody was first.
            LogUnsureError: Whether they were written is not known; `by_id` tells.
        """
        ...

    async def tail(self, session_id: str, first_seq: int, limit: int | None = None) -> Sequence[LogRow]:
        """The rows of a session from `first_seq` on, in order, at most `limit` of them."""
        ...

    async def by_id(self, session_id: str, envelope_id: str) -> LogRow | None:
        """The row of this id."""
        ...

    async def by_key(self, session_id: str, sender_id: str, key: str) -> LogRow | None:
        """The row that this sender posted under this key."""
        ...

    async def cursors(self, session_id: str) -> Mapping[str, Cursor]:
        """How far each participant has confirmed; who never did is not in it."""
        ...

    async def move_cursor(self, session_id: str, participant_id: str, cursor: Cursor) -> None:
        """Move a participant's cursor forward; a cursor behind the present one changes nothing."""
        ...

    async def snapshot(self, session_id: str, adapter: str) -> Snapshot | None:
        """The newest state that was saved under this adapter's name and version."""
        ...

    async def save_snapshot(self, session_id: str, adapter: str, snapshot: Snapshot) -> None:
        """Keep a state; one that is older than what is kept changes nothing."""
        ...

    def changes(self) -> AsyncIterator[str | None]:
        """The ids of sessions as somebody appends to them; None where some may have been missed, so look at all.

        It begins with None, when it listens: what was appended before that is found by looking.
        """
        ...

    def press(self, session_id: str) -> AbstractAsyncContextManager[None]:
        """Whoever holds this reads, decides and appends in turn with others who hold it, so that nobody starves."""
        ...

    async def close(self) -> None:
        """Let go of files and connections; closing twice is no error."""
        ...
