"""One conversation under a plug-in, where the framework keeps the events: its context, its observers and its alerts."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.forks import new_lock
from otel_assembly.context import Context
from otel_assembly.conversation import is_alert
from otel_assembly.runtime import Stream, attach

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.plugins import Provisions

#: Alerts of one conversation that are held for the model.
ALERTS: Final = 100
#: So many of the newest events that observers were shown are known again.
_KNOWN: Final = 8


class PluginStream(Stream):
    """Where a plug-in shows observers what happens; it keeps no event, for the framework has its messages itself."""

    def __init__(self) -> None:
        super().__init__(records=False)

    async def show(self, event: Any) -> None:
        """Show observers an event of the framework's own."""
        await super()._record(event)


class AlertStream(PluginStream):
    """Keeps alerts for the model."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = new_lock()
        self._alerts: deque[tuple[int | None, Any]] = deque(maxlen=ALERTS)

    async def send(self, event: Any) -> None:
        """Show an event to who watches; an alert is kept as well."""
        if is_alert(event):
            with self._lock:
                self._alerts.append((None, event))
        await super().send(event)

    def among(self, events: Sequence[Any]) -> list[Any]:
        """The events, and among them the alerts: each where the conversation ended when it was first asked for."""
        found = list(events)
        if self._alerts:
            with self._lock:
                placed = [(len(found) if place is None else place, alert) for place, alert in self._alerts]
                self._alerts = deque(placed, maxlen=ALERTS)
            for place, alert in reversed(placed):
                found.insert(min(place, len(events)), alert)
        return found


class Watched:
    """One conversation under one plug-in.

    Args:
        provisions: What the plug-in was given.
        framework: The framework's name, for telemetry.
        conversation_id: The conversation's real id, if it has one.
        stream: Where alerts and halts go; by default they are kept here, for the model.
        same: Whether two objects are the same event, read twice; by default whether they are the same object.
    """

    def __init__(
        self,
        provisions: Provisions,
        framework: str,
        conversation_id: str | None,
        *,
        stream: PluginStream | None = None,
        same: Callable[[Any, Any], bool] | None = None,
    ) -> None:
        self.stream: PluginStream = AlertStream() if stream is None else stream
        self.context = Context(conversation_id=conversation_id, framework=framework, stream=self.stream)
        attach(self.stream, provisions.observers, self.context)
        self._observed = bool(provisions.observers)
        self._delivers = provisions.delivers
        self._same = same
        self._shown: deque[Any] = deque(maxlen=_KNOWN)

    def events(self, events: Sequence[Any]) -> list[Any]:
        """What the policies get: the events, and the alerts among them where somebody delivers those."""
        stream = self.stream
        return stream.among(events) if self._delivers and isinstance(stream, AlertStream) else list(events)

    async def show(self, events: Sequence[Any]) -> None:
        """Show the observers what is new among these events, the last of which are the newest."""
        if not self._observed:
            return
        start = len(events)
        while start and not self._is_known(events[start - 1]):
            start -= 1
        for event in events[start:]:
            self._shown.append(event)
            await self.stream.show(event)

    def _is_known(self, event: Any) -> bool:
        same = self._same
        return any(one is event or (same is not None and same(one, event)) for one in self._shown)
