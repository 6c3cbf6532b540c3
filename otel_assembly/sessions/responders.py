"""Responders: the agent or callable that answers for a participant in one session, with its view."""

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
    """The result of one round.

    Attributes:
        reply: The answer; an adapter makes an envelope of its ``content``.
        events: The events of the round, in order.
        event_id: The id of the history's event that represents the reply; None if there is none.
    """

    reply: Any
    events: Sequence[Any]
    event_id: str | None


class NoAnswerError(SessionError):
    """A round without an answer that a retry would not fix: a pending approval, or too many model calls."""


class Responder(Protocol):
    """Answers for a participant in one session."""

    view: ParticipantView

    async def ask(self, asked: Sequence[Any]) -> Round:
        """Answer a question; a repeated question is added to the history only once."""
        ...

    def restore(self, events: Sequence[Any], asked: Sequence[Any] | None = None) -> Sequence[ToolCallEvent]:
        """Take over the steps of a turn that another server began.

        Args:
            events: The steps: responses that call tools, and results.
            asked: The turn's question, passed to `ask` afterwards; None if a later turn superseded it.

        Returns:
            The calls whose outcome is unknown, and which do not run again.
        """
        ...

    async def aclose(self) -> None:
        """Close the responder."""
        ...


class AgentResponder:
    """An `Agent` with its own conversation, whose history is the participant's view.

    Args:
        agent: The agent.
        view: The participant's view, before its first read.
        journal: Stores the steps of a turn, so that another server can continue it.
    """

    def __init__(self, agent: Agent, view: ParticipantView, journal: Journal) -> None:
        self._agent = agent.open_session(view.session.session_id, reductions=view.policies)
        self._agent.session.journal = journal
        view.history = self._agent.session.history
        self.view = view
        #: The start of the current round in the history, and its question.
        self._round: tuple[int, Sequence[Any]] | None = None

    async def ask(self, asked: Sequence[Any]) -> Round:
        """Ask the agent; continue from an earlier attempt that left the question unanswered.

        Raises:
            HaltedError: The conversation is halted.
            NoAnswerError: The agent stopped without an answer.
            AssemblyError: See `Agent.ask`.
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
            raise NoAnswerError(f"tool calls await an approval, which a served agent cannot ask for: {waiting}")
        if answer is None or answer.tool_calls:
            raise NoAnswerError(reply.content)
        return Round(reply, events, answer.id)

    def restore(self, events: Sequence[Any], asked: Sequence[Any] | None = None) -> Sequence[ToolCallEvent]:
        """See `Responder.restore`."""
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
        """Close the agent's conversation, which runs its aggregates a last time."""
        await self._agent.aclose()


class CallableResponder:
    """A callable that gets the assembled events and returns the answer.

    Args:
        answer: The callable, async or not.
        view: The participant's view, before its first read.
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
        """Assemble the events and call the callable.

        Raises:
            HaltedError: The conversation is halted.
            ConfigurationError: The callable returned neither a text, nor None, nor an object with a ``content``.
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
                f"the callable of {self.view.participant_id!r} returned a {type(said).__name__}; return a text, None "
                "to say nothing, or an object with a text as its 'content'"
            )
        stored = reply if isinstance(reply, ModelResponse) else ModelResponse(content=reply.content)
        if stored.content:
            history.append(stored)
        return Round(reply, tuple(getattr(reply, "events", ())), stored.id if stored.content else None)

    def restore(self, events: Sequence[Any], asked: Sequence[Any] | None = None) -> Sequence[ToolCallEvent]:
        """Restore nothing: a callable has no recorded steps and is called again."""
        return ()

    async def aclose(self) -> None:
        """Do nothing: a callable holds no resources."""


def _unanswered(events: Sequence[Any]) -> list[ToolCallEvent]:
    """Return the tool calls without a result, in order; responses may reuse ids."""
    calls: list[ToolCallEvent] = []
    for event in events:
        if isinstance(event, ModelResponse):
            calls.extend(event.tool_calls)
        elif isinstance(event, ToolResultEvent | ToolErrorEvent):
            answered = next((call for call in calls if call.id == event.parent_id), None)
            if answered is not None:
                calls.remove(answered)
    return calls


def responder_of(agent: Agent | Callable[[Sequence[Any]], Any], view: ParticipantView, journal: Journal) -> Responder:
    """Return the responder of an agent or a callable.

    Raises:
        ConfigurationError: The object is neither.
    """
    if isinstance(agent, Agent):
        return AgentResponder(agent, view, journal)
    if not callable(agent):
        raise ConfigurationError(f"a {type(agent).__name__} cannot be served; give an Agent, or a callable of events")
    return CallableResponder(agent, view)
