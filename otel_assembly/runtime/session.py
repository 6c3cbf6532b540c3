"""`Session`: one conversation of an agent, with the state that is kept between calls of `Agent.ask`."""

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

    #: The origin of a change to a call's arguments.
    ArgumentSource: TypeAlias = Literal["confirmation", "permission", "middleware"]

_log = logging.getLogger("otel_assembly")

_FORMAT: Final = "otel-assembly session"
#: The version that `Session.save` writes. Releases that write version 1 cannot read all events of version 2.
_VERSION: Final = 2
_READABLE_VERSIONS: Final = (1, 2)
_UNCONFIRMED: Final = "not run: it was not confirmed before the next user message"


class Journal(Protocol):
    """Stores the responses and tool results of a turn durably, so that another process can continue the turn."""

    async def record(self, event: Event) -> None:
        """Store a response with tool calls, or a tool result; return when the event is durable."""
        ...


@dataclass(frozen=True, slots=True)
class UnfinishedCalls:
    """An input for `Agent.ask` that continues a turn whose process ended during tool calls.

    A call runs again only if its tool is idempotent. Any other call gets the error `OUTCOME_UNKNOWN` as its result.

    Attributes:
        calls: The tool calls of the history that have no result.
    """

    calls: tuple[ToolCallEvent, ...]


#: The error result of a call that was running when its process ended.
OUTCOME_UNKNOWN: Final = (
    "outcome unknown: the process that ran this call ended before it stored a result; the call may have taken effect, "
    "so check before you repeat it"
)


class Session:
    """One conversation of an agent: its history, its event stream, its halt and its pending tool calls.

    `Agent` creates sessions. `history` contains the whole conversation; the agent's chain of policies selects the
    messages of each model call.

    Args:
        agent_name: The agent's name, for telemetry.
        model: The name of the agent's model.
        tools: The definitions of the agent's tools.
        dependencies: Objects by type, which policies and tools look up, such as a `KnowledgeStore`.
        observers: Observers that are attached to the stream.
        conversation_id: The conversation's id in your application, which spans record; None if it has none.
        events: The events of an earlier session, to restore that session; empty for a new one.

    Attributes:
        history: All events of the conversation.
        stream: The stream that events are sent on; subscribe here to receive them as they happen.
        context: The context of the agent's policies, observers and tools.
        pending: The tool calls that wait for an approval or an external result, by id.
        turns: The number of turns so far. Each call of `Agent.ask` is one turn.
        owed: The structured answer that the running turn must return; None if the answer is a text.
        changed_calls: The ids of calls that ran with other arguments than those of the model.
        still_running: The ids of cancelled calls whose synchronous function continues in its thread.
        journal: Stores responses with tool calls, and tool results, before the turn continues. None: nothing is stored.
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
        self.still_running: set[str] = set()
        self.journal: Journal | None = None
        #: Locked during a turn, so that the events of concurrent turns are not interleaved.
        self.asking = asyncio.Lock()
        self._send_tasks: set[asyncio.Task[None]] = set()
        self._restore(events)
        self._observers = tuple(observers)
        self._attachment = attach(self.stream, self._observers, self.context)

    @property
    def guard(self) -> HaltGuard:
        """The guard whose ``check()`` raises `HaltedError` while the conversation is halted."""
        return self.stream.guard

    @property
    def halt(self) -> HaltEvent | None:
        """The event that halted the conversation; None if it is not halted."""
        return self.guard.halt

    async def commit(self, event: Event) -> None:
        """Store an event in the journal, if there is one, then send it on the stream."""
        if self.journal is not None:
            await self.journal.record(event)
        await self.stream.send(event)

    async def resume(self, reason: str = "") -> None:
        """Resume a halted conversation. The model does not receive the alerts that caused the halt.

        Args:
            reason: The reason, recorded in the history.

        Raises:
            SessionError: The conversation is not halted.
        """
        halt = self.guard.reopen()
        if halt is None:
            raise SessionError(f"the session of agent {self.context.agent_name!r} is not halted; nothing to resume")
        for alert in (*halt.alerts, *self._alerts()):
            if alert_facts(alert).fatal:
                self.stream.conversation.deliveries.dismiss(alert_facts(alert))
        await self.stream.send(ConversationResumed(halt=halt.id, reason=reason))

    def save(self) -> str:
        """Return the session as lines of JSON, from which `Agent.load_session` restores it in any process.

        Raises:
            SessionError: The history contains an event that is not an `Event` of this package.
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
                    f"event {index} of the history is a {type(event).__qualname__}, which cannot be saved; "
                    "only subclasses of otel_assembly.events.Event can"
                )
            lines.append(event_to_json(event))
        return "\n".join(lines) + "\n"

    async def aclose(self) -> None:
        """End the session: let each `AggregateObserver` finish its work, then detach all observers.

        The history can still be read afterwards.
        """
        try:
            for observer in self._observers:
                if isinstance(observer, AggregateObserver):
                    await observer.end(self.stream)
        finally:
            self._attachment.detach()

    def remove_pending(self, results: Iterable[ToolResultEvent | ToolErrorEvent]) -> None:
        """Remove the tool calls that these results belong to from `pending`."""
        for result in results:
            self.pending.pop(result.parent_id, None)

    async def note_change(self, original: ToolCallEvent, call: ToolCallEvent, source: ArgumentSource) -> None:
        """Send a `ToolArgumentsChanged` event if a call runs with other arguments than those of the model.

        Args:
            original: The call as the model requested it.
            call: The call that runs.
            source: What changed the arguments.
        """
        if call.arguments != original.arguments:
            self.changed_calls.add(original.id)
            await self.stream.send(_change(original, call.arguments, source))

    def tool_ended_late(self, call: ToolCallEvent, seconds: float, error: BaseException | None) -> None:
        """Log that a tool's function ended after its call's timeout or cancellation; send a `ToolFinishedLate` event.

        The caller calls this method when the function ends. The method does not wait until the event is sent.

        Args:
            call: The call.
            seconds: How long the function ran.
            error: The error that the function raised; None if it returned.
        """
        self.still_running.discard(call.id)
        _log.warning(
            "the function of tool %s ended after %.3g s, when its call had ended already; its result is dropped",
            call.name,
            seconds,
        )
        error_name = "" if error is None else type(error).__qualname__
        event = ToolFinishedLate(parent_id=call.id, name=call.name, seconds=seconds, error=error_name)
        task = asyncio.get_running_loop().create_task(self.stream.send(event))
        self._send_tasks.add(task)  # the event loop holds only weak references to tasks
        task.add_done_callback(self._send_tasks.discard)

    def _alerts(self) -> Iterable[ObserverAlert]:
        return (event for event in self.history if isinstance(event, ObserverAlert))

    def _restore(self, events: Iterable[Event]) -> None:
        """Restore the history, the pending calls, the number of turns and the halt from saved events."""
        undelivered: list[ObserverAlert] = []
        halt: HaltEvent | None = None
        for event in events:
            self.history.append(event)
            if isinstance(event, ModelResponse):
                self.pending.update({call.id: call for call in event.tool_calls if call.awaiting_approval})
            elif isinstance(event, ToolResultEvent | ToolErrorEvent):
                self.remove_pending([event])
            elif isinstance(event, ToolResultsEvent):
                self.remove_pending(event.results)
            elif isinstance(event, TurnStarted):
                self.turns += 1
            elif isinstance(event, HaltEvent):
                halt = halt or event
            elif isinstance(event, ConversationResumed):
                halt = None
            if isinstance(event, ObserverAlert):
                undelivered.append(event)
            elif isinstance(event, ModelResponse | ConversationResumed):
                # The model received the alerts before its response, so they must not be delivered again.
                for alert in undelivered:
                    self.stream.conversation.deliveries.dismiss(alert_facts(alert))
                undelivered = []
        self.guard.halt = halt


def read_session(text: str) -> tuple[str | None, list[Event]]:
    """Parse the text that `Session.save` returned; return the conversation's id and the events.

    Raises:
        SessionError: The text is not a saved session, its version is not supported, or a line is not an event. The
            error names the line.
    """
    # JSON strings may contain characters that splitlines() treats as line ends.
    lines = text.removesuffix("\n").split("\n")
    try:
        head = json.loads(lines[0])
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise SessionError("line 1: this is not a saved session; pass the text that Session.save() returned")
    if head.get("version") not in _READABLE_VERSIONS:
        raise SessionError(
            f"line 1: the session has format version {head.get('version')!r}, this package reads up to {_VERSION}; "
            "update otel-assembly"
        )
    events: list[Event] = []
    for number, line in enumerate(lines[1:], 2):
        try:
            events.append(event_from_json(line))
        except ValidationError as error:
            raise SessionError(
                f"line {number}: {error.errors()[0]['msg']}; the session is damaged: remove the line, or "
                "restore an undamaged copy"
            ) from None
    conversation_id = head.get("conversation_id")
    return conversation_id if isinstance(conversation_id, str) else None, events


def inputs_of(
    inputs: Any,
) -> list[ModelRequest] | UserConfirmResultEvent | ExternalExecutionResultEvent | UnfinishedCalls | None:
    """Convert the inputs of `Agent.ask`: texts become a list of `ModelRequest`s, other types are unchanged.

    Raises:
        SessionError: The inputs have an unsupported type.
    """
    if isinstance(inputs, str):
        return [ModelRequest(content=inputs)]
    if inputs is None or isinstance(inputs, UserConfirmResultEvent | ExternalExecutionResultEvent | UnfinishedCalls):
        return inputs
    items = [inputs] if isinstance(inputs, ModelRequest) else inputs
    if isinstance(items, list | tuple) and items and all(isinstance(item, str | ModelRequest) for item in items):
        return [ModelRequest(content=item) if isinstance(item, str) else item for item in items]
    raise SessionError(
        f"an agent is asked with a text, a ModelRequest, a list of them, a UserConfirmResultEvent or an "
        f"ExternalExecutionResultEvent, not with a {type(inputs).__name__}"
    )


def accept_inputs(
    session: Session, inputs: Any, tools: Mapping[str, Tool], *, is_structured: bool = False
) -> tuple[list[Event], list[ToolCallEvent]]:
    """Check the inputs of `Agent.ask`; return the events for the stream, and the tool calls that may now run.

    Args:
        session: The conversation. The session is changed only if the inputs are valid.
        inputs: The inputs.
        tools: The agent's tools.
        is_structured: True if a structured answer is requested. Inputs of None are then valid after a text answer.

    Raises:
        SessionError: The inputs do not match the session's pending calls.
    """
    new_inputs = inputs_of(inputs)
    pending = session.pending
    if isinstance(new_inputs, list):
        unconfirmed = [not_run(call, _UNCONFIRMED) for call in pending.values()]
        pending.clear()
        return [*unconfirmed, *new_inputs], []
    if new_inputs is None:
        if pending:
            raise SessionError(
                f"calls are pending ({', '.join(pending)}): give their approvals or results, or ask something"
            )
        if not session.history:
            raise SessionError("there is nothing to answer yet; ask something")
        if _is_answered(session, only_structured=is_structured):
            raise SessionError("the last answer is finished, so there is nothing to continue; ask something")
        return [], []
    if isinstance(new_inputs, UnfinishedCalls):
        return [], list(new_inputs.calls)
    if isinstance(new_inputs, ExternalExecutionResultEvent):
        _check_calls(session, [(result.parent_id, result.name) for result in new_inputs.execution_results])
        if not all(result.name for result in new_inputs.execution_results):
            named_results = [
                result if result.name else result.model_copy(update={"name": pending[result.parent_id].name})
                for result in new_inputs.execution_results
            ]
            new_inputs = new_inputs.model_copy(update={"execution_results": tuple(named_results)})
        session.remove_pending(new_inputs.execution_results)
        return [new_inputs, *new_inputs.execution_results], []
    _check_calls(session, [(result.tool_call.id, result.tool_call.name) for result in new_inputs.confirm_results], True)
    for result in new_inputs.confirm_results:
        _check_confirmation(pending[result.tool_call.id], result, tools.get(result.tool_call.name))
    new_events: list[Event] = [new_inputs]
    confirmed: list[ToolCallEvent] = []
    for result in new_inputs.confirm_results:
        # The pending call runs. A confirmation can change only its arguments.
        call, arguments = pending.pop(result.tool_call.id), result.tool_call.arguments
        if not result.confirmed:
            new_events.append(not_run(call, f"not run: {result.message or 'it was not confirmed'}"))
            continue
        if arguments != call.arguments:
            session.changed_calls.add(call.id)
            new_events.append(_change(call, arguments, "confirmation"))
            call = call.model_copy(update={"arguments": arguments})
        confirmed.append(call)
    return new_events, confirmed


def _change(call: ToolCallEvent, arguments: str, source: ArgumentSource) -> ToolArgumentsChanged:
    return ToolArgumentsChanged(
        parent_id=call.id, name=call.name, original=call.arguments, arguments=arguments, source=source
    )


def _check_confirmation(call: ToolCallEvent, result: ConfirmResult, tool: Tool | None) -> None:
    """Check that a confirmed call can run. If this function raises, the call is still pending.

    Raises:
        SessionError: The tool is external, or the changed arguments are invalid for the tool.
    """
    if not result.confirmed:
        return
    if call.external or (tool is not None and tool.external):
        raise SessionError(
            f"call {call.id} of tool {call.name!r} runs outside the agent; give its result in an "
            "ExternalExecutionResultEvent"
        )
    if tool is not None and result.tool_call.arguments != call.arguments:
        try:
            tool.read(result.tool_call.arguments)
        except ToolError as error:
            raise SessionError(f"call {call.id}, with changed arguments: {error}; the call is still pending") from error


def _is_answered(session: Session, *, only_structured: bool) -> bool:
    """Return True if the conversation ends with a finished answer of the model.

    Args:
        session: The conversation.
        only_structured: True if a text does not count as an answer.
    """
    for event in reversed(session.history):
        if isinstance(event, ModelResponse):
            return not (only_structured or event.tool_calls or event.is_truncated)
        if isinstance(event, ToolResultEvent) and event.name == STRUCTURED_TOOL_NAME:
            return True
        if isinstance(event, ModelRequest | CompactionSummary) or not isinstance(event, Event):
            return False
    return False


def _check_calls(session: Session, calls: Sequence[tuple[str, str]], names_are_needed: bool = False) -> None:
    """Check that approvals or results refer to pending calls, to each call once and with its tool's name.

    Args:
        session: The conversation.
        calls: The call id and the tool's name of each approval or result.
        names_are_needed: True if an empty name is an error.

    Raises:
        SessionError: A call is not pending or occurs twice, or a tool's name is wrong.
    """
    if not calls:
        raise SessionError("the event has no entries; give one entry for each call")
    for call_id, name in calls:
        call = session.pending.get(call_id)
        if call is not None and name != call.name and (name or names_are_needed):
            raise SessionError(
                f"call {call_id} is a call of tool {call.name!r}, not of {name!r}; only a pending call's arguments can "
                "be changed, and the call is still pending"
            )
    ids = [call_id for call_id, _ in calls]
    unknown = [call_id for call_id in ids if call_id not in session.pending]
    if unknown or len(set(ids)) < len(ids):
        pending = f"the pending calls are {', '.join(session.pending)}" if session.pending else "no call is pending"
        raise SessionError(f"{', '.join(unknown) or 'a call occurs twice'}: {pending}")


def not_run(call: ToolCallEvent, error: str, *, still_running: bool = False) -> ToolErrorEvent:
    """Return an error result for a call that did not run, or did not finish.

    Args:
        call: The call.
        error: The text for the model.
        still_running: True if the tool's function is still running in its thread.
    """
    if still_running:
        return ToolErrorEvent(parent_id=call.id, name=call.name, error=error, still_running=True)
    return ToolErrorEvent(parent_id=call.id, name=call.name, error=error)
