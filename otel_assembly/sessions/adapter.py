"""`SessionAdapter`: the interface of a session protocol, and default implementations of its methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from otel_assembly.sessions.envelope import EV_TEXT, Envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.sessions.metadata import SessionManifest, SessionMetadata, SessionState


class AdapterState(Protocol):
    """The state that an adapter computes from a session's envelopes, as an object of any type.

    Hubs store snapshots of it, so that they need not read a session's log from the start. Dataclasses and pydantic
    models are stored without further code. For any other type, the adapter defines ``dump_state(state)``, which returns
    JSON data, and ``load_state(data)``; without them, no snapshots are stored.
    """


@dataclass(frozen=True, slots=True)
class AdapterResult:
    """The effect of an accepted envelope on its session.

    Attributes:
        next_state: `SessionState.CLOSED` closes an active session; None leaves the state unchanged.
        auto_close_reason: The reason for closing, which the log records.
    """

    next_state: SessionState | None = None
    auto_close_reason: str = ""


@dataclass(frozen=True, slots=True)
class ExpectedTurn:
    """The participant whose turn is next.

    Attributes:
        participant_id: The participant's id.
        triggering_envelope_id: The envelope that started the turn; None if the session's opening started it.
        again: True if the participant also had the previous turn. Participants do not receive their own envelopes, so
            `serve` starts this turn without a delivery.
    """

    participant_id: str
    triggering_envelope_id: str | None = None
    again: bool = False


class AgentReply(Protocol):
    """The part of an agent's reply that `SessionAdapter.build_round_envelope` reads."""

    @property
    def content(self) -> str:
        """The text of the reply; empty if the agent did not answer."""
        ...


#: An event of the runtime that is the input of the next participant's turn, for input that is not a plain text.
Input: TypeAlias = Any


@runtime_checkable
class SessionAdapter(Protocol):
    """The rules of one session protocol.

    A hub finds an adapter by (`manifest.type`, `manifest.version`). `fold` must be pure and deterministic: then every
    hub that reads the log computes the same state. The other methods read the state and do not change it.
    `initial_state` and `fold` return the states; the hub does not interpret them.
    An adapter may also define ``expected_next(metadata, state) -> ExpectedTurn | None``, which returns the next turn.
    """

    manifest: SessionManifest

    def initial_state(self, metadata: SessionMetadata) -> AdapterState:
        """Return the state of a new session."""
        ...

    def fold(self, envelope: Envelope, state: Any) -> AdapterState:
        """Return the session's state after one more envelope; an envelope of an unknown type must not change it."""
        ...

    def validate_create(self, metadata: SessionMetadata) -> None:
        """Raise `ProtocolError` if a new session is invalid, for example if a setting (`metadata.knobs`) is missing."""
        ...

    def validate_send(self, metadata: SessionMetadata, envelope: Envelope, state: Any) -> None:
        """Raise `ProtocolError` if the protocol does not allow the envelope in the given state."""
        ...

    def on_accepted(self, metadata: SessionMetadata, envelope: Envelope, state: Any) -> AdapterResult:
        """Return whether an accepted envelope closes its session, and why.

        Args:
            metadata: The session's metadata.
            envelope: The envelope.
            state: The result of `fold` for this envelope.
        """
        ...

    def default_view_policy(self, metadata: SessionMetadata, participant_id: str) -> Any:
        """Return a participant's default `ViewPolicy`, which selects the envelopes that its model receives."""
        ...

    def extract_turn_input(self, envelope: Envelope) -> str | Input | list[Input] | None:
        """Return the input of the next speaker's turn; None or an empty text if the envelope asks for no turn."""
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
        """Return the envelope to post for an agent's reply; None to post nothing.

        Args:
            metadata: The session's metadata.
            sender_id: The participant that replies.
            reply: The reply of its agent.
            events: The events of the agent's turn, such as tool calls and their results.
            state: The session's current state.
            hub: The `Hub` that posts the envelope.
        """
        ...

    def render_envelope(self, envelope: Envelope) -> str | None:
        """Return the text that represents an envelope in a model's input; None if the input omits the envelope."""
        ...


def default_extract_turn_input(envelope: Envelope) -> str | None:
    """Return the text of an ``EV_TEXT`` envelope, and None for any other type."""
    text = envelope.event_data.get("text") if envelope.event_type == EV_TEXT else None
    return text if isinstance(text, str) else None


def default_render_envelope(envelope: Envelope) -> str | None:
    """Return the text of an ``EV_TEXT`` envelope, and None for any other type."""
    return default_extract_turn_input(envelope)


def default_build_round_envelope(
    metadata: SessionMetadata,
    sender_id: str,
    reply: AgentReply,
    events: Sequence[Any],
    state: AdapterState,
    hub: Any,
) -> Envelope | None:
    """Return an ``EV_TEXT`` envelope with the reply's text, or None if the text is empty.

    The arguments are those of `SessionAdapter.build_round_envelope`.
    """
    if not reply.content:
        return None
    return Envelope(metadata.session_id, sender_id, EV_TEXT, {"text": reply.content})


def default_expected_next(metadata: SessionMetadata, state: AdapterState) -> ExpectedTurn | None:
    """Return None, which means that any participant may speak next."""
    return None
