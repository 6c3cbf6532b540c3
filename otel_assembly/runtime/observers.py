"""Observers: they watch events of a stream and raise alerts; a FATAL one halts the conversation.

What our monitors remember belongs to the conversation, not to the observer: one object may be attached to any number of
streams, and attached anew for every turn.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from otel_assembly._internal.arguments import instance, several
from otel_assembly.context import Context
from otel_assembly.errors import ConfigurationError
from otel_assembly.events import ObserverAlert

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_assembly.runtime.stream import Stream, Subscription

#: After so many time-outs in a row an observer is detached: a loop that waits for it at every event stands still.
MAX_TIMEOUTS: Final = 3

_log = logging.getLogger(__name__)


class Observer(Protocol):
    """Something that watches a stream and says when something is wrong.

    Two observers of one name are two observers; but none is shown an alert whose source is its own name.
    """

    @property
    def name(self) -> str:
        """The source of its alerts."""
        ...

    @property
    def watches(self) -> type | tuple[type, ...]:
        """The types of the events that it is shown, as `Stream.subscribe` takes them."""
        ...

    async def process(self, event: Any, context: Context) -> ObserverAlert | None:
        """Look at an event, in the order in which they are sent; the alert returned, if any, is sent on the stream.

        The sender waits for it: what takes long belongs into a task, which may send with ``context.send``.
        """
        ...


class _Watch:
    """One observer on one stream, however often it is attached there."""

    def __init__(self, stream: Stream, observer: Observer, context: Context, timeout: float) -> None:
        self.observer = observer
        self.holders = 0
        self._stream = stream
        self._context = context
        self._timeout = timeout
        self._timeouts = 0
        self._type = type(observer).__qualname__
        self.subscription: Subscription = stream.subscribe(_types(observer.watches), self, label=self._type)

    async def __call__(self, event: Any) -> None:
        if isinstance(event, ObserverAlert) and event.source == self.observer.name:
            return
        before = self._timeouts
        deadline = asyncio.timeout(self._timeout)
        try:
            # In the sender's own task: where nothing is awaited, nobody else runs between an event and its alert.
            async with deadline:
                alert = await self.observer.process(event, self._context)
        finally:
            # Turns that wait at once for the same hiccup make one time-out.
            self._timeouts = max(self._timeouts, before + 1) if deadline.expired() else 0
            if self._timeouts == MAX_TIMEOUTS and self.subscription.active:
                self.subscription.cancel()
                _log.warning(
                    "observer %s took more than %g s %d times in a row; it is detached",
                    self._type,
                    self._timeout,
                    MAX_TIMEOUTS,
                )
        if alert is not None:
            await self._stream.send(alert)


class Attachment:
    """Observers on a stream; as a context manager they are detached at the end of the block."""

    __slots__ = ("_watches",)

    def __init__(self, watches: tuple[_Watch, ...]) -> None:
        self._watches = watches

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """Those of the observers, in their order; they count what went wrong."""
        return tuple(watch.subscription for watch in self._watches)

    def detach(self) -> None:
        """Show these observers nothing more, unless somebody else attached them too; may be called again."""
        for watch in self._watches:
            watch.holders -= 1
            if watch.holders == 0:
                watch.subscription.cancel()
        self._watches = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


def attach(
    stream: Stream, observers: Iterable[Observer], context: Context | None = None, *, timeout: float = 5.0
) -> Attachment:
    """Show observers the events of a stream from now on, and send their alerts on it.

    An observer that raises, or takes longer than the time-out, is logged by its type's name and left; after three
    time-outs in a row it is detached. An observer that is attached to the stream already (two asks at once on one
    conversation) is shown each event once, with the context it was first given.

    Args:
        stream: Where they watch and where their alerts go.
        observers: In the order in which they are shown an event.
        context: What they are given beside the event; by default ``Context(stream=stream)``.
        timeout: Seconds that an observer may take for one event. One that blocks the event loop cannot be stopped.

    Raises:
        ConfigurationError: The time-out is not positive, something is no observer, or the context belongs to another
            conversation than the stream: its guard would stay open when the stream halts.
    """
    instance("stream", stream)
    instance("context", context)
    if not timeout > 0:
        raise ConfigurationError(f"timeout must be above 0 s, not {timeout}")
    context = Context(stream=stream) if context is None else context
    context.adopt(stream.conversation)
    if context.conversation is not stream.conversation:
        raise ConfigurationError(
            "the context belongs to another conversation than the stream, so a halt would not reach its guard; "
            "create it with Context(stream=stream)"
        )
    wanted = checked_observers(observers)
    watches = []
    for observer in wanted:
        watch = _watch_of(stream, observer) or _Watch(stream, observer, context, timeout)
        watch.holders += 1
        watches.append(watch)
    return Attachment(tuple(watches))


def checked_observers(observers: Any) -> tuple[Observer, ...]:
    """Observers, each of which can be attached.

    Raises:
        ConfigurationError: It is no sequence, or something in it is no observer, or a class.
    """
    given = several("observers", observers)
    for index, observer in enumerate(given):
        instance(f"observer at index {index}", observer)
        for attribute in ("name", "watches", "process"):
            if not hasattr(observer, attribute):
                raise ConfigurationError(f"{type(observer).__qualname__} is no observer: it has no {attribute!r}")
        _types(observer.watches)
    return given


def _watch_of(stream: Stream, observer: Observer) -> _Watch | None:
    for subscription in stream.subscriptions:
        watch = subscription.callback
        if isinstance(watch, _Watch) and watch.observer is observer:
            return watch
    return None


def _types(watches: type | tuple[type, ...]) -> tuple[type, ...]:
    types = watches if isinstance(watches, tuple) else (watches,)
    if not types or not all(isinstance(each, type) for each in types):
        raise ConfigurationError(f"an observer watches classes of events, not {watches!r}")
    return types
