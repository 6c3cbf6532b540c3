"""The state that all turns, contexts and policies of one conversation share: its halt and its delivered alerts.

Policy objects have no such state. Therefore concurrent turns of a conversation deliver an alert once and halt once,
even if several agents share one policy object.
"""

from __future__ import annotations

import hashlib
import weakref
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from otel_assembly._internal.current_recorder import halt_listeners, resume_listeners
from otel_assembly._internal.fork_safety import new_lock
from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly._internal.registry import Registry
from otel_assembly.errors import HaltedError
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from otel_assembly import events
    from otel_assembly._internal.fork_safety import Lock
    from otel_assembly.events import HaltEvent
    from otel_assembly.messages.event_facts import EventFacts
else:
    events = LazyModule("otel_assembly.events")

#: The number of conversations, known only by their id, that a process remembers.
REMEMBERED_CONVERSATIONS: Final = 10_000
#: How many more times an alert is shown to the model if no response follows.
MAX_REPEATS: Final = 3
#: How many of the newest responses are compared to find a new one, if the input does not extend the earlier input.
_NEWEST: Final = 64
_RESPONSES: Final = frozenset({EventKind.RESPONSE, EventKind.TOOL_CALL})


@dataclass(slots=True)
class AgentIdentity:
    """The agent that an assembly, a model call or a halt belongs to, for telemetry.

    Attributes:
        agent_name: The agent's name; None if unknown.
        framework: The agent's framework, such as ``langchain``; None if unknown.
        conversation_id: The id of the agent's conversation; None if it has none.
    """

    agent_name: str | None = None
    framework: str | None = None
    conversation_id: str | None = None


@dataclass(frozen=True, slots=True)
class AlertFacts:
    """The fields of an observer alert of any framework, as strings. Equal objects are the same alert.

    Attributes:
        source: The name of the observer.
        severity: The lower-case name of the severity, such as ``fatal``.
        message: The text of the alert.
    """

    source: str
    severity: str
    message: str

    @property
    def fatal(self) -> bool:
        """Whether this alert halts the conversation."""
        return self.severity == "fatal"

    @property
    def fingerprint(self) -> str:
        """A digest of 16 hexadecimal digits, equal for equal alerts in every process."""
        text = "\0".join((self.source, self.severity, self.message))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def is_alert(event: Any) -> bool:
    """Return whether an event of any framework is an observer alert: it has a source, a severity and a message."""
    if isinstance(event, events.Event):  # a missing attribute of a pydantic model is slow to look up
        return isinstance(event, events.ObserverAlert)
    return all(hasattr(event, name) for name in ("severity", "source", "message"))


def alert_facts(event: Any) -> AlertFacts:
    """Return the source, severity and message of an alert of any framework, as strings."""
    return AlertFacts(str(event.source), events.severity_name(event.severity), str(event.message))


class Running(NamedTuple):
    """A running assembly.

    Attributes:
        guards: The guards of the conversation that the assembly checks.
        emitted: The halts that the assembly's policies and observers caused.
    """

    guards: Sequence[HaltGuard]
    emitted: list[HaltEvent]


RUNNING: Final[ContextVar[Running | None]] = ContextVar("otel_assembly_running", default=None)


def halted_here() -> bool:
    """Return whether the conversation of the running assembly is halted, so that no model may be called for it."""
    running = RUNNING.get()
    return running is not None and any(guard.halted for guard in running.guards)


def on_halt(listener: Callable[[HaltEvent], None]) -> None:
    """Register a function that is called each time a conversation is halted.

    Args:
        listener: Gets the `HaltEvent`. It is called synchronously, in the task or thread that causes the halt.
    """
    halt_listeners.append(lambda halt, guard, by: listener(halt))


@lru_cache(maxsize=512)
def _is_irrelevant(kind: type) -> bool:
    """Return whether a type is an event type of this package that never halts or resumes a conversation."""
    relevant = events.HaltEvent, events.ObserverAlert, events.ConversationResumed
    return issubclass(kind, events.Event) and not issubclass(kind, relevant) and kind.__name__ != "HaltEvent"


class HaltGuard:
    """The halt of a conversation, as a guard that is closed while the conversation is halted.

    Call `check` before each model call and each tool call.

    A FATAL alert or a `HaltEvent` closes the guard. Closing is synchronous, so the guard is closed for every call that
    starts after the alert was sent.
    """

    __slots__ = ("_lock", "halt", "identity", "last", "lifted", "resumed")

    def __init__(self) -> None:
        #: The halt that closed the guard; None while it is open.
        self.halt: HaltEvent | None = None
        #: The agent that last used this conversation.
        self.identity: AgentIdentity | None = None
        #: A reference to the span of the conversation's last assembly, for telemetry.
        self.last: object = None
        #: The last halt that `reopen` ended.
        self.lifted: HaltEvent | None = None
        #: The event that resumed the conversation, until telemetry has recorded it.
        self.resumed: events.ConversationResumed | None = None
        self._lock = new_lock()

    @property
    def halted(self) -> bool:
        """Whether the guard is closed, so that no call may start."""
        return self.halt is not None

    def check(self) -> None:
        """Raise if the conversation is halted; call it before each model call and tool call.

        Raises:
            HaltedError: The conversation was halted.
        """
        if self.halt is not None:
            raise HaltedError(self.halt.reason, self.halt.source)

    def reopen(self) -> HaltEvent | None:
        """Open the guard, and return the halt that had closed it; None if it was open."""
        with self._lock:
            halt, self.halt = self.halt, None
        self.lifted = halt or self.lifted
        return halt

    def observe(self, event: Any, by: AgentIdentity | None = None) -> HaltEvent | None:
        """Close the guard if an event halts the conversation; report a `ConversationResumed` event to telemetry.

        Args:
            event: The event, of this package or of a framework.
            by: The agent that sends the event, for telemetry; None: the agent of the latest run.

        Returns:
            The `HaltEvent` to send, if this event closed the guard and is not a `HaltEvent` itself; else None.
        """
        kind: type = type(event)
        if self.resumed is None and _is_irrelevant(kind):
            return None
        if isinstance(event, events.HaltEvent):
            self._close_with(event, by)
        elif type(event).__name__ == "HaltEvent":
            self._close_with(events.HaltEvent(reason=str(event.reason), source=str(event.source)), by)
        elif is_alert(event) and (facts := alert_facts(event)).fatal:
            return self.close([facts], by)
        elif isinstance(event, events.ConversationResumed):
            self.resumed = event
            self._notify_resumed()
        elif self.resumed is not None and isinstance(event, events.TurnStarted):
            self._notify_resumed()
        return None

    def close(self, fatal: list[AlertFacts], by: AgentIdentity | None = None) -> HaltEvent | None:
        """Close the guard because of FATAL alerts.

        Args:
            fatal: The alerts.
            by: The agent that sent the alerts, for telemetry; None: the agent of the latest run.

        Returns:
            The `HaltEvent` to send, or None if the guard was closed before.
        """
        first = fatal[0]
        halt = events.HaltEvent(
            reason=f"FATAL: {first.message}",
            source=first.source,
            alerts=tuple(
                events.ObserverAlert(source=alert.source, severity="fatal", message=alert.message) for alert in fatal
            ),
        )
        return halt if self._close_with(halt, by) else None

    def _notify_resumed(self) -> None:
        for listener in resume_listeners:
            listener(self)

    def _close_with(self, halt: HaltEvent, by: AgentIdentity | None) -> bool:
        with self._lock:
            if self.halt is not None:
                return False
            self.halt = halt
        running = RUNNING.get()
        if running is not None:
            running.emitted.append(halt)
        for listener in halt_listeners:
            listener(halt, self, by)
        return True


class _History(Protocol):
    def kind(self, position: int, /) -> EventKind: ...
    def facts(self, position: int, /) -> EventFacts: ...


class _View(Protocol):
    """The part of `history.View` that is used here. Importing the class would be circular."""

    @property
    def history(self) -> _History: ...
    @property
    def end(self) -> int: ...
    def backward(self) -> Iterator[int]: ...


class _ShownResponses:
    """Remembers the model's responses at the time when an alert was shown, to find out whether a newer one exists.

    The object has hashes and a weak reference only, so that no event stays in memory.
    """

    __slots__ = ("_end", "_history", "_newest")

    def __init__(self, view: _View) -> None:
        self._history: weakref.ref[_History] = weakref.ref(view.history)
        self._end = view.end
        self._newest = Counter(islice(_responses(view), _NEWEST))

    def has_newer_in(self, view: _View) -> bool:
        """Return whether a later input contains a response that was not there when the alert was shown."""
        history = view.history
        if self._history() is history:
            return any(history.kind(position) in _RESPONSES for position in range(self._end, view.end))
        return bool(Counter(islice(_responses(view), _NEWEST)) - self._newest)


def _responses(view: _View) -> Iterator[int]:
    """Yield one hash per response of the model, newest first: of its id if it has one, else of its content."""
    history = view.history
    for position in view.backward():
        kind = history.kind(position)
        if kind in _RESPONSES:
            facts = history.facts(position)
            yield hash(facts.id if facts.id is not None else (kind, facts.texts, tuple(facts.opens)))


class _Delivery:
    """The state of one alert: how often the model was shown it, and whether a response followed."""

    __slots__ = ("is_claimed", "last_shown_at", "responses", "shown")

    def __init__(self) -> None:
        #: Whether a running assembly shows the alert.
        self.is_claimed = True
        #: How often the alert was shown.
        self.shown = 0
        #: The value of `Deliveries.times_shown` after the alert was last shown.
        self.last_shown_at = 0
        #: The responses in the assembly's input when the alert was last shown; None if it is never shown again.
        self.responses: _ShownResponses | None = None


class Deliveries:
    """The alerts of one conversation that were shown to the model. Alerts with equal fields are one alert.

    An assembly claims an alert, adds it to its prompt, and then calls `deliver` if it succeeded or `release` if it
    failed. Whether the model call succeeded is derived from the next input: if it contains no new response, the call is
    taken to have failed, and the alert is shown again, at most `MAX_REPEATS` times.
    """

    __slots__ = ("_deliveries", "_lock", "_open", "times_shown")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._deliveries: dict[Hashable, _Delivery] = {}
        #: The alerts without a following response.
        self._open: dict[Hashable, None] = {}
        #: How many times an alert was shown; an alert that was shown twice counts twice.
        self.times_shown = 0

    def unanswered(self) -> tuple[Any, ...]:
        """Return the shown alerts after which no response of the model was found; these may be shown again."""
        with self._lock:
            return tuple(self._open)

    def claim(self, alert: Hashable, view: _View, shown_before: int) -> bool:
        """Claim an alert for an assembly, so that no concurrent assembly shows it as well.

        Args:
            alert: The alert.
            view: The input of the assembly.
            shown_before: The value of `times_shown` when the assembly started. An alert that another assembly has
                shown since then is not shown again, because the other assembly's model call may still be running.

        Returns:
            True if the assembly must show the alert. False if another assembly shows it, or if it was shown and a
            response followed.
        """
        with self._lock:
            delivery = self._deliveries.get(alert)
            if delivery is None:
                self._deliveries[alert] = _Delivery()
                return True
            if delivery.is_claimed or delivery.responses is None or delivery.last_shown_at > shown_before:
                return False
            if delivery.responses.has_newer_in(view):
                self._settle(alert, delivery)
                return False
            delivery.is_claimed = True
            return True

    def first(self, alert: Hashable) -> bool:
        """Return True if a claimed alert was never shown before."""
        with self._lock:
            return self._deliveries[alert].shown == 0

    def release(self, alert: Hashable) -> bool:
        """Give up the claim of a failed assembly on an alert.

        Returns:
            True if the alert was never shown, so that it counts as new again.
        """
        with self._lock:
            delivery = self._deliveries[alert]
            delivery.is_claimed = False
            if delivery.shown == 0:
                del self._deliveries[alert]
            return delivery.shown == 0

    def dismiss(self, alert: Hashable) -> None:
        """Never show an alert (again), because the program has handled it."""
        with self._lock:
            delivery = self._deliveries.setdefault(alert, _Delivery())
            delivery.is_claimed = False
            delivery.shown = delivery.shown or 1
            self._settle(alert, delivery)

    def deliver(self, alert: Hashable, view: _View) -> None:
        """Record that an alert was shown, because the assembly that claimed it succeeded.

        Args:
            alert: The alert.
            view: The input of the assembly.
        """
        responses = _ShownResponses(view)
        with self._lock:
            delivery = self._deliveries[alert]
            delivery.is_claimed = False
            delivery.shown += 1
            self.times_shown += 1
            delivery.last_shown_at, delivery.responses = self.times_shown, responses
            self._open[alert] = None
            if delivery.shown > MAX_REPEATS:
                self._settle(alert, delivery)

    def _settle(self, alert: Hashable, delivery: _Delivery) -> None:
        delivery.responses = None
        self._open.pop(alert, None)


class Conversation:
    """The state that all turns of one conversation share: its halt guard and the alerts that the model was shown."""

    __slots__ = ("__weakref__", "_lock", "alerts_read", "deliveries", "guard", "releases")

    def __init__(self) -> None:
        self.guard = HaltGuard()
        self._lock = new_lock()
        #: The alerts that were shown to the model.
        self.deliveries = Deliveries(self._lock)
        #: How many alerts of the conversation's `History`, from its beginning, earlier turns have shown or skipped.
        self.alerts_read = 0
        #: How many times an alert was released after a failed turn.
        self.releases = 0

    def release(self, alert: AlertFacts) -> None:
        """Release an alert after a failed turn, so that the next turn shows it."""
        if self.deliveries.release(alert):
            with self._lock:
                self.alerts_read = 0
                self.releases += 1

    def has_read(self, alerts: int, releases: int) -> None:
        """Record that a successful turn has read the first `alerts` alerts of the `History`.

        Args:
            alerts: The number of alerts that the turn read.
            releases: The value of `self.releases` when the turn began. If it has changed since, the call has no effect:
                another turn released an alert, so the next turn must read all alerts again.
        """
        with self._lock:
            if releases == self.releases:
                self.alerts_read = max(self.alerts_read, alerts)


_BY_ID: Final[Registry[str, Conversation]] = Registry(REMEMBERED_CONVERSATIONS)


def conversation_of_id(conversation_id: str) -> Conversation:
    """Return the state of the conversation with this id in this process; the 10,000 last used ones are kept."""
    return _BY_ID.of(conversation_id, Conversation)
