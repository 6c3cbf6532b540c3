"""What AG2 tells of whose prompt is being made: the conversation, the agent, its model and its tools."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_assembly.instrumentation.ag2.asks import ASK, channel_of, conversation_id, name_of
from otel_assembly.instrumentation.ag2.halts import follow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.observe.assembler import ObservedAssembly

_AGENT: Final = "__ag2_agent__"
_MODEL_CONFIG: Final = "__ag2_model_config__"


class _Conversation:
    """Stands for one conversation under one agent, and lives as long as its history."""

    __slots__ = ("__weakref__",)


_CONVERSATIONS: WeakKeyDictionary[Any, dict[str, _Conversation]] = WeakKeyDictionary()


def conversation_of(context: Any, agent: Any, stage: str) -> object:
    """Whose ledger it is: an object that goes with a history in memory, else an id.

    Two agents on one stream have two. What is no prompt of an agent's, or comes after a plug-in that makes assemblies
    itself, is a stage of its own.
    """
    own = f"{'' if agent is None else name_of(agent)}\0{stage}"
    channel = channel_of(context, agent)
    if channel is not None:  # a network makes a stream anew for every turn of a channel
        return f"{channel}\0{own}"
    history = context.stream.history
    if type(history.storage).__name__ != "MemoryStorage":
        return f"{context.stream.id}\0{own}"
    of_history = _CONVERSATIONS.setdefault(history, {})
    return of_history.setdefault(own, _Conversation())


def agent_of(context: Any) -> Any:
    """The agent that asks, or None."""
    ask = ASK.get()
    return ask.agent if ask is not None and ask.context is context else context.dependencies.get(_AGENT)


def agent_name_of(context: Any) -> str | None:
    """Its name."""
    agent = agent_of(context)
    return None if agent is None else name_of(agent)


def model_of(context: Any, agent: Any) -> str | None:
    """The model that will be called, if its configuration says so."""
    config = context.dependencies.get(_MODEL_CONFIG) or getattr(agent, "config", None)
    with suppress(NotImplementedError):  # by AG2's own test model, where it was given no name
        model = getattr(config, "model", None)
        return model if isinstance(model, str) and model else None
    return None


def tools_of(call_next: Any) -> tuple[dict[str, Any], ...]:
    """The functions that the model is offered, from the call at the end of the chain of middlewares."""
    while isinstance(call_next, partial):
        if "tools" in call_next.keywords:
            return _told_once(call_next.keywords["tools"])
        call_next = call_next.args[0] if call_next.args else None
    return ()


def _told_once(schemas: Any) -> tuple[dict[str, Any], ...]:
    """The list is the same one in all calls of a turn."""
    ask = ASK.get()
    if ask is not None and ask.tools is not None and ask.tools[0] is schemas:
        return ask.tools[1]
    tools = tuple(tool for schema in schemas if (tool := tool_of(schema)) is not None)
    if ask is not None:
        ask.tools = schemas, tools
    return tools


def tool_of(schema: Any) -> dict[str, Any] | None:
    """A function's schema as a provider is sent it; what a provider's own tools cost is not known."""
    if schema.type != "function":
        return None
    try:
        tool: dict[str, Any] = json.loads(json.dumps({"type": "function", "function": asdict(schema.function)}))
    except (TypeError, ValueError):
        return None
    return tool


def begin(
    instrumentation: Instrumentation,
    context: Any,
    events: Sequence[Any],
    *,
    stage: str,
    prompts: Sequence[str] = (),
    tools: Sequence[dict[str, Any]] = (),
    name: str | None = None,
    started_ns: int | None = None,
) -> ObservedAssembly | None:
    """An assembly of this conversation begins; None where nobody listens, or where it cannot be told of."""
    assembly = None
    with instrumentation.contained():
        agent = agent_of(context)
        assembly = instrumentation.observed.begin(
            conversation_of(context, agent, stage),
            events,
            prompts=prompts,
            tools=tools,
            name=name,
            agent_name=None if agent is None else name_of(agent),
            model=model_of(context, agent),
            conversation_id=conversation_id(context, agent),
            started_ns=started_ns,
        )
        follow(context.stream, assembly)
    return assembly
