"""Expectations: what a session waits for, since when and until when, all of it read from its log.

`Waits` is folded beside an adapter's state; `deadlines` says what of a manifest stands on it; `violation` is the
envelope of one that was not met. Nothing here looks at a clock: whoever serves the session does, and appends. The
violation then stands in the log, so that it is told once, and every hub that folds the log comes to the same.
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

#: What asks for a reply, and is one.
_SAID: Final = frozenset({EV_TEXT, EV_PACKET})
_TASK_PREFIX: Final = "ag2.task."


@dataclass(frozen=True, slots=True)
class Since:
    """The envelope that a wait began with.

    Attributes:
        seq: Its place in the log.
        envelope_id: Its id.
        at: When it was accepted, in seconds since the epoch.
    """

    seq: int
    envelope_id: str
    at: float


@dataclass(frozen=True, slots=True)
class Waits:
    """What a session waits for. It is a value: what follows from one more envelope is another one.

    Attributes:
        invited: Who has not answered the invitation, and since when.
        opened: When all had joined.
        heard: The newest envelope that is neither the protocol's own nor a task's.
        unanswered: For each participant the first text or packet to it since its own last one.
        turn: Whose turn it is, and since when.
        turn_cause: The envelope that the adapter says it is the answer to.
        violated: The violations that stand in the log of what is still waited for: since which row, and their key.
    """

    invited: tuple[tuple[str, Since], ...] = ()
    opened: Since | None = None
    heard: Since | None = None
    unanswered: tuple[tuple[str, Since], ...] = ()
    turn: tuple[str, Since] | None = None
    turn_cause: str | None = None
    violated: tuple[tuple[int, str], ...] = ()

    def after(self, envelope: Envelope, metadata: SessionMetadata, expected: ExpectedTurn | None) -> Waits:
        """What is waited for after one more envelope.

        Args:
            envelope: The envelope.
            metadata: The session.
            expected: Whose turn it is after it, as the adapter's ``expected_next`` says.
        """
        here = Since(envelope.seq, envelope.envelope_id, envelope.created_at)
        kind, sender = envelope.event_type, envelope.sender_id
        waits = self
        if kind == EV_SESSION_INVITE:
            asked = [p for p in metadata.participants if p != sender and envelope.visible_to(p)]
            waits = replace(waits, invited=_with(waits.invited, asked, here))
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
            asked = [p for p in metadata.participants if p != sender and envelope.visible_to(p)]
            waits = replace(waits, unanswered=_with(_without(waits.unanswered, sender), asked, here))
        return _still_waited_for(_turned(waits, here, expected))


@dataclass(frozen=True, slots=True)
class Deadline:
    """One expectation that stands.

    Attributes:
        kind: What is waited for.
        action: What follows where it is not met.
        seconds: How long it is waited for.
        waited_for: Who is waited for; nobody in particular for ``max_silence``.
        since: What the wait began with.
    """

    kind: ExpectationKind
    action: ViolationAction
    seconds: float
    waited_for: tuple[str, ...]
    since: Since

    @property
    def due_at(self) -> float:
        """From when on it is violated, in seconds since the epoch."""
        return self.since.at + self.seconds

    @property
    def key(self) -> str:
        """The idempotency key of its violation, the same in every hub: once for a kind, an action and since."""
        return f"ag2.expectation:{self.kind}:{self.action}:{self.seconds!r}:{self.since.seq}"


def deadlines(metadata: SessionMetadata, state: SessionState, waits: Waits) -> tuple[Deadline, ...]:
    """What of a session's expectations stands, the earliest first; a violation that is in the log stands no more."""
    told = {key for _, key in waits.violated}
    found = [
        Deadline(one.kind, one.action, float(one.seconds), who, since)
        for one in metadata.manifest.expectations
        for since, who in _waited(one, state, waits)
    ]
    return tuple(sorted((one for one in found if one.key not in told), key=lambda one: (one.due_at, one.key)))


def violation(metadata: SessionMetadata, deadline: Deadline, sender_id: str) -> Envelope:
    """The envelope that says that a deadline was not met.

    ``notify`` addresses it to who is waited for and the creator; ``hide`` and ``auto_close`` to everybody, as they
    change what everybody does; ``audit`` and ``warn`` to nobody: they are for the log.

    Args:
        metadata: The session.
        deadline: What was not met.
        sender_id: Who says so; all hubs take the same, so that the key holds among them.
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


def _turned(waits: Waits, here: Since, expected: ExpectedTurn | None) -> Waits:
    """With the turn as it stands; its time begins with the envelope that gave it to its participant."""
    if expected is None or waits.opened is None:
        return replace(waits, turn=None, turn_cause=None)
    cause = expected.triggering_envelope_id
    if waits.turn is not None and (waits.turn[0], waits.turn_cause) == (expected.participant_id, cause):
        return waits
    return replace(waits, turn=(expected.participant_id, here), turn_cause=cause)


def _still_waited_for(waits: Waits) -> Waits:
    """Without the violations of what is waited for no more, so that they do not pile up."""
    if not waits.violated:
        return waits
    waited = [since for _, since in (*waits.invited, *waits.unanswered, *((waits.turn,) if waits.turn else ()))]
    rows = {since.seq for since in (*waited, waits.heard or waits.opened) if since is not None}
    return replace(waits, violated=tuple(one for one in waits.violated if one[0] in rows))


def _waited(one: Expectation, state: SessionState, waits: Waits) -> Iterable[tuple[Since, tuple[str, ...]]]:
    """Since when an expectation waits, and for whom."""
    if one.kind == "acks_within":
        return _by_since(waits.invited) if state is SessionState.PENDING else ()
    if state is not SessionState.ACTIVE:
        return ()
    if one.kind == "reply_within":
        return _by_since(waits.unanswered)
    if one.kind == "turn_within":
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


def _without(waiting: tuple[tuple[str, Since], ...], gone: str) -> tuple[tuple[str, Since], ...]:
    return tuple(one for one in waiting if one[0] != gone)
