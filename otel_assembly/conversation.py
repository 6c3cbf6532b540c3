"""What belongs to one conversation, whatever turns, contexts and policies it has: the halt, the alerts delivered.

Nothing here is keyed by a policy object: fifty turns at once, or two agents that share a policy, still deliver an alert
once and halt once per conversation.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly._internal.forks import new_lock
from otel_assembly.errors import HaltedError
from otel_assembly.events import HaltEvent, ObserverAlert, Severity, severity_name
from otel_assembly.history.alert_deliveries import Deliveries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.recorder import Whose

#: How many conversations that are known only by their id are remembered in one process.
REMEMBERED_CONVERSATIONS: Final = 10_000


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
        return self.severity == Severity.FATAL.value

    @property
    def fingerprint(self) -> str:
        """16 hex digits that are equal for equal alerts, in every process."""
        text = "\0".join((self.source, self.severity, self.message))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def is_alert(event: Any) -> bool:
    """Whether an event of any framework is an observer alert: it has a source, a severity and a message."""
    return isinstance(event, ObserverAlert) or all(hasattr(event, name) for name in ("severity", "source", "message"))


def alert_facts(event: Any) -> AlertFacts:
    """Read the alert that `event` is."""
    return AlertFacts(str(event.source), severity_name(event.severity), str(event.message))


_halt_listeners: list[Callable[[HaltEvent, HaltGuard, Whose | None], None]] = []


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
    on_close(lambda halt, guard, by: listener(halt))


def on_close(listener: Callable[[HaltEvent, HaltGuard, Whose | None], None]) -> None:
    """As `on_halt`, for who wants to know which guard it is, and on whose behalf somebody closed it."""
    _halt_listeners.append(listener)


class HaltGuard:
    """Closes on a FATAL alert or a `HaltEvent`; any loop can ask it before it calls a model or a tool.

    Closing is synchronous, so a call that starts after the alert was sent finds the guard closed.
    """

    __slots__ = ("_halt", "_lock", "last", "whose")

    def __init__(self) -> None:
        self._halt: HaltEvent | None = None
        #: Who asked last in this conversation.
        self.whose: Whose | None = None
        #: What telemetry remembers of the conversation's last assembly.
        self.last: object = None
        self._lock = new_lock()

    @property
    def halt(self) -> HaltEvent | None:
        """What closed the guard; None while it is open."""
        return self._halt

    @property
    def halted(self) -> bool:
        """Whether no more calls may start."""
        return self._halt is not None

    def check(self) -> None:
        """Ask before a model call or a tool call.

        Raises:
            HaltedError: The conversation was halted.
        """
        if self._halt is not None:
            raise HaltedError(self._halt.reason, self._halt.source)

    def observe(self, event: Any, by: Whose | None = None) -> HaltEvent | None:
        """Show the guard an event of the stream.

        Args:
            event: The event.
            by: On whose behalf it is sent, for telemetry.

        Returns:
            The `HaltEvent` that is to be emitted now, if this event closed the guard and is not one itself: at most
            once in the guard's life.
        """
        if isinstance(event, HaltEvent):
            self._settle(event, by)
        elif type(event).__name__ == "HaltEvent":
            self._settle(HaltEvent(reason=str(event.reason), source=str(event.source)), by)
        elif is_alert(event) and (facts := alert_facts(event)).fatal:
            return self.close([facts], by)
        return None

    def close(self, fatal: list[AlertFacts], by: Whose | None = None) -> HaltEvent | None:
        """Close on FATAL alerts.

        Returns:
            The `HaltEvent` to emit, or None if the guard was closed before.
        """
        first = fatal[0]
        halt = HaltEvent(
            reason=f"FATAL: {first.message}",
            source=first.source,
            alerts=tuple(
                ObserverAlert(source=alert.source, severity=Severity.FATAL, message=alert.message) for alert in fatal
            ),
        )
        return halt if self._settle(halt, by) else None

    def _settle(self, halt: HaltEvent, by: Whose | None) -> bool:
        with self._lock:
            if self._halt is not None:
                return False
            self._halt = halt
        running = RUNNING.get()
        if running is not None:
            running.emitted.append(halt)
        for listener in _halt_listeners:
            listener(halt, self, by)
        return True


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


class _KnownById:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: OrderedDict[str, Conversation] = OrderedDict()
        self._lock = new_lock()

    def get(self, conversation_id: str) -> Conversation:
        with self._lock:
            known = self._known.get(conversation_id)
            if known is None:
                known = self._known[conversation_id] = Conversation()
                if len(self._known) > self._limit:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(conversation_id)
            return known


_BY_ID = _KnownById(REMEMBERED_CONVERSATIONS)


def conversation_of_id(conversation_id: str) -> Conversation:
    """The conversation of this id in this process; the least recently used ones are forgotten past 10,000."""
    return _BY_ID.get(conversation_id)
