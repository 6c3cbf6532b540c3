"""`SessionLog`: the storage interface of a hub.

A log contains the rows of each session, numbered from 1 without gaps. An append names the row that it follows: of two
appends after the same row, the second is refused. Correctness needs no other lock and no hub that owns a session, so
any number of hubs in any process can serve the same session.
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
        session_id: The id of the envelope's session.
        seq: The row's number in the session, from 1.
        envelope_id: The envelope's id, unique in the session.
        sender_id: The id of the sender.
        key: The sender's idempotency key, unique for each (session, sender); None for no key.
        body: The whole envelope, as ASCII JSON.
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
        """Build the row of an envelope whose number, id and time the hub has set."""
        body = envelope.to_json()
        columns = (
            envelope.session_id,
            envelope.seq,
            envelope.envelope_id,
            envelope.sender_id,
            envelope.idempotency_key,
        )
        return cls(*columns, body, checksum_of(body))


def checksum_of(text: str) -> int:
    """Return the CRC-32 of a text, which may contain surrogates."""
    return crc32(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The row of a session after which new rows are appended.

    Attributes:
        seq: The row's number.
        envelope_id: The id of the row's envelope.
    """

    seq: int
    envelope_id: str


@dataclass(frozen=True, slots=True)
class Cursor:
    """A participant's position in a session: the newest envelope that the participant has confirmed as processed.

    Attributes:
        seq: The row number of that envelope.
        count: The number of envelopes addressed to the participant up to and including that row.
    """

    seq: int
    count: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session's state after one of its rows, saved so that hubs need not read that row and the earlier ones.

    Attributes:
        seq: The number of the last row that the state includes.
        state: The adapter's state (that of the protocol) and the hub's state, together as JSON.
    """

    seq: int
    state: str


@dataclass(frozen=True, slots=True)
class TurnClaim:
    """A server's claim on a participant's turn; a server is a running `serve`.

    While the claim is valid, no other server can store steps or an answer of the turn.

    Attributes:
        session_id: The session.
        participant_id: The participant whose turn it is.
        seq: The number of the session's row that started the turn.
        continues: True if the participant itself sent that row, so that it has two turns in succession.
        token: A random text, unique for each claim; empty if no server has claimed the turn.
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
        version: A number that grows with each change of this object in the log.
        seconds: The length of the claim's lease, in seconds; a claim is valid until its lease expires or is renewed.
        remaining: The seconds until the lease expires, by the log's clock; 0 or less if it has expired.
        entries: The number of stored steps (`WorkEntry`) of unfinished turns.
        answered: Of the rows that other participants sent, the number of the newest whose turn is finished; 0 for none.
        continued: Of the rows that the participant itself sent, the number of the newest whose turn is finished; 0 for
            none.
    """

    claim: TurnClaim
    version: int
    seconds: float
    remaining: float
    entries: int
    answered: int
    continued: int

    def is_finished(self, seq: int, *, continues: bool) -> bool:
        """Return True if the turn that a row started, or a later turn of the participant, is finished.

        Args:
            seq: The number of the row.
            continues: True if the participant itself sent the row; as in `TurnClaim`.
        """
        return seq <= (self.continued if continues else self.answered)


@dataclass(frozen=True, slots=True)
class WorkEntry:
    """A stored step of an unfinished turn, such as a tool call, so that another server can continue the turn.

    Attributes:
        seq: The number of the row that started the turn.
        number: The step's number among the participant's stored steps, from 1.
        body: The step's event, as JSON.
    """

    seq: int
    number: int
    body: str


@runtime_checkable
class SessionLog(Protocol):
    """Storage for the logs of sessions. A log object belongs to one event loop.

    Every method raises `LogUnavailableError` if the storage does not answer; `append` and `create` raise it only if
    nothing was written. Methods that read verify checksums, and raise `LogDamagedError` for a missing or damaged row.

    A write is *accepted* once `append` or `create` returns: it is then synced to disk, on PostgreSQL's primary server.
    If a write is canceled, it may or may not be stored, as after `LogUnsureError`; the log stays usable.
    """

    async def create(self, session_id: str, metadata: str, first: LogRow) -> None:
        """Write a session's metadata (JSON) and its first row in one transaction.

        Raises:
            LogConflictError: A session with this id exists.
            LogUnsureError: The outcome is unknown; call `metadata` to find out.
        """
        ...

    async def metadata(self, session_id: str) -> str | None:
        """Return a session's metadata (JSON), as `create` wrote it; None if there is no such session."""
        ...

    async def session_ids(self) -> Sequence[str]:
        """Return the ids of all sessions, in the order of their creation."""
        ...

    async def append(self, rows: Sequence[LogRow], on: LogPosition, claim: TurnClaim | None = None) -> None:
        """Append rows of one session in one transaction.

        Args:
            rows: The rows, all of one session.
            on: The newest row of the session, as the caller knows it; the new rows follow this row.
            claim: The claim of the turn that the rows answer; the same transaction finishes that turn, as `end_turn`
                does. None for rows that answer no claimed turn.

        Raises:
            TurnClaimLostError: The claim is no longer valid; nothing was written.
            LogConflictError: `on` is not the newest row, or the log already contains an id or a key.
            LogUnsureError: The outcome is unknown; call `by_id` to find out.
        """
        ...

    async def rows_from(self, session_id: str, first_seq: int, limit: int | None = None) -> Sequence[LogRow]:
        """Return the rows of a session from row number `first_seq` to the newest, in order.

        Args:
            session_id: The session.
            first_seq: The number of the first row to return.
            limit: The maximum number of rows, the oldest first; None for all.
        """
        ...

    async def by_id(self, session_id: str, envelope_id: str) -> LogRow | None:
        """Return the row with this envelope id; None if there is none."""
        ...

    async def by_key(self, session_id: str, sender_id: str, key: str) -> LogRow | None:
        """Return the row that this sender posted with this idempotency key; None if there is none."""
        ...

    async def cursors(self, session_id: str) -> Mapping[str, Cursor]:
        """Return, by participant id, the newest position in the session that each participant has confirmed.

        Participants that have confirmed no envelope are missing.
        """
        ...

    async def move_cursor(self, session_id: str, participant_id: str, cursor: Cursor) -> None:
        """Store the position that a participant has confirmed, unless a newer position is stored."""
        ...

    async def snapshot(self, session_id: str, adapter: str) -> Snapshot | None:
        """Return the session's stored snapshot; None if there is none.

        Args:
            session_id: The session.
            adapter: The adapter whose state the snapshot contains, such as ``discussion/1`` (type and version).
        """
        ...

    async def save_snapshot(self, session_id: str, adapter: str, snapshot: Snapshot) -> None:
        """Store a session's snapshot, unless the stored one includes as many rows or more.

        Args:
            session_id: The session.
            adapter: The adapter whose state the snapshot contains, such as ``discussion/1``.
            snapshot: The snapshot.
        """
        ...

    async def turn(self, session_id: str, participant_id: str, now: float) -> StoredTurn | None:
        """Return the newest turn of a participant, even if its lease has expired; None if it never had one.

        `StoredTurn.remaining` is the time until the lease expires. It is computed with PostgreSQL's clock; logs without
        a server use `now` instead.

        Args:
            session_id: The session.
            participant_id: The participant.
            now: The caller's time, in seconds since the epoch.
        """
        ...

    async def claim_turn(self, claim: TurnClaim, seen: StoredTurn | None, now: float, seconds: float) -> bool:
        """Claim a turn of a participant for a server; return True if the claim is stored.

        The claim is stored only if no other server has changed the participant's turn since the caller read it with
        `turn`. So if several callers pass the same `seen`, only one of them succeeds. The caller decides from `seen`
        if it may claim the turn.

        Args:
            claim: The claim, with a token that no other claim has.
            seen: The result of `turn`; None if the participant never had a turn.
            now: The caller's time, in seconds since the epoch.
            seconds: The length of the lease, in seconds.
        """
        ...

    async def renew_turn(self, claim: TurnClaim, now: float, seconds: float) -> bool:
        """Extend a claim's lease, so that it expires `seconds` after `now`; return False if the claim is not valid."""
        ...

    async def end_turn(self, claim: TurnClaim, *, finished: bool) -> bool:
        """Release a claim; return False if it was no longer valid.

        Args:
            claim: The claim.
            finished: True if the turn is over: the turn's stored steps are deleted, and the turn is never claimed
                again. False if another server is to continue the turn.
        """
        ...

    async def add_work(self, claim: TurnClaim, number: int, body: str) -> bool:
        """Store a step of a claimed turn; return False if the claim is no longer valid. The call is idempotent.

        Args:
            claim: The claim.
            number: The step's number: that of the newest stored step plus 1, or 1.
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
        """Yield the id of each session that gets new rows, as soon as it gets them.

        None means that ids may have been missed, so that the caller must check all sessions. The first item is None:
        from then on, the log reports every change.
        """
        ...

    def press(self, session_id: str) -> AbstractAsyncContextManager[None]:
        """Return a context manager that locks a session for reading, deciding and appending.

        A hub uses the lock if its appends keep failing because of concurrent appends. Waiting tasks get the lock in
        order, so no writer starves. The lock belongs to the task that entered the context manager, and to the tasks
        that this task starts: their calls proceed, and other tasks that append to the session wait.
        """
        ...

    async def close(self) -> None:
        """Release the log's files and connections; a second call does nothing."""
        ...
