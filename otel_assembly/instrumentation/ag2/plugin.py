"""The plug-in for AG2: `AssembledPolicy` runs a chain of otel-assembly's policies as one policy of an AG2 agent."""

from __future__ import annotations

import importlib
import sys
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from otel_assembly.conversation_state import alert_facts, conversation_of_id, is_alert
from otel_assembly.errors import HaltedError
from otel_assembly.events import HaltEvent
from otel_assembly.instrumentation.ag2.conversation import (
    config_of,
    invoking_agent_of,
    model_of,
    tools_of,
)
from otel_assembly.instrumentation.ag2.messages import package_of, register, with_new_results
from otel_assembly.instrumentation.halts import already_reported
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation, PluginStream, TurnInput
from otel_assembly.knowledge import KnowledgeStore
from otel_assembly.runtime.stream import MAX_NESTED_SENDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.assembly import Assembly
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class AssembledPolicy(Plugin[PluginConversation]):
    """Runs a chain of otel-assembly's policies as a policy of an AG2 agent.

    Use it as ``Agent(…, assembly=[AssembledPolicy(…)])``. The policies process AG2's own event objects. One
    `AssembledPolicy` can serve several agents and conversations.

    A FATAL alert halts the conversation for good. AG2's observers can send the alert, or your program with
    ``context_of(stream).send(…)``. In that turn and in every later one, AG2's `HaltEvent` is sent to the stream, and
    AG2 calls no model.

    If a budget cannot be met, the agent's run raises `ContextOverflowError`. The policies receive the dependencies and
    variables of AG2's context. Memory policies use the agent's knowledge store.

    Functions for `dependencies` and `variables` get AG2's context. Observers receive each event before the first
    assembly that contains it. Their alerts are sent to AG2's stream. AG2's own observers keep working: register an
    observer in one of the two places only.

    Args:
        name: The policy's name in AG2, and the assembler's name in telemetry. `Plugin` has the arguments that are not
            listed here.
        tools: The schemas of the tools that are offered to the model; they count toward the budget. Default: the
            agent's tools. Tools that are passed to a single run are known only while AG2 is instrumented.
        agent_name: The agent's name in telemetry. Default: the agent's name in AG2.

    Before AG2 1.0, policies have no access to the agent. The model, the tools and the name are then known only if they
    are passed here or while AG2 is instrumented.
    """

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        name: str | None = None,
        model: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        agent_name: str | None = None,
        dependencies: Given = None,
        variables: Given = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        super().__init__(
            policies, name=name, model=model, dependencies=dependencies, variables=variables, observers=observers
        )
        self.name = self.assembler.name or "assembled"
        self._agent_name = agent_name
        self._tools = None if tools is None else tuple(tools)
        self._by_history: WeakKeyDictionary[Any, _Conversation] = WeakKeyDictionary()

    def context_of(self, conversation: Any) -> Context:
        """Return the context of a conversation. Use it to send alerts to the conversation, or to halt it.

        Args:
            conversation: The conversation's AG2 stream.
        """
        return self._conversation_of(conversation).context

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        """Return the prompts and events for a model call. AG2 calls this before each one.

        If the conversation is halted, AG2's `HaltEvent` is sent to its stream and the arguments are returned unchanged.

        Raises:
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        try:
            output: tuple[list[str], list[Any]] = await self._run_policies(
                self._conversation_of(context.stream), (prompts, events, context)
            )
        except HaltedError:  # AG2 calls no model after the `HaltEvent` that is on the stream
            return prompts, events
        return output

    async def _read_input(self, request: Any) -> TurnInput:
        prompts, events, context = request
        return TurnInput(
            context,
            prompts,
            events,
            agent_name=self._agent_name or invoking_agent_of(context).agent_name,
            model=model_of(context),
            tools=self._tools if self._tools is not None else await tools_of(context),
            client=config_of(context),
            dependencies=_dependencies(context),
            variables=context.variables,
        )

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        return prompts, with_new_results(turn_input.messages, messages)

    @staticmethod
    def _is_same(left: Any, right: Any) -> bool:
        """Return whether two objects are the same event: persistent storage returns a new object for every read."""
        return type(left) is type(right) and bool(left.created_at == right.created_at)

    def _conversation_of(self, stream: Any) -> _Conversation:
        history = stream.history
        conversation = self._by_history.get(history)
        if conversation is None:
            register(package_of(history))
            in_memory = type(history.storage).__name__ == "MemoryStorage"
            conversation = _Conversation(self, stream, None if in_memory else str(stream.id))
            self._by_history[history] = conversation
        return conversation


class _Conversation(PluginConversation):
    """One conversation of one `AssembledPolicy`. It is freed with AG2's history, to which it has no reference."""

    def __init__(self, plugin: Plugin[Any], stream: Any, conversation_id: str | None) -> None:
        self.sink = _Sink(stream, conversation_id)
        super().__init__(plugin, "ag2", conversation_id, stream=self.sink, same=plugin._is_same)  # noqa: SLF001
        self._checked_events = self._halts_before = 0

    async def show(self, events: Sequence[Any]) -> None:
        """Show otel-assembly's observers the new events, and collect the observers' alerts."""
        self.sink.alerts, self._halts_before = [], self.sink.halts
        await super().show(events)

    async def assemble(self, turn_input: TurnInput) -> Assembly:
        """Return the assembly of the events, followed by the observers' alerts; send a halt to AG2's stream."""
        events = [*turn_input.messages, *self.sink.alerts]
        if not self.delivers:
            await self.check_alerts(events)
        try:
            assembly = await super().assemble(replace(turn_input, messages=events))
        except HaltedError as halted:
            if self._halts_before == self.sink.halts:
                await self.sink.send(HaltEvent(reason=halted.reason, source=halted.source))
            raise
        await self.check_alerts(events)  # a policy before the `AlertPolicy` may have dropped a FATAL alert
        return assembly

    async def check_alerts(self, events: Sequence[Any]) -> None:
        """Halt the conversation if there is a FATAL alert among the events that were not checked before."""
        checked, self._checked_events = self._checked_events, len(events)
        for event in events[checked:] if checked <= len(events) else events:  # compaction can shorten the history
            if is_alert(event) and alert_facts(event).fatal:
                halt = self.context.guard.observe(event)
                if halt is not None:
                    await self.context.halt(halt)


class _Sink(PluginStream):
    """Sends otel-assembly's alerts and halts to an AG2 stream as AG2's types, and shows events to the observers.

    Attributes:
        halts: The number of halts that were sent to AG2's stream.
        alerts: The alerts that were sent to AG2's stream since the last call of `_Conversation.show`.
    """

    def __init__(self, stream: Any, conversation_id: str | None) -> None:
        super().__init__()
        if conversation_id is not None:
            self.history.conversation = conversation_of_id(conversation_id)
        self._ag2_stream = weakref.ref(stream)
        self._package = package_of(stream.history)
        self.halts = 0
        self.alerts: list[Any] = []

    async def _record(self, event: Any, limit: int = MAX_NESTED_SENDS) -> None:
        """Send an event to AG2's stream, if AG2 has an equivalent event, and show it to the observers."""
        ag2_event = self._ag2_event(event)
        stream = self._ag2_stream()
        if ag2_event is not None and stream is not None:
            context_type = importlib.import_module(f"{self._package}.context").ConversationContext
            await stream.send(ag2_event, context_type(stream))
        await super()._record(event, limit)

    def _ag2_event(self, event: Any) -> Any:
        """Return AG2's equivalent of an event; None if there is none, such as for a note on an assembly."""
        events = importlib.import_module(f"{self._package}.events")
        if type(event).__name__ == "HaltEvent":
            halt = events.HaltEvent(reason=event.reason, source=event.source)
            self.halts += 1
            already_reported(halt)  # mark it as reported, because the guard has reported this halt
            return halt
        if is_alert(event):
            facts = alert_facts(event)
            severities = {severity.value: severity for severity in events.Severity}
            severity = severities.get(facts.severity, facts.severity)  # AG2 accepts other strings too
            alert = events.ObserverAlert(source=facts.source, severity=severity, message=facts.message)
            self.alerts.append(alert)
            return alert
        return event if isinstance(event, events.BaseEvent) else None


def _dependencies(context: Any) -> dict[Any, Any]:
    """Return the dependencies of AG2's context, with AG2's knowledge store also under otel-assembly's type."""
    dependencies = dict(context.dependencies)
    knowledge = sys.modules.get(f"{package_of(context.stream.history)}.knowledge")
    store = dependencies.get(getattr(knowledge, "KnowledgeStore", None))
    return dependencies if store is None else {**dependencies, KnowledgeStore: store}
