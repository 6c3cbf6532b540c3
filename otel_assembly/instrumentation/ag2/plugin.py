"""The plug-in for AG2: `AssembledPolicy` runs a chain of otel-assembly's policies as one policy of an AG2 agent."""

from __future__ import annotations

import importlib
import sys
import weakref
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from otel_assembly.conversation_state import alert_facts, conversation_of_id, is_alert
from otel_assembly.errors import ConfigurationError, HaltedError
from otel_assembly.events import HaltEvent
from otel_assembly.instrumentation.ag2.conversation import (
    agent_of,
    config_of,
    function_of,
    invoking_agent_of,
    model_of,
    turn_of,
)
from otel_assembly.instrumentation.ag2.messages import PACKAGES, register
from otel_assembly.instrumentation.halts import already_reported
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation, PluginStream
from otel_assembly.instrumentation.tool_schemas import offered
from otel_assembly.knowledge import KnowledgeStore
from otel_assembly.runtime.stream import MAX_NESTED_SENDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.assembler import Assembler
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

    Args:
        policies: The chain, or an `Assembler`.
        name: The policy's name in AG2, and the assembler's name in telemetry.
        model: The model whose tokenizer counts tokens. Default: the model in the agent's configuration.
        tools: The schemas of the tools that are offered to the model; they count toward the budget. Default: the
            agent's tools. Tools that are passed to a single run are known only while AG2 is instrumented.
        agent_name: The agent's name in telemetry. Default: the agent's name in AG2.
        dependencies: Objects for the policies by type; they override those of AG2's context. A mapping, or a sync or
            async function that returns one. The function is called with AG2's context before each assembly.
        variables: Values for the policies by name, likewise.
        observers: Observers of otel-assembly. They receive each event before the first assembly that contains it. Their
            alerts are sent to AG2's stream. AG2's own observers keep working: register an observer in one of the two
            places only.

    Before AG2 1.0, policies have no access to the agent. The model, the tools and the name are then known only if they
    are passed here or while AG2 is instrumented.

    Raises:
        ConfigurationError: A name or model is passed together with an `Assembler`, which has its own.
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
        conversation = self._conversation_of(context.stream)
        agent_name = self._agent_name or invoking_agent_of(context).agent_name
        tools = self._tools if self._tools is not None else await _tools(context)
        async with conversation.turn(agent_name, model_of(context), tools, config_of(context)):
            return await self._assemble(conversation, prompts, events, context)

    async def _assemble(
        self, conversation: _Conversation, prompts: list[str], events: list[Any], context: Any
    ) -> tuple[list[str], list[Any]]:
        halts_before = conversation.sink.halts
        events = await conversation.show_new(events)
        if not conversation.delivers:
            await conversation.check_alerts(events)
        try:
            assembly = await conversation.assemble(
                context, prompts, events, dependencies=_dependencies(context), variables=context.variables
            )
        except HaltedError as halted:
            if halts_before == conversation.sink.halts:
                await conversation.sink.send(HaltEvent(reason=halted.reason, source=halted.source))
            return prompts, events  # AG2 calls no model after a `HaltEvent` on the stream
        # A policy before the `AlertPolicy` may have dropped a FATAL alert.
        await conversation.check_alerts(events)
        return list(assembly.prompts), _with_new_results(events, list(assembly.events))

    def _conversation_of(self, stream: Any) -> _Conversation:
        history = stream.history
        conversation = self._by_history.get(history)
        if conversation is None:
            register(_package_of(history))
            in_memory = type(history.storage).__name__ == "MemoryStorage"
            conversation = _Conversation(self, stream, None if in_memory else str(stream.id))
            self._by_history[history] = conversation
        return conversation


def _package_of(history: Any) -> str:
    """Return the package that defines the history of an AG2 stream: ``ag2`` or ``autogen.beta``.

    Raises:
        ConfigurationError: The object is not the history of an AG2 stream.
    """
    for base in type(history).__mro__:
        package = base.__module__.rpartition(".")[0]
        if package in PACKAGES:
            return package
    raise ConfigurationError(f"{type(history).__qualname__} is not the history of an AG2 stream")


class _Conversation(PluginConversation):
    """One conversation of one `AssembledPolicy`. It is freed with AG2's history, to which it has no reference."""

    def __init__(self, plugin: Plugin[Any], stream: Any, conversation_id: str | None) -> None:
        self.sink = _Sink(stream, conversation_id)
        super().__init__(plugin, "ag2", conversation_id, stream=self.sink, same=_same_event)
        self._checked_events = 0

    async def show_new(self, events: Sequence[Any]) -> list[Any]:
        """Show otel-assembly's observers the new events. Return all events, followed by the observers' alerts."""
        self.sink.alerts = []
        await self.show(events)
        return [*events, *self.sink.alerts]

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
        alerts: The alerts that were sent to AG2's stream since the last call of `_Conversation.show_new`.
    """

    def __init__(self, stream: Any, conversation_id: str | None) -> None:
        super().__init__()
        if conversation_id is not None:
            self.history.conversation = conversation_of_id(conversation_id)
        self._ag2_stream = weakref.ref(stream)
        self._package = _package_of(stream.history)
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


def _same_event(first: Any, second: Any) -> bool:
    """Return whether two objects are the same event: persistent storage returns a new object for every read."""
    return type(first) is type(second) and bool(first.created_at == second.created_at)


def _dependencies(context: Any) -> dict[Any, Any]:
    """Return the dependencies of AG2's context, with AG2's knowledge store also under otel-assembly's type."""
    dependencies = dict(context.dependencies)
    knowledge = sys.modules.get(f"{_package_of(context.stream.history)}.knowledge")
    store = dependencies.get(getattr(knowledge, "KnowledgeStore", None))
    return dependencies if store is None else {**dependencies, KnowledgeStore: store}


async def _tools(context: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the schemas of the functions that are offered to the model: the turn's, or else the agent's."""
    turn = turn_of(context)
    if turn is not None and turn.tools.schemas is not None:
        return turn.tools.schemas
    schemas: list[Mapping[str, Any]] = []
    for tool in getattr(agent_of(context), "tools", ()):
        schemas += offered(list(await tool.schemas(context)), function_of)
    return tuple(schemas)


def _with_new_results(events_before: Sequence[Any], events: list[Any]) -> list[Any]:
    """Return the events, with each tool result that a policy replaced also replaced in its batch.

    AG2's stream contains a result twice, and AG2 sends the batch to the provider.
    """
    ids_before = set(map(id, events_before))
    new_results: dict[str, Any] = {}
    out: list[Any] = []
    for event in events:
        out_event = event
        if id(event) not in ids_before and _is_result(event):
            new_results[event.parent_id] = event
        elif new_results and any(result.parent_id in new_results for result in getattr(event, "results", ())):
            out_event = type(event)([new_results.pop(result.parent_id, result) for result in event.results])
        out.append(out_event)
    return out


def _is_result(event: Any) -> bool:
    return hasattr(event, "result") and hasattr(event, "parent_id")
