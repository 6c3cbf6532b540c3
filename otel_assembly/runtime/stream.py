"""`Stream`: records and delivers the events of one conversation, and halts it on a FATAL alert."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

from otel_assembly.errors import ConfigurationError
from otel_assembly.events import AssemblyCompleted
from otel_assembly.history.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_assembly.conversation_state import Conversation, HaltGuard

E = TypeVar("E")

#: The deepest nesting of sends in one task: a subscriber's send calls subscribers, which may send again.
MAX_NESTED_SENDS: Final = 32

_log = logging.getLogger(__name__)


class NestedSendError(RecursionError):
    """Raised if subscribers keep sending events in response to each other's events.

    The outermost `Stream.send` does not raise this error; it completes.
    """


class Subscription:
    """A callback that is subscribed to a stream. As a context manager, it is cancelled at the end of the block.

    Attributes:
        event_types: The types whose events (subclasses included) are delivered.
        callback: The function that is called with each event.
        errors: The number of errors that the callback raised. The first is logged, by type names only.
    """

    __slots__ = ("_active", "_label", "_stream", "callback", "errors", "event_types")

    def __init__(
        self,
        stream: Stream,
        event_types: type | tuple[type, ...],
        callback: Callable[[Any], Any],
        label: str | None = None,
    ) -> None:
        self.event_types = event_types
        self.callback = callback
        self.errors = 0
        self._stream = stream
        self._label = label or getattr(callback, "__qualname__", type(callback).__qualname__)
        self._active = True

    @property
    def active(self) -> bool:
        """True until the subscription is cancelled."""
        return self._active

    def cancel(self) -> None:
        """Stop delivering events, including an event that other subscribers are receiving now.

        Calling this method again has no effect.
        """
        self._active = False
        self._stream._forget(self)  # noqa: SLF001  # Stream and Subscription belong together

    async def deliver(self, event: Any) -> None:
        """Call the callback if the event has a subscribed type; count the callback's errors instead of raising them.

        A cancellation is raised, and a `NestedSendError` is raised up to the outermost send.
        """
        if not self._active or not isinstance(event, self.event_types):
            return
        try:
            result = self.callback(event)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            if isinstance(error, NestedSendError) and self._stream.nesting > 1:
                raise  # to the outermost send; otherwise the subscribers would send again at every level
            self.errors += 1
            if self.errors == 1:
                # Log no message and no traceback, because either may contain content of the conversation.
                _log.warning(
                    "subscriber %s raised %s on %s; it stays subscribed, and further errors are only counted",
                    self._label,
                    type(error).__qualname__,
                    type(event).__qualname__,
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class EventIterator(Generic[E]):
    """An async iterator over the events of a type that are sent after its creation; ``async with`` ends it.

    The sender never waits for the iterator. If more than `limit` events are unread, the oldest are dropped.

    Attributes:
        limit: The most unread events that are kept.
        missed: The number of dropped events.
    """

    __slots__ = ("_arrived", "_subscription", "_unread", "limit", "missed")

    def __init__(self, stream: Stream, event_types: type | tuple[type, ...], limit: int) -> None:
        if limit < 1:
            raise ConfigurationError(f"limit must be at least 1 event, not {limit}")
        self.limit = limit
        self.missed = 0
        self._unread: deque[E] = deque()
        self._arrived = asyncio.Event()
        self._subscription = stream.subscribe(event_types, self._receive)

    def _receive(self, event: E) -> None:
        if len(self._unread) == self.limit:
            self._unread.popleft()
            self.missed += 1
            if self.missed == 1:
                _log.warning(
                    "an iterator over %s has %d unread events; the oldest are dropped", type(event).__name__, self.limit
                )
        self._unread.append(event)
        self._arrived.set()

    def cancel(self) -> None:
        """Stop receiving events. The iteration ends after the unread events."""
        self._subscription.cancel()
        self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        while not self._unread:
            if not self._subscription.active:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._unread.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


class Stream:
    """The event stream of one conversation: records each event in its `History`, then calls the subscribers in order.

    `AssemblyCompleted` events are delivered but not recorded, because models do not receive them.

    A stream belongs to one event loop. Call ``stream.guard.check()`` before every model call and every tool call. A
    FATAL alert or a `HaltEvent` closes the guard before the event is recorded and delivered, so that no further call
    starts. Events can still be sent after a halt; they are recorded.

    Args:
        history: The history in which events are recorded; by default a new one. Streams with the same history belong to
            the same conversation.
        records: False to deliver events without recording them, if the caller stores them.
    """

    def __init__(self, history: History | None = None, *, records: bool = True) -> None:
        # not `history or History()`: an empty history is falsy
        self.history = History() if history is None else history
        self.records = records
        self._subscriptions: list[Subscription] = []
        self._nested: dict[asyncio.Task[Any] | None, int] = {}

    @property
    def conversation(self) -> Conversation:
        """The state that all turns of this conversation share."""
        return self.history.conversation

    @property
    def guard(self) -> HaltGuard:
        """The guard to check (``guard.check()``) before every model call and every tool call."""
        return self.conversation.guard

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """The active subscriptions, in the order of delivery."""
        return tuple(self._subscriptions)

    @property
    def nesting(self) -> int:
        """The number of nested sends in the current task: 1 during a delivery, 2 if a subscriber sends an event."""
        return self._nested.get(asyncio.current_task(), 0)

    @overload
    def subscribe(
        self, event_type: type[E], callback: Callable[[E], Any], *, label: str | None = None
    ) -> Subscription: ...
    @overload
    def subscribe(
        self, event_type: tuple[type, ...], callback: Callable[[Any], Any], *, label: str | None = None
    ) -> Subscription: ...
    def subscribe(
        self, event_type: type | tuple[type, ...], callback: Callable[[Any], Any], *, label: str | None = None
    ) -> Subscription:
        """Call a callback with every event of a type that is sent from now on.

        The sender waits for the callback; subscribers are called one after the other. A callback may send events
        itself, up to `MAX_NESTED_SENDS` deep.

        Args:
            event_type: A type or a tuple of types, of any framework. Subclasses match too; `object` matches all.
            callback: A function or a coroutine function that receives the event. Its result is ignored.
            label: The callback's name in the log; by default the name of the function or of the callable's type.

        Raises:
            ConfigurationError: `event_type` is not a type, or `callback` is not callable.
        """
        types = event_type if isinstance(event_type, tuple) else (event_type,)
        for candidate in types:
            if not isinstance(candidate, type):
                raise ConfigurationError(f"an event type must be a class, not {candidate!r}")
        if not callable(callback):
            raise ConfigurationError(f"a callback must be callable, not of type {type(callback).__qualname__}")
        subscription = Subscription(self, types, callback, label)
        self._subscriptions.append(subscription)
        return subscription

    @overload
    def events(self, event_type: type[E], *, limit: int = 1_000) -> EventIterator[E]: ...
    @overload
    def events(self, event_type: tuple[type, ...], *, limit: int = 1_000) -> EventIterator[Any]: ...
    def events(self, event_type: type | tuple[type, ...], *, limit: int = 1_000) -> EventIterator[Any]:
        """Return an asynchronous iterator of the events of a type that are sent from this call on.

        ::

            async with stream.events(ObserverAlert) as alerts:
                async for alert in alerts:
                    page(alert)

        Args:
            event_type: A type or a tuple of types, as in `subscribe`.
            limit: The most unread events; beyond it the oldest are dropped.

        Raises:
            ConfigurationError: `event_type` is not a type, or `limit` is below 1.
        """
        return EventIterator(self, event_type, limit)

    async def send(self, event: Any) -> None:
        """Record an event and deliver it to the subscribers. After the first FATAL alert, send one `HaltEvent` too.

        Errors of subscribers are counted in their `Subscription` and not raised.

        Raises:
            DescribeError: The event's type is not registered with `describe`. The event is not recorded or delivered.
            NestedSendError: More than `MAX_NESTED_SENDS` sends are nested. The event is recorded but not delivered.
        """
        halt = self.history.conversation.guard.observe(event)
        try:
            await self._record(event)
        finally:
            # Needed even if the alert's delivery was cancelled: the guard is closed, and no later alert sends a halt.
            if halt is not None:
                await self._record(halt, MAX_NESTED_SENDS + 1)

    def listens(self, event_type: type) -> bool:
        """Return True if any subscription receives events of this type."""
        return any(issubclass(event_type, subscription.event_types) for subscription in self._subscriptions)

    async def _record(self, event: Any, limit: int = MAX_NESTED_SENDS) -> None:
        """Record an event and call the subscribers.

        Args:
            event: The event.
            limit: The most nested sends.
        """
        if self.records and not isinstance(event, AssemblyCompleted):
            self.history.append(event)
        if self._subscriptions:
            with self._nest(limit):
                for subscription in self.subscriptions:
                    await subscription.deliver(event)

    @contextmanager
    def _nest(self, limit: int) -> Iterator[None]:
        task = asyncio.current_task()
        depth = self._nested.get(task, 0)
        if depth >= limit:
            raise NestedSendError(
                f"{depth} sends are nested: subscribers send events in response to each other's events without end"
            )
        self._nested[task] = depth + 1
        try:
            yield
        finally:
            if depth:
                self._nested[task] = depth
            else:
                del self._nested[task]

    def _forget(self, subscription: Subscription) -> None:
        self._subscriptions = [remaining for remaining in self._subscriptions if remaining is not subscription]
