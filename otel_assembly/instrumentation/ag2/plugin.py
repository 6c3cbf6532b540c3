"""The plug-in for AG2: `AssembledPolicy` runs a chain of otel-assembly's policies as one policy of an AG2 agent.

It sends alerts and halts to AG2's stream as AG2's own events.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from otel_assembly.conversation_state import alert_facts, conversation_of_id, is_alert
from otel_assembly.errors import HaltedError
from otel_assembly.events import HaltEvent
from otel_assembly.instrumentation.ag2.conversation import (
    already_reported,
    config_of,
    invoking_agent_of,
    model_of,
    offered_schemas_of,
)
from otel_assembly.instrumentation.ag2.messages import package_of, register, with_new_results
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, PluginSettings, PluginStream, TurnInput
from otel_assembly.knowledge import KnowledgeStore
from otel_assembly.runtime.stream import MAX_NESTED_SENDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.assembly import Assembly
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy


class StreamConversation(PluginConversation):
    """One conversation of a plug-in. It is freed with AG2's history, to which it has no reference."""

    def __init__(self, plugin: Plugin[Any], stream: Any) -> None:
        register(package_of(stream.history))
        in_memory = type(stream.history.storage).__name__ == "MemoryStorage"
        conversation_id = None if in_memory else str(stream.id)
        self._sink = _Sink(stream, conversation_id)
        super().__init__(
            plugin,
            "ag2",
            conversation_id,
            stream=self._sink,
            inserts_alerts=False,
            # Persistent storage returns a new object for every read.
            same=lambda left, right: type(left) is type(right) and bool(left.created_at == right.created_at),
        )
        self._checked_events = 0

    async def show(self, events: Sequence[Any]) -> None:
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
        checked_count, self._checked_events = self._checked_events, len(events)
        if checked_count > len(events):  # compaction has shortened the history
            checked_count = 0
        for event in events[checked_count:]:
            halt = self.context.guard.observe(event) if is_alert(event) else None
            if halt is not None:
                await self.context.halt(halt)


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


class AssembledPolicy(Plugin[StreamConversation]):
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
        tools: The schemas of the tools that are offered to the model; they count toward the budget. Default: the
            agent's tools. Tools that are passed to a single run are known only while AG2 is instrumented.
        agent_name: The agent's name in telemetry. Default: the agent's name in AG2.
        settings: The other arguments of `Plugin`. The `name` is also the policy's name in AG2.

    Before AG2 1.0, policies have no access to the agent. The model, the tools and the name are then known only if they
    are passed here or while AG2 is instrumented.
    """

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        agent_name: str | None = None,
        **settings: Unpack[PluginSettings],
    ) -> None:
        super().__init__(policies, **settings)
        self.name = self.assembler.name or "assembled"
        self._agent_name = agent_name
        self._tools = None if tools is None else tuple(tools)

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
        dependencies = dict(context.dependencies)
        # AG2's knowledge store is passed under otel-assembly's type, too.
        knowledge = sys.modules.get(f"{package_of(context.stream.history)}.knowledge")
        store = dependencies.get(getattr(knowledge, "KnowledgeStore", None))
        return TurnInput(
            framework_object=context,
            prompts=prompts,
            messages=events,
            agent_name=self._agent_name or invoking_agent_of(context).agent_name,
            model=model_of(context),
            tools=self._tools if self._tools is not None else await offered_schemas_of(context),
            client=config_of(context),
            dependencies=dependencies if store is None else {**dependencies, KnowledgeStore: store},
            variables=context.variables,
        )

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        return prompts, with_new_results(turn_input.messages, messages)

    def _conversation_of(self, stream: Any) -> StreamConversation:
        return self._conversations_without_id.get_or_create(stream.history, lambda _: StreamConversation(self, stream))
