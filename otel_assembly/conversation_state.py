"""The state that all turns, contexts and policies of one conversation share: its halt and its delivered alerts.

No state belongs to a policy object, so fifty concurrent turns, or two agents that share a policy, deliver an alert once
and halt once per conversation.
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
from otel_assembly._internal.faces import Later
from otel_assembly._internal.forks import new_lock
from otel_assembly._internal.registry import Registry
from otel_assembly.errors import HaltedError
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from otel_assembly import events
    from otel_assembly._internal.forks import Lock
    from otel_assembly.events import HaltEvent
    from otel_assembly.messages.event_facts import EventFacts
else:
    events = Later("otel_assembly.events")

#: The number of conversations, known only by their id, that a process remembers.
REMEMBERED_CONVERSATIONS: Final = 10_000
#: How often an alert without a following response is shown again.
MAX_REPEATS: Final = 3
#: The number of newest responses that are compared, to find a new one in an input that does not extend the last one.
_NEWEST: Final = 64
_RESPONSES: Final = frozenset({EventKind.RESPONSE, EventKind.TOOL_CALL})


@dataclass(slots=True)
class Whose:
    """The agent, framework and conversation of an assembly, as far as they are known."""

    agent_name: str | None = None
    framework: str | None = None
    conversation_id: str | None = None


@dataclass(frozen=True, slots=True)
class AlertFacts:
    """The fields of an observer alert of any framework.

    Equal facts are the same alert, whether the severity is an enum or a string.
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
    """Return the fields of an alert."""
    return AlertFacts(str(event.source), events.severity_name(event.severity), str(event.message))


class Running(NamedTuple):
    """A running assembly: its guards, and the halts that its policies and observers cause."""

    guards: Sequence[HaltGuard]
    emitted: list[HaltEvent]


RUNNING: Final[ContextVar[Running | None]] = ContextVar("otel_assembly_running", default=None)


def halted_here() -> bool:
    """Return whether the conversation of the running assembly is halted, so that no model may be called for it."""
    running = RUNNING.get()
    return running is not None and any(guard.halted for guard in running.guards)


def on_halt(listener: Callable[[HaltEvent], None]) -> None:
    """Call a listener for each guard that closes, immediately and in the same context."""
    halt_listeners.append(lambda halt, guard, by: listener(halt))


@lru_cache(maxsize=512)
def _is_irrelevant(kind: type) -> bool:
    """Return whether events of a type are of this package and neither close nor open a guard."""
    relevant = events.HaltEvent, events.ObserverAlert, events.ConversationResumed
    return issubclass(kind, events.Event) and not issubclass(kind, relevant) and kind.__name__ != "HaltEvent"


class HaltGuard:
    """A guard that a FATAL alert or a `HaltEvent` closes; check it before each model call and tool call.

    Closing is synchronous, so a call that starts after the alert was sent finds the guard closed.
    """

    __slots__ = ("_lock", "halt", "last", "lifted", "resumed", "whose")

    def __init__(self) -> None:
        #: The halt that closed the guard; None while it is open.
        self.halt: HaltEvent | None = None
        #: The agent that last used this conversation.
        self.whose: Whose | None = None
        #: A reference to the conversation's last assembly, for telemetry.
        self.last: object = None
        #: The last halt that was lifted.
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

    def observe(self, event: Any, by: Whose | None = None) -> HaltEvent | None:
        """Process an event of the stream.

        Args:
            event: The event.
            by: The agent that sends it, for telemetry.

        Returns:
            The `HaltEvent` to emit, if this event closed the guard and is not a `HaltEvent` itself.
        """
        kind: type = type(event)
        if self.resumed is None and _is_irrelevant(kind):
            return None
        if isinstance(event, events.HaltEvent):
            self._settle(event, by)
        elif type(event).__name__ == "HaltEvent":
            self._settle(events.HaltEvent(reason=str(event.reason), source=str(event.source)), by)
        elif is_alert(event) and (facts := alert_facts(event)).fatal:
            return self.close([facts], by)
        elif isinstance(event, events.ConversationResumed):
            self.resumed = event
            self._tell_resumed()
        elif self.resumed is not None and isinstance(event, events.TurnStarted):
            self._tell_resumed()
        return None

    def close(self, fatal: list[AlertFacts], by: Whose | None = None) -> HaltEvent | None:
        """Close on FATAL alerts.

        Returns:
            The `HaltEvent` to emit, or None if the guard was closed before.
        """
        first = fatal[0]
        halt = events.HaltEvent(
            reason=f"FATAL: {first.message}",
            source=first.source,
            alerts=tuple(
                events.ObserverAlert(source=alert.source, severity="fatal", message=alert.message) for alert in fatal
            ),
        )
        return halt if self._settle(halt, by) else None

    def _tell_resumed(self) -> None:
        for listener in resume_listeners:
            listener(self)

    def _settle(self, halt: HaltEvent, by: Whose | None) -> bool:
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
    """The part of `history.View` that is used here; that module imports this one."""

    @property
    def history(self) -> _History: ...
    @property
    def end(self) -> int: ...
    def backward(self) -> Iterator[int]: ...


class _ShownResponses:
    """The responses of the input when an alert was shown, to find a newer one; keeps no event alive."""

    __slots__ = ("_end", "_history", "_newest")

    def __init__(self, view: _View) -> None:
        self._history: weakref.ref[_History] = weakref.ref(view.history)
        self._end = view.end
        self._newest = Counter(islice(_responses(view), _NEWEST))

    def has_newer_in(self, view: _View) -> bool:
        """Return whether the input has a newer response."""
        history = view.history
        if self._history() is history:
            return any(history.kind(position) in _RESPONSES for position in range(self._end, view.end))
        return bool(Counter(islice(_responses(view), _NEWEST)) - self._newest)


def _responses(view: _View) -> Iterator[int]:
    """Yield a hash of the content, or of the framework's id, of each response; the newest first."""
    history = view.history
    for position in view.backward():
        kind = history.kind(position)
        if kind in _RESPONSES:
            facts = history.facts(position)
            yield hash(facts.id if facts.id is not None else (kind, facts.texts, tuple(facts.opens)))


class _Delivery:
    __slots__ = ("ended", "is_claimed", "responses", "shown")

    def __init__(self) -> None:
        #: Whether a running assembly shows the alert.
        self.is_claimed = True
        #: How often the alert was shown.
        self.shown = 0
        #: The value of `Deliveries.now` when it was last shown.
        self.ended = 0
        #: The responses of the input at that time; None if the alert is settled.
        self.responses: _ShownResponses | None = None


class Deliveries:
    """The alerts of one conversation that were shown to the model, by their fields.

    A failed model call is not reported here. The next input shows whether the call succeeded: it then has a response
    that was not in the input when the alert was shown. Without one, the alert is shown again, at most `MAX_REPEATS`
    times.
    """

    __slots__ = ("_deliveries", "_lock", "_open", "now")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._deliveries: dict[Hashable, _Delivery] = {}
        #: The alerts without a following response.
        self._open: dict[Hashable, None] = {}
        #: The number of finished assemblies that showed an alert.
        self.now = 0

    def unanswered(self) -> tuple[Any, ...]:
        """Return the alerts that may have to be shown again."""
        with self._lock:
            return tuple(self._open)

    def claim(self, alert: Hashable, view: _View, began: int) -> bool:
        """Claim an alert for an assembly that shows it; return False if another assembly showed or shows it.

        Args:
            alert: The alert.
            view: The input of the assembly.
            began: The value of `now` when the assembly began. The model call of a delivery that ended later cannot have
                failed yet.
        """
        with self._lock:
            delivery = self._deliveries.get(alert)
            if delivery is None:
                self._deliveries[alert] = _Delivery()
                return True
            if delivery.is_claimed or delivery.responses is None or delivery.ended > began:
                return False
            if delivery.responses.has_newer_in(view):
                self._settle(alert, delivery)
                return False
            delivery.is_claimed = True
            return True

    def first(self, alert: Hashable) -> bool:
        """Return whether a claimed alert has not been shown before."""
        with self._lock:
            return self._deliveries[alert].shown == 0

    def release(self, alert: Hashable) -> bool:
        """Release a claim after a failed assembly; return whether the alert was never shown."""
        with self._lock:
            delivery = self._deliveries[alert]
            delivery.is_claimed = False
            if delivery.shown == 0:
                del self._deliveries[alert]
            return delivery.shown == 0

    def dismiss(self, alert: Hashable) -> None:
        """Do not show an alert any more, because it was handled."""
        with self._lock:
            delivery = self._deliveries.setdefault(alert, _Delivery())
            delivery.is_claimed = False
            delivery.shown = delivery.shown or 1
            self._settle(alert, delivery)

    def deliver(self, alert: Hashable, view: _View) -> None:
        """Record that the assembly that claimed an alert succeeded."""
        responses = _ShownResponses(view)
        with self._lock:
            delivery = self._deliveries[alert]
            delivery.is_claimed = False
            delivery.shown += 1
            self.now += 1
            delivery.ended, delivery.responses = self.now, responses
            self._open[alert] = None
            if delivery.shown > MAX_REPEATS:
                self._settle(alert, delivery)

    def _settle(self, alert: Hashable, delivery: _Delivery) -> None:
        delivery.responses = None
        self._open.pop(alert, None)


class Conversation:
    """The state of one conversation that outlives a turn."""

    __slots__ = ("__weakref__", "_lock", "alerts_read", "deliveries", "guard", "releases")

    def __init__(self) -> None:
        self.guard = HaltGuard()
        self._lock = new_lock()
        #: The alerts that were shown to the model.
        self.deliveries = Deliveries(self._lock)
        #: The number of alerts in the conversation's `History` that earlier turns handled.
        self.alerts_read = 0
        #: How often a turn released an alert.
        self.releases = 0

    def release(self, alert: AlertFacts) -> None:
        """Release an alert after a failed turn, so that the next turn shows it."""
        if self.deliveries.release(alert):
            with self._lock:
                self.alerts_read = 0
                self.releases += 1

    def has_read(self, alerts: int, releases: int) -> None:
        """Record that a successful turn handled `alerts` alerts; it began after `releases` releases.

        If another turn has released an alert since, all alerts are read again.
        """
        with self._lock:
            if releases == self.releases:
                self.alerts_read = max(self.alerts_read, alerts)


_BY_ID: Final[Registry[str, Conversation]] = Registry(REMEMBERED_CONVERSATIONS)


def conversation_of_id(conversation_id: str) -> Conversation:
    """Return the conversation with this id in this process; only the 10,000 last used ones are kept."""
    return _BY_ID.of(conversation_id, Conversation)
