"""`TextAdapter`: what the built-in protocols have in common, and what a protocol of one's own can begin with."""

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
    """A protocol of participants who send each other texts.

    A subclass names its `type`, its `participants_least` and `participants_most`, its `default_expectations`, and has
    `initial_state`, `fold` and `default_view_policy`.

    Args:
        expectations: What the protocol expects within which times; None for its own. A session keeps those that it was
            created with.

    Raises:
        ConfigurationError: An expectation that the protocol cannot hold anybody to.
    """

    type: ClassVar[str]
    version: ClassVar[int] = 1
    participants_least: ClassVar[int] = 2
    participants_most: ClassVar[int | None] = None
    default_expectations: ClassVar[tuple[Expectation, ...]] = ()
    #: Whether it has a rotation that a silent participant can be left out of.
    can_hide: ClassVar[bool] = False

    def __init__(self, expectations: Iterable[Expectation] | None = None) -> None:
        expected = self.default_expectations if expectations is None else tuple(expectations)
        for one in expected:
            self._check_expectation(one)
        self.manifest = SessionManifest(self.type, self.version, expected)

    def _check_expectation(self, one: Expectation) -> None:
        where = f"an expectation of {self.type}"
        if one.kind not in _KINDS:
            raise ConfigurationError(f"{where} waits for {one.kind!r}; known: {', '.join(_KINDS)}")
        if one.action not in _ACTIONS:
            raise ConfigurationError(f"{where} is followed by {one.action!r}; known: {', '.join(_ACTIONS)}")
        if type(one.seconds) not in (int, float) or not 0 < one.seconds < math.inf:
            raise ConfigurationError(f"{where} waits for {one.seconds!r} s; give a number above 0")
        if one.action == "hide" and not self.can_hide:
            raise ConfigurationError(
                f"{where} is followed by 'hide', and it has no rotation to leave anybody out of; "
                "give 'notify' or 'auto_close'"
            )

    def initial_state(self, metadata: SessionMetadata) -> _State:
        """The state of a fresh session."""
        raise NotImplementedError

    def fold(self, envelope: Envelope, state: _State) -> _State:
        """The state after one more envelope; an unknown type changes nothing."""
        raise NotImplementedError

    def default_view_policy(self, metadata: SessionMetadata, participant_id: str) -> BuiltInView:
        """The view that a participant's model sees the session through, where nobody says otherwise."""
        raise NotImplementedError

    def validate_create(self, metadata: SessionMetadata) -> None:
        """Raise `ProtocolError` where too few or too many take part, or one of them twice."""
        given, least, most = metadata.participants, self.participants_least, self.participants_most
        where = f"{self.type} {metadata.session_id!r}"
        if not least <= len(given) <= (most or len(given)):
            wanted = f"exactly {least}" if least == most else f"at least {least}"
            raise ProtocolError(f"{where} takes {wanted} participants, not {len(given)}: {', '.join(map(repr, given))}")
        if twice := sorted({p for p in given if given.count(p) > 1}):
            raise ProtocolError(f"{where} names {', '.join(map(repr, twice))} twice; name each participant once")
        if metadata.creator_id not in given:
            raise ProtocolError(
                f"{where}: its creator {metadata.creator_id!r} takes no part; name the creator among the participants"
            )

    def validate_send(self, metadata: SessionMetadata, envelope: Envelope, state: _State) -> None:
        """Raise `ProtocolError` for a text that is none, or from a stranger; other types are no affair of it."""
        if envelope.event_type == EV_TEXT:
            self.check_sender(metadata, envelope)
            check_text(envelope)

    def check_sender(self, metadata: SessionMetadata, envelope: Envelope) -> None:
        """Raise `ProtocolError` where the sender takes no part."""
        if envelope.sender_id not in metadata.participants:
            raise ProtocolError(
                f"{self.type} {metadata.session_id!r} only accepts sends from participants "
                f"({', '.join(map(repr, metadata.participants))}), and {envelope.sender_id!r} is none of them"
            )

    def refuse_out_of_turn(self, metadata: SessionMetadata, envelope: Envelope, expected: str | None) -> None:
        """Raise `ProtocolError` where another one is to speak."""
        if envelope.sender_id != expected:
            awaited = "nobody" if expected is None else repr(expected)
            raise ProtocolError(
                f"{self.type} {metadata.session_id!r} expects {awaited} to speak, and {envelope.sender_id!r} did; "
                "post again when it is your turn"
            )

    def on_accepted(self, metadata: SessionMetadata, envelope: Envelope, state: _State) -> AdapterResult:
        """What follows from an envelope: a violated expectation can close the session."""
        return closed_by(envelope)

    def expected_next(self, metadata: SessionMetadata, state: _State) -> ExpectedTurn | None:
        """Whose turn it is; None where nobody in particular is to speak."""
        return default_expected_next(metadata, state)

    def extract_turn_input(self, envelope: Envelope) -> str | Input | list[Input] | None:
        """The text that the next speaker's model is asked; None where the envelope asks for no round."""
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
        """The envelope of one round of an agent; None where the round said nothing."""
        return default_build_round_envelope(metadata, sender_id, reply, events, state, hub)

    def render_envelope(self, envelope: Envelope) -> str | None:
        """What a model sees of an envelope; None where a view leaves it out."""
        return default_render_envelope(envelope)


def check_text(envelope: Envelope) -> None:
    """Raise `ProtocolError` where an ``EV_TEXT`` has no text."""
    if not isinstance(envelope.event_data.get("text"), str):
        raise ProtocolError(
            f"session {envelope.session_id!r}: an envelope of type {EV_TEXT!r} from {envelope.sender_id!r} "
            f"has the text {_kind(envelope.event_data, 'text')}; give event_data={{'text': '…'}}"
        )


def closed_by(envelope: Envelope) -> AdapterResult:
    """That the session closes, where an envelope says that an expectation with ``auto_close`` was violated."""
    data = envelope.event_data
    if envelope.event_type == EV_EXPECTATION_VIOLATED and data.get("action") == "auto_close":
        return AdapterResult(SessionState.CLOSED, f"expectation_violated:{data.get('kind')}")
    return AdapterResult()


def _kind(data: Any, key: str) -> str:
    return f"of type {type(data[key]).__name__}" if key in data else "missing"
