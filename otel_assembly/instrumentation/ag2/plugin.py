"""`AssembledPolicy`: a chain of our policies as one policy of an AG2 agent, on AG2's own events."""

from __future__ import annotations

import importlib
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakKeyDictionary

from otel_assembly.context import Context
from otel_assembly.conversation import alert_facts, is_alert
from otel_assembly.errors import ConfigurationError, HaltedError
from otel_assembly.events import AssemblyCompleted, HaltEvent
from otel_assembly.instrumentation.ag2.asks import ASK, name_of
from otel_assembly.instrumentation.ag2.halts import told
from otel_assembly.instrumentation.ag2.known import agent_of, model_of, tool_of
from otel_assembly.instrumentation.plugins import assembler_of, to_send
from otel_assembly.policies import AlertPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.policies.base import AssemblyPolicy

_ROWS: Final = {
    "ag2": "otel_assembly.instrumentation.ag2.messages",
    "autogen.beta": "otel_assembly.instrumentation.ag2.messages_beta",
}


class AssembledPolicy:
    """Our policies in an agent's ``assembly=[…]``: AG2's events go in and come out, the very objects.

    One object may serve any number of agents and conversations. A FATAL alert, from an observer of AG2's or sent with
    ``context_of(stream).send(…)``, closes the conversation's guard for good: AG2's `HaltEvent` is put on its stream, in
    that turn and in each one after it, so that AG2 calls no model any more.

    `ContextOverflowError` of a budget that cannot hold goes through to whoever asked.

    Args:
        policies: The chain, or an `Assembler`.
        name: Its name in AG2, and of the assembler in telemetry.
        model: The model whose tokenizer counts; by default that of the agent's configuration.
        tools: The schemas of the tools that the model is offered, which take tokens of the budget. By default those of
            the agent; of tools that are given to one ask alone, AG2 tells only while it is instrumented.
        agent_name: The agent's name, for telemetry; by default AG2's.

    Before 1.0, AG2 tells a policy of no agent, so that model, tools and name are known only from here, or while it is
    instrumented.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own.
    """

    #: By this the instrumentation knows that its assemblies are told of already.
    otel_assembly_plugin: ClassVar[bool] = True

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        name: str | None = None,
        model: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        agent_name: str | None = None,
    ) -> None:
        self.assembler = assembler_of("AssembledPolicy", policies, name=name, model=model)
        self.name = self.assembler.name or "assembled"
        self._looks = any(isinstance(policy, AlertPolicy) for policy in self.assembler.policies)
        self._agent_name = agent_name
        self._tools = None if tools is None else tuple(tools)
        self._conversations: WeakKeyDictionary[Any, _Conversation] = WeakKeyDictionary()

    def context_of(self, conversation: Any) -> Context:
        """The context of a conversation, whose guard ends it and through which alerts can be sent.

        Args:
            conversation: Its AG2 stream.
        """
        return self._conversation(conversation).context

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        """What AG2 calls before each model call.

        Raises:
            ContextOverflowError: What may not be dropped does not fit a policy's budget.
            PolicyFailedError: A policy raised. A halt is no error here: AG2's `HaltEvent` is put on its stream.
        """
        conversation = self._conversation(context.stream)
        ours = conversation.context
        agent = agent_of(context)
        ours.agent_name = self._agent_name or (None if agent is None else name_of(agent))
        ours.model = model_of(context, agent)
        ours.tools = self._tools if self._tools is not None else await _tools(agent, context)
        sent = conversation.sink.halts
        if not self._looks:
            await conversation.heed(events)
        try:
            assembly = await to_send(self.assembler, prompts, events, ours)
        except HaltedError as halted:
            if sent == conversation.sink.halts:
                await conversation.sink.send(HaltEvent(reason=halted.reason, source=halted.source))
            return prompts, events  # AG2 calls no model once its `HaltEvent` is on the stream
        # One that a policy in front of the `AlertPolicy` hid from it.
        await conversation.heed(events)
        return list(assembly.prompts), _as_sent(events, list(assembly.events))

    def _conversation(self, stream: Any) -> _Conversation:
        history = stream.history
        held = self._conversations.get(history)
        if held is None:
            importlib.import_module(_ROWS[_package(history)])
            in_memory = type(history.storage).__name__ == "MemoryStorage"
            held = _Conversation(stream, None if in_memory else str(stream.id))
            self._conversations[history] = held
        return held


class _Conversation:
    """One conversation under one policy; it goes with AG2's history, which it does not keep."""

    def __init__(self, stream: Any, conversation_id: str | None) -> None:
        self.sink = _Sink(stream)
        self.context = Context(conversation_id=conversation_id, framework="ag2", stream=self.sink)
        self._seen = 0

    async def heed(self, events: Sequence[Any]) -> None:
        """Close the guard on a FATAL alert that no policy has looked for."""
        seen, self._seen = self._seen, len(events)
        for event in events[seen:] if seen <= len(events) else events:
            if is_alert(event) and alert_facts(event).fatal:
                halt = self.context.guard.observe(event)
                if halt is not None:
                    await self.context.halt(halt)


class _Sink:
    """Puts our alerts and halts on an AG2 stream, as AG2's."""

    def __init__(self, stream: Any) -> None:
        self._stream = weakref.ref(stream)
        self._package = _package(stream.history)
        self.halts = 0

    def listens(self, event_type: type) -> bool:
        """AG2 has no event for a note on an assembly."""
        return not issubclass(event_type, AssemblyCompleted)

    async def send(self, event: Any) -> None:
        stream = self._stream()
        if stream is None:
            return
        events = importlib.import_module(f"{self._package}.events")
        if type(event).__name__ == "HaltEvent":
            made = events.HaltEvent(reason=event.reason, source=event.source)
            self.halts += 1
            told(made)  # the guard has told of it
        elif is_alert(event):
            alert = alert_facts(event)
            known = {one.value: one for one in events.Severity}  # AG2 takes any string, and these as its enum
            severity = known.get(alert.severity, alert.severity)
            made = events.ObserverAlert(source=alert.source, severity=severity, message=alert.message)
        elif isinstance(event, events.BaseEvent):
            made = event
        else:  # an event of ours that AG2 has none for
            return
        context_type = importlib.import_module(f"{self._package}.context").ConversationContext
        await stream.send(made, context_type(stream))


def _package(history: Any) -> str:
    """``ag2`` or ``autogen.beta``."""
    for base in type(history).__mro__:
        package = base.__module__.rpartition(".")[0]
        if package in _ROWS:
            return package
    raise ConfigurationError(f"{type(history).__qualname__} is not the history of an AG2 stream")


async def _tools(agent: Any, context: Any) -> tuple[dict[str, Any], ...]:
    """The functions that the model is offered, as far as they can be known."""
    ask = ASK.get()
    if ask is not None and ask.context is context and ask.tools is not None:
        return ask.tools[1]
    found: list[dict[str, Any]] = []
    for tool in getattr(agent, "tools", ()):
        found += [made for schema in await tool.schemas(context) if (made := tool_of(schema)) is not None]
    return tuple(found)


def _as_sent(given: Sequence[Any], events: list[Any]) -> list[Any]:
    """The events with each result that was shortened shortened where it is sent from: providers read the batch."""
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
