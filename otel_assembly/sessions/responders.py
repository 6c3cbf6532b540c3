"""Responders: objects that answer for a participant of one session, with an agent or a function."""

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
    """The result of one round: of one question to a participant's agent.

    Attributes:
        reply: The answer; the session's protocol makes an envelope from its ``content``.
        events: The events of the round, in order.
        event_id: The id of the history's event that is the answer; None if the history has no such event.
    """

    reply: Any
    events: Sequence[Any]
    event_id: str | None


class NoAnswerError(SessionError):
    """The agent stopped without an answer, and a retry would not help: a pending approval, or too many model calls."""


class Responder(Protocol):
    """Answers for a participant in one session."""

    view: ParticipantView

    async def ask(self, question: Sequence[Any]) -> Round:
        """Answer a question.

        To try again after an error, pass the same list object again, which is then not added to the history again.
        """
        ...

    def restore(self, events: Sequence[Any], question: Sequence[Any] | None = None) -> Sequence[ToolCallEvent]:
        """Add the stored steps of a turn that another server began, so that `ask` continues the turn.

        Args:
            events: The steps: responses that call tools, and tool results.
            question: The turn's question, which is passed to `ask` afterwards; None if the turn is not to be continued,
                because a later turn replaced it.

        Returns:
            The tool calls that were begun, have an unknown outcome and do not run again.
        """
        ...

    async def aclose(self) -> None:
        """Release the resources of the responder."""
        ...


class AgentResponder:
    """Answers with an `Agent`, in a conversation of its own whose history is that of the participant's view.

    Args:
        agent: The agent.
        view: The participant's view, before its first read.
        journal: Stores the steps of a turn, so that another server can continue the turn.
    """

    def __init__(self, agent: Agent, view: ParticipantView, journal: Journal) -> None:
        self._agent = agent.open_session(view.session.session_id, reductions=view.policies)
        self._agent.session.journal = journal
        view.history = self._agent.session.history
        self.view = view
        #: The index of the current round's first event in the history, and the round's question; None before the first
        #: round. `ask` compares the question by identity, to recognize a retry.
        self._round: tuple[int, Sequence[Any]] | None = None

    async def ask(self, question: Sequence[Any]) -> Round:
        """Ask the agent a question; if the previous attempt at this question failed, continue that attempt.

        It is a retry if `question` is the same list object as in the previous call; an equal list is a new question.

        Args:
            question: The events that the agent has to answer.

        Raises:
            HaltedError: The conversation is halted.
            NoAnswerError: A tool call awaits an approval, or the agent stopped after `Agent.max_rounds` model calls.
            AssemblyError: See `Agent.ask`.
        """
        session = self._agent.session
        is_retry = self._round is not None and self._round[1] is question and len(session.history) > self._round[0]
        if not is_retry:
            self._round = (len(session.history), question)
        start = self._round[0] if self._round is not None else 0
        unfinished = _unanswered_calls(session.history.events[start:]) if is_retry else []
        if unfinished:
            reply = await self._agent.ask(UnfinishedCalls(tuple(unfinished)))
        else:
            reply = await self._agent.ask(None if is_retry else list(question))
        if session.halt is not None:
            raise HaltedError(session.halt.reason, session.halt.source)
        events = session.history.events[start:]
        answer = next((event for event in reversed(events) if isinstance(event, ModelResponse)), None)
        if session.pending:
            waiting = ", ".join(sorted({call.name for call in session.pending.values()}))
            raise NoAnswerError(f"tool calls await an approval, which an agent under serve() cannot get: {waiting}")
        if answer is None or answer.tool_calls:
            raise NoAnswerError(reply.content)
        return Round(reply, events, answer.id)

    def restore(self, events: Sequence[Any], question: Sequence[Any] | None = None) -> Sequence[ToolCallEvent]:
        """Add the stored steps of a turn that another server began to the history; see `Responder.restore`."""
        history, tools = self._agent.session.history, self._agent.tools
        unfinished = [call for call in _unanswered_calls(events) if not call.awaiting_approval]
        if question is None:
            history.extend(events)
            history.extend([not_run(call, OUTCOME_UNKNOWN) for call in _unanswered_calls(events)])
            return unfinished
        self._round = (len(history), question)
        history.extend(question)
        history.extend(events)
        return [call for call in unfinished if call.name not in tools or not tools[call.name].idempotent]

    async def aclose(self) -> None:
        """Close the agent's conversation, which lets the agent's aggregates (such as a summary) run a last time."""
        await self._agent.aclose()


class CallableResponder:
    """Answers with a function that takes the assembled events and returns the answer.

    Args:
        answer: The function; sync or async.
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
        self._question: Sequence[Any] | None = None

    async def ask(self, question: Sequence[Any]) -> Round:
        """Assemble the events and call the function with them.

        Raises:
            HaltedError: The conversation is halted.
            ConfigurationError: The function returned neither a text, nor None, nor an object with a ``content``.
        """
        history = self.view.history
        if self._question is not question:
            self._question = question
            history.extend(question)
        assembly = await self._assembler.assemble([], history, self._context)
        answer = self._answer(assembly.events)
        if inspect.isawaitable(answer):
            answer = await answer
        reply = ModelResponse(content=answer or "") if answer is None or isinstance(answer, str) else answer
        if not isinstance(getattr(reply, "content", None), str):
            raise ConfigurationError(
                f"the callable of {self.view.participant_id!r} returned a {type(answer).__name__}; return a text, None "
                "to say nothing, or an object with a text as its 'content'"
            )
        stored = reply if isinstance(reply, ModelResponse) else ModelResponse(content=reply.content)
        if stored.content:
            history.append(stored)
        return Round(reply, tuple(getattr(reply, "events", ())), stored.id if stored.content else None)

    def restore(self, events: Sequence[Any], question: Sequence[Any] | None = None) -> Sequence[ToolCallEvent]:
        """Do nothing: a function has no stored steps, and is called again."""
        return ()

    async def aclose(self) -> None:
        """Do nothing: a function has no resources."""


def _unanswered_calls(events: Sequence[Any]) -> list[ToolCallEvent]:
    """Return the tool calls without a result, in order; a later response may reuse the ids of earlier calls."""
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
    """Return the object that answers for a participant with an agent or a function.

    Raises:
        ConfigurationError: `agent` is neither an `Agent` nor callable.
    """
    if isinstance(agent, Agent):
        return AgentResponder(agent, view, journal)
    if not callable(agent):
        raise ConfigurationError(f"a {type(agent).__name__} cannot be served; give an Agent, or a callable of events")
    return CallableResponder(agent, view)
