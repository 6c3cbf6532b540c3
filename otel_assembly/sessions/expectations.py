"""Expectations: time limits for replies, turns and acknowledgments, computed from a session's log.

`PendingWaits` records the current waits, `deadlines` applies the manifest's expectations to them, and `violation`
builds the envelope of a missed deadline. Nothing here reads a clock: `Hub.sweep` compares the deadlines with its clock
and appends the violations. A violation in the log is reported once, because all hubs read the same log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from otel_assembly.sessions.envelope import (
    EV_EXPECTATION_VIOLATED,
    EV_PACKET,
    EV_SESSION_INVITE,
    EV_SESSION_INVITE_ACK,
    EV_SESSION_INVITE_REJECT,
    EV_SESSION_OPENED,
    EV_TEXT,
    SYSTEM_TYPES,
    Envelope,
)
from otel_assembly.sessions.metadata import Expectation, ExpectationKind, SessionState, ViolationAction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_assembly.sessions.adapter import ExpectedTurn
    from otel_assembly.sessions.metadata import SessionMetadata

#: The event types that ask for a reply and that count as a reply.
_SAID: Final = frozenset({EV_TEXT, EV_PACKET})
_TASK_PREFIX: Final = "ag2.task."


@dataclass(frozen=True, slots=True)
class Since:
    """The envelope that started a wait.

    Attributes:
        seq: The envelope's row number in the log.
        envelope_id: The envelope's id.
        at: The time at which the envelope was accepted, in seconds since the epoch.
    """

    seq: int
    envelope_id: str
    at: float


@dataclass(frozen=True, slots=True)
class PendingWaits:
    """The pending waits of a session. It is immutable: `after` returns a new value.

    Attributes:
        invited: The participants that have not answered their invitation, each with the invitation.
        opened: The envelope that opened the session; None before all participants have joined.
        heard: The newest envelope that is neither a system event nor a task event.
        unanswered: For each participant, the first text or packet addressed to it since its own newest one.
        turn: The participant whose turn it is, with the envelope that started the turn.
        turn_cause: The envelope that started the turn according to the adapter.
        violated: Logged violations of pending waits: the row that started the wait, and the violation's key.
    """

    invited: tuple[tuple[str, Since], ...] = ()
    opened: Since | None = None
    heard: Since | None = None
    unanswered: tuple[tuple[str, Since], ...] = ()
    turn: tuple[str, Since] | None = None
    turn_cause: str | None = None
    violated: tuple[tuple[int, str], ...] = ()

    def after(self, envelope: Envelope, metadata: SessionMetadata, expected: ExpectedTurn | None) -> PendingWaits:
        """Return the pending waits after one more envelope.

        Args:
            envelope: The envelope.
            metadata: The session's metadata.
            expected: The next turn after the envelope, as returned by the adapter's ``expected_next``.
        """
        here = Since(envelope.seq, envelope.envelope_id, envelope.created_at)
        kind, sender = envelope.event_type, envelope.sender_id
        waits = self
        if kind == EV_SESSION_INVITE:
            recipients = [p for p in metadata.participants if p != sender and envelope.visible_to(p)]
            waits = replace(waits, invited=_with(waits.invited, recipients, here))
        elif kind in (EV_SESSION_INVITE_ACK, EV_SESSION_INVITE_REJECT):
            waits = replace(waits, invited=_without(waits.invited, sender))
        elif kind == EV_SESSION_OPENED and waits.opened is None:
            waits = replace(waits, opened=here)
        elif kind == EV_EXPECTATION_VIOLATED:
            since = envelope.event_data.get("since_seq")
            if type(since) is int and envelope.idempotency_key:
                waits = replace(waits, violated=(*waits.violated, (since, envelope.idempotency_key)))
        if kind not in SYSTEM_TYPES and not kind.startswith(_TASK_PREFIX):
            waits = replace(waits, heard=here)
        if kind in _SAID:
            recipients = [p for p in metadata.participants if p != sender and envelope.visible_to(p)]
            waits = replace(waits, unanswered=_with(_without(waits.unanswered, sender), recipients, here))
        return _still_waited_for(_with_turn(waits, here, expected))


@dataclass(frozen=True, slots=True)
class Deadline:
    """A pending expectation.

    Attributes:
        kind: The kind of wait.
        action: The action if the deadline is missed.
        seconds: The length of the wait.
        waited_for: The participants that have to act; empty for ``max_silence``.
        since: The envelope that started the wait.
    """

    kind: ExpectationKind
    action: ViolationAction
    seconds: float
    waited_for: tuple[str, ...]
    since: Since

    @property
    def due_at(self) -> float:
        """The time of the deadline, in seconds since the epoch."""
        return self.since.at + self.seconds

    @property
    def key(self) -> str:
        """The idempotency key of the violation. It is the same in every hub, so the log accepts one violation."""
        return f"ag2.expectation:{self.kind}:{self.action}:{self.seconds!r}:{self.since.seq}"


def deadlines(metadata: SessionMetadata, state: SessionState, waits: PendingWaits) -> tuple[Deadline, ...]:
    """Return the pending deadlines without those whose violation is in the log, the earliest first."""
    reported = {key for _, key in waits.violated}
    pending = [
        Deadline(expectation.kind, expectation.action, float(expectation.seconds), participants, since)
        for expectation in metadata.manifest.expectations
        for since, participants in _waits_of(expectation, state, waits)
    ]
    return tuple(sorted((d for d in pending if d.key not in reported), key=lambda d: (d.due_at, d.key)))


def violation(metadata: SessionMetadata, deadline: Deadline, sender_id: str) -> Envelope:
    """Return the envelope that reports a missed deadline.

    The action selects the audience. ``notify`` addresses the participants that have to act, and the creator. ``hide``
    and ``auto_close`` address all participants. ``audit`` and ``warn`` address none: the log records the violation.

    Args:
        metadata: The session's metadata.
        deadline: The missed deadline.
        sender_id: The sender. All hubs must use the same id, because idempotency keys belong to a sender.
    """
    audience: tuple[str, ...] | None = ()
    if deadline.action == "notify":
        audience = tuple(dict.fromkeys((*deadline.waited_for, metadata.creator_id)))
    elif deadline.action in ("hide", "auto_close"):
        audience = None
    return Envelope(
        metadata.session_id,
        sender_id,
        EV_EXPECTATION_VIOLATED,
        {
            "kind": deadline.kind,
            "action": deadline.action,
            "seconds": deadline.seconds,
            "waited_for": list(deadline.waited_for),
            "since_seq": deadline.since.seq,
            "since_id": deadline.since.envelope_id,
        },
        audience=audience,
        causation_id=deadline.since.envelope_id or None,
        idempotency_key=deadline.key,
    )


def _with_turn(waits: PendingWaits, here: Since, expected: ExpectedTurn | None) -> PendingWaits:
    """Return the waits with the current turn; its time starts at the envelope that started the turn."""
    if expected is None or waits.opened is None:
        return replace(waits, turn=None, turn_cause=None)
    cause = expected.triggering_envelope_id
    if waits.turn is not None and (waits.turn[0], waits.turn_cause) == (expected.participant_id, cause):
        return waits
    return replace(waits, turn=(expected.participant_id, here), turn_cause=cause)


def _still_waited_for(waits: PendingWaits) -> PendingWaits:
    """Remove the violations of waits that have ended; otherwise they would accumulate."""
    if not waits.violated:
        return waits
    waited = [since for _, since in (*waits.invited, *waits.unanswered, *((waits.turn,) if waits.turn else ()))]
    rows = {since.seq for since in (*waited, waits.heard or waits.opened) if since is not None}
    return replace(waits, violated=tuple(v for v in waits.violated if v[0] in rows))


def _waits_of(
    expectation: Expectation, state: SessionState, waits: PendingWaits
) -> Iterable[tuple[Since, tuple[str, ...]]]:
    """Return the waits of an expectation: the envelope that started each, and the participants that have to act."""
    if expectation.kind == "acks_within":
        return _by_since(waits.invited) if state is SessionState.PENDING else ()
    if state is not SessionState.ACTIVE:
        return ()
    if expectation.kind == "reply_within":
        return _by_since(waits.unanswered)
    if expectation.kind == "turn_within":
        return () if waits.turn is None else ((waits.turn[1], (waits.turn[0],)),)
    heard = waits.heard or waits.opened
    return () if heard is None else ((heard, ()),)


def _by_since(waiting: tuple[tuple[str, Since], ...]) -> Iterable[tuple[Since, tuple[str, ...]]]:
    since: dict[Since, list[str]] = {}
    for participant_id, begun in waiting:
        since.setdefault(begun, []).append(participant_id)
    return [(begun, tuple(who)) for begun, who in since.items()]


def _with(waiting: tuple[tuple[str, Since], ...], more: Iterable[str], here: Since) -> tuple[tuple[str, Since], ...]:
    known = {participant_id for participant_id, _ in waiting}
    return (*waiting, *((p, here) for p in more if p not in known))


def _without(waiting: tuple[tuple[str, Since], ...], removed: str) -> tuple[tuple[str, Since], ...]:
    return tuple(wait for wait in waiting if wait[0] != removed)
