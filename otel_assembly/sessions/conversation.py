"""`ConversationAdapter`: two participants, who speak as they like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from otel_assembly.sessions.envelope import EV_TEXT, Envelope
from otel_assembly.sessions.metadata import Expectation, SessionMetadata
from otel_assembly.sessions.text_adapter import TextAdapter
from otel_assembly.sessions.views import BuiltInView, WindowedSummary

_RECENT = 10


@dataclass(frozen=True, slots=True)
class ConversationState:
    """Where a conversation stands.

    Attributes:
        turn_count: How many texts there were.
        last_speaker_id: Who sent the newest.
        last_envelope_id: The newest.
    """

    turn_count: int = 0
    last_speaker_id: str | None = None
    last_envelope_id: str | None = None


class ConversationAdapter(TextAdapter[ConversationState]):
    """Two participants; either may send a text at any time. It ends when somebody closes it, or its time is over."""

    type: ClassVar[str] = "conversation"
    participants_most: ClassVar[int | None] = 2
    default_expectations: ClassVar[tuple[Expectation, ...]] = (Expectation("max_silence", 3600, "audit"),)

    def initial_state(self, metadata: SessionMetadata) -> ConversationState:
        """Nobody spoke yet."""
        return ConversationState()

    def fold(self, envelope: Envelope, state: ConversationState) -> ConversationState:
        """A text is one turn more; all else changes nothing."""
        if envelope.event_type != EV_TEXT:
            return state
        return ConversationState(state.turn_count + 1, envelope.sender_id, envelope.envelope_id)

    def default_view_policy(self, metadata: SessionMetadata, participant_id: str) -> BuiltInView:
        """The ten newest texts, and a line for those before them."""
        return WindowedSummary(_RECENT)
