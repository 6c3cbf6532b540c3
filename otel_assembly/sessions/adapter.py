"""`SessionAdapter`: the code half of a protocol, and what its methods do where nothing else is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from otel_assembly.sessions.envelope import EV_TEXT, Envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.sessions.metadata import SessionManifest, SessionMetadata, SessionState


class AdapterState(Protocol):
    """What an adapter folds a session's envelopes into.

    Dataclasses and pydantic models are kept in snapshots as they are; for anything else the adapter has ``dump_state``
    and ``load_state``, or the session is folded from its start whenever a hub first meets it.
    """


@dataclass(frozen=True, slots=True)
class AdapterResult:
    """What follows from an envelope that was accepted.

    Attributes:
        next_state: Where the session goes; None leaves it where it stands.
        auto_close_reason: Why it closes, for whoever reads the log.
    """

    next_state: SessionState | None = None
    auto_close_reason: str = ""


@dataclass(frozen=True, slots=True)
class ExpectedTurn:
    """Who is to speak next.

    Attributes:
        participant_id: Whose turn it is.
        triggering_envelope_id: The envelope that made it so; None where the session's opening did.
        again: Whether it spoke last, and is to go on. Its own envelope is not delivered to it; `serve` asks it anew.
    """

    participant_id: str
    triggering_envelope_id: str | None = None
    again: bool = False


class AgentReply(Protocol):
    """What an agent's ask came to, as far as a round's envelope needs it."""

    @property
    def content(self) -> str:
        """The text of the reply; empty for a silent round."""
        ...


#: What the next speaker's model gets on its turn, where it is more than a text: an event that a chain can read.
Input: TypeAlias = Any


@runtime_checkable
class SessionAdapter(Protocol):
    """One protocol's rules.

    A hub finds it by (`manifest.type`, `manifest.version`). `fold` is pure and deterministic, so that any hub that
    reads the log comes to the same state; the others decide from that state and change nothing.
    A state is whatever the adapter's own `initial_state` gave, or its `fold` made of it.
    An optional ``expected_next(metadata, state) -> ExpectedTurn | None`` tells whose turn it is.
    """

    manifest: SessionManifest

    def initial_state(self, metadata: SessionMetadata) -> AdapterState:
        """The state of a fresh session."""
        ...

    def fold(self, envelope: Envelope, state: Any) -> AdapterState:
        """The state after one more envelope; an unknown type changes nothing."""
        ...

    def validate_create(self, metadata: SessionMetadata) -> None:
        """Raise `ProtocolError` where such a session cannot be: too few participants, a knob that is missing."""
        ...

    def validate_send(self, metadata: SessionMetadata, envelope: Envelope, state: Any) -> None:
        """Raise `ProtocolError` where the protocol does not allow this envelope now; `state` is the one before it."""
        ...

    def on_accepted(self, metadata: SessionMetadata, envelope: Envelope, state: Any) -> AdapterResult:
        """What follows from an envelope; `state` is the one after it."""
        ...

    def default_view_policy(self, metadata: SessionMetadata, participant_id: str) -> Any:
        """The `ViewPolicy` that a participant's model sees the session through, where nobody says otherwise."""
        ...

    def extract_turn_input(self, envelope: Envelope) -> str | Input | list[Input] | None:
        """What the next speaker's model is asked; None or an empty text where this envelope asks for no round."""
        ...

    def build_round_envelope(
        self,
        metadata: SessionMetadata,
        sender_id: str,
        reply: AgentReply,
        events: Sequence[Any],
        state: Any,
        hub: Any,
    ) -> Envelope | None:
        """The envelope of one round of an agent; None where the round said nothing worth recording."""
        ...

    def render_envelope(self, envelope: Envelope) -> str | None:
        """What a model sees of an envelope; None where a view leaves it out."""
        ...


def default_extract_turn_input(envelope: Envelope) -> str | None:
    """The text of an ``EV_TEXT``; None of anything else."""
    text = envelope.event_data.get("text") if envelope.event_type == EV_TEXT else None
    return text if isinstance(text, str) else None


def default_render_envelope(envelope: Envelope) -> str | None:
    """The text of an ``EV_TEXT``; None of anything else."""
    return default_extract_turn_input(envelope)


def default_build_round_envelope(
    metadata: SessionMetadata,
    sender_id: str,
    reply: AgentReply,
    events: Sequence[Any],
    state: AdapterState,
    hub: Any,
) -> Envelope | None:
    """An ``EV_TEXT`` of the reply; None where it said nothing."""
    if not reply.content:
        return None
    return Envelope(metadata.session_id, sender_id, EV_TEXT, {"text": reply.content})


def default_expected_next(metadata: SessionMetadata, state: AdapterState) -> ExpectedTurn | None:
    """Nobody in particular."""
    return None
