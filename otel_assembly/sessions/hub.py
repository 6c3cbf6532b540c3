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
from otel_assembly.sessions.audit_log import audited
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
    """Creates sessions, accepts envelopes and delivers them, on a log that several hubs can share.

    A hub computes a session's state from the log. An append succeeds only if it follows the row that the hub folded
    last. Hubs can therefore start and stop at any time, in any process; all hubs see an accepted envelope.
    A hub belongs to one event loop. It is an async context manager.

    Args:
        log: The store of the sessions' logs. The hub does not close it.
        adapters: The supported protocols.
        inbox_limit: The number of unconfirmed envelopes of a participant at which posts to it wait or are refused.
        snapshot_every: The number of envelopes between two snapshots of a session's state; 0 saves no snapshots. With a
            snapshot, another hub does not have to read the whole log.
        max_envelope_bytes: The maximum size of an envelope as JSON.
        clock: Returns the time, in seconds since the epoch. TTLs and deadlines are compared with times that other
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
        self._known: dict[str, HubSession] = {}
        self._hydrating: dict[str, asyncio.Task[HubSession]] = {}
        self._follower = LogSubscription(log)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop following the log. The log stays open. A second call does nothing."""
        await self._follower.aclose()

    # --- sessions

    async def create(
        self,
        type: str,  # noqa: A002 - the manifest's word
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
            creator_id: The participant that creates the session. It joins without an invitation.
            participants: All participants, in order. The creator is inserted in front if it is not listed.
            version: The protocol's version; None for the newest version that this hub has an adapter for.
            session_id: The session's id; None for a random one.
            knobs: The protocol's settings; a JSON object.
            ttl_seconds: The session's lifetime; None for no limit.

        Raises:
            NotFoundError: This hub has no such adapter.
            ProtocolError: The session is invalid, or its id is already in use.
        """
        adapter = self._adapter(type, version)
        who = tuple(participants) if creator_id in participants else (creator_id, *participants)
        for participant_id in who:
            check_id("participant", participant_id)
        if len(set(who)) != len(who) or HUB_ID in who:
            raise ProtocolError(
                f"the participants are {', '.join(map(repr, who))}; name each once, and do not use {HUB_ID!r}"
            )
        if ttl_seconds is not None and not 0 < ttl_seconds < math.inf:
            raise ProtocolError(f"ttl_seconds of a session is {ttl_seconds!r}; give seconds above 0, or None")
        name = session_id if session_id is not None else secrets.token_hex(16)
        check_id("session_id", name)
        now = self._clock()
        metadata = SessionMetadata(name, adapter.manifest, creator_id, who, dict(knobs or {}), now, ttl_seconds)
        # Other hubs read the metadata from JSON, in which a tuple among the knobs becomes a list.
        metadata = SessionMetadata.from_json(metadata.to_json())
        try:
            adapter.validate_create(metadata)
        except NetworkError:
            raise
        except Exception as error:
            raise AdapterError(adapter.manifest.type, adapter.manifest.version, "validate_create", error) from error
        fresh = FoldedSession.fresh(metadata, adapter)
        invite = stamped(Envelope(name, creator_id, EV_SESSION_INVITE, {"participants": list(who)}), fresh, now)
        with recorded_post(invite) as recording:
            recording.known(metadata)
            await self._create(metadata, recording.carried(invite))
            recording.accepted(invite)
        return metadata

    async def _create(self, metadata: SessionMetadata, invite: Envelope) -> None:
        name, text, unsure = metadata.session_id, metadata.to_json(), False
        while True:
            try:
                await self._log.create(name, text, LogRow.of(invite))
            except LogUnsureError:
                unsure = True
                if await self._log.metadata(name) is not None:
                    continue
            except LogConflictError as error:
                # If the answer to an earlier attempt was lost, the existing session may be this one.
                if unsure and (row := await self._log.by_id(name, invite.envelope_id)) and row.seq == 1:
                    return
                raise ProtocolError(
                    f"session {name!r} already exists; choose another id, or None for a random one"
                ) from error
            else:
                return

    def _adapter(self, type: str, version: int | None) -> SessionAdapter:  # noqa: A002
        if version is None:
            version = max((v for t, v in self._adapters if t == type), default=None)
        adapter = self._adapters.get((type, version)) if version is not None else None
        if adapter is None:
            known = ", ".join(f"{t} {v}" for t, v in sorted(self._adapters)) or "none"
            of = f" version {version}" if version is not None else ""
            raise NotFoundError(f"this hub has no adapter {type!r}{of}; it has: {known}")
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
        """Return a session, possibly outdated; concurrent calls share one hydration."""
        if (known := self._known.get(session_id)) is not None:
            return known
        task = self._hydrating.get(session_id)
        if task is None:
            task = self._hydrating[session_id] = asyncio.create_task(self._hydrate(session_id))
            task.add_done_callback(lambda _: self._hydrating.pop(session_id, None))
        return await asyncio.shield(task)

    async def _hydrate(self, session_id: str) -> HubSession:
        check_id("session_id", session_id)
        text = await self._log.metadata(session_id)
        if text is None:
            raise NotFoundError(f"there is no session {session_id!r}")
        metadata = SessionMetadata.from_json(text)
        adapter = self._adapter(metadata.manifest.type, metadata.manifest.version)
        session = HubSession(metadata, adapter, self._log)
        with recorded_hydration(metadata) as recording:
            read = await session.hydrate()
            recording.folded(read, session.folded.seq, from_snapshot=session.snapshot_seq > 0)
        return self._known.setdefault(session_id, session)

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
                valid, and ends the turn.

        Returns:
            The accepted envelope with its row number, id and time. If the sender posted the same content with this
            idempotency key before, the envelope that was accepted then.

        Raises:
            NotFoundError: There is no such session, or this hub has no adapter for it.
            AccessDeniedError: The sender is not a participant.
            ProtocolError: The protocol does not allow the envelope, or a field is invalid.
            InboxFull: A recipient has too many unconfirmed envelopes.
            AdapterError: The adapter raised.
            TurnClaimLostError: The claim is no longer valid.
            SessionLogError: The append to the log failed.
        """
        return await self._post(envelope, timeout, claim=claim)

    async def join(self, session_id: str, participant_id: str) -> Envelope:
        """Accept an invitation; the session opens when all participants have joined. A second call does nothing."""
        return await self._step(session_id, participant_id, EV_SESSION_INVITE_ACK, key="ag2.join")

    async def reject(self, session_id: str, participant_id: str, reason: str = "") -> Envelope:
        """Refuse an invitation, which closes the session."""
        return await self._step(session_id, participant_id, EV_SESSION_INVITE_REJECT, reason)

    async def close(self, session_id: str, participant_id: str, reason: str = "") -> Envelope:
        """Close a session; its log stays readable."""
        return await self._step(session_id, participant_id, EV_SESSION_CLOSED, reason)

    async def expire(self, session_id: str) -> bool:
        """End a session whose TTL has passed.

        Returns:
            True if this call ended the session.
        """
        session = await self._session(session_id)
        ttl = session.metadata.ttl_seconds
        if ttl is None or session.folded.over or self._clock() <= session.metadata.created_at + ttl:
            return False
        over = Envelope(session_id, HUB_ID, EV_SESSION_EXPIRED, idempotency_key="ag2.expired")
        try:
            await self._post_own(session, over)
        except ProtocolError:
            # Another post ended the session first.
            return False
        return True

    async def sweep(self, session_id: str | None = None) -> Sequence[Envelope]:
        """Append violations of expectations, and end the sessions whose TTL has passed.

        Each missed deadline is appended once, even if several hubs sweep. Call this method every few seconds; `serve`
        does so for the sessions that it serves.

        Args:
            session_id: The session to sweep; None for all sessions. If None, a session that cannot be read is skipped
                with a warning.

        Returns:
            The violations that this call appended.

        Raises:
            NetworkError: The session, or the log, cannot be read.
        """
        if session_id is not None:
            return await self._sweep(session_id)
        found: list[Envelope] = []
        for name in await self._log.session_ids():
            if (known := self._known.get(name)) is not None and known.folded.over:
                continue
            try:
                found += await self._sweep(name)
            except (NotFoundError, AdapterError, LogDamagedError, LogRegressed) as error:
                _log.warning("session %r was not swept: %s", name, error)
        return found

    async def _sweep(self, session_id: str) -> list[Envelope]:
        session = await self._session(session_id)
        await self.folded(session_id)
        await self.expire(session_id)
        return await append_violations(session, self._log, self._clock)

    async def _step(
        self, session_id: str, who: str, event_type: str, reason: str = "", key: str | None = None
    ) -> Envelope:
        data = {"reason": reason} if reason else {}
        return await self._post(Envelope(session_id, who, event_type, data, idempotency_key=key), 0.0, step=True)

    async def _post(
        self, envelope: Envelope, patience: float, *, step: bool = False, claim: TurnClaim | None = None
    ) -> Envelope:
        """Post for a participant, and write refusals to the audit log; only a `step` may have a system type."""
        with recorded_post(envelope) as recording, audited(envelope):
            check_envelope(envelope)
            if envelope.event_type in SYSTEM_TYPES and not step:
                raise ProtocolError(
                    f"{envelope.event_type!r} is a system type; use join(), reject(), close() or expire()"
                )
            session = await self._session(envelope.session_id)
            recording.known(session.metadata)
            folding = self._as_read(envelope)
            strangers = {envelope.sender_id, *(envelope.audience or ())} - set(session.metadata.participants)
            if envelope.sender_id in strangers:
                raise AccessDeniedError(f"session {envelope.session_id!r}: {envelope.sender_id!r} takes no part in it")
            if strangers:
                named = ", ".join(map(repr, sorted(strangers)))
                raise ProtocolError(f"session {envelope.session_id!r}: {named} of the audience take no part in it")
            if await self.expire(envelope.session_id):
                raise ProtocolError(f"session {envelope.session_id!r} is expired and accepts no more envelopes")
            accepted = await self._posted(session, folding, patience, recording, claim)
        # The caller may change the returned data, so it must not be the data that was folded.
        return replace(accepted, event_data=envelope.event_data)

    def _as_read(self, envelope: Envelope) -> Envelope:
        """Return a copy of the envelope with the data that readers of the log will see, decoded from JSON."""
        text = envelope.to_json()
        if len(text) > self._max_bytes:
            raise ProtocolError(
                f"session {envelope.session_id!r}: an envelope of {len(text):,} bytes is too large; the limit is "
                f"{self._max_bytes:,} bytes: store the content elsewhere, and post a reference to it"
            )
        return replace(envelope, event_data=json.loads(text)["event_data"])

    async def _post_own(self, session: HubSession, envelope: Envelope) -> Envelope:
        """Post an envelope of the hub itself."""
        with recorded_post(envelope) as recording:
            recording.known(session.metadata)
            return await self._posted(session, envelope, 0.0, recording)

    async def _posted(
        self,
        session: HubSession,
        envelope: Envelope,
        patience: float,
        recording: PostRecording,
        claim: TurnClaim | None = None,
    ) -> Envelope:
        carried = recording.carried(envelope)
        limit = self._inbox_limit
        post = Post(session, carried, log=self._log, clock=self._clock, inbox_limit=limit, claim=claim)
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
            after_seq: Return only the envelopes after this row.
            limit: The maximum number of rows to read, before the filter by `participant_id`.

        Raises:
            NetworkError: There is no such session, or its log cannot be read.
        """
        session = await self._session(session_id)
        if participant_id is not None:
            self._require_participant(session, participant_id)
        rows = await self._log.tail(session_id, after_seq + 1, limit)
        found = [envelope_of(row) for row in rows]
        return [e for e in found if participant_id is None or e.visible_to(participant_id)]

    async def posted_under(self, session_id: str, sender_id: str, key: str) -> Envelope | None:
        """Return the accepted envelope of a participant with an idempotency key, or None."""
        row = await self._log.by_key(session_id, sender_id, key)
        return None if row is None else envelope_of(row)

    async def envelope(self, session_id: str, envelope_id: str) -> Envelope | None:
        """Return the envelope with this id, or None."""
        row = await self._log.by_id(session_id, envelope_id)
        return None if row is None else envelope_of(row)

    async def inbox(self, session_id: str, participant_id: str, *, limit: int = 100) -> Sequence[Delivery]:
        """Return a participant's unconfirmed envelopes, in order. Delivery is at least once.

        If an envelope's TTL has passed, its delivery has `Delivery.expired` set. The log records this once for each
        recipient, and the envelope then counts as expired in every hub.

        Raises:
            NetworkError: There is no such session or participant, or the log cannot be read.
        """
        session = await self._session(session_id)
        self._require_participant(session, participant_id)
        cursor = (await self._log.cursors(session_id)).get(participant_id, Cursor(0, 0))
        # Nothing up to here is for the participant, so that a long log of others' messages is read once.
        searched = session.searched.get(participant_id, cursor)
        seq, count = (searched.seq, searched.count) if searched.seq > cursor.seq else (cursor.seq, cursor.count)
        found, last, before = list[Delivery](), seq, count
        while len(found) < limit:
            rows = await self._log.tail(session_id, seq + 1, _PAGE)
            for row in rows:
                envelope = envelope_of(row)
                if is_for(envelope, participant_id) and len(found) < limit:
                    count += 1
                    expired = await self._expired(session, envelope, participant_id)
                    found.append(Delivery(envelope, participant_id, count, expired))
            last = rows[-1].seq if rows else seq
            if len(rows) < _PAGE:
                break
            seq = last
        session.searched[participant_id] = Cursor(found[0].envelope.seq - 1 if found else last, before)
        addressed = session.folded.addressed_to(participant_id, session.metadata)
        record_unconfirmed(session.metadata, max(len(found), addressed - cursor.count))
        return found

    async def confirm(self, delivery: Delivery) -> None:
        """Mark an envelope, and all earlier ones addressed to the participant, as processed."""
        cursor = Cursor(delivery.envelope.seq, delivery.count)
        await self._log.move_cursor(delivery.envelope.session_id, delivery.participant_id, cursor)

    async def _expired(self, session: HubSession, envelope: Envelope, participant_id: str) -> bool:
        if envelope.ttl_seconds is None:
            return False
        name = session.metadata.session_id
        key = f"ag2.expired:{envelope.seq}:{session.metadata.participants.index(participant_id)}"
        if await self._log.by_key(name, HUB_ID, key):
            return True
        if self._clock() <= envelope.created_at + envelope.ttl_seconds:
            return False
        data = {"envelope_id": envelope.envelope_id, "participant_id": participant_id}
        note = Envelope(
            name, HUB_ID, EV_ENVELOPE_EXPIRED, data, audience=(), causation_id=envelope.envelope_id, idempotency_key=key
        )
        await self._post_own(session, note)
        return True

    def _require_participant(self, session: HubSession, participant_id: str) -> None:
        if participant_id not in session.metadata.participants:
            raise AccessDeniedError(f"session {session.metadata.session_id!r}: {participant_id!r} takes no part in it")

    def turn_lease(self, session_id: str, participant_id: str, seconds: float) -> TurnLease:
        """Return a lease with which only one server of a participant works on a turn at a time.

        Args:
            session_id: The session.
            participant_id: The participant.
            seconds: The time for which a turn stays claimed after its server stopped.
        """
        return TurnLease(self._log, session_id, participant_id, self._clock, seconds)

    def changes(self) -> AsyncGenerator[str | None, None]:
        """Yield the ids of changed sessions. None comes first, and means that any session may have changed."""
        return self._follower.changes()
