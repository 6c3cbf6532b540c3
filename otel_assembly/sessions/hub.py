"""`Hub`: creates sessions, accepts envelopes and delivers them to participants."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from otel_assembly._internal.arguments import whole_number
from otel_assembly.errors import (
    AccessDeniedError,
    AdapterError,
    ConfigurationError,
    LogConflictError,
    LogDamagedError,
    LogRegressed,
    LogUnsureError,
    NetworkError,
    NotFoundError,
    ProtocolError,
)
from otel_assembly.sessions.audit_log import audit_refusal
from otel_assembly.sessions.delivery import Delivery
from otel_assembly.sessions.envelope import (
    EV_ENVELOPE_EXPIRED,
    EV_SESSION_CLOSED,
    EV_SESSION_EXPIRED,
    EV_SESSION_INVITE,
    EV_SESSION_INVITE_ACK,
    EV_SESSION_INVITE_REJECT,
    SYSTEM_TYPES,
    Envelope,
    check_envelope,
    check_id,
)
from otel_assembly.sessions.folded_session import FoldedSession, is_for
from otel_assembly.sessions.hub_session import HubSession, envelope_of
from otel_assembly.sessions.log import Cursor, LogRow
from otel_assembly.sessions.log_subscription import LogSubscription
from otel_assembly.sessions.metadata import SessionMetadata
from otel_assembly.sessions.post import HUB_ID, Post, stamped
from otel_assembly.sessions.session_recorder import record_unconfirmed, recorded_hydration, recorded_post
from otel_assembly.sessions.turn_lease import TurnLease
from otel_assembly.sessions.violations import append_violations

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from otel_assembly.sessions.adapter import SessionAdapter
    from otel_assembly.sessions.log import SessionLog, TurnClaim
    from otel_assembly.sessions.session_recorder import PostRecording

_log: Final = logging.getLogger(__name__)

#: The number of rows that `Hub.inbox` reads from a log at a time.
_PAGE: Final = 200


class Hub:
    """Creates sessions, accepts envelopes (messages) and delivers them to the participants.

    Several hubs, in any processes, can share one log: a hub computes a session's state from the log, and an append
    succeeds only if it follows the newest row that the hub has read. Hubs can therefore start and stop at any time, and
    all hubs see an accepted envelope. A hub is an async context manager, and belongs to one event loop.

    Args:
        log: The store of the sessions' logs. The hub does not close it.
        adapters: The supported protocols.
        inbox_limit: The maximum number of unconfirmed envelopes of a participant. Further posts to the participant wait
            at most for the `timeout` of `post`, and are then refused.
        snapshot_every: The number of envelopes between two snapshots of a session's state; 0 saves no snapshots. With a
            snapshot, another hub does not have to read the whole log.
        max_envelope_bytes: The maximum size of an envelope as JSON.
        clock: Returns the time, in seconds since the epoch. Lifetimes and deadlines are compared with times that other
            processes stored, so a monotonic clock, which is valid in one process only, cannot replace it.

    Raises:
        ConfigurationError: Two adapters have the same type and version, or a limit is not a valid number.
    """

    def __init__(
        self,
        log: SessionLog,
        adapters: Iterable[SessionAdapter],
        *,
        inbox_limit: int = 1_000,
        snapshot_every: int = 500,
        max_envelope_bytes: int = 1 << 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        whole_number("inbox_limit", inbox_limit, unit="envelopes")
        whole_number("snapshot_every", snapshot_every, least=0, unit="envelopes")
        whole_number("max_envelope_bytes", max_envelope_bytes, unit="bytes")
        self._log = log
        self._adapters: dict[tuple[str, int], SessionAdapter] = {}
        for adapter in adapters:
            key = (adapter.manifest.type, adapter.manifest.version)
            if key in self._adapters:
                raise ConfigurationError(f"two adapters have type {key[0]!r} and version {key[1]}; remove one of them")
            self._adapters[key] = adapter
        self._inbox_limit = inbox_limit
        self._snapshot_every = snapshot_every
        self._max_bytes = max_envelope_bytes
        self._clock = clock
        self._sessions: dict[str, HubSession] = {}
        self._hydrations: dict[str, asyncio.Task[HubSession]] = {}
        self._subscription = LogSubscription(log)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the hub's subscription to the log and all iterators of `changes`. The log stays open."""
        await self._subscription.aclose()

    # --- sessions

    async def create(
        self,
        type: str,  # noqa: A002 - named like SessionManifest.type
        creator_id: str,
        participants: Sequence[str],
        *,
        version: int | None = None,
        session_id: str | None = None,
        knobs: Mapping[str, Any] | None = None,
        ttl_seconds: float | None = None,
    ) -> SessionMetadata:
        """Create a session and invite its participants; the session opens when all have joined.

        Args:
            type: The protocol's name.
            creator_id: The participant that creates the session, and joins without an invitation.
            participants: All participants, in order. The creator is inserted in front if it is not listed.
            version: The protocol's version; None for the newest version that this hub has an adapter for.
            session_id: The session's id; None for a random one.
            knobs: The protocol's settings for this session, a JSON object; None for no settings.
            ttl_seconds: The session's lifetime; None for no limit.

        Raises:
            NotFoundError: This hub has no such adapter.
            ProtocolError: The session is invalid, or its id is already in use.
        """
        adapter = self._find_adapter(type, version)
        members = tuple(participants) if creator_id in participants else (creator_id, *participants)
        for participant_id in members:
            check_id("participant", participant_id)
        if len(set(members)) != len(members) or HUB_ID in members:
            raise ProtocolError(
                f"the participants are {', '.join(map(repr, members))}; name each once, and do not use {HUB_ID!r}"
            )
        if ttl_seconds is not None and not 0 < ttl_seconds < math.inf:
            raise ProtocolError(f"ttl_seconds of a session is {ttl_seconds!r}; give seconds above 0, or None")
        name = session_id if session_id is not None else secrets.token_hex(16)
        check_id("session_id", name)
        now = self._clock()
        metadata = SessionMetadata(name, adapter.manifest, creator_id, members, dict(knobs or {}), now, ttl_seconds)
        # Other hubs read the metadata from JSON, in which a tuple among the knobs becomes a list.
        metadata = SessionMetadata.from_json(metadata.to_json())
        try:
            adapter.validate_create(metadata)
        except NetworkError:
            raise
        except Exception as error:
            raise AdapterError(adapter.manifest.type, adapter.manifest.version, "validate_create", error) from error
        initial = FoldedSession.fresh(metadata, adapter)
        invite = stamped(Envelope(name, creator_id, EV_SESSION_INVITE, {"participants": list(members)}), initial, now)
        with recorded_post(invite) as recording:
            recording.known(metadata)
            await self._create(metadata, recording.carried(invite))
            recording.accepted(invite)
        return metadata

    async def _create(self, metadata: SessionMetadata, invite: Envelope) -> None:
        """Write a session and its first row to the log; repeat a write with an unknown outcome.

        Raises:
            ProtocolError: Another session has the id.
        """
        name, text, outcome_unknown = metadata.session_id, metadata.to_json(), False
        while True:
            try:
                await self._log.create(name, text, LogRow.of(invite))
            except LogUnsureError:
                outcome_unknown = True
                if await self._log.metadata(name) is not None:
                    continue
            except LogConflictError as error:
                # If the answer to an earlier attempt was lost, the existing session may be this one.
                if outcome_unknown and (row := await self._log.by_id(name, invite.envelope_id)) and row.seq == 1:
                    return
                raise ProtocolError(
                    f"session {name!r} already exists; choose another id, or None for a random one"
                ) from error
            else:
                return

    def _find_adapter(self, type: str, version: int | None) -> SessionAdapter:  # noqa: A002
        if version is None:
            version = max((v for t, v in self._adapters if t == type), default=None)
        adapter = self._adapters.get((type, version)) if version is not None else None
        if adapter is None:
            supported = ", ".join(f"{t} {v}" for t, v in sorted(self._adapters)) or "none"
            of_version = f" version {version}" if version is not None else ""
            raise NotFoundError(f"this hub has no adapter {type!r}{of_version}; it has: {supported}")
        return adapter

    async def session_ids(self) -> Sequence[str]:
        """Return the ids of all sessions of the log, in the order of their creation."""
        return await self._log.session_ids()

    async def metadata(self, session_id: str) -> SessionMetadata:
        """Return a session's metadata, which is fixed at its creation.

        Raises:
            NotFoundError: There is no such session, or this hub has no adapter for it.
        """
        return (await self._session(session_id)).metadata

    async def adapter(self, session_id: str) -> SessionAdapter:
        """Return the adapter of a session's protocol.

        Raises:
            NotFoundError: There is no such session, or this hub has no adapter for it.
        """
        return (await self._session(session_id)).adapter

    async def folded(self, session_id: str) -> FoldedSession:
        """Return a session's current state, computed from its log.

        Raises:
            NetworkError: There is no such session, or its log cannot be read.
        """
        session = await self._session(session_id)
        async with session.lock:
            await session.refresh()
            return session.folded

    async def _session(self, session_id: str) -> HubSession:
        """Return this hub's copy of a session, which may lack the newest rows of the log.

        The first call for a session reads it from the log; concurrent calls share this read.
        """
        if (session := self._sessions.get(session_id)) is not None:
            return session
        task = self._hydrations.get(session_id)
        if task is None:
            task = self._hydrations[session_id] = asyncio.create_task(self._hydrate(session_id))
            task.add_done_callback(lambda _: self._hydrations.pop(session_id, None))
        return await asyncio.shield(task)

    async def _hydrate(self, session_id: str) -> HubSession:
        """Read a session from the log for the first time, and store this hub's copy of it."""
        check_id("session_id", session_id)
        text = await self._log.metadata(session_id)
        if text is None:
            raise NotFoundError(f"there is no session {session_id!r}")
        metadata = SessionMetadata.from_json(text)
        adapter = self._find_adapter(metadata.manifest.type, metadata.manifest.version)
        session = HubSession(metadata, adapter, self._log)
        with recorded_hydration(metadata) as recording:
            envelope_count = await session.hydrate()
            recording.folded(envelope_count, session.folded.seq, from_snapshot=session.snapshot_seq > 0)
        return self._sessions.setdefault(session_id, session)

    # --- posting

    async def post(
        self,
        envelope: Envelope,
        timeout: float = 0.0,  # noqa: ASYNC109 - limits the wait for inbox room, not the call
        *,
        claim: TurnClaim | None = None,
    ) -> Envelope:
        """Append an envelope to its session's log.

        Args:
            envelope: The envelope; see `Envelope` for the fields that the sender sets and those that the hub sets.
            timeout: The maximum time to wait for room in the recipients' inboxes, in seconds.
            claim: The claim on the turn that the envelope answers. The envelope is accepted only while the claim is
                valid, and ends the turn. None: the envelope answers no claimed turn.

        Returns:
            The accepted envelope with its row number, id and time. If the sender has posted the same content with this
            idempotency key before, the result is the envelope that was accepted then.

        Raises:
            NotFoundError: There is no such session, or this hub has no adapter for it.
            AccessDeniedError: The sender is not a participant.
            ProtocolError: The protocol does not allow the envelope, or a field is invalid.
            InboxFull: A recipient has too many unconfirmed envelopes.
            AdapterError: A method of the protocol's adapter raised an unexpected error.
            TurnClaimLostError: The claim is no longer valid.
            SessionLogError: The append to the log failed.
        """
        return await self._post(envelope, timeout, claim=claim)

    async def join(self, session_id: str, participant_id: str) -> Envelope:
        """Accept an invitation; the session opens when all participants have joined. A second call does nothing."""
        return await self._post_lifecycle(session_id, participant_id, EV_SESSION_INVITE_ACK, key="ag2.join")

    async def reject(self, session_id: str, participant_id: str, reason: str = "") -> Envelope:
        """Reject an invitation, which closes the session; the log records the reason."""
        return await self._post_lifecycle(session_id, participant_id, EV_SESSION_INVITE_REJECT, reason)

    async def close(self, session_id: str, participant_id: str, reason: str = "") -> Envelope:
        """Close a session for all participants; the log records the reason and stays readable."""
        return await self._post_lifecycle(session_id, participant_id, EV_SESSION_CLOSED, reason)

    async def expire(self, session_id: str) -> bool:
        """End a session if its lifetime (`ttl_seconds`) has passed.

        Returns:
            True if this call ended the session.
        """
        session = await self._session(session_id)
        ttl = session.metadata.ttl_seconds
        if ttl is None or session.folded.over or self._clock() <= session.metadata.created_at + ttl:
            return False
        expiration = Envelope(session_id, HUB_ID, EV_SESSION_EXPIRED, idempotency_key="ag2.expired")
        try:
            await self._post_as_hub(session, expiration)
        except ProtocolError:
            # Another post ended the session first.
            return False
        return True

    async def sweep(self, session_id: str | None = None) -> Sequence[Envelope]:
        """Report missed deadlines in the log, and end sessions whose lifetime has passed.

        The deadlines are the protocol's time limits (`SessionManifest.expectations`). Each missed deadline is appended
        to the session's log once, even if several hubs sweep. Call this method every few seconds; `serve` does so for
        the sessions that it serves.

        Args:
            session_id: The session to sweep; None for all sessions. If None, a session that cannot be read is skipped
                with a warning.

        Returns:
            The envelopes of missed deadlines that this call appended.

        Raises:
            NetworkError: The session, or the log, cannot be read.
        """
        if session_id is not None:
            return await self._sweep(session_id)
        violations: list[Envelope] = []
        for name in await self._log.session_ids():
            if (session := self._sessions.get(name)) is not None and session.folded.over:
                continue
            try:
                violations += await self._sweep(name)
            except (NotFoundError, AdapterError, LogDamagedError, LogRegressed) as error:
                _log.warning("session %r was not swept: %s", name, error)
        return violations

    async def _sweep(self, session_id: str) -> list[Envelope]:
        session = await self._session(session_id)
        await self.folded(session_id)
        await self.expire(session_id)
        return await append_violations(session, self._log, self._clock)

    async def _post_lifecycle(
        self, session_id: str, sender_id: str, event_type: str, reason: str = "", key: str | None = None
    ) -> Envelope:
        """Post an envelope of a system type, such as an answer to an invitation, for a participant."""
        data = {"reason": reason} if reason else {}
        envelope = Envelope(session_id, sender_id, event_type, data, idempotency_key=key)
        return await self._post(envelope, 0.0, allow_system_type=True)

    async def _post(
        self, envelope: Envelope, patience: float, *, allow_system_type: bool = False, claim: TurnClaim | None = None
    ) -> Envelope:
        """Post an envelope of a participant, and log a refusal to the audit log.

        Args:
            envelope: The envelope.
            patience: The maximum time to wait for room in the recipients' inboxes, in seconds.
            allow_system_type: True for the types in `SYSTEM_TYPES`, which participants cannot post directly.
            claim: The claim on the turn that the envelope answers.
        """
        with recorded_post(envelope) as recording, audit_refusal(envelope):
            check_envelope(envelope)
            if envelope.event_type in SYSTEM_TYPES and not allow_system_type:
                raise ProtocolError(
                    f"{envelope.event_type!r} is a system type; use join(), reject(), close() or expire()"
                )
            session = await self._session(envelope.session_id)
            recording.known(session.metadata)
            stored = self._copy_as_stored(envelope)
            strangers = {envelope.sender_id, *(envelope.audience or ())} - set(session.metadata.participants)
            if envelope.sender_id in strangers:
                raise AccessDeniedError(f"session {envelope.session_id!r}: {envelope.sender_id!r} is not a participant")
            if strangers:
                ids = ", ".join(map(repr, sorted(strangers)))
                raise ProtocolError(
                    f"session {envelope.session_id!r}: the audience contains {ids}, not among the participants; "
                    "address participants only"
                )
            if await self.expire(envelope.session_id):
                raise ProtocolError(f"session {envelope.session_id!r} is expired and accepts no more envelopes")
            accepted = await self._run_post(session, stored, patience, recording, claim)
        # The caller may change the returned data, which must not change the data that the hub has processed.
        return replace(accepted, event_data=envelope.event_data)

    def _copy_as_stored(self, envelope: Envelope) -> Envelope:
        """Return a copy of the envelope with the data as readers of the log see it: encoded as JSON and decoded."""
        text = envelope.to_json()
        if len(text) > self._max_bytes:
            raise ProtocolError(
                f"session {envelope.session_id!r}: an envelope of {len(text):,} bytes is too large; the limit is "
                f"{self._max_bytes:,} bytes: store the content elsewhere, and post a reference to it"
            )
        return replace(envelope, event_data=json.loads(text)["event_data"])

    async def _post_as_hub(self, session: HubSession, envelope: Envelope) -> Envelope:
        """Post an envelope whose sender is the hub; refusals are not logged to the audit log."""
        with recorded_post(envelope) as recording:
            recording.known(session.metadata)
            return await self._run_post(session, envelope, 0.0, recording)

    async def _run_post(
        self,
        session: HubSession,
        envelope: Envelope,
        patience: float,
        recording: PostRecording,
        claim: TurnClaim | None = None,
    ) -> Envelope:
        """Append an envelope with the current trace context; afterwards, save a snapshot if one is due."""
        traced = recording.carried(envelope)
        limit = self._inbox_limit
        post = Post(session, traced, log=self._log, clock=self._clock, inbox_limit=limit, claim=claim)
        recording.watch(post)
        accepted = await post.run(patience)
        recording.accepted(accepted)
        if self._snapshot_every and session.folded.seq >= session.snapshot_seq + self._snapshot_every:
            async with session.lock:
                await session.save_snapshot()
        return accepted

    # --- reading

    async def envelopes(
        self, session_id: str, *, participant_id: str | None = None, after_seq: int = 0, limit: int | None = None
    ) -> Sequence[Envelope]:
        """Return the envelopes of a session, in order.

        Args:
            session_id: The session.
            participant_id: Return only the envelopes that this participant may see; None for all envelopes.
            after_seq: Return only the envelopes after the row with this number; 0 for all.
            limit: The maximum number of rows to read, before the filter by `participant_id`; None for no limit.

        Raises:
            NetworkError: There is no such session, or its log cannot be read.
        """
        session = await self._session(session_id)
        if participant_id is not None:
            self._require_participant(session, participant_id)
        rows = await self._log.rows_from(session_id, after_seq + 1, limit)
        envelopes = [envelope_of(row) for row in rows]
        return [e for e in envelopes if participant_id is None or e.visible_to(participant_id)]

    async def posted_under(self, session_id: str, sender_id: str, key: str) -> Envelope | None:
        """Return the envelope that a sender posted with this idempotency key; None if there is none."""
        row = await self._log.by_key(session_id, sender_id, key)
        return None if row is None else envelope_of(row)

    async def envelope(self, session_id: str, envelope_id: str) -> Envelope | None:
        """Return a session's envelope with this id; None if there is none."""
        row = await self._log.by_id(session_id, envelope_id)
        return None if row is None else envelope_of(row)

    async def inbox(self, session_id: str, participant_id: str, *, limit: int = 100) -> Sequence[Delivery]:
        """Return the envelopes for a participant that it has not confirmed, in order.

        Each envelope is returned again until it is confirmed (at-least-once delivery). If an envelope's `ttl_seconds`
        have passed, its delivery has `expired` set. The log records this once for each recipient, and from then on the
        envelope is expired in every hub.

        Args:
            session_id: The session.
            participant_id: The participant.
            limit: The maximum number of envelopes.

        Raises:
            NetworkError: There is no such session or participant, or the log cannot be read.
        """
        session = await self._session(session_id)
        self._require_participant(session, participant_id)
        cursor = (await self._log.cursors(session_id)).get(participant_id, Cursor(0, 0))
        # The rows up to `start` hold nothing unconfirmed: a long log of envelopes for others is read only once.
        start = max(cursor, session.inbox_starts.get(participant_id, cursor), key=lambda position: position.seq)
        seq, count = start.seq, start.count
        deliveries, last_seq = list[Delivery](), seq
        while len(deliveries) < limit:
            rows = await self._log.rows_from(session_id, seq + 1, _PAGE)
            for row in rows:
                envelope = envelope_of(row)
                if is_for(envelope, participant_id) and len(deliveries) < limit:
                    count += 1
                    expired = await self._is_expired(session, envelope, participant_id)
                    deliveries.append(Delivery(envelope, participant_id, count, expired))
            last_seq = rows[-1].seq if rows else seq
            if len(rows) < _PAGE:
                break
            seq = last_seq
        last_empty = deliveries[0].envelope.seq - 1 if deliveries else last_seq
        session.inbox_starts[participant_id] = Cursor(last_empty, start.count)
        addressed = session.folded.addressed_to(participant_id, session.metadata)
        record_unconfirmed(session.metadata, max(len(deliveries), addressed - cursor.count))
        return deliveries

    async def confirm(self, delivery: Delivery) -> None:
        """Mark a delivered envelope, and all earlier ones in the participant's inbox, as processed."""
        cursor = Cursor(delivery.envelope.seq, delivery.count)
        await self._log.move_cursor(delivery.envelope.session_id, delivery.participant_id, cursor)

    async def _is_expired(self, session: HubSession, envelope: Envelope, participant_id: str) -> bool:
        """Return True if an envelope expired before its delivery; post an ``EV_ENVELOPE_EXPIRED`` the first time."""
        if envelope.ttl_seconds is None:
            return False
        name = session.metadata.session_id
        key = f"ag2.expired:{envelope.seq}:{session.metadata.participants.index(participant_id)}"
        if await self._log.by_key(name, HUB_ID, key):
            return True
        if self._clock() <= envelope.created_at + envelope.ttl_seconds:
            return False
        data = {"envelope_id": envelope.envelope_id, "participant_id": participant_id}
        expiration = Envelope(
            name, HUB_ID, EV_ENVELOPE_EXPIRED, data, audience=(), causation_id=envelope.envelope_id, idempotency_key=key
        )
        await self._post_as_hub(session, expiration)
        return True

    def _require_participant(self, session: HubSession, participant_id: str) -> None:
        if participant_id not in session.metadata.participants:
            raise AccessDeniedError(f"session {session.metadata.session_id!r}: {participant_id!r} is not a participant")

    def turn_lease(self, session_id: str, participant_id: str, seconds: float) -> TurnLease:
        """Return a lease, which lets only one server of a participant (a running `serve`) work on a turn at a time.

        Args:
            session_id: The session.
            participant_id: The participant.
            seconds: The time after which another server may take over the turn of a server that stopped.
        """
        return TurnLease(self._log, session_id, participant_id, self._clock, seconds)

    def changes(self) -> AsyncGenerator[str | None, None]:
        """Yield the ids of sessions that have new envelopes, until `aclose`.

        The item None means that any session may have changed; the first item is None.
        """
        return self._subscription.changes()
