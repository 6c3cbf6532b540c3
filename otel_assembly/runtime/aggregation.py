"""`AggregateObserver`: extracts knowledge from a conversation in the background, after its turns."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from otel_assembly._internal.arguments import instance, whole_number
from otel_assembly._internal.fork_safety import after_fork_in_child
from otel_assembly.conversation_state import REMEMBERED_CONVERSATIONS
from otel_assembly.errors import ConfigurationError, error_type
from otel_assembly.events import AggregationCompleted, AggregationFailed, TurnCompleted
from otel_assembly.knowledge import AggregateTrigger, KnowledgeStore
from otel_assembly.messages.event_facts import describe
from otel_assembly.runtime.monitors import Message

if TYPE_CHECKING:
    from contextvars import Context as Variables

    from otel_assembly.context import Context
    from otel_assembly.conversation_state import Conversation
    from otel_assembly.events import ObserverAlert
    from otel_assembly.knowledge import Aggregate
    from otel_assembly.runtime.stream import Stream

_log = logging.getLogger("otel_assembly")


@dataclass(slots=True, eq=False)
class _AggregateState:
    """The state of one conversation: the events for the next run of the aggregate, and the active run."""

    context: Context
    #: Events that no successful run has processed yet.
    events: list[Any] = field(default_factory=list)
    #: The number of these events that belong to completed turns.
    complete: int = 0
    #: The turns since the last run began, and the messages that arrived in these turns.
    turns: int = 0
    arrived: int = 0
    #: True if a run is due. If a run is active, the due run starts when it ends.
    is_due: bool = False
    #: True while the due run waits because the limit of active runs is reached.
    queued: bool = False
    task: asyncio.Task[None] | None = None
    #: The context variables of the turn that made the run due, so that the run belongs to its trace.
    variables: Variables = field(default_factory=copy_context)

    @property
    def busy(self) -> bool:
        """True while a run is active or queued."""
        task = self.task
        return self.queued or not (task is None or task.done() or task.get_loop().is_closed())

    @property
    def idle(self) -> bool:
        """True if this state can be discarded: no events, and no active or due run."""
        return not (self.busy or self.is_due or self.events or self.turns)

    def take_events(self) -> list[Any]:
        """Remove and return the events of completed turns."""
        complete, self.events = self.events[: self.complete], self.events[self.complete :]
        self.complete = self.turns = 0
        self.arrived = len(self.events)
        return complete

    def limit_events(self, max_events: int) -> None:
        """Drop the oldest events if there are more than `max_events`."""
        if (excess := len(self.events) - max_events) > 0:
            del self.events[:excess]
            self.complete = max(0, self.complete - excess)


class AggregateObserver:
    """An observer that runs an aggregate after turns of a conversation.

    An aggregate extracts knowledge from the messages of a conversation and writes it to a `KnowledgeStore`::

        memory = AggregateObserver(WorkingMemoryAggregate(ask), AggregateTrigger(every_n_turns=5), store=store)
        async with memory:
            attach(stream, [memory])
            ...
            await stream.send(TurnCompleted(turn=turn))

    The observer checks the `AggregateTrigger` at each `TurnCompleted`, so a run processes complete turns only. The
    aggregate runs in the background; the sender of the event does not wait for it. Each conversation has at most one
    active run. If further runs become due during a run, one run follows it. A run receives all messages since the last
    successful run.

    After each run, the observer sends an `AggregationCompleted` or `AggregationFailed` event on the stream. The error
    type of a failed run is logged. A run fails if it exceeds `timeout`, or if its conversation is halted before the run
    starts.

    One observer serves any number of conversations, in one event loop at a time. Call ``await observer.end(stream)``
    when a conversation ends. Call ``await observer.aclose()``, or use ``async with observer:``, before the event loop
    ends; otherwise active runs are cancelled. In a forked child process the observer has no events and no runs; those
    of the parent process stay there.

    Args:
        aggregate: A `WorkingMemoryAggregate`, or another object with the method ``aggregate(events, context, store)``.
        trigger: When the aggregate runs. ``on_end`` means at `end` and at `aclose`.
        store: The store that the aggregate writes to; by default the `KnowledgeStore` in the context's dependencies.
        name: The aggregate's name in the result events; by default the name of its type.
        timeout: The time limit of a run in seconds. A run that blocks the event loop cannot be stopped.
        at_once: The most runs that are active at the same time. Further runs wait.
        most_events: The most events that are kept for a conversation's next run. The oldest are dropped first.

    Raises:
        ConfigurationError: The aggregate has no `aggregate` method, the trigger is not an `AggregateTrigger`, or a
            number is not positive.
    """

    watches = (Message, TurnCompleted)

    def __init__(
        self,
        aggregate: Aggregate,
        trigger: AggregateTrigger,
        *,
        store: KnowledgeStore | None = None,
        name: str | None = None,
        timeout: float = 120.0,
        at_once: int = 8,
        most_events: int = 1_000,
    ) -> None:
        instance("aggregate", aggregate)
        instance("store", store)
        if not callable(getattr(aggregate, "aggregate", None)):
            raise ConfigurationError(
                f"aggregate ({type(aggregate).__qualname__}) has no aggregate(events, context, store)"
            )
        if type(trigger) is not AggregateTrigger:
            raise ConfigurationError(f"trigger must be an AggregateTrigger, got {trigger!r}")
        if not timeout > 0:
            raise ConfigurationError(f"timeout must be above 0 s, not {timeout}")
        for setting, value in (("at_once", at_once), ("most_events", most_events)):
            whole_number(setting, value)
        self.name = name or type(aggregate).__qualname__
        self._aggregate = aggregate
        self._trigger = trigger
        self._store = store
        self._timeout = timeout
        self._at_once = at_once
        self._most_events = most_events
        self._closed = False
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        #: Conversations with pending events. These are strong references: pending events outlive the stream.
        self._states: OrderedDict[Conversation, _AggregateState] = OrderedDict()
        self._queue: deque[_AggregateState] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def process(self, event: Any, context: Context) -> ObserverAlert | None:
        """Store a message for the next run of the aggregate, or check at the end of a turn whether a run is due.

        A run is due if a condition of the `AggregateTrigger` is met, for example because `every_n_turns` turns have
        passed. It starts in the background. Events are ignored after `aclose`.

        Returns:
            None: this observer raises no alerts.
        """
        if self._closed:
            return None
        state = self._state_of(context)
        if not isinstance(event, TurnCompleted):
            if describe(event).rendered:
                state.events.append(event)
                state.arrived += 1
                state.limit_events(self._most_events)
            return None
        state.turns += 1
        self._complete_turn(state, ended=False)
        return None

    async def end(self, conversation: Stream | Context) -> None:
        """End a conversation: run the aggregate if the trigger has ``on_end``, and wait until no run is active."""
        state = self._states.get(conversation.conversation)
        if state is not None:
            self._complete_turn(state, ended=True)
            while state.busy:
                await self._wait_for_a_run()
            self._states.pop(conversation.conversation, None)

    async def flush(self) -> None:
        """Wait until all active and pending runs have ended."""
        self._start_queued_runs()
        while self._running:
            await self._wait_for_a_run()

    async def aclose(self) -> None:
        """Stop storing events, end every conversation, and wait for all runs.

        If this method is cancelled, all active runs are cancelled too.
        """
        self._closed = True
        for state in tuple(self._states.values()):
            self._complete_turn(state, ended=True)
        try:
            await self.flush()
        except asyncio.CancelledError:
            self._queue.clear()
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            raise
        self._states.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _state_of(self, context: Context) -> _AggregateState:
        state = self._states.get(context.conversation)
        if state is None:
            state = self._states[context.conversation] = _AggregateState(context)
        state.context = context
        self._states.move_to_end(context.conversation)
        while len(self._states) > REMEMBERED_CONVERSATIONS:
            # The least recently used conversation is treated as ended.
            self._complete_turn(self._states.popitem(last=False)[1], ended=True)
        return state

    def _complete_turn(self, state: _AggregateState, *, ended: bool) -> None:
        """Mark the stored events as complete; queue a run if the trigger requires one.

        Args:
            state: The conversation's state.
            ended: True at the end of the conversation, False at the end of a turn.
        """
        state.complete = len(state.events)
        if state.complete and self._trigger.due(state.turns, state.arrived, ended):
            state.is_due = True
            state.variables = copy_context()
            if not state.busy:
                state.queued = True
                self._queue.append(state)
        self._start_queued_runs()

    def _start_queued_runs(self) -> None:
        loop = asyncio.get_running_loop()
        self._running = {task for task in self._running if not task.done() and not task.get_loop().is_closed()}
        while self._queue and len(self._running) < self._at_once:
            state = self._queue.popleft()
            state.queued = False
            state.task = loop.create_task(self._run_while_due(state), context=state.variables)
            state.task.add_done_callback(self._run_ended)
            self._running.add(state.task)

    async def _wait_for_a_run(self) -> None:
        """Wait until one of the active runs has ended."""
        self._start_queued_runs()
        if self._running:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    def _run_ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():  # cancelled: the event loop is closing, so no new run may start
            self._start_queued_runs()

    async def _run_while_due(self, state: _AggregateState) -> None:
        while state.is_due:
            state.is_due = False
            await self._run(state)
        state.task = None
        if state.idle and self._states.get(state.context.conversation) is state:
            del self._states[state.context.conversation]

    async def _run(self, state: _AggregateState) -> None:
        events, context = state.take_events(), state.context
        failure: BaseException | None = None
        try:
            context.guard.check()
            async with asyncio.timeout(self._timeout):
                await self._aggregate.aggregate(list(events), context, self._store_of(context))
        except (Exception, asyncio.CancelledError) as error:
            failure = error
            state.events[:0] = events
            state.complete += len(events)
            state.limit_events(self._most_events)
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            _log.warning("the aggregate %s failed: %s", type(self._aggregate).__qualname__, error_type(error))
        outcome = (
            AggregationCompleted(aggregate=self.name)
            if failure is None
            else AggregationFailed(aggregate=self.name, error=error_type(failure))
        )
        try:
            async with asyncio.timeout(self._timeout):
                await context.send(outcome)
        except (Exception, asyncio.CancelledError) as error:  # the stream's event loop may be closed
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            _log.warning("%s could not be sent: %s", type(outcome).__name__, error_type(error))

    def _store_of(self, context: Context) -> KnowledgeStore:
        store: KnowledgeStore | None = (
            self._store if self._store is not None else context.dependencies.get(KnowledgeStore)
        )
        if store is None:
            _log.warning(
                "AggregateObserver has no store: pass store=…, or Context(dependencies={KnowledgeStore: store})"
            )
            raise ConfigurationError("AggregateObserver has no knowledge store: pass store=…")
        return store


def _is_being_cancelled() -> bool:
    """Return True if the current task is being cancelled; False if an awaited task was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
