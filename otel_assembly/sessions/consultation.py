"""`ConsultingAdapter`: a protocol of one question and one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from otel_assembly.errors import ProtocolError
from otel_assembly.sessions.adapter import AdapterResult, ExpectedTurn
from otel_assembly.sessions.envelope import EV_TEXT, Envelope
from otel_assembly.sessions.metadata import Expectation, SessionMetadata, SessionState
from otel_assembly.sessions.text_adapter import TextAdapter
from otel_assembly.sessions.views import BuiltInView, FullTranscript


@dataclass(frozen=True, slots=True)
class ConsultingState:
    """The state of a consulting session.

    Attributes:
        initiator_sent: True if the creator has asked the question.
        respondent_replied: True if the other participant has answered.
        last_envelope_id: The id of the newest text; None before the question.
    """

    initiator_sent: bool = False
    respondent_replied: bool = False
    last_envelope_id: str | None = None


class ConsultingAdapter(TextAdapter[ConsultingState]):
    """The creator sends one text, the other participant answers with one text, and the session closes."""

    type: ClassVar[str] = "consulting"
    participants_most: ClassVar[int | None] = 2
    default_expectations: ClassVar[tuple[Expectation, ...]] = (
        Expectation("acks_within", 30, "auto_close"),
        Expectation("reply_within", 600, "auto_close"),
    )

    def initial_state(self, metadata: SessionMetadata) -> ConsultingState:
        """Return the state before the question."""
        return ConsultingState()

    def fold(self, envelope: Envelope, state: ConsultingState) -> ConsultingState:
        """Record the first text as the question and the second as the answer; ignore other envelopes."""
        if envelope.event_type != EV_TEXT or state.respondent_replied:
            return state
        return ConsultingState(
            initiator_sent=True,
            respondent_replied=state.initiator_sent,
            last_envelope_id=envelope.envelope_id,
        )

    def validate_send(self, metadata: SessionMetadata, envelope: Envelope, state: ConsultingState) -> None:
        """Raise `ProtocolError` for a text from the wrong participant, and for any text after the answer."""
        super().validate_send(metadata, envelope, state)
        if envelope.event_type != EV_TEXT:
            return
        session = f"consulting {metadata.session_id!r}"
        if state.respondent_replied:
            raise ProtocolError(
                f"{session} is already complete: its question was answered; create another session to ask another one"
            )
        role, expected_sender = (
            ("respondent", _respondent(metadata)) if state.initiator_sent else ("initiator", metadata.creator_id)
        )
        if envelope.sender_id != expected_sender:
            text_kind = "the answer" if state.initiator_sent else "the question"
            raise ProtocolError(
                f"{session} expects {text_kind} from the {role} {expected_sender!r}, but {envelope.sender_id!r} sent a "
                f"text; wait for {expected_sender!r}"
            )

    def on_accepted(self, metadata: SessionMetadata, envelope: Envelope, state: ConsultingState) -> AdapterResult:
        """Return whether an accepted envelope closes its session.

        The answer does, with the reason ``consulting_complete``. For other envelopes, see `TextAdapter.on_accepted`.
        """
        if envelope.event_type == EV_TEXT and state.respondent_replied:
            return AdapterResult(SessionState.CLOSED, "consulting_complete")
        return super().on_accepted(metadata, envelope, state)

    def expected_next(self, metadata: SessionMetadata, state: ConsultingState) -> ExpectedTurn | None:
        """Return the creator's turn; after the question, the other participant's; after the answer, None."""
        if state.respondent_replied:
            return None
        speaker = _respondent(metadata) if state.initiator_sent else metadata.creator_id
        return ExpectedTurn(speaker, state.last_envelope_id)

    def default_view_policy(self, metadata: SessionMetadata, participant_id: str) -> BuiltInView:
        """Return a view of the full transcript, which has at most two texts."""
        return FullTranscript()


def _respondent(metadata: SessionMetadata) -> str:
    return next(p for p in metadata.participants if p != metadata.creator_id)
