"""Expectations: a protocol's time limits for replies, turns and the answers to invitations.

`PendingWaits` records who has to act and since when, `deadlines` applies the protocol's expectations to it, and
`violation` builds the envelope that reports a missed deadline. This module does not read a clock: `Hub.sweep` compares
the deadlines with its clock and appends the violations. All of this is computed from the session's log, which all hubs
share, so each violation is appended once.
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

#: The event types that ask for a reply. Each of them also counts as a reply.
_REPLY_TYPES: Final = frozenset({EV_TEXT, EV_PACKET})
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
    """The participants that a session is waiting for, each with the envelope that started the wait.

    Immutable: `after` returns a new value.

    Attributes:
        invited: The participants that have not answered their invitation, each with the invitation.
        opened: The envelope that opened the session; None before all participants have joined.
        heard: The newest envelope that is neither a system event nor a task event (``ag2.task.*``); None if there is
            none.
        unanswered: The participants that have not sent a text or packet since one was addressed to them, each with the
            first such envelope since its own newest one.
        turn: The participant whose turn it is, with the envelope after which it got the turn; None if any participant
            may act.
        turn_cause: The id of the envelope that the adapter names as the cause of the turn; None if it names none.
        violated: The logged violations of waits that are still pending: the row of the envelope that started the wait,
            and the violation's idempotency key.
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
        since = Since(envelope.seq, envelope.envelope_id, envelope.created_at)
        kind, sender = envelope.event_type, envelope.sender_id
        waits = self
        if kind == EV_SESSION_INVITE:
            recipients = [p for p in metadata.participants if p != sender and envelope.visible_to(p)]
            waits = replace(waits, invited=_add_waits(waits.invited, recipients, since))
        elif kind in (EV_SESSION_INVITE_ACK, EV_SESSION_INVITE_REJECT):
            waits = replace(waits, invited=_remove_wait(waits.invited, sender))
        elif kind == EV_SESSION_OPENED and waits.opened is None:
            waits = replace(waits, opened=since)
        elif kind == EV_EXPECTATION_VIOLATED:
            row = envelope.event_data.get("since_seq")
            if type(row) is int and envelope.idempotency_key:
                waits = replace(waits, violated=(*waits.violated, (row, envelope.idempotency_key)))
        if kind not in SYSTEM_TYPES and not kind.startswith(_TASK_PREFIX):
            waits = replace(waits, heard=since)
        if kind in _REPLY_TYPES:
            recipients = [p for p in metadata.participants if p != sender and envelope.visible_to(p)]
            waits = replace(waits, unanswered=_add_waits(_remove_wait(waits.unanswered, sender), recipients, since))
        return _remove_ended_violations(_update_turn(waits, since, expected))


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time limit of one wait, computed from an expectation of the protocol.

    Attributes:
        kind: The event that the expectation requires.
        action: The reaction if the deadline is missed.
        seconds: The maximum length of the wait.
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
        """The idempotency key of the envelope that reports the missed deadline; the same in every hub.

        The log therefore accepts one such envelope, even if several hubs post one.
        """
        return f"ag2.expectation:{self.kind}:{self.action}:{self.seconds!r}:{self.since.seq}"


def deadlines(metadata: SessionMetadata, state: SessionState, waits: PendingWaits) -> tuple[Deadline, ...]:
    """Return the deadlines of a session's current waits, the earliest first.

    A deadline whose violation is already in the log is omitted.
    """
    reported = {key for _, key in waits.violated}
    pending = [
        Deadline(expectation.kind, expectation.action, float(expectation.seconds), participants, since)
        for expectation in metadata.manifest.expectations
        for since, participants in _waits_of(expectation, state, waits)
    ]
    return tuple(sorted((d for d in pending if d.key not in reported), key=lambda d: (d.due_at, d.key)))


def violation(metadata: SessionMetadata, deadline: Deadline, sender_id: str) -> Envelope:
    """Return the envelope that reports a missed deadline.

    The deadline's action selects the audience. ``notify`` addresses the participants that have to act, and the creator.
    ``hide`` and ``auto_close`` address all participants. ``audit`` and ``warn`` address none: the envelope is only
    recorded in the log.

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


def _update_turn(waits: PendingWaits, since: Since, expected: ExpectedTurn | None) -> PendingWaits:
    """Return the waits with the turn that the adapter expects; a new turn starts at the envelope `since`."""
    if expected is None or waits.opened is None:
        return replace(waits, turn=None, turn_cause=None)
    cause = expected.triggering_envelope_id
    if waits.turn is not None and (waits.turn[0], waits.turn_cause) == (expected.participant_id, cause):
        return waits
    return replace(waits, turn=(expected.participant_id, since), turn_cause=cause)


def _remove_ended_violations(waits: PendingWaits) -> PendingWaits:
    """Remove the violations of waits that have ended; otherwise they would accumulate."""
    if not waits.violated:
        return waits
    starts = [since for _, since in (*waits.invited, *waits.unanswered, *((waits.turn,) if waits.turn else ()))]
    rows = {since.seq for since in (*starts, waits.heard or waits.opened) if since is not None}
    return replace(waits, violated=tuple(v for v in waits.violated if v[0] in rows))


def _waits_of(
    expectation: Expectation, state: SessionState, waits: PendingWaits
) -> Iterable[tuple[Since, tuple[str, ...]]]:
    """Return the waits of an expectation: the envelope that started each, and the participants that have to act."""
    if expectation.kind == "acks_within":
        return _group_by_start(waits.invited) if state is SessionState.PENDING else ()
    if state is not SessionState.ACTIVE:
        return ()
    if expectation.kind == "reply_within":
        return _group_by_start(waits.unanswered)
    if expectation.kind == "turn_within":
        return () if waits.turn is None else ((waits.turn[1], (waits.turn[0],)),)
    newest = waits.heard or waits.opened  # for ``max_silence``, which waits for any participant
    return () if newest is None else ((newest, ()),)


def _group_by_start(waits: tuple[tuple[str, Since], ...]) -> Iterable[tuple[Since, tuple[str, ...]]]:
    """Return the waits grouped by the envelope that started them: one violation reports all participants of a group."""
    groups: dict[Since, list[str]] = {}
    for participant_id, since in waits:
        groups.setdefault(since, []).append(participant_id)
    return [(since, tuple(participants)) for since, participants in groups.items()]


def _add_waits(
    waits: tuple[tuple[str, Since], ...], participants: Iterable[str], since: Since
) -> tuple[tuple[str, Since], ...]:
    """Add a wait for each participant that has none; an older wait keeps its start."""
    waiting = {participant_id for participant_id, _ in waits}
    return (*waits, *((p, since) for p in participants if p not in waiting))


def _remove_wait(waits: tuple[tuple[str, Since], ...], participant_id: str) -> tuple[tuple[str, Since], ...]:
    return tuple(wait for wait in waits if wait[0] != participant_id)
