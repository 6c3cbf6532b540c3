"""`SessionLog`: the storage interface of a hub.

A log contains the rows of each session, numbered from 1 without gaps. An append names the row that it follows. The key
(session, seq) is the only lock: of two appends after the same row, the second is refused. No hub owns a session, so any
number of hubs in any process can serve it.
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
    """One envelope, as a log stores it.

    Attributes:
        session_id: Its session.
        seq: Its number in the session, from 1.
        envelope_id: Its id, unique in the session.
        sender_id: The sender.
        key: The sender's idempotency key, unique for each (session, sender); None for none.
        body: The envelope, as ASCII JSON.
        checksum: The CRC-32 of the body; it detects damaged rows.
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
        """Return the row of an envelope that a hub has stamped."""
        body = envelope.to_json()
        names = (envelope.session_id, envelope.seq, envelope.envelope_id, envelope.sender_id, envelope.idempotency_key)
        return cls(*names, body, checksum_of(body))


def checksum_of(text: str) -> int:
    """Return the CRC-32 of a text, which may contain surrogates."""
    return crc32(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The row of a session that an append follows."""

    seq: int
    envelope_id: str


@dataclass(frozen=True, slots=True)
class Cursor:
    """A participant's position: the newest envelope that it confirmed.

    Attributes:
        seq: The last row of the session that it confirmed.
        count: The number of envelopes addressed to the participant up to and including that row.
    """

    seq: int
    count: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The folded state of a session up to a row, as JSON.

    Attributes:
        seq: The last row that the state includes.
        state: The adapter's serialized state, and the state that the hub keeps for each session.
    """

    seq: int
    state: str


@dataclass(frozen=True, slots=True)
class TurnClaim:
    """A server's claim on a turn. While it is valid, no other server can store work or an answer.

    Attributes:
        session_id: The session.
        participant_id: The participant whose turn it is.
        seq: The row of the session that the turn answers.
        continues: True if the participant sent that row itself and continues after it.
        token: Unique for each claim; empty if no server holds the turn.
    """

    session_id: str
    participant_id: str
    seq: int
    continues: bool
    token: str


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """The newest turn of a participant, as a log stores it.

    Attributes:
        claim: The newest claim.
        version: A number that grows with each change of the turn.
        seconds: The length of the lease.
        remaining: The seconds until the lease is over, by the log's clock; 0 or less if it is over.
        entries: The number of stored work entries of unfinished turns.
        answered: The newest row of another sender whose turn is finished; 0 for none.
        continued: The newest own row after which the participant finished continuing; 0 for none.
    """

    claim: TurnClaim
    version: int
    seconds: float
    remaining: float
    entries: int
    answered: int
    continued: int

    def is_finished(self, seq: int, *, continues: bool) -> bool:
        """Return True if the turn that answers a row is finished, or a later one of its kind is."""
        return seq <= (self.continued if continues else self.answered)


@dataclass(frozen=True, slots=True)
class WorkEntry:
    """One step of a turn that is not finished.

    Attributes:
        seq: The row that the turn answers.
        number: Its number in the participant's work, from 1.
        body: The step's event, as JSON.
    """

    seq: int
    number: int
    body: str


@runtime_checkable
class SessionLog(Protocol):
    """Storage for the logs of sessions.

    Every method raises `LogUnavailableError` if the storage does not answer; `append` and `create` raise it only if
    nothing was written. Methods that read verify checksums, and raise `LogDamagedError` for a missing or damaged row. A
    write is *accepted* once `append` or `create` returns: it is then synced on the primary. A canceled write may or may
    not be stored, as after `LogUnsureError`; the log stays usable. The lock of `press` belongs to the task that entered
    it and to the tasks that it starts. Their calls proceed; other tasks that append to the session wait. A log belongs
    to one event loop.
    """

    async def create(self, session_id: str, metadata: str, first: LogRow) -> None:
        """Write a session's metadata (JSON) and its first row in one transaction.

        Raises:
            LogConflictError: A session with this id exists.
            LogUnsureError: The outcome is unknown; call `metadata` to find out.
        """
        ...

    async def metadata(self, session_id: str) -> str | None:
        """Return the metadata that `create` wrote; None if there is no such session."""
        ...

    async def session_ids(self) -> Sequence[str]:
        """Return the ids of all sessions, in the order of their creation."""
        ...

    async def append(self, rows: Sequence[LogRow], on: LogPosition, claim: TurnClaim | None = None) -> None:
        """Append rows of one session after its row `on` in one transaction.

        With a claim, the rows are the answer of its turn: in the same commit the turn is finished, as by `end_turn`.

        Raises:
            TurnClaimLostError: The claim is no longer valid; nothing was written.
            LogConflictError: `on` is not the newest row, or the log already contains an id or a key.
            LogUnsureError: The outcome is unknown; call `by_id` to find out.
        """
        ...

    async def tail(self, session_id: str, first_seq: int, limit: int | None = None) -> Sequence[LogRow]:
        """Return at most `limit` rows of a session from `first_seq` on, in order."""
        ...

    async def by_id(self, session_id: str, envelope_id: str) -> LogRow | None:
        """Return the row with this envelope id."""
        ...

    async def by_key(self, session_id: str, sender_id: str, key: str) -> LogRow | None:
        """Return the row that this sender posted with this idempotency key."""
        ...

    async def cursors(self, session_id: str) -> Mapping[str, Cursor]:
        """Return the cursor of each participant that has confirmed an envelope."""
        ...

    async def move_cursor(self, session_id: str, participant_id: str, cursor: Cursor) -> None:
        """Move a participant's cursor forward; an older cursor is ignored."""
        ...

    async def snapshot(self, session_id: str, adapter: str) -> Snapshot | None:
        """Return the newest snapshot of this adapter name and version."""
        ...

    async def save_snapshot(self, session_id: str, adapter: str, snapshot: Snapshot) -> None:
        """Store a snapshot; an older one than the stored one is ignored."""
        ...

    async def turn(self, session_id: str, participant_id: str, now: float) -> StoredTurn | None:
        """Return the newest turn of a participant; None if it never had one.

        Leases expire by the clock of the database server. A log without a server uses `now`.

        Args:
            session_id: The session.
            participant_id: The participant.
            now: The caller's time, in seconds since the epoch.
        """
        ...

    async def claim_turn(self, claim: TurnClaim, seen: StoredTurn | None, now: float, seconds: float) -> bool:
        """Claim a turn, if nothing has changed since `turn` returned `seen`; return True if the claim holds.

        The caller decides if the turn is free. If several callers pass the same `seen`, one of them succeeds.

        Args:
            claim: The claim, with a token that no other claim has.
            seen: The result of `turn`.
            now: As for `turn`.
            seconds: The length of the lease.
        """
        ...

    async def renew_turn(self, claim: TurnClaim, now: float, seconds: float) -> bool:
        """Restart the lease of a claim; return False if the claim is no longer valid."""
        ...

    async def end_turn(self, claim: TurnClaim, *, finished: bool) -> bool:
        """Release a claim; return False if it was no longer valid.

        Args:
            claim: The claim.
            finished: True if the turn is over: its work is deleted, and it is never claimed again. False if another
                server is to continue it.
        """
        ...

    async def add_work(self, claim: TurnClaim, number: int, body: str) -> bool:
        """Store a step of a turn; return False if the claim is no longer valid. The call is idempotent.

        Args:
            claim: The claim.
            number: The step's number, one more than the newest.
            body: The step's event, as JSON.

        Raises:
            LogUnsureError: The outcome is unknown; repeat the call.
        """
        ...

    async def work(self, session_id: str, participant_id: str) -> Sequence[WorkEntry]:
        """Return the steps of a participant's unfinished turns, in order.

        Raises:
            LogDamagedError: An entry is missing, or its checksum is wrong.
        """
        ...

    def changes(self) -> AsyncIterator[str | None]:
        """Yield the id of each session that gets new rows; None if ids may have been missed.

        After None, the caller checks all sessions. The first item is None, sent once the log listens for changes.
        """
        ...

    def press(self, session_id: str) -> AbstractAsyncContextManager[None]:
        """Return a fair lock for reading, deciding and appending, so that no writer starves."""
        ...

    async def close(self) -> None:
        """Release files and connections; closing twice is no error."""
        ...
