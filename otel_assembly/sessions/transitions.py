"""The parts of a workflow's graph, which chooses the next speaker: transitions, their conditions and their targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from otel_assembly.sessions.envelope import EV_PACKET, Envelope


class Turns(Protocol):
    """The state of a workflow after the current envelope (message), as transitions read it."""

    @property
    def participant_order(self) -> tuple[str, ...]:
        """The ids of the participants, in order."""
        ...

    @property
    def last_speaker_id(self) -> str | None:
        """The id of the participant who spoke last; None before the first turn."""
        ...

    @property
    def creator_id(self) -> str:
        """The id of the participant who created the session."""
        ...

    @property
    def context_vars(self) -> Mapping[str, Any]:
        """The workflow's variables, by name."""
        ...


@dataclass(frozen=True, slots=True)
class TransitionDecision:
    """The result of a transition.

    Attributes:
        next_speaker: The id of the next speaker; None ends the session.
        close_reason: The session's close reason, if the session ends.
    """

    next_speaker: str | None
    close_reason: str = ""


class TransitionTarget(Protocol):
    """Chooses the next speaker of a workflow.

    A target is a dataclass with a `name` and fields that can be written as JSON.
    """

    name: ClassVar[str]

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """Return the next speaker; must depend on the arguments only, so that all hubs get the same result."""
        ...


class TransitionCondition(Protocol):
    """Decides whether a transition is taken.

    A condition is a dataclass with a `name` and fields that can be written as JSON.
    """

    name: ClassVar[str]

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Return True to take the transition; must depend on the arguments only, so that all hubs decide the same."""
        ...


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """The target that chooses one given participant.

    Attributes:
        agent_id: The participant's id.
    """

    agent_id: str
    name: ClassVar[str] = "agent"

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """Return a decision that names `agent_id` as the next speaker."""
        return TransitionDecision(self.agent_id)


@dataclass(frozen=True, slots=True)
class RoundRobinTarget:
    """The target that chooses the participant after the last speaker, in the order of the participants."""

    name: ClassVar[str] = "round_robin"

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """Return a decision that names the participant after the last speaker as the next speaker.

        After the last participant in the order comes the first one. If the last speaker is not a participant, the first
        participant is the next speaker. If there are no participants, the decision ends the session.
        """
        order = state.participant_order
        if not order:
            return TransitionDecision(None, "no_participants")
        last = state.last_speaker_id or envelope.sender_id
        return TransitionDecision(order[(order.index(last) + 1) % len(order)] if last in order else order[0])


@dataclass(frozen=True, slots=True)
class StayTarget:
    """The target that chooses the last speaker again."""

    name: ClassVar[str] = "stay"

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """Return a decision that names the last speaker as the next speaker."""
        return TransitionDecision(state.last_speaker_id or envelope.sender_id)


@dataclass(frozen=True, slots=True)
class RevertToInitiatorTarget:
    """The target that chooses the participant who created the session."""

    name: ClassVar[str] = "revert_to_initiator"

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """Return a decision that names the creator of the session as the next speaker."""
        return TransitionDecision(state.creator_id)


@dataclass(frozen=True, slots=True)
class TerminateTarget:
    """The target that ends the session.

    Attributes:
        reason: The session's close reason.
    """

    reason: str = "after_work"
    name: ClassVar[str] = "terminate"

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """Return a decision that ends the session with `reason` as the close reason."""
        return TransitionDecision(None, self.reason)


@dataclass(frozen=True, slots=True)
class Always:
    """The condition that is true for every envelope."""

    name: ClassVar[str] = "always"

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True, slots=True)
class FromSpeaker:
    """The condition that an envelope is from a given participant.

    Attributes:
        agent_id: The participant's id.
    """

    agent_id: str
    name: ClassVar[str] = "from_speaker"

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Return True if the participant sent the envelope."""
        return envelope.sender_id == self.agent_id


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """The condition that an agent called a given tool in the round of a packet.

    Attributes:
        tool_name: The tool's name.
    """

    tool_name: str
    name: ClassVar[str] = "tool_called"

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Return True if the routing of the packet (its choice of the next speaker) names the tool."""
        routing = envelope.event_data.get("routing") if envelope.event_type == EV_PACKET else None
        return isinstance(routing, Mapping) and routing.get("tool") == self.tool_name


@dataclass(frozen=True, slots=True)
class ContextEquals:
    """The condition that a variable of the workflow has a given value.

    Attributes:
        key: The variable's name.
        value: The value; None is also the value of a variable that is not set.
    """

    key: str
    value: Any
    name: ClassVar[str] = "context_equals"

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Return True if the variable has the value, after the changes that the envelope itself makes."""
        return bool(state.context_vars.get(self.key) == self.value)


@dataclass(frozen=True, slots=True)
class Transition:
    """One rule of a workflow's graph: if a condition is true for an envelope, a target chooses the next speaker.

    Attributes:
        when: The condition.
        then: The target.
        priority: Rules with a lower number are checked first; rules of equal priority in the order of the graph's list.
    """

    when: TransitionCondition
    then: TransitionTarget
    priority: int = 0
