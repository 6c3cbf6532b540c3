"""`Post`: appends one envelope (message) to the log of a session, with retries after conflicts and lost answers."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from otel_assembly.errors import (
    AdapterError,
    InboxFull,
    LogConflictError,
    LogUnavailableError,
    LogUnsureError,
    NetworkError,
    ProtocolError,
)
from otel_assembly.sessions.envelope import (
    EV_ENVELOPE_EXPIRED,
    EV_EXPECTATION_VIOLATED,
    EV_SESSION_CLOSED,
    EV_SESSION_EXPIRED,
    EV_SESSION_INVITE_ACK,
    EV_SESSION_INVITE_REJECT,
    EV_SESSION_OPENED,
    SYSTEM_TYPES,
    Envelope,
)
from otel_assembly.sessions.expectations import deadlines, violation
from otel_assembly.sessions.folded_session import is_for
from otel_assembly.sessions.hub_session import envelope_of
from otel_assembly.sessions.log import LogRow
from otel_assembly.sessions.metadata import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.sessions.folded_session import FoldedSession
    from otel_assembly.sessions.hub_session import HubSession
    from otel_assembly.sessions.log import SessionLog, TurnClaim

_T = TypeVar("_T")

#: The sender of the hub's own envelopes, such as expirations and violated expectations.
HUB_ID: Final = "ag2.hub"

#: The conflicts after which a post locks the session: without the lock, hubs were measured to starve for half a second.
_CONFLICTS_BEFORE_QUEUE: Final = 3
#: The most attempts. Posts that lock the session do not conflict, so more attempts mean that the log has a defect.
_MOST_ATTEMPTS: Final = 200
#: The first and the longest pause in seconds before a full inbox is checked again; the pause doubles each time.
_INBOX_PAUSES: Final = (0.002, 0.05)

#: The envelope ids that a sender may choose: the lower half of all ids, so that a greater id always exists.
_ID: Final = re.compile("[0-7][0-9a-f]{31}")
#: The types of envelopes that a session accepts before all participants have joined.
_BEFORE_OPEN: Final = frozenset(
    {EV_SESSION_INVITE_ACK, EV_SESSION_INVITE_REJECT, EV_SESSION_CLOSED, EV_SESSION_EXPIRED, EV_EXPECTATION_VIOLATED}
)


def stamped(envelope: Envelope, on: FoldedSession, now: float) -> Envelope:
    """Return the envelope with the row number, id and time of the next row of a session.

    Within a session, ids grow and times never decrease, even if the clocks of hubs differ. The second half of an id is
    random, so that ids are globally unique.

    Args:
        envelope: The envelope; an id that the sender has set is kept.
        on: The state of the session, with its last row.
        now: The hub's time, in seconds since the epoch.
    """
    after = int(on.envelope_id[:16], 16) + 1 if on.envelope_id else 0
    new_id = f"{max(int(now * 1e9), after):016x}{secrets.token_hex(8)}"
    return replace(
        envelope, envelope_id=envelope.envelope_id or new_id, seq=on.seq + 1, created_at=max(now, on.created_at)
    )


class Post:
    """Appends one envelope to a session's log.

    The first attempt checks the envelope against the session's state in the hub's memory: without concurrent appends, a
    post is one write and no read. If this attempt fails, the next one reads the new rows first. Therefore, a hub whose
    state is out of date never refuses a valid post.

    Args:
        session: The hub's copy of the session.
        envelope: The envelope.
        log: The log to append to.
        clock: Returns the time, in seconds since the epoch.
        inbox_limit: The maximum number of unconfirmed envelopes of a recipient; None for no limit.
        claim: The claim of the turn that the envelope answers; None if it answers no claimed turn.

    Attributes:
        conflicts: The number of attempts that failed because of a concurrent append.
        repeated: True if the envelope had already been accepted, under the same idempotency key.
    """

    def __init__(
        self,
        session: HubSession,
        envelope: Envelope,
        *,
        log: SessionLog,
        clock: Callable[[], float],
        inbox_limit: int | None,
        claim: TurnClaim | None = None,
    ) -> None:
        self._session = session
        self._envelope = envelope
        self._log = log
        self._clock = clock
        self._claim = claim
        self._inbox_limit = inbox_limit if envelope.event_type not in SYSTEM_TYPES else None
        #: The envelope ids of the attempts whose outcome is unknown.
        self._unsure: list[str] = []
        self.conflicts = 0
        self.repeated = False

    async def run(self, patience: float) -> Envelope:
        """Post the envelope; wait at most `patience` seconds for room in full inboxes.

        Raises:
            NetworkError: The post was refused, or the log failed; nothing was appended.
        """
        deadline = time.monotonic() + patience
        read_first, pause = False, _INBOX_PAUSES[0]
        while self.conflicts + len(self._unsure) < _MOST_ATTEMPTS:
            try:
                return await self._attempt(read_first=read_first)
            except InboxFull:
                if read_first and time.monotonic() >= deadline:
                    raise
                if read_first:
                    await asyncio.sleep(min(pause, max(deadline - time.monotonic(), 0)))
                    pause = min(2 * pause, _INBOX_PAUSES[1])
                self._session.cursors = await self._log.cursors(self._session.metadata.session_id)
            except (ProtocolError, AdapterError):
                if read_first:
                    raise
            except LogConflictError:
                self.conflicts += 1
                await asyncio.sleep(secrets.randbelow(1000) * 1e-6 * min(self.conflicts, _CONFLICTS_BEFORE_QUEUE))
            except LogUnsureError:
                pass
            except LogUnavailableError as error:
                if self._unsure:
                    raise self._unknown_outcome() from error
                raise
            read_first = True
        if self._unsure:
            raise self._unknown_outcome()
        raise LogConflictError(
            f"session {self._session.metadata.session_id!r}: concurrent writes were first {self.conflicts} times; "
            "nothing was appended"
        )

    def _unknown_outcome(self) -> LogUnsureError:
        return LogUnsureError(
            f"session {self._session.metadata.session_id!r}: the log's answer was lost, and it is unavailable; post "
            "again with the same idempotency key, which returns an envelope that was accepted"
        )

    async def _attempt(self, *, read_first: bool) -> Envelope:
        """Check the envelope and append it once; after several conflicts, with the session locked.

        Args:
            read_first: True to read the new rows first, and to return this envelope if they contain it already.
        """
        session = self._session
        queued = self.conflicts > _CONFLICTS_BEFORE_QUEUE
        async with session.lock, self._log.press(session.metadata.session_id) if queued else nullcontext():
            if read_first:
                # Read the new rows before the lookup by key: in the other order, a row that another hub appends between
                # the two reads would make a repeated post be refused as out of turn.
                await session.refresh()
                if (earlier := await self._accepted_earlier()) is not None:
                    return earlier
            batch, folded = self._decide()
            try:
                rows = [LogRow.of(accepted) for accepted in batch]
                if self._claim is None:
                    await self._log.append(rows, session.position)
                else:
                    await self._log.append(rows, session.position, self._claim)
            except LogUnsureError:
                self._unsure.append(batch[0].envelope_id)
                raise
            session.folded = folded
            return batch[0]

    async def _accepted_earlier(self) -> Envelope | None:
        """Return this envelope if it was already accepted, by an attempt of unknown outcome or under its key.

        Raises:
            ProtocolError: Another envelope has the same idempotency key or the same id.
        """
        envelope = self._envelope
        for envelope_id in self._unsure:
            if row := await self._log.by_id(envelope.session_id, envelope_id):
                return envelope_of(row)
        if envelope.idempotency_key and (
            row := await self._log.by_key(envelope.session_id, envelope.sender_id, envelope.idempotency_key)
        ):
            earlier = envelope_of(row)
            if not earlier.same_content(envelope):
                raise ProtocolError(
                    f"session {envelope.session_id!r}: {envelope.sender_id!r} posted other content under the "
                    f"idempotency key {envelope.idempotency_key!r} before, as row {earlier.seq}; give each post "
                    "a key of its own"
                )
            self.repeated = True
            return earlier
        if envelope.envelope_id and await self._log.by_id(envelope.session_id, envelope.envelope_id):
            raise ProtocolError(
                f"session {envelope.session_id!r}: the envelope id {envelope.envelope_id!r} is taken; leave it empty"
            )
        return None

    def _decide(self) -> tuple[list[Envelope], FoldedSession]:
        """Check the envelope against the session's state.

        Returns:
            The rows to append (the envelope, and those that the hub sends because of it), and the state after them.

        Raises:
            NetworkError: The session refuses the envelope.
        """
        session, envelope = self._session, self._envelope
        metadata, adapter = session.metadata, session.adapter
        self._refuse_by_state()
        self._refuse_met_expectation()
        _call(session, "validate_send", lambda: adapter.validate_send(metadata, envelope, session.folded.adapter_state))
        self._refuse_full_inbox()
        self._refuse_by_id()
        batch: list[Envelope] = []
        folded = session.folded

        def add(next_envelope: Envelope) -> Envelope:
            nonlocal folded
            row = stamped(next_envelope, folded, self._clock())
            folded = folded.after(row, metadata, adapter)
            batch.append(row)
            return row

        accepted = add(envelope)

        def add_consequence(sender_id: str, event_type: str, reason: str = "") -> None:
            data = {"reason": reason} if reason else {}
            cause = accepted.envelope_id
            add(Envelope(metadata.session_id, sender_id, event_type, data, causation_id=cause, trace=accepted.trace))

        if session.folded.state is SessionState.PENDING and folded.state is SessionState.ACTIVE:
            add_consequence(HUB_ID, EV_SESSION_OPENED)
        if accepted.event_type == EV_EXPECTATION_VIOLATED and accepted.event_data.get("action") == "auto_close":
            add_consequence(HUB_ID, EV_SESSION_CLOSED, f"expectation_violated:{accepted.event_data.get('kind')}")
        result = _call(session, "on_accepted", lambda: adapter.on_accepted(metadata, accepted, folded.adapter_state))
        if result.next_state is SessionState.CLOSED and folded.state is SessionState.ACTIVE:
            add_consequence(HUB_ID, EV_SESSION_CLOSED, result.auto_close_reason)
        return batch, folded

    def _refuse_by_state(self) -> None:
        """Raise `ProtocolError` if the session has not opened or has ended, and so does not accept the envelope."""
        session, event_type = self._session, self._envelope.event_type
        state = session.folded.state
        if state is SessionState.ACTIVE or event_type == EV_ENVELOPE_EXPIRED:
            return
        if state is SessionState.PENDING and event_type in _BEFORE_OPEN:
            return
        where = f"session {session.metadata.session_id!r} is {state.value}"
        if state is SessionState.PENDING:
            absent = [p for p in session.metadata.participants if p not in session.folded.joined]
            raise ProtocolError(f"{where}: it waits for {', '.join(map(repr, absent))} to join")
        raise ProtocolError(f"{where}; it accepts no more envelopes")

    def _refuse_met_expectation(self) -> None:
        """Refuse the report of a violated expectation if the expected envelope arrived meanwhile."""
        envelope, session = self._envelope, self._session
        if envelope.event_type != EV_EXPECTATION_VIOLATED:
            return
        pending = deadlines(session.metadata, session.folded.state, session.folded.waits)
        if not any(violation(session.metadata, deadline, HUB_ID).same_content(envelope) for deadline in pending):
            raise ProtocolError(
                f"session {envelope.session_id!r}: the expectation of {envelope.idempotency_key!r} was met meanwhile"
            )

    def _refuse_full_inbox(self) -> None:
        """Raise `InboxFull` if a recipient has as many unconfirmed envelopes as the limit allows."""
        if self._inbox_limit is None:
            return
        session = self._session
        for index, participant_id in enumerate(session.metadata.participants):
            if not is_for(self._envelope, participant_id):
                continue
            cursor = session.cursors.get(participant_id)
            unconfirmed = session.folded.addressed[index] - (cursor.count if cursor else 0)
            if unconfirmed >= self._inbox_limit:
                raise InboxFull(
                    f"session {session.metadata.session_id!r}: {participant_id!r} has {unconfirmed} envelopes to "
                    f"confirm, and its inbox is limited to {self._inbox_limit}; confirm some, or post with a timeout"
                )

    def _refuse_by_id(self) -> None:
        """Raise `ProtocolError` if the sender has set an envelope id that is invalid or not above the newest id."""
        envelope_id, last_id = self._envelope.envelope_id, self._session.folded.envelope_id
        if envelope_id and not (_ID.fullmatch(envelope_id) and envelope_id[:16] > last_id[:16]):
            raise ProtocolError(
                f"session {self._envelope.session_id!r}: the envelope id {envelope_id!r} is not greater than "
                f"{last_id!r}, the newest; leave it empty, or give 32 greater hexadecimal digits, the first at most 7"
            )


def _call(session: HubSession, method: str, call: Callable[[], _T]) -> _T:
    """Call a method of the adapter; if it fails with anything but a refusal, raise `AdapterError`."""
    try:
        return call()
    except NetworkError:
        raise
    except Exception as error:
        manifest = session.metadata.manifest
        where = f"session {session.metadata.session_id!r}"
        raise AdapterError(manifest.type, manifest.version, method, error, where) from error
