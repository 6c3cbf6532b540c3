"""Seats: who answers for a participant in one session, one of our agents or any callable, and what it has read."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from otel_assembly.assembler import Assembler
from otel_assembly.context import Context
from otel_assembly.errors import ConfigurationError, HaltedError, SessionError
from otel_assembly.events import ModelResponse, ToolCallEvent, ToolErrorEvent, ToolResultEvent
from otel_assembly.runtime.agent import Agent
from otel_assembly.runtime.session import OUTCOME_UNKNOWN, UnfinishedCalls, not_run
from otel_assembly.runtime.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.runtime.session import Journal
    from otel_assembly.sessions.participant_view import ParticipantView


@dataclass(frozen=True, slots=True)
class Round:
    """What one round came to.

    Attributes:
        reply: What was answered, with the ``content`` that an adapter makes an envelope of.
        events: What happened in the round, in order.
        event_id: The event of the history that stands for the reply; None where there is none.
    """

    reply: Any
    events: Sequence[Any]
    event_id: str | None


class NoAnswerError(SessionError):
    """A round that ended without an answer, and would again: an approval that nobody gives, or too many rounds."""


class Seat(Protocol):
    """Who answers for a participant in one session."""

    view: ParticipantView

    async def ask(self, asked: Sequence[Any]) -> Round:
        """Answer what is asked, for the first time or once more; what was asked stands in the history only once."""
        ...

    def restore(self, events: Sequence[Any], asked: Sequence[Any] | None = None) -> Sequence[ToolCallEvent]:
        """Take over the steps of a turn that another server began.

        Args:
            events: The steps: responses that call tools, and results.
            asked: What the turn asks, which `ask` is given then; None if the turn was superseded by a later one.

        Returns:
            The calls whose outcome is unknown, and which do not run again.
        """
        ...

    async def aclose(self) -> None:
        """Nothing more is asked."""
        ...


class AgentSeat:
    """One of our agents, in a conversation of its own, whose history is the participant's.

    Args:
        agent: The agent.
        view: What the participant has read; nothing yet.
        journal: Where the steps of a turn are stored, so that another server can continue it.
    """

    def __init__(self, agent: Agent, view: ParticipantView, journal: Journal) -> None:
        self._agent = agent.open_session(view.session.session_id, reductions=view.policies)
        self._agent.session.journal = journal
        view.history = self._agent.session.history
        self.view = view
        #: Where the round began that is going on, and what was asked in it.
        self._round: tuple[int, Sequence[Any]] | None = None

    async def ask(self, asked: Sequence[Any]) -> Round:
        """Ask the agent; where an earlier try left the question unanswered, it goes on from there.

        Raises:
            HaltedError: The conversation is halted.
            NoAnswerError: The agent stopped without an answer.
            AssemblyError: As `Agent.ask`.
        """
        session = self._agent.session
        known = self._round is not None and self._round[1] is asked and len(session.history) > self._round[0]
        if not known:
            self._round = (len(session.history), asked)
        start = self._round[0] if self._round is not None else 0
        unfinished = _unanswered(session.history.events[start:]) if known else []
        if unfinished:
            reply = await self._agent.ask(UnfinishedCalls(tuple(unfinished)))
        else:
            reply = await self._agent.ask(None if known else list(asked))
        if session.halt is not None:
            raise HaltedError(session.halt.reason, session.halt.source)
        events = session.history.events[start:]
        answer = next((event for event in reversed(events) if isinstance(event, ModelResponse)), None)
        if session.pending:
            waiting = ", ".join(sorted({call.name for call in session.pending.values()}))
            raise NoAnswerError(f"calls of {waiting} wait for somebody to agree, and a served agent has nobody to ask")
        if answer is None or answer.tool_calls:
            raise NoAnswerError(reply.content)
        return Round(reply, events, answer.id)

    def restore(self, events: Sequence[Any], asked: Sequence[Any] | None = None) -> Sequence[ToolCallEvent]:
        """See `Seat.restore`."""
        history, tools = self._agent.session.history, self._agent.tools
        unfinished = [call for call in _unanswered(events) if not call.awaiting_approval]
        if asked is None:
            history.extend(events)
            history.extend([not_run(call, OUTCOME_UNKNOWN) for call in _unanswered(events)])
            return unfinished
        self._round = (len(history), asked)
        history.extend(asked)
        history.extend(events)
        return [call for call in unfinished if call.name not in tools or not tools[call.name].idempotent]

    async def aclose(self) -> None:
        """Close the agent's conversation: its aggregates run a last time."""
        await self._agent.aclose()


class CallableSeat:
    """A callable that is given the assembled events and returns what to say.

    Args:
        answer: The callable, async or not.
        view: What the participant has read; nothing yet.
    """

    def __init__(self, answer: Callable[[Sequence[Any]], Any], view: ParticipantView) -> None:
        self.view = view
        self._answer = answer
        self._assembler = Assembler(view.policies)
        self._context = Context(
            conversation_id=view.session.session_id,
            agent_name=view.participant_id,
            stream=Stream(view.history, records=False),
        )
        self._asked: Sequence[Any] | None = None

    async def ask(self, asked: Sequence[Any]) -> Round:
        """Assemble, and call it.

        Raises:
            HaltedError: The conversation is halted.
            ConfigurationError: It returned neither a text, nor None, nor anything with a ``content``.
        """
        history = self.view.history
        if self._asked is not asked:
            self._asked = asked
            history.extend(asked)
        assembly = await self._assembler.assemble([], history, self._context)
        said = self._answer(assembly.events)
        if inspect.isawaitable(said):
            said = await said
        reply = ModelResponse(content=said or "") if said is None or isinstance(said, str) else said
        if not isinstance(getattr(reply, "content", None), str):
            raise ConfigurationError(
                f"what answers for {self.view.participant_id!r} returned a {type(said).__name__}; return a text, None "
                "to say nothing, or an object with a text as its 'content'"
            )
        stored = reply if isinstance(reply, ModelResponse) else ModelResponse(content=reply.content)
        if stored.content:
            history.append(stored)
        return Round(reply, tuple(getattr(reply, "events", ())), stored.id if stored.content else None)

    def restore(self, events: Sequence[Any], asked: Sequence[Any] | None = None) -> Sequence[ToolCallEvent]:
        """A callable has no steps that we know of: it is asked anew."""
        return ()

    async def aclose(self) -> None:
        """A callable holds nothing."""


def _unanswered(events: Sequence[Any]) -> list[ToolCallEvent]:
    """The calls among events that have no result, in order; ids may repeat from one response to the next."""
    calls: list[ToolCallEvent] = []
    for event in events:
        if isinstance(event, ModelResponse):
            calls.extend(event.tool_calls)
        elif isinstance(event, ToolResultEvent | ToolErrorEvent):
            answered = next((call for call in calls if call.id == event.parent_id), None)
            if answered is not None:
                calls.remove(answered)
    return calls


def seat_of(agent: Agent | Callable[[Sequence[Any]], Any], view: ParticipantView, journal: Journal) -> Seat:
    """The seat of an agent, or of a callable.

    Raises:
        ConfigurationError: It is neither.
    """
    if isinstance(agent, Agent):
        return AgentSeat(agent, view, journal)
    if not callable(agent):
        raise ConfigurationError(f"a {type(agent).__name__} cannot be served; give an Agent, or a callable of events")
    return CallableSeat(agent, view)
