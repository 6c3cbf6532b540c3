"""`ConversationAdapter`: two participants who may send texts at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from otel_assembly.sessions.envelope import EV_TEXT, Envelope
from otel_assembly.sessions.metadata import Expectation, SessionMetadata
from otel_assembly.sessions.text_adapter import TextAdapter
from otel_assembly.sessions.views import BuiltInView, WindowedSummary

_TEXTS_IN_VIEW: Final = 10


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The state of a conversation session.

    Attributes:
        turn_count: The number of texts so far.
        last_speaker_id: The sender of the newest text; None before the first text.
        last_envelope_id: The id of the newest text; None before the first text.
    """

    turn_count: int = 0
    last_speaker_id: str | None = None
    last_envelope_id: str | None = None


class ConversationAdapter(TextAdapter[ConversationState]):
    """Two participants may send texts at any time, until one of them closes the session or its lifetime ends."""

    type: ClassVar[str] = "conversation"
    participants_most: ClassVar[int | None] = 2
    default_expectations: ClassVar[tuple[Expectation, ...]] = (Expectation("max_silence", 3600, "audit"),)

    def initial_state(self, metadata: SessionMetadata) -> ConversationState:
        """Return the state before the first text."""
        return ConversationState()

    def fold(self, envelope: Envelope, state: ConversationState) -> ConversationState:
        """Count each text as a turn and record its sender; ignore other envelopes."""
        if envelope.event_type != EV_TEXT:
            return state
        return ConversationState(state.turn_count + 1, envelope.sender_id, envelope.envelope_id)

    def default_view_policy(self, metadata: SessionMetadata, participant_id: str) -> BuiltInView:
        """Return a view of the ten newest texts, with one line in place of the older ones."""
        return WindowedSummary(_TEXTS_IN_VIEW)
