"""`DiscussionAdapter`: participants who speak in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from otel_assembly.errors import ProtocolError
from otel_assembly.sessions.adapter import ExpectedTurn
from otel_assembly.sessions.envelope import EV_EXPECTATION_VIOLATED, EV_TEXT, Envelope
from otel_assembly.sessions.metadata import Expectation, SessionMetadata
from otel_assembly.sessions.text_adapter import TextAdapter
from otel_assembly.sessions.views import BuiltInView, NamedWindowedSummary

#: The one ordering that a discussion has; the knob ``ordering`` may name it.
ORDERING_ROUND_ROBIN: Final = "round_robin"


@dataclass(frozen=True, slots=True)
class DiscussionState:
    """Where a discussion stands.

    Attributes:
        participant_order: The rotation, its creator where the session's participants have it.
        expected_next_speaker: Whose turn it is; None where everybody is hidden.
        last_speaker_id: Who sent the newest text.
        last_envelope_id: The newest text.
        turn_count: How many texts there were.
        hidden: Who is left out of the rotation until it posts, in the order of their silence.
    """

    participant_order: tuple[str, ...] = ()
    expected_next_speaker: str | None = None
    last_speaker_id: str | None = None
    last_envelope_id: str | None = None
    turn_count: int = 0
    hidden: tuple[str, ...] = ()


class DiscussionAdapter(TextAdapter[DiscussionState]):
    """Two or more participants, who send texts one after the other, as they are listed; the creator begins.

    Who lets its turn pass for too long is hidden: the turn goes on to the next one, and so does every later turn, until
    the hidden one posts, which it may at any time. That brings it back to its place, and the turn stays where it is.
    It ends when somebody closes it, or its time is over.
    """

    type: ClassVar[str] = "discussion"
    can_hide: ClassVar[bool] = True
    default_expectations: ClassVar[tuple[Expectation, ...]] = (
        Expectation("turn_within", 120, "warn"),
        Expectation("turn_within", 600, "hide"),
    )

    def initial_state(self, metadata: SessionMetadata) -> DiscussionState:
        """The creator is to speak first."""
        return DiscussionState(metadata.participants, metadata.creator_id)

    def fold(self, envelope: Envelope, state: DiscussionState) -> DiscussionState:
        """A text moves the turn on; a violation that hides somebody does, where it was that one's turn."""
        if envelope.event_type == EV_EXPECTATION_VIOLATED and envelope.event_data.get("action") == "hide":
            return _without(envelope.event_data.get("waited_for"), state)
        speaker = envelope.sender_id
        if envelope.event_type != EV_TEXT or speaker not in state.participant_order:
            return state
        hidden = tuple(p for p in state.hidden if p != speaker)
        if state.expected_next_speaker in (speaker, None):
            awaited = _next_after(speaker, state.participant_order, hidden)
        else:
            awaited = state.expected_next_speaker
        return replace(
            state,
            expected_next_speaker=awaited,
            last_speaker_id=speaker,
            last_envelope_id=envelope.envelope_id,
            turn_count=state.turn_count + 1,
            hidden=hidden,
        )

    def validate_create(self, metadata: SessionMetadata) -> None:
        """Raise `ProtocolError` for too few participants, and for an ordering that it does not have."""
        super().validate_create(metadata)
        ordering = metadata.knobs.get("ordering", ORDERING_ROUND_ROBIN)
        if ordering != ORDERING_ROUND_ROBIN:
            raise ProtocolError(
                f"discussion {metadata.session_id!r} has the ordering {ordering!r} among its knobs; "
                f"the one that there is is {ORDERING_ROUND_ROBIN!r}"
            )

    def validate_send(self, metadata: SessionMetadata, envelope: Envelope, state: DiscussionState) -> None:
        """Raise `ProtocolError` for a text out of turn, unless a hidden participant comes back with it."""
        super().validate_send(metadata, envelope, state)
        if envelope.event_type == EV_TEXT and envelope.sender_id not in state.hidden:
            self.refuse_out_of_turn(metadata, envelope, state.expected_next_speaker)

    def expected_next(self, metadata: SessionMetadata, state: DiscussionState) -> ExpectedTurn | None:
        """The next one in the rotation; nobody where everybody is hidden."""
        if state.expected_next_speaker is None:
            return None
        return ExpectedTurn(state.expected_next_speaker, state.last_envelope_id)

    def default_view_policy(self, metadata: SessionMetadata, participant_id: str) -> BuiltInView:
        """Two rounds of it with names, and a line for what was before."""
        return NamedWindowedSummary(max(2 * len(metadata.participants), 4))


def _without(silent: object, state: DiscussionState) -> DiscussionState:
    """The discussion with some more hidden, the turn with one who is not."""
    named = [p for p in silent if isinstance(p, str)] if isinstance(silent, list | tuple) else []
    new = [p for p in dict.fromkeys(named) if p in state.participant_order and p not in state.hidden]
    hidden = (*state.hidden, *new)
    awaited = state.expected_next_speaker
    if awaited in new:
        awaited = _next_after(awaited, state.participant_order, hidden)
    return replace(state, hidden=hidden, expected_next_speaker=awaited)


def _next_after(speaker: str, order: tuple[str, ...], hidden: tuple[str, ...]) -> str | None:
    """The next in the rotation who is not hidden, the speaker itself last of all."""
    at = order.index(speaker) + 1
    return next((p for p in (*order[at:], *order[:at]) if p not in hidden), None)
