"""`Post`: appends one envelope to a log, with retries after conflicts and lost answers."""

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

#: The number of conflicts after which a post queues: without a queue, hubs starved for half a second.
_CONFLICTS_BEFORE_QUEUE: Final = 3
#: More conflicts than this, although queued posts do not conflict, mean a defect of the log.
_MOST_ATTEMPTS: Final = 200
#: The first and the longest pause in seconds before a full inbox is checked again; each pause doubles.
_LOOK_AGAIN: Final = (0.002, 0.05)

#: Senders can use only the lower half of the ids, so that a greater id always exists.
_ID: Final = re.compile("[0-7][0-9a-f]{31}")
_BEFORE_OPEN: Final = frozenset(
    {EV_SESSION_INVITE_ACK, EV_SESSION_INVITE_REJECT, EV_SESSION_CLOSED, EV_SESSION_EXPIRED, EV_EXPECTATION_VIOLATED}
)


def stamped(envelope: Envelope, on: FoldedSession, now: float) -> Envelope:
    """Return the envelope with its row number, id and time, after the last row of a session.

    Within a session, ids grow and times never decrease, even if the clocks of hubs differ. The second half of an id is
    random, so that ids are globally unique.
    """
    after = int(on.envelope_id[:16], 16) + 1 if on.envelope_id else 0
    made = f"{max(int(now * 1e9), after):016x}{secrets.token_hex(8)}"
    return replace(
        envelope, envelope_id=envelope.envelope_id or made, seq=on.seq + 1, created_at=max(now, on.created_at)
    )


class Post:
    """Appends one envelope to a session's log.

    The first attempt uses the state that the hub has in memory: without concurrent appends, a post is one write. If
    that attempt is refused, the decision is repeated after reading the new rows. A hub with stale state therefore never
    refuses a valid post.

    Attributes:
        conflicts: The number of attempts that lost against a concurrent append.
        repeated: True if the envelope was already accepted under the same idempotency key.
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
        #: The ids of attempts whose outcome is unknown.
        self._unsure: list[str] = []
        self.conflicts = 0
        self.repeated = False

    async def run(self, patience: float) -> Envelope:
        """Post the envelope; wait at most `patience` seconds for room in full inboxes.

        Raises:
            NetworkError: The post was refused, or the log failed; nothing was appended.
        """
        until = time.monotonic() + patience
        fresh, pause = False, _LOOK_AGAIN[0]
        while self.conflicts + len(self._unsure) < _MOST_ATTEMPTS:
            try:
                return await self._attempt(fresh=fresh)
            except InboxFull:
                if fresh and time.monotonic() >= until:
                    raise
                if fresh:
                    await asyncio.sleep(min(pause, max(until - time.monotonic(), 0)))
                    pause = min(2 * pause, _LOOK_AGAIN[1])
                self._session.cursors = await self._log.cursors(self._session.metadata.session_id)
            except (ProtocolError, AdapterError):
                if fresh:
                    raise
            except LogConflictError:
                self.conflicts += 1
                await asyncio.sleep(secrets.randbelow(1000) * 1e-6 * min(self.conflicts, _CONFLICTS_BEFORE_QUEUE))
            except LogUnsureError:
                pass
            except LogUnavailableError as error:
                if self._unsure:
                    raise self._not_known() from error
                raise
            fresh = True
        if self._unsure:
            raise self._not_known()
        raise LogConflictError(
            f"session {self._session.metadata.session_id!r}: concurrent writes were first {self.conflicts} times; "
            "nothing was appended"
        )

    def _not_known(self) -> LogUnsureError:
        return LogUnsureError(
            f"session {self._session.metadata.session_id!r}: the log's answer was lost, and it is unavailable; post "
            "again with the same idempotency key, which returns an envelope that was accepted"
        )

    async def _attempt(self, *, fresh: bool) -> Envelope:
        session = self._session
        queued = self.conflicts > _CONFLICTS_BEFORE_QUEUE
        async with session.lock, self._log.press(session.metadata.session_id) if queued else nullcontext():
            if fresh:
                # Read the new rows before the key: the other order would refuse a repeated post as out of turn.
                await session.refresh()
                if (first := await self._first()) is not None:
                    return first
            batch, folded = self._decide()
            try:
                rows = [LogRow.of(one) for one in batch]
                if self._claim is None:
                    await self._log.append(rows, session.position)
                else:
                    await self._log.append(rows, session.position, self._claim)
            except LogUnsureError:
                self._unsure.append(batch[0].envelope_id)
                raise
            session.folded = folded
            return batch[0]

    async def _first(self) -> Envelope | None:
        """Return this envelope as accepted earlier, by an attempt of unknown outcome or under its key."""
        given = self._envelope
        for envelope_id in self._unsure:
            if row := await self._log.by_id(given.session_id, envelope_id):
                return envelope_of(row)
        if given.idempotency_key and (
            row := await self._log.by_key(given.session_id, given.sender_id, given.idempotency_key)
        ):
            first = envelope_of(row)
            if not first.same_content(given):
                raise ProtocolError(
                    f"session {given.session_id!r}: {given.sender_id!r} posted other content under the idempotency key "
                    f"{given.idempotency_key!r} before, as row {first.seq}; give each post a key of its own"
                )
            self.repeated = True
            return first
        if given.envelope_id and await self._log.by_id(given.session_id, given.envelope_id):
            raise ProtocolError(
                f"session {given.session_id!r}: the envelope id {given.envelope_id!r} is taken; leave it empty"
            )
        return None

    def _decide(self) -> tuple[list[Envelope], FoldedSession]:
        """Return the stamped envelope, the envelopes that it causes, and the folded session after them.

        Raises:
            NetworkError: The session refuses the envelope.
        """
        session, envelope = self._session, self._envelope
        metadata, adapter = session.metadata, session.adapter
        self._refuse_by_state()
        self._refuse_by_wait()
        _call(session, "validate_send", lambda: adapter.validate_send(metadata, envelope, session.folded.adapter_state))
        self._refuse_by_inbox()
        self._refuse_by_id()
        batch: list[Envelope] = []
        folded = session.folded

        def take(one: Envelope) -> Envelope:
            nonlocal folded
            one = stamped(one, folded, self._clock())
            folded = folded.after(one, metadata, adapter)
            batch.append(one)
            return one

        accepted = take(envelope)

        def caused(sender_id: str, event_type: str, reason: str = "") -> None:
            data = {"reason": reason} if reason else {}
            cause = accepted.envelope_id
            take(Envelope(metadata.session_id, sender_id, event_type, data, causation_id=cause, trace=accepted.trace))

        if session.folded.state is SessionState.PENDING and folded.state is SessionState.ACTIVE:
            caused(HUB_ID, EV_SESSION_OPENED)
        if accepted.event_type == EV_EXPECTATION_VIOLATED and accepted.event_data.get("action") == "auto_close":
            caused(HUB_ID, EV_SESSION_CLOSED, f"expectation_violated:{accepted.event_data.get('kind')}")
        result = _call(session, "on_accepted", lambda: adapter.on_accepted(metadata, accepted, folded.adapter_state))
        if result.next_state is SessionState.CLOSED and folded.state is SessionState.ACTIVE:
            caused(HUB_ID, EV_SESSION_CLOSED, result.auto_close_reason)
        return batch, folded

    def _refuse_by_state(self) -> None:
        session, kind = self._session, self._envelope.event_type
        state = session.folded.state
        if state is SessionState.ACTIVE or kind == EV_ENVELOPE_EXPIRED:
            return
        if state is SessionState.PENDING and kind in _BEFORE_OPEN:
            return
        where = f"session {session.metadata.session_id!r} is {state.value}"
        if state is SessionState.PENDING:
            missing = [p for p in session.metadata.participants if p not in session.folded.joined]
            raise ProtocolError(f"{where}: it waits for {', '.join(map(repr, missing))} to join")
        raise ProtocolError(f"{where}; it accepts no more envelopes")

    def _refuse_by_wait(self) -> None:
        """Refuse a violation whose expectation was met in the meantime."""
        envelope, session = self._envelope, self._session
        if envelope.event_type != EV_EXPECTATION_VIOLATED:
            return
        standing = deadlines(session.metadata, session.folded.state, session.folded.waits)
        if not any(violation(session.metadata, one, HUB_ID).same_content(envelope) for one in standing):
            raise ProtocolError(
                f"session {envelope.session_id!r}: the expectation of {envelope.idempotency_key!r} was met meanwhile"
            )

    def _refuse_by_inbox(self) -> None:
        if self._inbox_limit is None:
            return
        session = self._session
        for index, participant_id in enumerate(session.metadata.participants):
            if not is_for(self._envelope, participant_id):
                continue
            cursor = session.cursors.get(participant_id)
            waiting = session.folded.addressed[index] - (cursor.count if cursor else 0)
            if waiting >= self._inbox_limit:
                raise InboxFull(
                    f"session {session.metadata.session_id!r}: {participant_id!r} has {waiting} envelopes to confirm, "
                    f"and the inbox takes {self._inbox_limit}; confirm some, or post with a timeout"
                )

    def _refuse_by_id(self) -> None:
        given, last = self._envelope.envelope_id, self._session.folded.envelope_id
        if given and not (_ID.fullmatch(given) and given[:16] > last[:16]):
            raise ProtocolError(
                f"session {self._envelope.session_id!r}: the envelope id {given!r} is not greater than {last!r}, the "
                "newest; leave it empty, or give 32 hexadecimal digits that do, of which the first is at most 7"
            )


def _call(session: HubSession, method: str, call: Callable[[], _T]) -> _T:
    """Call the adapter; raise `AdapterError` for errors that are no refusals."""
    try:
        return call()
    except NetworkError:
        raise
    except Exception as error:
        manifest = session.metadata.manifest
        where = f"session {session.metadata.session_id!r}"
        raise AdapterError(manifest.type, manifest.version, method, error, where) from error
