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


@dataclass(frozen=True, slots=True)
class TurnClaim:
    """A server's claim on a turn of a participant: while it holds, no other server stores work or an answer of it.

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
        entries: How many entries of work are stored that belong to turns that are not finished.
        answered: The newest row of another sender whose turn is finished; 0 for none.
        continued: The newest row of the participant itself after which it finished continuing; 0 for none.
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
        number: Its place in the participant's work, from 1.
        body: The step's event, as JSON.
    """

    seq: int
    number: int
    body: str


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

    async def append(self, rows: Sequence[LogRow], on: LogPosition, claim: TurnClaim | None = None) -> None:
        """Write rows of one session on top of its row `on`, all or none.

        With a claim, the rows are the answer of its turn: in the same commit the turn is finished, as by `end_turn`.

        Raises:
            TurnClaimLostError: The claim does not hold any more; nothing was written.
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

    async def turn(self, session_id: str, participant_id: str, now: float) -> StoredTurn | None:
        """The newest turn of a participant; None if it never had one.

        Leases are judged by the log's clock: a server of a database has one for all its clients. A log without a clock
        of its own goes by `now`.

        Args:
            session_id: The session.
            participant_id: The participant.
            now: The caller's time, in seconds since the epoch.
        """
        ...

    async def claim_turn(self, claim: TurnClaim, seen: StoredTurn | None, now: float, seconds: float) -> bool:
        """Claim a turn, if nothing has changed since `turn` returned `seen`; return True if the claim holds.

        Whether the turn is free is the caller's decision. Of several callers that have seen the same, one succeeds.

        Args:
            claim: The claim, with a token that no other claim has.
            seen: What `turn` returned.
            now: As for `turn`.
            seconds: The length of the lease.
        """
        ...

    async def renew_turn(self, claim: TurnClaim, now: float, seconds: float) -> bool:
        """Let the lease of a claim begin anew; return False if the claim does not hold any more."""
        ...

    async def end_turn(self, claim: TurnClaim, *, finished: bool) -> bool:
        """Give a claim up; return False if it did not hold any more.

        Args:
            claim: The claim.
            finished: True if the turn is over: its work is deleted, and it is never claimed again. False if another
                server is to continue it.
        """
        ...

    async def add_work(self, claim: TurnClaim, number: int, body: str) -> bool:
        """Store a step of a turn; return False if the claim does not hold any more. Repeating a call changes nothing.

        Args:
            claim: The claim.
            number: The step's place, the one behind the newest.
            body: The step's event, as JSON.

        Raises:
            LogUnsureError: Whether it was stored is not known; the same call tells.
        """
        ...

    async def work(self, session_id: str, participant_id: str) -> Sequence[WorkEntry]:
        """The steps of a participant's turns that are not finished, in order.

        Raises:
            LogDamagedError: An entry is missing, or is not what was written.
        """
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
