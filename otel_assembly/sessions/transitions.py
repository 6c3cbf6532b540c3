"""What a workflow's graph is made of: where the next turn goes, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from otel_assembly.sessions.envelope import EV_PACKET, Envelope


class Turns(Protocol):
    """What a transition sees of a workflow's state, the envelope that it follows included."""

    @property
    def participant_order(self) -> tuple[str, ...]:
        """All who take part, in order."""
        ...

    @property
    def last_speaker_id(self) -> str | None:
        """Who spoke last."""
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
    """Where a workflow goes.

    Attributes:
        next_speaker: Whose turn it is; None ends the session.
        close_reason: Why it ends.
    """

    next_speaker: str | None
    close_reason: str = ""


class TransitionTarget(Protocol):
    """Where the next turn goes: a dataclass with a `name`, whose fields are JSON."""

    name: ClassVar[str]

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """Who speaks next; pure, so that every hub comes to the same."""
        ...


class TransitionCondition(Protocol):
    """When a transition is taken: a dataclass with a `name`, whose fields are JSON."""

    name: ClassVar[str]

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Whether it is; pure, so that every hub comes to the same."""
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
    """Who comes after the last speaker in the order of the participants."""

    name: ClassVar[str] = "round_robin"

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """The next one; the first one after somebody who is not in the order."""
        order = state.participant_order
        if not order:
            return TransitionDecision(None, "no_participants")
        last = state.last_speaker_id or envelope.sender_id
        return TransitionDecision(order[(order.index(last) + 1) % len(order)] if last in order else order[0])


@dataclass(frozen=True, slots=True)
class StayTarget:
    """Who spoke last, once more."""

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
    """Nobody: the session ends."""

    reason: str = "after_work"
    name: ClassVar[str] = "terminate"

    def resolve(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """The end, and its reason."""
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
    """What one participant sent."""

    agent_id: str
    name: ClassVar[str] = "from_speaker"

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Whether that participant sent it."""
        return envelope.sender_id == self.agent_id


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A packet of a round in which this tool was called."""

    tool_name: str
    name: ClassVar[str] = "tool_called"

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Whether the packet's routing names the tool."""
        routing = envelope.event_data.get("routing") if envelope.event_type == EV_PACKET else None
        return isinstance(routing, Mapping) and routing.get("tool") == self.tool_name


@dataclass(frozen=True, slots=True)
class ContextEquals:
    """A variable of the workflow has this value; one that is not set has None."""

    key: str
    value: Any
    name: ClassVar[str] = "context_equals"

    def evaluate(self, state: Turns, envelope: Envelope) -> bool:
        """Whether it has, once the envelope's own updates are made."""
        return bool(state.context_vars.get(self.key) == self.value)


@dataclass(frozen=True, slots=True)
class Transition:
    """One rule.

    Attributes:
        when: When it is taken.
        then: Where it goes.
        priority: The lowest is looked at first; of equal ones the one that is listed first.
    """

    when: TransitionCondition
    then: TransitionTarget
    priority: int = 0
