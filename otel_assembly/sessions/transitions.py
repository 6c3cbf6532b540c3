"""The parts of a workflow's graph: transitions, their conditions and their targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from otel_assembly.sessions.envelope import EV_PACKET, Envelope


class Turns(Protocol):
    """The workflow's state for a transition, after the current envelope."""

    @property
    def participant_order(self) -> tuple[str, ...]:
        """The participants in order."""
        ...

    @property
    def last_speaker_id(self) -> str | None:
        """The participant who spoke last."""
        ...

    @property
    def creator_id(self) -> str:
        """Who created the session."""
        ...

    @property
    def context_vars(self) -> Mapping[str, Any]:
        """The workflow's variables."""
        ...


@dataclass(frozen=True, slots=True)
class TransitionDecision:
    """The result of a transition.

    Attributes:
        next_speaker: The next speaker; None ends the session.
        close_reason: The reason for the end.
    """

    next_speaker: str | None
    close_reason: str = ""


class TransitionTarget(Protocol):
    """Chooses the next speaker; a dataclass with a `name`, whose fields are JSON."""

    name: ClassVar[str]

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """Return the next speaker; a pure function, so that all hubs get the same result."""
        ...


class TransitionCondition(Protocol):
    """Decides if a transition is taken; a dataclass with a `name`, whose fields are JSON."""

    name: ClassVar[str]

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Return True to take the transition; a pure function, so that all hubs get the same result."""
        ...


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """One participant."""

    agent_id: str
    name: ClassVar[str] = "agent"

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """That participant."""
        return TransitionDecision(self.agent_id)


@dataclass(frozen=True, slots=True)
class RoundRobinTarget:
    """The participant after the last speaker, in the order of the participants."""

    name: ClassVar[str] = "round_robin"

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """Return the next participant; the first participant if the last speaker is not in the order."""
        order = state.participant_order
        if not order:
            return TransitionDecision(None, "no_participants")
        last = state.last_speaker_id or envelope.sender_id
        return TransitionDecision(order[(order.index(last) + 1) % len(order)] if last in order else order[0])


@dataclass(frozen=True, slots=True)
class StayTarget:
    """The last speaker again."""

    name: ClassVar[str] = "stay"

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """The last speaker."""
        return TransitionDecision(state.last_speaker_id or envelope.sender_id)


@dataclass(frozen=True, slots=True)
class RevertToInitiatorTarget:
    """Who created the session."""

    name: ClassVar[str] = "revert_to_initiator"

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """The creator."""
        return TransitionDecision(state.creator_id)


@dataclass(frozen=True, slots=True)
class TerminateTarget:
    """No next speaker: the session ends."""

    reason: str = "after_work"
    name: ClassVar[str] = "terminate"

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """Return the end of the session, with its reason."""
        return TransitionDecision(None, self.reason)


@dataclass(frozen=True, slots=True)
class Always:
    """Every envelope."""

    name: ClassVar[str] = "always"

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """It is always taken."""
        return True


@dataclass(frozen=True, slots=True)
class FromSpeaker:
    """Envelopes of one participant."""

    agent_id: str
    name: ClassVar[str] = "from_speaker"

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Return True if that participant is the sender."""
        return envelope.sender_id == self.agent_id


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A packet of a round in which this tool was called."""

    tool_name: str
    name: ClassVar[str] = "tool_called"

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Return True if the packet's routing names the tool."""
        routing = envelope.event_data.get("routing") if envelope.event_type == EV_PACKET else None
        return isinstance(routing, Mapping) and routing.get("tool") == self.tool_name


@dataclass(frozen=True, slots=True)
class ContextEquals:
    """A variable of the workflow has this value; one that is not set has None."""

    key: str
    value: Any
    name: ClassVar[str] = "context_equals"

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Return True if the variable has this value, after the envelope's own updates."""
        return bool(state.context_vars.get(self.key) == self.value)


@dataclass(frozen=True, slots=True)
class Transition:
    """One rule.

    Attributes:
        when: Its condition.
        then: Its target.
        priority: The lowest is checked first; equal priorities in the order of the list.
    """

    when: TransitionCondition
    then: TransitionTarget
    priority: int = 0
