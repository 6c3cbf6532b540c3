"""What belongs to one conversation, whatever turns, contexts and policies it has: the halt, the alerts delivered.

Nothing here is keyed by a policy object: fifty turns at once, or two agents that share a policy, still deliver an alert
once and halt once per conversation.
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

#: How many conversations that are known only by their id are remembered in one process.
REMEMBERED_CONVERSATIONS: Final = 10_000
#: How often an alert that no response followed is shown again.
MAX_REPEATS: Final = 3
#: So many of the newest responses tell whether there is a new one, where what comes in is not what came in before with
#: more behind it.
_NEWEST: Final = 64
_RESPONSES: Final = frozenset({EventKind.RESPONSE, EventKind.TOOL_CALL})


@dataclass(slots=True)
class Whose:
    """Whose assembly something is, as far as that is known; a `Context` says the same of an assembler's."""

    agent_name: str | None = None
    framework: str | None = None
    conversation_id: str | None = None


@dataclass(frozen=True, slots=True)
class AlertFacts:
    """An observer alert of any framework, read by the names that they all use.

    Equal facts are the same alert, whether its severity came as an enum or as a string.
    """

    source: str
    severity: str
    message: str

    @property
    def fatal(self) -> bool:
        """Whether this alert halts."""
        return self.severity == "fatal"

    @property
    def fingerprint(self) -> str:
        """16 hex digits that are equal for equal alerts, in every process."""
        text = "\0".join((self.source, self.severity, self.message))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def is_alert(event: Any) -> bool:
    """Whether an event of any framework is an observer alert: it has a source, a severity and a message."""
    if isinstance(event, events.Event):  # asking one of ours for an attribute that it has not takes long
        return isinstance(event, events.ObserverAlert)
    return all(hasattr(event, name) for name in ("severity", "source", "message"))


def alert_facts(event: Any) -> AlertFacts:
    """Read the alert that `event` is."""
    return AlertFacts(str(event.source), events.severity_name(event.severity), str(event.message))


class Running(NamedTuple):
    """An assembly while it runs: whose guards it heeds, and the halts that its policies and observers bring about."""

    guards: Sequence[HaltGuard]
    emitted: list[HaltEvent]


RUNNING: Final[ContextVar[Running | None]] = ContextVar("otel_assembly_running", default=None)


def halted_here() -> bool:
    """Whether the conversation is halted whose assembly runs here, so that no model may be called for it any more."""
    running = RUNNING.get()
    return running is not None and any(guard.halted for guard in running.guards)


def on_halt(listener: Callable[[HaltEvent], None]) -> None:
    """Tell this listener of every guard that closes, at once and in the context in which it closed."""
    halt_listeners.append(lambda halt, guard, by: listener(halt))


@lru_cache(maxsize=512)
def _is_of_no_concern(kind: type) -> bool:
    """Whether events of a type are ours, and none that closes a guard or opens it."""
    heeded = events.HaltEvent, events.ObserverAlert, events.ConversationResumed
    return issubclass(kind, events.Event) and not issubclass(kind, heeded) and kind.__name__ != "HaltEvent"


class HaltGuard:
    """Closes on a FATAL alert or a `HaltEvent`; any loop can ask it before it calls a model or a tool.

    Closing is synchronous, so a call that starts after the alert was sent finds the guard closed.
    """

    __slots__ = ("_lock", "halt", "last", "lifted", "resumed", "whose")

    def __init__(self) -> None:
        #: What closed the guard; None while it is open.
        self.halt: HaltEvent | None = None
        #: Who asked last in this conversation.
        self.whose: Whose | None = None
        #: What telemetry remembers of the conversation's last assembly.
        self.last: object = None
        #: What the guard was opened from again.
        self.lifted: HaltEvent | None = None
        #: That somebody has let the conversation go on, as long as telemetry has not told of it.
        self.resumed: events.ConversationResumed | None = None
        self._lock = new_lock()

    @property
    def halted(self) -> bool:
        """Whether no more calls may start."""
        return self.halt is not None

    def check(self) -> None:
        """Ask before a model call or a tool call.

        Raises:
            HaltedError: The conversation was halted.
        """
        if self.halt is not None:
            raise HaltedError(self.halt.reason, self.halt.source)

    def reopen(self) -> HaltEvent | None:
        """Let calls start again, because somebody decided so; what had halted them, or None where nothing had."""
        with self._lock:
            halt, self.halt = self.halt, None
        self.lifted = halt or self.lifted
        return halt

    def observe(self, event: Any, by: Whose | None = None) -> HaltEvent | None:
        """Show the guard an event of the stream.

        Args:
            event: The event.
            by: On whose behalf it is sent, for telemetry.

        Returns:
            The `HaltEvent` that is to be emitted now, if this event closed the guard and is not one itself: at most
            once in the guard's life.
        """
        kind: type = type(event)
        if self.resumed is None and _is_of_no_concern(kind):
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
    """What is asked of the events that come in: a `View` of a `History`, which stands above this module."""

    @property
    def history(self) -> _History: ...
    @property
    def end(self) -> int: ...
    def backward(self) -> Iterator[int]: ...


class _Came:
    """What came in when an alert was shown: enough of it to know a newer response, and nothing that keeps it alive."""

    __slots__ = ("_end", "_history", "_newest")

    def __init__(self, view: _View) -> None:
        self._history: weakref.ref[_History] = weakref.ref(view.history)
        self._end = view.end
        self._newest = Counter(islice(_responses(view), _NEWEST))

    def answered(self, view: _View) -> bool:
        """Whether a response has come in since."""
        history = view.history
        if self._history() is history:
            return any(history.kind(position) in _RESPONSES for position in range(self._end, view.end))
        return bool(Counter(islice(_responses(view), _NEWEST)) - self._newest)


def _responses(view: _View) -> Iterator[int]:
    """What each response says, or its framework's id, as a number; from the newest backwards."""
    history = view.history
    for position in view.backward():
        kind = history.kind(position)
        if kind in _RESPONSES:
            facts = history.facts(position)
            yield hash(facts.id if facts.id is not None else (kind, facts.texts, tuple(facts.opens)))


class _Delivery:
    __slots__ = ("came", "ended", "shown", "taken")

    def __init__(self) -> None:
        #: Whether an assembly that shows it is under way.
        self.taken = True
        #: How often it was shown.
        self.shown = 0
        #: When it was shown last, in assemblies that have shown alerts.
        self.ended = 0
        #: What came in then; None where the matter is settled.
        self.came: _Came | None = None


class Deliveries:
    """The alerts of one conversation that were shown to the model, by what they say.

    Nobody reports to us that a model call failed. The next assembly shows it: where a call came to something, what
    comes in holds a response that did not come in when the alert was shown. As long as it does not, the alert is shown
    again, a few times at most.
    """

    __slots__ = ("_deliveries", "_lock", "_open", "now")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._deliveries: dict[Hashable, _Delivery] = {}
        #: Those that no response has followed yet.
        self._open: dict[Hashable, None] = {}
        #: How often an assembly that shows an alert has come to its end.
        self.now = 0

    def unanswered(self) -> tuple[Any, ...]:
        """Those that may have to be shown again."""
        with self._lock:
            return tuple(self._open)

    def claim(self, alert: Hashable, view: _View, began: int) -> bool:
        """Take it upon an assembly to show an alert; False where another one did or does, and that is enough.

        Args:
            alert: The alert.
            view: What came in.
            began: What `now` was when the assembly began: a prompt that was not ready then is not one whose model call
                has failed since.
        """
        with self._lock:
            delivery = self._deliveries.get(alert)
            if delivery is None:
                self._deliveries[alert] = _Delivery()
                return True
            if delivery.taken or delivery.came is None or delivery.ended > began:
                return False
            if delivery.came.answered(view):
                self._settle(alert, delivery)
                return False
            delivery.taken = True
            return True

    def first(self, alert: Hashable) -> bool:
        """Whether an alert that was claimed has not been shown before."""
        with self._lock:
            return self._deliveries[alert].shown == 0

    def release(self, alert: Hashable) -> bool:
        """The assembly that claimed it came to nothing; whether it is as if it had never been seen."""
        with self._lock:
            delivery = self._deliveries[alert]
            delivery.taken = False
            if delivery.shown == 0:
                del self._deliveries[alert]
            return delivery.shown == 0

    def dismiss(self, alert: Hashable) -> None:
        """Never show an alert, or never again: somebody has dealt with it."""
        with self._lock:
            delivery = self._deliveries.setdefault(alert, _Delivery())
            delivery.taken = False
            delivery.shown = delivery.shown or 1
            self._settle(alert, delivery)

    def deliver(self, alert: Hashable, view: _View) -> None:
        """The assembly that claimed it has come to a good end: its prompt is sent."""
        came = _Came(view)
        with self._lock:
            delivery = self._deliveries[alert]
            delivery.taken = False
            delivery.shown += 1
            self.now += 1
            delivery.ended, delivery.came = self.now, came
            self._open[alert] = None
            if delivery.shown > MAX_REPEATS:
                self._settle(alert, delivery)

    def _settle(self, alert: Hashable, delivery: _Delivery) -> None:
        delivery.came = None
        self._open.pop(alert, None)


class Conversation:
    """The state of one conversation that outlives a turn."""

    __slots__ = ("__weakref__", "_lock", "alerts_read", "deliveries", "guard", "releases")

    def __init__(self) -> None:
        self.guard = HaltGuard()
        self._lock = new_lock()
        #: The alerts that were shown to the model.
        self.deliveries = Deliveries(self._lock)
        #: How many alerts of the conversation's `History` all turns before have dealt with.
        self.alerts_read = 0
        #: How often a turn gave an alert back.
        self.releases = 0

    def release(self, alert: AlertFacts) -> None:
        """The turn that claimed the alert came to nothing: the next one shows it."""
        if self.deliveries.release(alert):
            with self._lock:
                self.alerts_read = 0
                self.releases += 1

    def has_read(self, alerts: int, releases: int) -> None:
        """A turn that saw so many alerts, and began when so many had been given back, has come to a good end.

        What another turn gave back meanwhile, this one did not deliver: all alerts are then read again.
        """
        with self._lock:
            if releases == self.releases:
                self.alerts_read = max(self.alerts_read, alerts)


_BY_ID: Final[Registry[str, Conversation]] = Registry(REMEMBERED_CONVERSATIONS)


def conversation_of_id(conversation_id: str) -> Conversation:
    """The conversation of this id in this process; the least recently used ones are forgotten past 10,000."""
    return _BY_ID.of(conversation_id, Conversation)
