"""`Session`: one conversation of an agent, with all that outlives a reply."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from pydantic import ValidationError

from otel_assembly.context import Context
from otel_assembly.conversation_state import alert_facts
from otel_assembly.errors import SessionError, ToolError
from otel_assembly.events import (
    CompactionSummary,
    ConversationResumed,
    Event,
    ExternalExecutionResultEvent,
    HaltEvent,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    ToolArgumentsChanged,
    ToolCallEvent,
    ToolErrorEvent,
    ToolFinishedLate,
    ToolResultEvent,
    ToolResultsEvent,
    TurnStarted,
    UserConfirmResultEvent,
    event_from_json,
    event_to_json,
)
from otel_assembly.history.history import History
from otel_assembly.runtime.aggregation import AggregateObserver
from otel_assembly.runtime.observers import attach
from otel_assembly.runtime.stream import Stream
from otel_assembly.runtime.structured_answer import TOOL_NAME as STRUCTURED_TOOL_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly.conversation_state import HaltGuard
    from otel_assembly.events import ConfirmResult
    from otel_assembly.runtime.observers import Observer
    from otel_assembly.runtime.structured_answer import StructuredAnswer
    from otel_assembly.runtime.tools import Tool

    #: Who changes the arguments of a call.
    ArgumentSource: TypeAlias = Literal["confirmation", "permission", "middleware"]

_log = logging.getLogger("otel_assembly")

_FORMAT: Final = "otel-assembly session"
#: Version 2 may hold events and fields that the first release does not know; both are read.
_VERSION: Final = 2
_READ: Final = (1, 2)
_PASSED_OVER: Final = "not run: nobody has confirmed it, and the conversation went on"


class Journal(Protocol):
    """Stores the steps of a turn outside of the process, so that another process can continue the turn."""

    async def record(self, event: Event) -> None:
        """Store a response that calls tools, or a result of a tool; return once it is durable."""
        ...


@dataclass(frozen=True, slots=True)
class UnfinishedCalls:
    """An input of an agent: continue a turn whose process ended while these calls were running.

    A call runs again only if its tool is idempotent; any other call gets an error as its result: `OUTCOME_UNKNOWN`.

    Attributes:
        calls: The calls of the history that have no result.
    """

    calls: tuple[ToolCallEvent, ...]


#: What the model reads of a call that was running when its process ended.
OUTCOME_UNKNOWN: Final = (
    "outcome unknown: the process that ran this call ended before it stored a result; the call may have taken effect, "
    "so check before you repeat it"
)


class Session:
    """One conversation of an agent: its history, its stream, its halt, and the tool calls that wait for somebody.

    An `Agent` makes it. What stands in `history` is what was said, whole; what the model is sent of it is up to the
    agent's chain.

    Args:
        agent_name: The agent's name, for telemetry.
        model: The name of its model.
        tools: The definitions of its tools.
        dependencies: What its policies and tools look up, by type.
        observers: Who watches.
        conversation_id: The conversation's real id, if it has one.
        events: What was said before.

    Attributes:
        history: Everything that was said and done.
        stream: Where it is sent; subscribe here to see it as it happens.
        context: What the agent's policies, observers and tools are given.
        pending: The tool calls that wait for a person, or for somebody who runs them, by their ids.
        turns: How many asks it has had.
        owed: The answer that the ask under way owes in a form of its own; None where it owes none.
        changed_calls: The ids of calls that ran with other arguments than the model gave.
        journal: Stores responses that call tools, and results, before anything follows from them; None to store none.
    """

    def __init__(
        self,
        agent_name: str,
        *,
        model: str,
        tools: Sequence[Mapping[str, Any]],
        dependencies: Mapping[Any, Any],
        observers: Iterable[Observer],
        conversation_id: str | None = None,
        events: Iterable[Event] = (),
    ) -> None:
        self.history = History()
        self.stream = Stream(self.history)
        self.context = Context(
            conversation_id=conversation_id,
            agent_name=agent_name,
            model=model,
            tools=tools,
            dependencies=dependencies,
            stream=self.stream,
        )
        self.pending: dict[str, ToolCallEvent] = {}
        self.turns = 0
        self.owed: StructuredAnswer | None = None
        self.changed_calls: set[str] = set()
        self.journal: Journal | None = None
        #: Held while an ask is answered: two at once would speak into each other.
        self.asking = asyncio.Lock()
        self._sending: set[asyncio.Task[None]] = set()
        self._restore(events)
        self._observers = tuple(observers)
        self._attachment = attach(self.stream, self._observers, self.context)

    @property
    def guard(self) -> HaltGuard:
        """Closed while the conversation is halted."""
        return self.stream.guard

    @property
    def halt(self) -> HaltEvent | None:
        """What halted the conversation; None while it goes on."""
        return self.guard.halt

    async def commit(self, event: Event) -> None:
        """Store an event in the journal, if there is one, then send it on the stream."""
        if self.journal is not None:
            await self.journal.record(event)
        await self.stream.send(event)

    async def resume(self, reason: str = "") -> None:
        """Let a halted conversation go on; the alerts that halted it are not shown again.

        Args:
            reason: Why, for whoever reads the history.

        Raises:
            SessionError: It is not halted.
        """
        halt = self.guard.reopen()
        if halt is None:
            raise SessionError(f"the session of agent {self.context.agent_name!r} is not halted, so nothing is resumed")
        for alert in (*halt.alerts, *self._alerts()):
            if alert_facts(alert).fatal:
                self.stream.conversation.deliveries.dismiss(alert_facts(alert))
        await self.stream.send(ConversationResumed(halt=halt.id, reason=reason))

    def save(self) -> str:
        """The session as lines of JSON: what `Agent.load_session` reads, in any process.

        Raises:
            SessionError: The history holds something that is none of our events.
        """
        head = {
            "format": _FORMAT,
            "version": _VERSION,
            "agent": self.context.agent_name,
            "conversation_id": self.context.conversation_id,
        }
        lines = [json.dumps(head)]
        for index, event in enumerate(self.history):
            if not isinstance(event, Event):
                raise SessionError(
                    f"event {index} of the history is a {type(event).__qualname__}, which has no JSON form of ours; "
                    "only our events can be saved"
                )
            lines.append(event_to_json(event))
        return "\n".join(lines) + "\n"

    async def aclose(self) -> None:
        """The conversation is over: aggregates run a last time, observers are detached; the history stays readable."""
        try:
            for observer in self._observers:
                if isinstance(observer, AggregateObserver):
                    await observer.end(self.stream)
        finally:
            self._attachment.detach()

    def answered(self, results: Iterable[ToolResultEvent | ToolErrorEvent]) -> None:
        """These calls wait no more."""
        for result in results:
            self.pending.pop(result.parent_id, None)

    async def note_change(self, original: ToolCallEvent, call: ToolCallEvent, source: ArgumentSource) -> None:
        """Record that a call runs with other arguments than the model gave, if it does."""
        if call.arguments != original.arguments:
            self.changed_calls.add(original.id)
            await self.stream.send(_change(original, call.arguments, source))

    def tool_ended_late(self, call: ToolCallEvent, seconds: float, error: BaseException | None) -> None:
        """Record that the function of a call ended after the call was given up.

        Args:
            call: The call.
            seconds: How long the function ran.
            error: What it raised.
        """
        _log.warning("a call of tool %s ended after %.3g s, when nothing waited for it any more", call.name, seconds)
        failed = "" if error is None else type(error).__qualname__
        event = ToolFinishedLate(parent_id=call.id, name=call.name, seconds=seconds, error=failed)
        task = asyncio.get_running_loop().create_task(self.stream.send(event))
        self._sending.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._sending.discard)

    def _alerts(self) -> Iterable[ObserverAlert]:
        return (event for event in self.history if isinstance(event, ObserverAlert))

    def _restore(self, events: Iterable[Event]) -> None:
        """Be as the session was that left these events: halted or not, with the same calls waiting."""
        unseen: list[ObserverAlert] = []
        halt: HaltEvent | None = None
        for event in events:
            self.history.append(event)
            if isinstance(event, ModelResponse):
                self.pending.update({call.id: call for call in event.tool_calls if call.awaiting_approval})
            elif isinstance(event, ToolResultEvent | ToolErrorEvent):
                self.answered([event])
            elif isinstance(event, ToolResultsEvent):
                self.answered(event.results)
            elif isinstance(event, TurnStarted):
                self.turns += 1
            elif isinstance(event, HaltEvent):
                halt = halt or event
            elif isinstance(event, ConversationResumed):
                halt = None
            if isinstance(event, ObserverAlert):
                unseen.append(event)
            elif isinstance(event, ModelResponse | ConversationResumed):
                # A response that came after an alert is one to a prompt that told of it.
                for alert in unseen:
                    self.stream.conversation.deliveries.dismiss(alert_facts(alert))
                unseen = []
        self.guard.halt = halt


def read_session(text: str) -> tuple[str | None, list[Event]]:
    """The conversation's id and the events that `Session.save` wrote.

    Raises:
        SessionError: It is no saved session, or one of a later version; or a line of it is no event. The line is named.
    """
    lines = text.removesuffix("\n").split("\n")  # a text in JSON may hold what splitlines() takes for the end of a line
    try:
        head = json.loads(lines[0])
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise SessionError("line 1: this is no saved session; give what Session.save() returned")
    if head.get("version") not in _READ:
        raise SessionError(
            f"line 1: the session is of version {head.get('version')!r}, this package reads {_VERSION}; update it"
        )
    events: list[Event] = []
    for number, line in enumerate(lines[1:], 2):
        try:
            events.append(event_from_json(line))
        except ValidationError as error:
            raise SessionError(
                f"line {number}: {error.errors()[0]['msg']}; the session is damaged: remove the line, or go back to a "
                "whole copy"
            ) from None
    own = head.get("conversation_id")
    return own if isinstance(own, str) else None, events


def inputs_of(
    given: Any,
) -> list[ModelRequest] | UserConfirmResultEvent | ExternalExecutionResultEvent | UnfinishedCalls | None:
    """What somebody gives an agent, in the form that it works with.

    Raises:
        SessionError: An agent cannot take it.
    """
    if isinstance(given, str):
        return [ModelRequest(content=given)]
    if given is None or isinstance(given, UserConfirmResultEvent | ExternalExecutionResultEvent | UnfinishedCalls):
        return given
    several = [given] if isinstance(given, ModelRequest) else given
    if isinstance(several, list | tuple) and several and all(isinstance(one, str | ModelRequest) for one in several):
        return [ModelRequest(content=one) if isinstance(one, str) else one for one in several]
    raise SessionError(
        f"an agent is asked with a text, a ModelRequest, a list of them, a UserConfirmResultEvent or an "
        f"ExternalExecutionResultEvent, not with a {type(given).__name__}"
    )


def take(
    session: Session, inputs: Any, tools: Mapping[str, Tool], *, wants_form: bool = False
) -> tuple[list[Event], list[ToolCallEvent]]:
    """What somebody gave: the events that it puts on the stream, and the calls that may run now.

    Args:
        session: The conversation; it is changed only if nothing is raised.
        inputs: What was given.
        tools: The agent's tools.
        wants_form: Whether a structured answer is asked for: a finished text may be asked for again, in that form.

    Raises:
        SessionError: It does not fit what the session waits for.
    """
    given = inputs_of(inputs)
    pending = session.pending
    if isinstance(given, list):
        passed_over = [not_run(call, _PASSED_OVER) for call in pending.values()]
        pending.clear()
        return [*passed_over, *given], []
    if given is None:
        if pending:
            raise SessionError(f"calls wait for somebody ({', '.join(pending)}): give what became of them, or ask anew")
        if not session.history:
            raise SessionError("there is nothing to answer yet; ask something")
        if _is_answered(session, in_a_form=wants_form):
            raise SessionError("the last answer is finished, so there is nothing to go on with; ask something")
        return [], []
    if isinstance(given, UnfinishedCalls):
        return [], list(given.calls)
    if isinstance(given, ExternalExecutionResultEvent):
        _check_calls(session, [(result.parent_id, result.name) for result in given.execution_results])
        if not all(result.name for result in given.execution_results):
            named = [
                result if result.name else result.model_copy(update={"name": pending[result.parent_id].name})
                for result in given.execution_results
            ]
            given = given.model_copy(update={"execution_results": tuple(named)})
        session.answered(given.execution_results)
        return [given, *given.execution_results], []
    _check_calls(session, [(result.tool_call.id, result.tool_call.name) for result in given.confirm_results], True)
    for result in given.confirm_results:
        _check_confirmation(pending[result.tool_call.id], result, tools.get(result.tool_call.name))
    taken: list[Event] = [given]
    confirmed: list[ToolCallEvent] = []
    for result in given.confirm_results:
        # What waits is what runs: of the call that was given back, only the arguments count.
        call, arguments = pending.pop(result.tool_call.id), result.tool_call.arguments
        if not result.confirmed:
            taken.append(not_run(call, f"not run: {result.message or 'it was not confirmed'}"))
            continue
        if arguments != call.arguments:
            session.changed_calls.add(call.id)
            taken.append(_change(call, arguments, "confirmation"))
            call = call.model_copy(update={"arguments": arguments})
        confirmed.append(call)
    return taken, confirmed


def _change(call: ToolCallEvent, arguments: str, source: ArgumentSource) -> ToolArgumentsChanged:
    return ToolArgumentsChanged(
        parent_id=call.id, name=call.name, original=call.arguments, arguments=arguments, source=source
    )


def _check_confirmation(call: ToolCallEvent, result: ConfirmResult, tool: Tool | None) -> None:
    """Refuse a confirmation of what cannot run; the call goes on waiting.

    Raises:
        SessionError: The call is run by somebody else, or the changed arguments are not what the tool takes.
    """
    if not result.confirmed:
        return
    if call.external or (tool is not None and tool.external):
        raise SessionError(
            f"call {call.id} of tool {call.name!r} is run by somebody else; give its result in an "
            "ExternalExecutionResultEvent"
        )
    if tool is not None and result.tool_call.arguments != call.arguments:
        try:
            tool.read(result.tool_call.arguments)
        except ToolError as error:
            raise SessionError(f"call {call.id}, with changed arguments: {error}; the call still waits") from error


def _is_answered(session: Session, *, in_a_form: bool) -> bool:
    """Whether the newest thing said is a finished answer of the model.

    Args:
        session: The conversation.
        in_a_form: Whether only a structured answer counts.
    """
    for event in reversed(session.history):
        if isinstance(event, ModelResponse):
            return not (in_a_form or event.tool_calls or event.is_truncated)
        if isinstance(event, ToolResultEvent) and event.name == STRUCTURED_TOOL_NAME:
            return True
        if isinstance(event, ModelRequest | CompactionSummary) or not isinstance(event, Event):
            return False
    return False


def _check_calls(session: Session, calls: Sequence[tuple[str, str]], names_are_needed: bool = False) -> None:
    """Refuse decisions and results that are not of calls that wait, each once and under its tool's name.

    Raises:
        SessionError: One is not.
    """
    if not calls:
        raise SessionError("there is nothing in it; give one entry for each call that it is about")
    for call_id, name in calls:
        call = session.pending.get(call_id)
        if call is not None and name != call.name and (name or names_are_needed):
            raise SessionError(
                f"call {call_id} is one of tool {call.name!r}, not of {name!r}; only the arguments of a call that "
                "waits can be changed, and the call still waits"
            )
    ids = [call_id for call_id, _ in calls]
    unknown = [one for one in ids if one not in session.pending]
    if unknown or len(set(ids)) < len(ids):
        waiting = f"the calls that wait are {', '.join(session.pending)}" if session.pending else "no call waits"
        raise SessionError(f"{', '.join(unknown) or 'one call twice'}: {waiting}")


def not_run(call: ToolCallEvent, error: str, *, still_running: bool = False) -> ToolErrorEvent:
    """The result of a call that came to nothing, with what the model reads."""
    if still_running:
        return ToolErrorEvent(parent_id=call.id, name=call.name, error=error, still_running=True)
    return ToolErrorEvent(parent_id=call.id, name=call.name, error=error)
