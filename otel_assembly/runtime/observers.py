"""Observers, which receive the events of a stream and raise alerts. A FATAL alert halts the conversation.

The built-in observers keep separate state for each conversation. One observer can be attached to any number of
streams, and can be attached again for each turn.
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

#: The number of consecutive time-outs after which an observer is detached, because senders wait for each observer.
MAX_TIMEOUTS: Final = 3

_log = logging.getLogger(__name__)


class Observer(Protocol):
    """The interface of observers: an observer receives the events of a stream and can return alerts.

    Several observers may have the same name. An observer does not receive alerts whose source is its own name.
    """

    @property
    def name(self) -> str:
        """The observer's name; the ``source`` of its alerts."""
        ...

    @property
    def watches(self) -> type | tuple[type, ...]:
        """The event type or types that the observer receives, as in `Stream.subscribe`."""
        ...

    async def process(self, event: Any, context: Context) -> ObserverAlert | None:
        """Process an event; return an alert to send on the stream, or None.

        Events arrive in the order in which they are sent. The sender waits for this method, so start a task for long
        work. The task can send events with ``context.send``.
        """
        ...


class _Observation:
    """The subscription of one observer to one stream, shared by all attachments of this observer to this stream.

    Args:
        stream: The stream.
        observer: The observer.
        context: The context that is passed to the observer.
        timeout: The time limit of the observer for each event, in seconds.
    """

    def __init__(self, stream: Stream, observer: Observer, context: Context, timeout: float) -> None:
        self.observer = observer
        self.attachment_count = 0
        self._stream = stream
        self._context = context
        self._timeout = timeout
        self._timeouts = 0
        self._type = type(observer).__qualname__
        self.subscription: Subscription = stream.subscribe(_event_types(observer.watches), self, label=self._type)

    async def __call__(self, event: Any) -> None:
        if isinstance(event, ObserverAlert) and event.source == self.observer.name:
            return
        earlier_timeouts = self._timeouts
        deadline = asyncio.timeout(self._timeout)
        try:
            # In the sender's task: if the observer awaits nothing, no other task runs between an event and its alert.
            async with deadline:
                alert = await self.observer.process(event, self._context)
        finally:
            # Concurrent turns that wait for the same delay count as one time-out.
            self._timeouts = max(self._timeouts, earlier_timeouts + 1) if deadline.expired() else 0
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
    """Observers that are attached to a stream. As a context manager, it detaches them at the end."""

    __slots__ = ("_observations",)

    def __init__(self, observations: tuple[_Observation, ...]) -> None:
        self._observations = observations

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """The observers' subscriptions, in their order; each counts the errors of its observer."""
        return tuple(observation.subscription for observation in self._observations)

    def detach(self) -> None:
        """Detach the observers, except those that another attachment still uses.

        Calling this method again has no effect.
        """
        for observation in self._observations:
            observation.attachment_count -= 1
            if observation.attachment_count == 0:
                observation.subscription.cancel()
        self._observations = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


def attach(
    stream: Stream, observers: Iterable[Observer], context: Context | None = None, *, timeout: float = 5.0
) -> Attachment:
    """Attach observers to a stream: they receive the stream's events from now on, and their alerts are sent on it.

    If an observer raises an error or exceeds the time-out, its type's name is logged, and the next observer receives
    the event. After three consecutive time-outs an observer is detached. An observer that is already attached to
    the stream, for example by a concurrent call of `Agent.ask`, receives each event once, with the context of the first
    attachment.

    Args:
        stream: The stream that the observers receive events from and send alerts on.
        observers: The observers, in the order in which they receive an event.
        context: The context that is passed to the observers; by default ``Context(stream=stream)``.
        timeout: The time limit per event and observer, in seconds. A blocked event loop cannot be interrupted.

    Raises:
        ConfigurationError: The time-out is not positive, an entry is not an observer, or the context belongs to
            another conversation than the stream: a halt of the stream would not halt the context.
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
    observations = []
    for observer in checked_observers(observers):
        observation = _observation_of(stream, observer) or _Observation(stream, observer, context, timeout)
        observation.attachment_count += 1
        observations.append(observation)
    return Attachment(tuple(observations))


def checked_observers(observers: Any) -> tuple[Observer, ...]:
    """Check observers and return them as a tuple.

    Raises:
        ConfigurationError: The value is not a sequence, or an entry is a class or lacks an observer's attributes.
    """
    checked = several("observers", observers)
    for index, observer in enumerate(checked):
        instance(f"observer at index {index}", observer)
        for attribute in ("name", "watches", "process"):
            if not hasattr(observer, attribute):
                raise ConfigurationError(f"{type(observer).__qualname__} is not an observer: it has no {attribute!r}")
        _event_types(observer.watches)
    return checked


def _observation_of(stream: Stream, observer: Observer) -> _Observation | None:
    for subscription in stream.subscriptions:
        observation = subscription.callback
        if isinstance(observation, _Observation) and observation.observer is observer:
            return observation
    return None


def _event_types(watches: type | tuple[type, ...]) -> tuple[type, ...]:
    types = watches if isinstance(watches, tuple) else (watches,)
    if not types or not all(isinstance(event_type, type) for event_type in types):
        raise ConfigurationError(f"an observer watches classes of events, not {watches!r}")
    return types
