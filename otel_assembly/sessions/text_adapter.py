"""`TextAdapter`: the base class of the built-in session protocols and of custom protocols.

An adapter is the code of a protocol: it decides which envelopes (messages) a session accepts and whose turn it is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, get_args

from otel_assembly.errors import ConfigurationError, ProtocolError
from otel_assembly.sessions.adapter import (
    AdapterResult,
    AgentReply,
    ExpectedTurn,
    Input,
    default_build_round_envelope,
    default_expected_next,
    default_extract_turn_input,
    default_render_envelope,
)
from otel_assembly.sessions.envelope import EV_EXPECTATION_VIOLATED, EV_TEXT, Envelope
from otel_assembly.sessions.metadata import (
    Expectation,
    ExpectationKind,
    SessionManifest,
    SessionMetadata,
    SessionState,
    ViolationAction,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.sessions.views import BuiltInView

_State = TypeVar("_State")

_KINDS: Final = get_args(ExpectationKind)
_ACTIONS: Final = get_args(ViolationAction)


class TextAdapter(Generic[_State]):
    """The base class of a protocol whose participants exchange texts.

    A subclass sets `type`, `participants_least`, `participants_most` and `default_expectations`, and defines
    `initial_state`, `fold` and `default_view_policy`.

    Args:
        expectations: The expected events with their time limits, such as an answer within a minute; None for the
            defaults. A session keeps the expectations that it was created with.

    Raises:
        ConfigurationError: The protocol does not support an expectation.
    """

    type: ClassVar[str]
    version: ClassVar[int] = 1
    participants_least: ClassVar[int] = 2
    participants_most: ClassVar[int | None] = None
    default_expectations: ClassVar[tuple[Expectation, ...]] = ()
    #: True if the participants speak in a fixed order in which a silent participant can be skipped.
    can_hide: ClassVar[bool] = False

    def __init__(self, expectations: Iterable[Expectation] | None = None) -> None:
        expected = self.default_expectations if expectations is None else tuple(expectations)
        for expectation in expected:
            self._check_expectation(expectation)
        self.manifest = SessionManifest(self.type, self.version, expected)

    def _check_expectation(self, expectation: Expectation) -> None:
        where = f"an expectation of {self.type}"
        if expectation.kind not in _KINDS:
            raise ConfigurationError(f"{where} waits for {expectation.kind!r}; known: {', '.join(_KINDS)}")
        if expectation.action not in _ACTIONS:
            raise ConfigurationError(f"{where} has the action {expectation.action!r}; known: {', '.join(_ACTIONS)}")
        if type(expectation.seconds) not in (int, float) or not 0 < expectation.seconds < math.inf:
            raise ConfigurationError(f"{where} waits for {expectation.seconds!r} s; give a number above 0")
        if expectation.action == "hide" and not self.can_hide:
            raise ConfigurationError(
                f"{where} has the action 'hide', but the protocol has no rotation to skip participants in; "
                "give 'notify' or 'auto_close'"
            )

    def initial_state(self, metadata: SessionMetadata) -> _State:
        """Return the protocol's state in a new session, before the first envelope."""
        raise NotImplementedError

    def fold(self, envelope: Envelope, state: _State) -> _State:
        """Return the protocol's state after one more envelope; envelopes of unknown types do not change the state."""
        raise NotImplementedError

    def default_view_policy(self, metadata: SessionMetadata, participant_id: str) -> BuiltInView:
        """Return the policy that selects the envelopes in a participant's prompt, if the participant sets none."""
        raise NotImplementedError

    def validate_create(self, metadata: SessionMetadata) -> None:
        """Check a new session.

        Raises:
            ProtocolError: There are too few, too many or duplicate participants, or the creator is not one of them.
        """
        participants, least, most = metadata.participants, self.participants_least, self.participants_most
        where = f"{self.type} {metadata.session_id!r}"
        if not least <= len(participants) <= (most or len(participants)):
            required = f"exactly {least}" if least == most else f"at least {least}"
            raise ProtocolError(
                f"{where} takes {required} participants, not {len(participants)}: {', '.join(map(repr, participants))}"
            )
        if duplicates := sorted({p for p in participants if participants.count(p) > 1}):
            raise ProtocolError(f"{where} names {', '.join(map(repr, duplicates))} twice; name each participant once")
        if metadata.creator_id not in participants:
            raise ProtocolError(f"{where}: its creator {metadata.creator_id!r} is not a participant; add the creator")

    def validate_send(self, metadata: SessionMetadata, envelope: Envelope, state: _State) -> None:
        """Check an envelope of type ``EV_TEXT`` before it is accepted; other types are not checked.

        Raises:
            ProtocolError: The envelope has no text, or the sender is not a participant.
        """
        if envelope.event_type == EV_TEXT:
            self.check_sender(metadata, envelope)
            check_text(envelope)

    def check_sender(self, metadata: SessionMetadata, envelope: Envelope) -> None:
        """Raise `ProtocolError` if the sender is not a participant."""
        if envelope.sender_id not in metadata.participants:
            raise ProtocolError(
                f"{self.type} {metadata.session_id!r} only accepts sends from participants "
                f"({', '.join(map(repr, metadata.participants))}), not from {envelope.sender_id!r}"
            )

    def refuse_out_of_turn(self, metadata: SessionMetadata, envelope: Envelope, expected: str | None) -> None:
        """Raise `ProtocolError` unless the sender is the participant `expected` (None: no participant may speak)."""
        if envelope.sender_id != expected:
            awaited = "no participant" if expected is None else repr(expected)
            raise ProtocolError(
                f"{self.type} {metadata.session_id!r} expects {awaited} to speak, and {envelope.sender_id!r} did; "
                "post again when it is your turn"
            )

    def on_accepted(self, metadata: SessionMetadata, envelope: Envelope, state: _State) -> AdapterResult:
        """Return whether an accepted envelope closes its session.

        Only a report of a violated expectation (a missed time limit) with the action ``auto_close`` does.
        """
        return closed_by(envelope)

    def expected_next(self, metadata: SessionMetadata, state: _State) -> ExpectedTurn | None:
        """Return the participant whose turn it is; None if any participant may speak."""
        return default_expected_next(metadata, state)

    def extract_turn_input(self, envelope: Envelope) -> str | Input | list[Input] | None:
        """Return an envelope's text, as the input of the next speaker's model; None if the envelope needs no answer."""
        return default_extract_turn_input(envelope)

    def build_round_envelope(
        self,
        metadata: SessionMetadata,
        sender_id: str,
        reply: AgentReply,
        events: Sequence[Any],
        state: _State,
        hub: Any,
    ) -> Envelope | None:
        """Return an envelope with the answer of an agent's round; None if the round has no answer.

        The arguments are those of `SessionAdapter.build_round_envelope`.
        """
        return default_build_round_envelope(metadata, sender_id, reply, events, state, hub)

    def render_envelope(self, envelope: Envelope) -> str | None:
        """Return an envelope's text for a participant's model; None if the envelope is not shown to models."""
        return default_render_envelope(envelope)


def check_text(envelope: Envelope) -> None:
    """Raise `ProtocolError` if an envelope of type ``EV_TEXT`` has no text."""
    if not isinstance(envelope.event_data.get("text"), str):
        raise ProtocolError(
            f"session {envelope.session_id!r}: an envelope of type {EV_TEXT!r} from {envelope.sender_id!r} "
            f"has the text {_type_or_missing(envelope.event_data, 'text')}; give event_data={{'text': '…'}}"
        )


def closed_by(envelope: Envelope) -> AdapterResult:
    """Return a result that closes the session if an envelope reports a violation with the action ``auto_close``."""
    data = envelope.event_data
    if envelope.event_type == EV_EXPECTATION_VIOLATED and data.get("action") == "auto_close":
        return AdapterResult(SessionState.CLOSED, f"expectation_violated:{data.get('kind')}")
    return AdapterResult()


def _type_or_missing(data: Any, key: str) -> str:
    return f"of type {type(data[key]).__name__}" if key in data else "missing"
