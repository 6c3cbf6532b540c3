"""`AssembledPolicy`: a chain of our policies as one policy of an AG2 agent, on AG2's own events."""

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
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class AssembledPolicy(Plugin[PluginConversation]):
    """Our policies in an agent's ``assembly=[…]``: AG2's events go in and come out, the very objects.

    One object may serve any number of agents and conversations. A FATAL alert, from an observer of AG2's or sent with
    ``context_of(stream).send(…)``, closes the conversation's guard for good: AG2's `HaltEvent` is put on its stream, in
    that turn and in each one after it, so that AG2 calls no model any more.

    `ContextOverflowError` of a budget that cannot hold goes through to whoever asked.

    Policies are given the dependencies and variables of AG2's context, the memory policies the agent's knowledge store.

    Args:
        policies: The chain, or an `Assembler`.
        name: Its name in AG2, and of the assembler in telemetry.
        model: The model whose tokenizer counts; by default that of the agent's configuration.
        tools: The schemas of the tools that the model is offered, which take tokens of the budget. By default those of
            the agent; tools that are given to one run alone are known only while AG2 is instrumented.
        agent_name: The agent's name, for telemetry; by default AG2's.
        dependencies: What policies ask for by type, in the place of AG2's own: a mapping, or a function of AG2's
            context that returns one, async or not, called before each assembly.
        variables: Values for policies, by name; likewise.
        observers: Observers of ours, shown AG2's events before the assembly for which they are first there. Their
            alerts go on AG2's stream. AG2's own observers watch that stream as ever: one of a kind is enough.

    Before 1.0, a policy cannot see the agent, so that model, tools and name are known only from here, or while AG2 is
    instrumented.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own.
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
        self._of_histories: WeakKeyDictionary[Any, _Conversation] = WeakKeyDictionary()

    def context_of(self, conversation: Any) -> Context:
        """The context of a conversation, whose guard ends it and through which alerts can be sent.

        Args:
            conversation: Its AG2 stream.
        """
        return self._of(conversation).context

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        """What AG2 calls before each model call.

        Raises:
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised. A halt is no error here: AG2's `HaltEvent` is put on its stream.
        """
        conversation = self._of(context.stream)
        agent_name = self._agent_name or invoking_agent_of(context).agent_name
        tools = self._tools if self._tools is not None else await _tools(context)
        async with conversation.turn(agent_name, model_of(context), tools, config_of(context)):
            return await self._assembled(conversation, prompts, events, context)

    async def _assembled(
        self, conversation: _Conversation, prompts: list[str], events: list[Any], context: Any
    ) -> tuple[list[str], list[Any]]:
        sent = conversation.sink.halts
        events = await conversation.shown(events)
        if not conversation.delivers:
            await conversation.heed(events)
        try:
            assembly = await conversation.assemble(
                context, prompts, events, dependencies=_dependencies(context), variables=context.variables
            )
        except HaltedError as halted:
            if sent == conversation.sink.halts:
                await conversation.sink.send(HaltEvent(reason=halted.reason, source=halted.source))
            return prompts, events  # AG2 calls no model once its `HaltEvent` is on the stream
        # One that a policy in front of the `AlertPolicy` hid from it.
        await conversation.heed(events)
        return list(assembly.prompts), _as_sent(events, list(assembly.events))

    def _of(self, stream: Any) -> _Conversation:
        history = stream.history
        held = self._of_histories.get(history)
        if held is None:
            register(_package_of(history))
            in_memory = type(history.storage).__name__ == "MemoryStorage"
            held = _Conversation(self, stream, None if in_memory else str(stream.id))
            self._of_histories[history] = held
        return held


def _package_of(history: Any) -> str:
    """``ag2`` or ``autogen.beta``, of an AG2 stream's history.

    Raises:
        ConfigurationError: It is none.
    """
    for base in type(history).__mro__:
        package = base.__module__.rpartition(".")[0]
        if package in PACKAGES:
            return package
    raise ConfigurationError(f"{type(history).__qualname__} is not the history of an AG2 stream")


class _Conversation(PluginConversation):
    """One conversation under one policy; it goes with AG2's history, which it does not keep."""

    def __init__(self, plugin: Plugin[Any], stream: Any, conversation_id: str | None) -> None:
        self.sink = _Sink(stream, conversation_id)
        super().__init__(plugin, "ag2", conversation_id, stream=self.sink, same=_same)
        self._seen = 0

    async def shown(self, events: Sequence[Any]) -> list[Any]:
        """Show our observers what is new; the events, and the alerts that this has put behind them on the stream."""
        self.sink.alerts = []
        await self.show(events)
        return [*events, *self.sink.alerts]

    async def heed(self, events: Sequence[Any]) -> None:
        """Close the guard on a FATAL alert that no policy has looked for."""
        seen, self._seen = self._seen, len(events)
        for event in events[seen:] if seen <= len(events) else events:
            if is_alert(event) and alert_facts(event).fatal:
                halt = self.context.guard.observe(event)
                if halt is not None:
                    await self.context.halt(halt)


class _Sink(PluginStream):
    """Puts our alerts and halts on an AG2 stream, as AG2's, and shows our observers what is on it."""

    def __init__(self, stream: Any, conversation_id: str | None) -> None:
        super().__init__()
        if conversation_id is not None:
            self.history.conversation = conversation_of_id(conversation_id)
        self._of_ag2 = weakref.ref(stream)
        self._package = _package_of(stream.history)
        self.halts = 0
        #: AG2's alerts that were put on its stream.
        self.alerts: list[Any] = []

    async def _record(self, event: Any, limit: int = MAX_NESTED_SENDS) -> None:
        """Put an event on AG2's stream, if AG2 has one for it, and show it."""
        made = self._made(event)
        stream = self._of_ag2()
        if made is not None and stream is not None:
            context_type = importlib.import_module(f"{self._package}.context").ConversationContext
            await stream.send(made, context_type(stream))
        await super()._record(event, limit)

    def _made(self, event: Any) -> Any:
        events = importlib.import_module(f"{self._package}.events")
        if type(event).__name__ == "HaltEvent":
            made = events.HaltEvent(reason=event.reason, source=event.source)
            self.halts += 1
            already_reported(made)  # the guard has reported it
            return made
        if is_alert(event):
            alert = alert_facts(event)
            known = {one.value: one for one in events.Severity}  # AG2 takes any string, and these as its enum
            severity = known.get(alert.severity, alert.severity)
            made = events.ObserverAlert(source=alert.source, severity=severity, message=alert.message)
            self.alerts.append(made)
            return made
        return event if isinstance(event, events.BaseEvent) else None  # AG2 has none for a note on an assembly


def _same(one: Any, other: Any) -> bool:
    """Whether two objects are the same event: storage that is not in memory returns fresh ones."""
    return type(one) is type(other) and bool(one.created_at == other.created_at)


def _dependencies(context: Any) -> dict[Any, Any]:
    """What AG2's context has for policies; its knowledge store is one that ours read."""
    found = dict(context.dependencies)
    knowledge = sys.modules.get(f"{_package_of(context.stream.history)}.knowledge")
    store = found.get(getattr(knowledge, "KnowledgeStore", None))
    return found if store is None else {**found, KnowledgeStore: store}


async def _tools(context: Any) -> tuple[Mapping[str, Any], ...]:
    """The functions that the model is offered, as far as they can be known."""
    turn = turn_of(context)
    if turn is not None and turn.tools.schemas is not None:
        return turn.tools.schemas
    found: list[Mapping[str, Any]] = []
    for tool in getattr(agent_of(context), "tools", ()):
        found += offered(list(await tool.schemas(context)), function_of)
    return tuple(found)


def _as_sent(given: Sequence[Any], events: list[Any]) -> list[Any]:
    """The events; a result that was shortened is also shortened in its batch, which is what providers are sent."""
    known = set(map(id, given))
    new: dict[str, Any] = {}
    out: list[Any] = []
    for event in events:
        made = event
        if id(event) not in known and _closes(event):
            new[event.parent_id] = event
        elif new and hasattr(event, "results") and any(one.parent_id in new for one in _results(event)):
            made = type(event)([new.pop(one.parent_id, one) for one in event.results])
        out.append(made)
    return out


def _closes(event: Any) -> bool:
    return hasattr(event, "result") and hasattr(event, "parent_id")


def _results(event: Any) -> Iterable[Any]:
    results: Iterable[Any] = event.results
    return results
