"""`Stream`: where the events of one conversation are sent, recorded and delivered, and where a FATAL alert halts it."""

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

#: How deep sends may be nested in one task, a subscriber sending what makes a subscriber send, before it is a runaway.
MAX_NESTED_SENDS: Final = 32

_log = logging.getLogger(__name__)


class NestedSendError(RecursionError):
    """Subscribers answer each other's events without end; the send that the outermost one is in comes to its end."""


class Subscription:
    """A callback's place in the order of delivery; as a context manager it is cancelled at the end of the block.

    Attributes:
        event_types: The types whose events (subclasses included) are delivered.
        callback: What is called with each event.
        errors: How often the callback raised. The first time is logged, by type names alone.
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
        """Whether events are still delivered."""
        return self._active

    def cancel(self) -> None:
        """Deliver nothing more, not even an event whose delivery to others has begun; may be called again."""
        self._active = False
        self._stream._forget(self)  # noqa: SLF001  # the two halves of one thing

    async def deliver(self, event: Any) -> None:
        """Call the callback; what it raises is counted here and goes no further (a cancellation does)."""
        if not self._active or not isinstance(event, self.event_types):
            return
        try:
            answer = self.callback(event)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:
            if isinstance(error, NestedSendError) and self._stream.nesting > 1:
                raise  # unwound to the outermost send: two that answer each other would else branch at every level
            self.errors += 1
            if self.errors == 1:
                # No message and no traceback: either may quote what was said.
                _log.warning(
                    "subscriber %s raised %s on %s; it goes on, further errors are only counted",
                    self._label,
                    type(error).__qualname__,
                    type(event).__qualname__,
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class EventIterator(Generic[E]):
    """The events of a type from now on, for ``async for``; use it in an ``async with``, which ends it.

    The sender never waits for it: where more than `limit` events are unread, the oldest are lost.

    Attributes:
        missed: How many events were lost.
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
                _log.warning("an iterator over %s lags by %d events; it loses some", type(event).__name__, self.limit)
        self._unread.append(event)
        self._arrived.set()

    def cancel(self) -> None:
        """Take no more events; what is unread can still be read, then the iteration ends."""
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
    """The events of one conversation: recorded in its `History`, then delivered to who subscribed, in that order.

    A note on an assembly (`AssemblyCompleted`) is delivered and not recorded: it is nothing that a model would be sent.

    A stream belongs to one event loop. Ask ``stream.guard.check()`` before every model call and every tool call: a
    FATAL alert or a `HaltEvent` closes it before the send does anything else, so that no call starts after it. Events
    can still be sent then; they are records.

    Args:
        history: Where events are recorded; a new one by default. Its conversation is the stream's.
        records: False where somebody else keeps the events, so that they are only delivered.
    """

    def __init__(self, history: History | None = None, *, records: bool = True) -> None:
        # An empty history is false.
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
        """Ask it (``guard.check()``) before every model call and every tool call."""
        return self.conversation.guard

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """Those that are active, in the order of delivery."""
        return tuple(self._subscriptions)

    @property
    def nesting(self) -> int:
        """How many sends the current task is in: 1 while it delivers an event, 2 where a subscriber sent another."""
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
        """Have a callback called with every event of a type that is sent from now on.

        The sender waits for it, and the next subscriber comes after it. It may send, up to `MAX_NESTED_SENDS` deep.

        Args:
            event_type: A type or several, of any framework; subclasses are included, `object` is every event.
            callback: A function or a coroutine function of the event; what it returns is ignored.
            label: What the log calls it; by default the name of the function or of the callable's type.

        Raises:
            ConfigurationError: That is no type, or not callable.
        """
        types = event_type if isinstance(event_type, tuple) else (event_type,)
        for each in types:
            if not isinstance(each, type):
                raise ConfigurationError(f"an event type must be a class, not {each!r}")
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
        """Iterate over the events of a type that are sent from this call on.

        ::

            async with stream.events(ObserverAlert) as alerts:
                async for alert in alerts:
                    page(alert)

        Args:
            event_type: As `subscribe` takes it.
            limit: How many events may be unread before the oldest are lost.

        Raises:
            ConfigurationError: That is no type, or the limit is below 1.
        """
        return EventIterator(self, event_type, limit)

    async def send(self, event: Any) -> None:
        """Record an event and deliver it; the one `HaltEvent` that a FATAL alert asks for follows right after it.

        What subscribers raise stays with their `Subscription`.

        Raises:
            DescribeError: The event's type has no ``describe()`` row; it is neither recorded nor delivered.
            NestedSendError: More than `MAX_NESTED_SENDS` sends are in one another; the event is recorded only.
        """
        halt = self.history.conversation.guard.observe(event)
        try:
            await self._record(event)
        finally:
            # Also when the delivery of the alert was cancelled: the guard is closed, and no later alert makes a halt.
            if halt is not None:
                await self._record(halt, MAX_NESTED_SENDS + 1)

    def listens(self, event_type: type) -> bool:
        """Whether anybody has subscribed to events of a type."""
        return any(issubclass(event_type, subscription.event_types) for subscription in self._subscriptions)

    async def _record(self, event: Any, limit: int = MAX_NESTED_SENDS) -> None:
        """What `send` does with an event, once the guard has seen it: record it, and call who has subscribed."""
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
                f"{depth} sends are in one another: subscribers answer each other's events without end"
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
        self._subscriptions = [each for each in self._subscriptions if each is not subscription]
