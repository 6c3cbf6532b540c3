"""`DiscussionAdapter`: participants who take turns in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from otel_assembly.errors import ProtocolError
from otel_assembly.sessions.adapter import ExpectedTurn
from otel_assembly.sessions.envelope import EV_EXPECTATION_VIOLATED, EV_TEXT, Envelope
from otel_assembly.sessions.metadata import Expectation, SessionMetadata
from otel_assembly.sessions.text_adapter import TextAdapter
from otel_assembly.sessions.views import BuiltInView, NamedWindowedSummary

#: The only supported value of a session's setting ``ordering``.
ORDERING_ROUND_ROBIN: Final = "round_robin"


@dataclass(frozen=True, slots=True)
class DiscussionState:
    """The state of a discussion session.

    Attributes:
        participant_order: The rotation: all participants in the order of the session's metadata.
        expected_next_speaker: The participant whose turn it is; None if all participants are hidden.
        last_speaker_id: The sender of the newest text; None before the first text.
        last_envelope_id: The id of the newest text; None before the first text.
        turn_count: The number of texts so far.
        hidden: The participants that the rotation skips until they post, in the order in which they were hidden.
    """

    participant_order: tuple[str, ...] = ()
    expected_next_speaker: str | None = None
    last_speaker_id: str | None = None
    last_envelope_id: str | None = None
    turn_count: int = 0
    hidden: tuple[str, ...] = ()


class DiscussionAdapter(TextAdapter[DiscussionState]):
    """Two or more participants send texts in the order in which they are listed; the creator begins.

    A participant that exceeds the time limit of its turn is hidden: the rotation skips it. A hidden participant may
    post at any time. By posting, it returns to its place in the rotation; whose turn it is does not change.
    The session ends when a participant closes it or its lifetime ends.
    """

    type: ClassVar[str] = "discussion"
    can_hide: ClassVar[bool] = True
    default_expectations: ClassVar[tuple[Expectation, ...]] = (
        Expectation("turn_within", 120, "warn"),
        Expectation("turn_within", 600, "hide"),
    )

    def initial_state(self, metadata: SessionMetadata) -> DiscussionState:
        """Return the state in which the creator has the first turn."""
        return DiscussionState(metadata.participants, metadata.creator_id)

    def fold(self, envelope: Envelope, state: DiscussionState) -> DiscussionState:
        """Give the turn to the next participant after a text, and hide participants that exceeded their time limit.

        An ``EV_EXPECTATION_VIOLATED`` envelope with the action ``hide`` names the participants to hide.
        """
        if envelope.event_type == EV_EXPECTATION_VIOLATED and envelope.event_data.get("action") == "hide":
            return _hide(envelope.event_data.get("waited_for"), state)
        speaker = envelope.sender_id
        if envelope.event_type != EV_TEXT or speaker not in state.participant_order:
            return state
        hidden = tuple(p for p in state.hidden if p != speaker)
        if state.expected_next_speaker in (speaker, None):
            next_speaker = _next_after(speaker, state.participant_order, hidden)
        else:
            next_speaker = state.expected_next_speaker
        return replace(
            state,
            expected_next_speaker=next_speaker,
            last_speaker_id=speaker,
            last_envelope_id=envelope.envelope_id,
            turn_count=state.turn_count + 1,
            hidden=hidden,
        )

    def validate_create(self, metadata: SessionMetadata) -> None:
        """Raise `ProtocolError` for invalid participants, and for an unsupported setting ``ordering``."""
        super().validate_create(metadata)
        ordering = metadata.knobs.get("ordering", ORDERING_ROUND_ROBIN)
        if ordering != ORDERING_ROUND_ROBIN:
            raise ProtocolError(
                f"discussion {metadata.session_id!r}: the knob 'ordering' is {ordering!r}; "
                f"the only supported value is {ORDERING_ROUND_ROBIN!r}"
            )

    def validate_send(self, metadata: SessionMetadata, envelope: Envelope, state: DiscussionState) -> None:
        """Raise `ProtocolError` for a text out of turn; hidden participants may send one at any time."""
        super().validate_send(metadata, envelope, state)
        if envelope.event_type == EV_TEXT and envelope.sender_id not in state.hidden:
            self.refuse_out_of_turn(metadata, envelope, state.expected_next_speaker)

    def expected_next(self, metadata: SessionMetadata, state: DiscussionState) -> ExpectedTurn | None:
        """Return the turn of the next participant in the rotation, or None if all participants are hidden."""
        if state.expected_next_speaker is None:
            return None
        return ExpectedTurn(state.expected_next_speaker, state.last_envelope_id)

    def default_view_policy(self, metadata: SessionMetadata, participant_id: str) -> BuiltInView:
        """Return a view of two rotations' texts with speakers' names, and one line in place of older texts."""
        return NamedWindowedSummary(max(2 * len(metadata.participants), 4))


def _hide(participants: object, state: DiscussionState) -> DiscussionState:
    """Hide the participants; if one of them has the turn, give the turn to the next one that is not hidden."""
    names = [p for p in participants if isinstance(p, str)] if isinstance(participants, list | tuple) else []
    newly_hidden = [p for p in dict.fromkeys(names) if p in state.participant_order and p not in state.hidden]
    hidden = (*state.hidden, *newly_hidden)
    speaker = state.expected_next_speaker
    if speaker in newly_hidden:
        speaker = _next_after(speaker, state.participant_order, hidden)
    return replace(state, hidden=hidden, expected_next_speaker=speaker)


def _next_after(speaker: str, order: tuple[str, ...], hidden: tuple[str, ...]) -> str | None:
    """Return the next participant in the rotation that is not hidden, which can be the speaker; None if all are."""
    start = order.index(speaker) + 1
    return next((p for p in (*order[start:], *order[:start]) if p not in hidden), None)
