"""`AggregateObserver`: runs an aggregate in the background, after turns of a conversation."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from otel_assembly._internal.arguments import instance, whole_number
from otel_assembly._internal.forks import in_child
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
class _Upkeep:
    """The state of one conversation: its events since the last run, and its current run."""

    context: Context
    #: Events that no successful run has processed yet.
    events: list[Any] = field(default_factory=list)
    #: The number of these events that belong to completed turns.
    complete: int = 0
    #: Turns and events since the last run began.
    turns: int = 0
    arrived: int = 0
    #: True if a run is due. If a run is active, the next one starts after it.
    wanted: bool = False
    #: True while the run waits for runs of other conversations to end.
    queued: bool = False
    task: asyncio.Task[None] | None = None
    #: The context variables of the turn that made the run due, so that the run belongs to its trace.
    variables: Variables = field(default_factory=copy_context)

    @property
    def busy(self) -> bool:
        task = self.task
        return self.queued or not (task is None or task.done() or task.get_loop().is_closed())

    @property
    def idle(self) -> bool:
        """Whether this state can be discarded."""
        return not (self.busy or self.wanted or self.events or self.turns)

    def take_events(self) -> list[Any]:
        """Remove and return the events of completed turns."""
        complete, self.events = self.events[: self.complete], self.events[self.complete :]
        self.complete = self.turns = 0
        self.arrived = len(self.events)
        return complete

    def bound(self, most: int) -> None:
        """Drop the oldest events if there are more than `most`."""
        if (excess := len(self.events) - most) > 0:
            del self.events[:excess]
            self.complete = max(0, self.complete - excess)


class AggregateObserver:
    """An observer that runs an aggregate after turns of a conversation.

    ::

        memory = AggregateObserver(WorkingMemoryAggregate(ask), AggregateTrigger(every_n_turns=5), store=store)
        async with memory:
            attach(stream, [memory])
            ...
            await stream.send(TurnCompleted(turn=turn))

    The observer checks the `AggregateTrigger` at each `TurnCompleted`, so a run covers complete turns only. The
    aggregate runs in the background; the sender does not wait for it. Each conversation has at most one active run.
    Turns that become due during a run are covered by one further run. A run receives the messages since the last
    successful run, including those of failed runs.

    The result, `AggregationCompleted` or `AggregationFailed`, is sent on the context's stream. The error type of a
    failure is logged. A run fails if it exceeds `timeout`, or if its conversation is halted before the run starts.

    One observer serves any number of conversations, in one event loop at a time. Call ``await observer.end(stream)``
    when a conversation ends. Call ``await observer.aclose()``, or use ``async with observer:``, before the event loop
    ends; otherwise active runs are cancelled. In a forked child the observer starts empty: pending runs stay with the
    parent process.

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
        for setting, most in (("at_once", at_once), ("most_events", most_events)):
            whole_number(setting, most)
        self.name = name or type(aggregate).__qualname__
        self._aggregate = aggregate
        self._trigger = trigger
        self._store = store
        self._timeout = timeout
        self._at_once = at_once
        self._most_events = most_events
        self._closed = False
        self._begin()
        in_child(self._begin)

    def _begin(self) -> None:
        #: Conversations with pending events. These are strong references: pending events outlive the stream.
        self._upkeeps: OrderedDict[Conversation, _Upkeep] = OrderedDict()
        self._queue: deque[_Upkeep] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def process(self, event: Any, context: Context) -> ObserverAlert | None:
        """Store messages; at the end of a turn, start a run if one is due."""
        if self._closed:
            return None
        upkeep = self._upkeep(context)
        if not isinstance(event, TurnCompleted):
            if describe(event).rendered:
                upkeep.events.append(event)
                upkeep.arrived += 1
                upkeep.bound(self._most_events)
            return None
        upkeep.turns += 1
        self._complete(upkeep, ended=False)
        return None

    async def end(self, conversation: Stream | Context) -> None:
        """End a conversation: wait for its active run and for the run that ``on_end`` requests."""
        upkeep = self._upkeeps.get(conversation.conversation)
        if upkeep is not None:
            self._complete(upkeep, ended=True)
            while upkeep.busy:
                await self._any()
            self._upkeeps.pop(conversation.conversation, None)

    async def flush(self) -> None:
        """Wait until all active and pending runs have ended."""
        self._start()
        while self._running:
            await self._any()

    async def aclose(self) -> None:
        """Stop storing events, end every conversation, and wait for all runs.

        If this method is cancelled, all active runs are cancelled too.
        """
        self._closed = True
        for upkeep in tuple(self._upkeeps.values()):
            self._complete(upkeep, ended=True)
        try:
            await self.flush()
        except asyncio.CancelledError:
            self._queue.clear()
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            raise
        self._upkeeps.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _upkeep(self, context: Context) -> _Upkeep:
        upkeep = self._upkeeps.get(context.conversation)
        if upkeep is None:
            upkeep = self._upkeeps[context.conversation] = _Upkeep(context)
        upkeep.context = context
        self._upkeeps.move_to_end(context.conversation)
        while len(self._upkeeps) > REMEMBERED_CONVERSATIONS:
            # The least recently used conversation is treated as ended.
            self._complete(self._upkeeps.popitem(last=False)[1], ended=True)
        return upkeep

    def _complete(self, upkeep: _Upkeep, *, ended: bool) -> None:
        """Queue a run if one is due at the end of a turn or of the conversation."""
        upkeep.complete = len(upkeep.events)
        if upkeep.complete and self._trigger.due(upkeep.turns, upkeep.arrived, ended):
            upkeep.wanted = True
            upkeep.variables = copy_context()
            if not upkeep.busy:
                upkeep.queued = True
                self._queue.append(upkeep)
        self._start()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._running = {task for task in self._running if not task.done() and not task.get_loop().is_closed()}
        while self._queue and len(self._running) < self._at_once:
            upkeep = self._queue.popleft()
            upkeep.queued = False
            upkeep.task = loop.create_task(self._work(upkeep), context=upkeep.variables)
            upkeep.task.add_done_callback(self._ended)
            self._running.add(upkeep.task)

    async def _any(self) -> None:
        """Wait until any active run has ended."""
        self._start()
        if self._running:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():  # cancelled: the event loop is closing, so no new run may start
            self._start()

    async def _work(self, upkeep: _Upkeep) -> None:
        while upkeep.wanted:
            upkeep.wanted = False
            await self._run(upkeep)
        upkeep.task = None
        if upkeep.idle and self._upkeeps.get(upkeep.context.conversation) is upkeep:
            del self._upkeeps[upkeep.context.conversation]

    async def _run(self, upkeep: _Upkeep) -> None:
        events, context = upkeep.take_events(), upkeep.context
        failure: BaseException | None = None
        try:
            context.guard.check()
            async with asyncio.timeout(self._timeout):
                await self._aggregate.aggregate(list(events), context, self._store_of(context))
        except (Exception, asyncio.CancelledError) as error:
            failure = error
            upkeep.events[:0] = events
            upkeep.complete += len(events)
            upkeep.bound(self._most_events)
            if isinstance(error, asyncio.CancelledError) and _cancelled():
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
            if isinstance(error, asyncio.CancelledError) and _cancelled():
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
            raise ConfigurationError("no knowledge store")
        return store


def _cancelled() -> bool:
    """Whether this task itself is being cancelled, not an awaitable inside the aggregate or a subscriber."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
