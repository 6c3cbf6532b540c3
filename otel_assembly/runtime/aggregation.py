"""`AggregateObserver`: aggregates run after the turns of conversations, in the background."""

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
    """One conversation: what has come since the aggregate was last given anything of it."""

    context: Context
    #: What no run has been given, or one that failed.
    events: list[Any] = field(default_factory=list)
    #: So many of them are of turns that are over.
    complete: int = 0
    #: Turns and events since the last run began.
    turns: int = 0
    arrived: int = 0
    #: Whether a run is due; where one is under way already, another one after it.
    wanted: bool = False
    #: Whether it waits for others to come to their end.
    queued: bool = False
    task: asyncio.Task[None] | None = None
    #: A run belongs to the trace of the turn that it is due after.
    variables: Variables = field(default_factory=copy_context)

    @property
    def busy(self) -> bool:
        task = self.task
        return self.queued or not (task is None or task.done() or task.get_loop().is_closed())

    @property
    def idle(self) -> bool:
        """Whether there is nothing to be remembered of it."""
        return not (self.busy or self.wanted or self.events or self.turns)

    def taken(self) -> list[Any]:
        """What a run that begins now is given."""
        taken, self.events = self.events[: self.complete], self.events[self.complete :]
        self.complete = self.turns = 0
        self.arrived = len(self.events)
        return taken

    def bound(self, most: int) -> None:
        """Let the oldest events go where there are more than so many."""
        if (gone := len(self.events) - most) > 0:
            del self.events[:gone]
            self.complete = max(0, self.complete - gone)


class AggregateObserver:
    """Runs an aggregate after the turns of conversations, as an `AggregateTrigger` says: an observer, to be attached.

    ::

        memory = AggregateObserver(WorkingMemoryAggregate(ask), AggregateTrigger(every_n_turns=5), store=store)
        async with memory:
            attach(stream, [memory])
            ...
            await stream.send(TurnCompleted(turn=turn))

    A turn is over with its `TurnCompleted`; that is when the trigger is asked, so that no turn is cut in two. The
    sender does not wait: the aggregate runs in the background, once at a time for each conversation. What is due while
    it runs is one more run after it, however many turns that was. It is given what a model was sent and said since it
    last ran well; what a run that failed was given comes again.

    `AggregationCompleted` or `AggregationFailed` is sent on the context's stream, and a failure is logged by its type.
    A run that takes too long has failed, and so has one that is due once its conversation is halted: it asks no model.

    One observer serves any number of conversations, in one event loop at a time. ``await observer.end(stream)`` where a
    conversation is over; before the loop ends ``await observer.aclose()``, or ``async with observer:``, lest what is
    under way is cut short. A forked child begins with nothing: what waits is its parent's.

    Args:
        aggregate: Such as `WorkingMemoryAggregate`, or anything with its `aggregate`.
        trigger: When it runs. ``on_end`` is at `end` and at `aclose`.
        store: Where it writes; by default the `KnowledgeStore` among the dependencies of the conversation's context.
        name: What the events call it; by default the aggregate's type.
        timeout: Seconds that a run may take. One that blocks the event loop cannot be stopped.
        at_once: How many conversations' runs may be under way at once; the others wait.
        most_events: How many events of a conversation are kept for its next run; past it the oldest are left out.

    Raises:
        ConfigurationError: The aggregate cannot aggregate, or the trigger is none, or a number is not positive.
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
        #: Conversations of which something waits; it is not lost where their streams are let go of.
        self._upkeeps: OrderedDict[Conversation, _Upkeep] = OrderedDict()
        self._queue: deque[_Upkeep] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def process(self, event: Any, context: Context) -> ObserverAlert | None:
        """Remember what a model is sent and says; at the end of a turn, begin a run that is due."""
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
        """A conversation is over: await what runs of it, and the run that an ``on_end`` asks for."""
        upkeep = self._upkeeps.get(conversation.conversation)
        if upkeep is not None:
            self._complete(upkeep, ended=True)
            while upkeep.busy:
                await self._any()
            self._upkeeps.pop(conversation.conversation, None)

    async def flush(self) -> None:
        """Wait until nothing runs, and nothing that is due waits."""
        self._start()
        while self._running:
            await self._any()

    async def aclose(self) -> None:
        """Take no more, end every conversation, and wait; where this is cancelled, so is what runs."""
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
            # So many others have spoken since that it is taken to be over.
            self._complete(self._upkeeps.popitem(last=False)[1], ended=True)
        return upkeep

    def _complete(self, upkeep: _Upkeep, *, ended: bool) -> None:
        """A turn is over, or the conversation: have it run if that is due."""
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
        """Wait until a run has come to its end."""
        self._start()
        if self._running:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():  # as its loop ends: then nothing may begin any more
            self._start()

    async def _work(self, upkeep: _Upkeep) -> None:
        while upkeep.wanted:
            upkeep.wanted = False
            await self._run(upkeep)
        upkeep.task = None
        if upkeep.idle and self._upkeeps.get(upkeep.context.conversation) is upkeep:
            del self._upkeeps[upkeep.context.conversation]

    async def _run(self, upkeep: _Upkeep) -> None:
        events, context = upkeep.taken(), upkeep.context
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
        except (Exception, asyncio.CancelledError) as error:  # nobody is there to be told
            if isinstance(error, asyncio.CancelledError) and _cancelled():
                raise
            _log.warning("%s could not be sent: %s", type(outcome).__name__, error_type(error))

    def _store_of(self, context: Context) -> KnowledgeStore:
        store: KnowledgeStore | None = (
            self._store if self._store is not None else context.dependencies.get(KnowledgeStore)
        )
        if store is None:
            _log.warning(
                "AggregateObserver finds no store: give it one, or give Context(dependencies={KnowledgeStore: store})"
            )
            raise ConfigurationError("no knowledge store")
        return store


def _cancelled() -> bool:
    """Whether this task is being cancelled, and not something that an aggregate or a listener awaits for itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
