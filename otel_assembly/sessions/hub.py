"""`Hub`: where agents create sessions, post to them and read what was said to them; it owns nothing."""

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
from otel_assembly.sessions.auditing import audited
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
from otel_assembly.sessions.folded import FoldedSession, is_for
from otel_assembly.sessions.following import Follower
from otel_assembly.sessions.known import KnownSession, envelope_of
from otel_assembly.sessions.log import Cursor, LogRow
from otel_assembly.sessions.metadata import SessionMetadata
from otel_assembly.sessions.posting import HUB_ID, Posting, stamped
from otel_assembly.sessions.recording import recorded_hydration, recorded_post, tell_waiting
from otel_assembly.sessions.sweeping import tell_violations
from otel_assembly.sessions.turn_lease import TurnLease

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from otel_assembly.sessions.adapter import SessionAdapter
    from otel_assembly.sessions.log import SessionLog, TurnClaim
    from otel_assembly.sessions.recording import PostRecording

_log: Final = logging.getLogger(__name__)

#: How many rows of a log are read at once where somebody looks for what is addressed to them.
_PAGE: Final = 200


class Hub:
    """Creates sessions, accepts envelopes and delivers them, on a log that any number of hubs share.

    No hub owns a session: whatever it knows it has folded from the log, and an append counts only on top of the row
    that was folded last. So hubs may be started, killed and doubled in any process; what one accepted is there for all.
    A hub belongs to one event loop. It is an async context manager.

    Args:
        log: Where the sessions' logs are kept; whoever made it closes it.
        adapters: The protocols that sessions may be of.
        inbox_limit: How many envelopes a participant may leave unconfirmed before posts to it wait or are refused.
        snapshot_every: After how many envelopes of a session its state is saved, so that another hub need not read all;
            0 saves none.
        max_envelope_bytes: The longest envelope, as JSON.
        clock: The time, in seconds since the epoch.

    Raises:
        ConfigurationError: Two adapters are of one type and version, or a limit cannot work.
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
                raise ConfigurationError(f"two adapters are of type {key[0]!r} and version {key[1]}; give one of them")
            self._adapters[key] = adapter
        self._inbox_limit = inbox_limit
        self._snapshot_every = snapshot_every
        self._max_bytes = max_envelope_bytes
        self._clock = clock
        self._known: dict[str, KnownSession] = {}
        self._hydrating: dict[str, asyncio.Task[KnownSession]] = {}
        self._follower = Follower(log)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop following the log; the log stays open. Closing twice is no error."""
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
        """Create a session and invite its participants; it opens when all have joined.

        Args:
            type: The protocol's name.
            creator_id: Who creates it; the creator has joined.
            participants: All who take part, in order; the creator is put in front where it is not among them.
            version: The protocol's version; None for the newest that this hub has.
            session_id: The session's id; None for a random one.
            knobs: The protocol's settings; JSON.
            ttl_seconds: How long the session lives; None for ever.

        Raises:
            NotFoundError: This hub has no such adapter.
            ProtocolError: Such a session cannot be, or there is one of this id.
        """
        adapter = self._adapter(type, version)
        who = tuple(participants) if creator_id in participants else (creator_id, *participants)
        for participant_id in who:
            check_id("participant", participant_id)
        if len(set(who)) != len(who) or HUB_ID in who:
            raise ProtocolError(
                f"the participants are {', '.join(map(repr, who))}; give each once, and none {HUB_ID!r}"
            )
        if ttl_seconds is not None and not 0 < ttl_seconds < math.inf:
            raise ProtocolError(f"ttl_seconds of a session is {ttl_seconds!r}; give seconds above 0, or None")
        name = session_id if session_id is not None else secrets.token_hex(16)
        check_id("session_id", name)
        now = self._clock()
        metadata = SessionMetadata(name, adapter.manifest, creator_id, who, dict(knobs or {}), now, ttl_seconds)
        # As another hub will read it: a tuple among the knobs is a list there.
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
                # After a lost answer it may be this very session that is there.
                if unsure and (row := await self._log.by_id(name, invite.envelope_id)) and row.seq == 1:
                    return
                raise ProtocolError(
                    f"there is a session {name!r}; give another id, or None for a random one"
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
        """The ids of all sessions of the log, in the order of their creation."""
        return await self._log.session_ids()

    async def metadata(self, session_id: str) -> SessionMetadata:
        """What was settled when a session was created.

        Raises:
            NotFoundError: There is no such session, or no adapter for it here.
        """
        return (await self._session(session_id)).metadata

    async def adapter(self, session_id: str) -> SessionAdapter:
        """The code of a session's protocol.

        Raises:
            NotFoundError: There is no such session, or no adapter for it here.
        """
        return (await self._session(session_id)).adapter

    async def folded(self, session_id: str) -> FoldedSession:
        """A session as its log has it now.

        Raises:
            NetworkError: It is not there, or its log cannot be read.
        """
        session = await self._session(session_id)
        async with session.lock:
            await session.refresh()
            return session.folded

    async def _session(self, session_id: str) -> KnownSession:
        """A session, folded up to some row; hydrated once, however many ask for it at a time."""
        if (known := self._known.get(session_id)) is not None:
            return known
        task = self._hydrating.get(session_id)
        if task is None:
            task = self._hydrating[session_id] = asyncio.create_task(self._hydrate(session_id))
            task.add_done_callback(lambda _: self._hydrating.pop(session_id, None))
        return await asyncio.shield(task)

    async def _hydrate(self, session_id: str) -> KnownSession:
        check_id("session_id", session_id)
        text = await self._log.metadata(session_id)
        if text is None:
            raise NotFoundError(f"there is no session {session_id!r}")
        metadata = SessionMetadata.from_json(text)
        adapter = self._adapter(metadata.manifest.type, metadata.manifest.version)
        session = KnownSession(metadata, adapter, self._log)
        with recorded_hydration(metadata) as recording:
            read = await session.hydrate()
            recording.folded(read, session.folded.seq, from_snapshot=session.snapshot_seq > 0)
        return self._known.setdefault(session_id, session)

    # --- posting

    async def post(
        self,
        envelope: Envelope,
        timeout: float = 0.0,  # noqa: ASYNC109 - for room, not for an answer
        *,
        claim: TurnClaim | None = None,
    ) -> Envelope:
        """Append an envelope to its session's log.

        Args:
            envelope: What is said; see `Envelope` for what is given and what is stamped.
            timeout: How many seconds it may wait for room in the inboxes it goes to.
            claim: The claim on the turn that the envelope answers: it is accepted only while the claim holds, and ends
                the turn.

        Returns:
            It, as it was accepted: with its place, id and time. The first acceptance, where the same was posted under
            this key before.

        Raises:
            NotFoundError: There is no such session, or no adapter for it here.
            AccessDeniedError: The sender takes no part.
            ProtocolError: The protocol refuses it, or it is none that a log could hold.
            InboxFull: Somebody it is for has too much to read.
            AdapterError: The adapter raised.
            TurnClaimLostError: The claim does not hold any more.
            SessionLogError: The log did not do what was asked.
        """
        return await self._post(envelope, timeout, claim=claim)

    async def join(self, session_id: str, participant_id: str) -> Envelope:
        """Accept an invitation; the session opens when the last one does. Joining twice is no error."""
        return await self._step(session_id, participant_id, EV_SESSION_INVITE_ACK, key="ag2.join")

    async def reject(self, session_id: str, participant_id: str, reason: str = "") -> Envelope:
        """Refuse an invitation: the session closes, as it needs everybody."""
        return await self._step(session_id, participant_id, EV_SESSION_INVITE_REJECT, reason)

    async def close(self, session_id: str, participant_id: str, reason: str = "") -> Envelope:
        """End a session; what was said stays in its log."""
        return await self._step(session_id, participant_id, EV_SESSION_CLOSED, reason)

    async def expire(self, session_id: str) -> bool:
        """End a session whose time is over.

        Returns:
            Whether it was over, and the session had not ended before.
        """
        session = await self._session(session_id)
        ttl = session.metadata.ttl_seconds
        if ttl is None or session.folded.over or self._clock() <= session.metadata.created_at + ttl:
            return False
        over = Envelope(session_id, HUB_ID, EV_SESSION_EXPIRED, idempotency_key="ag2.expired")
        try:
            await self._post_own(session, over)
        except ProtocolError:
            # It ended before its time was over.
            return False
        return True

    async def sweep(self, session_id: str | None = None) -> Sequence[Envelope]:
        """Append what has run out: violations of expectations, and the end of sessions whose time is over.

        Each violation is appended once, whichever hubs sweep: for each kind and each wait. Call it every few seconds;
        `serve` does so for the sessions that it serves.

        Args:
            session_id: The session to look at; None for all of the log. A session that cannot be read is then passed
                over with a warning.

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
        return await tell_violations(session, self._log, self._clock)

    async def _step(
        self, session_id: str, who: str, event_type: str, reason: str = "", key: str | None = None
    ) -> Envelope:
        data = {"reason": reason} if reason else {}
        return await self._post(Envelope(session_id, who, event_type, data, idempotency_key=key), 0.0, step=True)

    async def _post(
        self, envelope: Envelope, patience: float, *, step: bool = False, claim: TurnClaim | None = None
    ) -> Envelope:
        """Post for a participant, and note in the audit log what was refused; a step is the protocol's own."""
        with recorded_post(envelope) as recording, audited(envelope):
            check_envelope(envelope)
            if envelope.event_type in SYSTEM_TYPES and not step:
                raise ProtocolError(
                    f"{envelope.event_type!r} is the protocol's own; use join(), reject(), close() or expire()"
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
                raise ProtocolError(f"session {envelope.session_id!r} is expired; nothing more is posted to it")
            accepted = await self._posted(session, folding, patience, recording, claim)
        # The caller's own data goes back to the caller: what was folded is nobody's to change.
        return replace(accepted, event_data=envelope.event_data)

    def _as_read(self, envelope: Envelope) -> Envelope:
        """The envelope as whoever reads the log will read it: of JSON alone, and a value of its own."""
        text = envelope.to_json()
        if len(text) > self._max_bytes:
            raise ProtocolError(
                f"session {envelope.session_id!r}: an envelope of {len(text):,} bytes is too large; "
                f"it takes {self._max_bytes:,}: store what it says elsewhere, and say where"
            )
        return replace(envelope, event_data=json.loads(text)["event_data"])

    async def _post_own(self, session: KnownSession, envelope: Envelope) -> Envelope:
        """Post what no participant says."""
        with recorded_post(envelope) as recording:
            recording.known(session.metadata)
            return await self._posted(session, envelope, 0.0, recording)

    async def _posted(
        self,
        session: KnownSession,
        envelope: Envelope,
        patience: float,
        recording: PostRecording,
        claim: TurnClaim | None = None,
    ) -> Envelope:
        carried = recording.carried(envelope)
        limit = self._inbox_limit
        posting = Posting(session, carried, log=self._log, clock=self._clock, inbox_limit=limit, claim=claim)
        recording.watch(posting)
        accepted = await posting.run(patience)
        recording.accepted(accepted)
        if self._snapshot_every and session.folded.seq >= session.snapshot_seq + self._snapshot_every:
            async with session.lock:
                await session.save_snapshot()
        return accepted

    # --- reading

    async def envelopes(
        self, session_id: str, *, participant_id: str | None = None, after_seq: int = 0, limit: int | None = None
    ) -> Sequence[Envelope]:
        """What a session's log holds, in order.

        Args:
            session_id: The session.
            participant_id: Only what this participant may see; None for everything.
            after_seq: Only what stands behind this row.
            limit: How many rows are read at most, whoever may see them.

        Raises:
            NetworkError: There is no such session, or its log cannot be read.
        """
        session = await self._session(session_id)
        if participant_id is not None:
            self._takes_part(session, participant_id)
        rows = await self._log.tail(session_id, after_seq + 1, limit)
        found = [envelope_of(row) for row in rows]
        return [e for e in found if participant_id is None or e.visible_to(participant_id)]

    async def posted_under(self, session_id: str, sender_id: str, key: str) -> Envelope | None:
        """What a participant posted under an idempotency key; None where nothing of it was accepted."""
        row = await self._log.by_key(session_id, sender_id, key)
        return None if row is None else envelope_of(row)

    async def envelope(self, session_id: str, envelope_id: str) -> Envelope | None:
        """The envelope of a session that has this id; None where there is none."""
        row = await self._log.by_id(session_id, envelope_id)
        return None if row is None else envelope_of(row)

    async def inbox(self, session_id: str, participant_id: str, *, limit: int = 100) -> Sequence[Delivery]:
        """What is addressed to a participant and not confirmed: at least once each, in order.

        An envelope whose time is over when it is looked at here is said to be `Delivery.expired`, which is noted in the
        log once for each recipient, and then holds for every hub.

        Raises:
            NetworkError: There is no such session or participant, or the log cannot be read.
        """
        session = await self._session(session_id)
        self._takes_part(session, participant_id)
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
        tell_waiting(session.metadata, max(len(found), addressed - cursor.count))
        return found

    async def confirm(self, delivery: Delivery) -> None:
        """Say that an envelope, and everything addressed to the participant before it, has been dealt with."""
        cursor = Cursor(delivery.envelope.seq, delivery.count)
        await self._log.move_cursor(delivery.envelope.session_id, delivery.participant_id, cursor)

    async def _expired(self, session: KnownSession, envelope: Envelope, participant_id: str) -> bool:
        if envelope.ttl_seconds is None:
            return False
        name = session.metadata.session_id
        key = f"ag2.expired:{envelope.seq}:{session.metadata.participants.index(participant_id)}"
        if await self._log.by_key(name, HUB_ID, key):
            return True
        if self._clock() <= envelope.created_at + envelope.ttl_seconds:
            return False
        said = {"envelope_id": envelope.envelope_id, "participant_id": participant_id}
        note = Envelope(
            name, HUB_ID, EV_ENVELOPE_EXPIRED, said, audience=(), causation_id=envelope.envelope_id, idempotency_key=key
        )
        await self._post_own(session, note)
        return True

    def _takes_part(self, session: KnownSession, participant_id: str) -> None:
        if participant_id not in session.metadata.participants:
            raise AccessDeniedError(f"session {session.metadata.session_id!r}: {participant_id!r} takes no part in it")

    def turn_lease(self, session_id: str, participant_id: str, seconds: float) -> TurnLease:
        """The lease by which one server of a participant keeps the other servers from working on its turns.

        Args:
            session_id: The session.
            participant_id: The participant.
            seconds: How long a turn stays claimed after its server died.
        """
        return TurnLease(self._log, session_id, participant_id, self._clock, seconds)

    def changes(self) -> AsyncGenerator[str | None, None]:
        """The ids of sessions as anybody appends to them; None, first of all and whenever some may have been missed."""
        return self._follower.changes()
