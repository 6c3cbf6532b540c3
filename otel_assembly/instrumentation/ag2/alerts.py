"""The conversations of AG2's plug-in, which send alerts and halts to AG2's stream as AG2's own events."""

from __future__ import annotations

import importlib
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from otel_assembly.conversation_state import alert_facts, conversation_of_id, is_alert
from otel_assembly.errors import HaltedError
from otel_assembly.events import HaltEvent
from otel_assembly.instrumentation.ag2.halts import already_reported
from otel_assembly.instrumentation.ag2.messages import package_of, register
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, PluginStream, TurnInput
from otel_assembly.runtime.stream import MAX_NESTED_SENDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembly import Assembly


class StreamConversation(PluginConversation):
    """One conversation of a plug-in. It is freed with AG2's history, to which it has no reference."""

    def __init__(self, plugin: Plugin[Any], stream: Any) -> None:
        register(package_of(stream.history))
        in_memory = type(stream.history.storage).__name__ == "MemoryStorage"
        conversation_id = None if in_memory else str(stream.id)
        self._sink = _Sink(stream, conversation_id)
        super().__init__(plugin, "ag2", conversation_id, stream=self._sink, same=_is_same, inserts_alerts=False)
        self._checked_events = 0

    async def show(self, events: Sequence[Any]) -> None:
        """Show otel-assembly's observers the new events, and collect the observers' alerts."""
        self._sink.sent = []
        await super().show(events)

    async def assemble(self, turn_input: TurnInput) -> Assembly:
        """Return the assembly of the events, followed by the observers' alerts; send a halt to AG2's stream."""
        events = [*turn_input.messages, *filter(is_alert, self._sink.sent)]
        if not self.has_alert_policy:  # no policy halts the conversation for a FATAL alert, so it is halted here
            await self._check_alerts(events)
        try:
            assembly = await super().assemble(replace(turn_input, messages=events))
        except HaltedError as halted:
            if not any(type(event).__name__ == "HaltEvent" for event in self._sink.sent):  # halted in an earlier turn
                await self._sink.send(HaltEvent(reason=halted.reason, source=halted.source))
            raise
        await self._check_alerts(events)  # a policy before the `AlertPolicy` may have dropped a FATAL alert
        return assembly

    async def _check_alerts(self, events: Sequence[Any]) -> None:
        """Halt the conversation if there is a FATAL alert among the events that were not checked before."""
        checked, self._checked_events = self._checked_events, len(events)
        for event in events[checked:] if checked <= len(events) else events:  # compaction can shorten the history
            halt = self.context.guard.observe(event) if is_alert(event) else None
            if halt is not None:
                await self.context.halt(halt)


def _is_same(left: Any, right: Any) -> bool:
    """Return whether two objects are the same event: persistent storage returns a new object for every read."""
    return type(left) is type(right) and bool(left.created_at == right.created_at)


class _Sink(PluginStream):
    """Sends otel-assembly's alerts and halts to an AG2 stream as AG2's types, and shows events to the observers.

    Attributes:
        sent: The events that were sent to AG2's stream since the last call of `StreamConversation.show`.
    """

    def __init__(self, stream: Any, conversation_id: str | None) -> None:
        super().__init__()
        if conversation_id is not None:
            self.history.conversation = conversation_of_id(conversation_id)
        self._ag2_stream = weakref.ref(stream)
        self._package = package_of(stream.history)
        self.sent: list[Any] = []

    async def _record(self, event: Any, limit: int = MAX_NESTED_SENDS) -> None:
        """Send an event to AG2's stream, if AG2 has an equivalent event, and show it to the observers."""
        ag2_event, stream = self._ag2_event(event), self._ag2_stream()
        if ag2_event is not None:
            self.sent.append(ag2_event)
        if ag2_event is not None and stream is not None:
            context_type = importlib.import_module(f"{self._package}.context").ConversationContext
            await stream.send(ag2_event, context_type(stream))
        await super()._record(event, limit)

    def _ag2_event(self, event: Any) -> Any:
        """Return AG2's equivalent of an event; None if there is none, such as for a note on an assembly."""
        events = importlib.import_module(f"{self._package}.events")
        if type(event).__name__ == "HaltEvent":
            halt = events.HaltEvent(reason=event.reason, source=event.source)
            already_reported(halt)  # mark it as reported, because the guard has reported this halt
            return halt
        if is_alert(event):
            facts = alert_facts(event)
            severities = {severity.value: severity for severity in events.Severity}
            severity = severities.get(facts.severity, facts.severity)  # AG2 accepts other strings too
            return events.ObserverAlert(source=facts.source, severity=severity, message=facts.message)
        return event if isinstance(event, events.BaseEvent) else None
