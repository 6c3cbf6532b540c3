"""Identifies the agent and the model call for a request to an AutoGen model client.

An agent first calls ``get_messages`` of its model context, then ``create`` of its model client. AutoGen passes nothing
that connects the two calls if custom code makes them. Then the messages connect them: the call of the context whose
messages the client is given.
"""

from __future__ import annotations

import re
import sys
import weakref
from contextlib import suppress
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from autogen_core import MessageHandlerContext
from autogen_core.models import SystemMessage
from opentelemetry import trace

from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.conversation import IdentityWeakMap, InvokingAgent, ledger_key
from otel_assembly.instrumentation.message_alignment import locate
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.instrumentation.tool_schemas import ToolSchemas
from otel_assembly.messages.provider_rules import rules_of_client
from otel_assembly.tokens.prices import ListedWindow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.instrumentation.model_call import ModelCall
    from otel_assembly.messages.provider_rules import ClientRules

#: The most clients, such as caches, that are nested in each other.
_MAX_NESTED_CLIENTS: Final = 8
#: The local variables that are read from AgentChat's functions that read a context and then call the model.
_AGENT_VARIABLES: Final = {
    "_call_llm": ("agent_name", "system_messages", "model_client", "workbench", "handoff_tools"),
    "_reflect_on_tool_use_flow": ("agent_name", "system_messages", "model_client"),
    "_reflect_on_code_block_results_flow": ("agent_name", "system_messages", "model_client"),
}
#: The most stack frames between an agent's function and the context, such as those of instrumentations.
_MAX_FRAMES: Final = 16
#: Teams append their id to the names of their managers and agents.
_TEAM_ID: Final = re.compile(r"_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
#: The agent whose run is current; None outside of a run, and in a run of a team.
RUNNING_AGENT: Final[ContextVar[Any]] = ContextVar("otel_assembly_autogen_agent", default=None)


def invoking_agent(conversation: Any = None, name: str | None = None) -> InvokingAgent:
    """Return the invoking agent of the current model call, in the conversation of the model context that is read.

    Without a context, the agent object is the conversation, or there is none.
    """
    agent, key = RUNNING_AGENT.get(), name  # the key distinguishes the agents of a conversation
    if agent is not None:
        key = name = name or str(agent.name)
        conversation = agent if conversation is None else conversation
    elif name is None:  # the agent whose message handler AutoGen's runtime is executing
        with suppress(RuntimeError):  # raised outside of a message handler
            handler = MessageHandlerContext.agent_id()
            key, name = f"{handler}", _TEAM_ID.sub("", handler.type)
            conversation = key if conversation is None else conversation
    if name is None:  # the agent that the current span names
        attributes: Mapping[str, Any] = getattr(trace.get_current_span(), "attributes", None) or {}
        name = key = attributes.get("gen_ai.agent.name")
    if conversation is not None and not isinstance(conversation, str):
        conversation = ledger_key(conversation, key or "")  # a key that lives as long as the object
    return InvokingAgent(conversation, key or "", name)


def _innermost(client: Any) -> Any:
    """Return the client that calls the model, which other clients, such as a cache, may wrap."""
    for _ in range(_MAX_NESTED_CLIENTS):
        inner = getattr(client, "client", None)
        if not hasattr(inner, "model_info"):
            break
        client = inner
    return client


def client_of(client: Any) -> ClientRules | None:
    return rules_of_client(_innermost(client))


def model_of(client: Any) -> str | None:
    """Return the name of a client's model, or the model's family if the name is not known; None without either."""
    client = _innermost(client)
    arguments = getattr(client, "_create_args", None)
    model = arguments.get("model") if isinstance(arguments, dict) else None
    if isinstance(model, str):
        return model
    info = getattr(client, "model_info", None)
    family = info.get("family") if isinstance(info, dict) else None
    return str(family) if isinstance(family, str) and family not in {"unknown", "any"} else None


def window_of(client: Any, model: str | None) -> ListedWindow | None:
    """Return a model's window from AutoGen's table for the client; None for a model whose window AutoGen assumes."""
    for owner in type(_innermost(client)).__mro__:
        table = getattr(sys.modules.get(owner.__module__), "_model_info", None)  # imported by AutoGen's extensions
        limits = getattr(table, "_MODEL_TOKEN_LIMITS", None)
        if isinstance(limits, dict):
            resolve = getattr(table, "resolve_model", getattr(table, "resolve_model_class", str))
            window = limits.get(model) or limits.get(resolve(model or ""))
            return ListedWindow(window) if window else None
    return None


#: Returns the schemas of tools.
schemas_of: Final = ToolSchemas(attrgetter("schema")).of

#: The last model call of each context that was read while no call was prepared.
_CALLS: Final[IdentityWeakMap[ModelCall]] = IdentityWeakMap()
#: The context that returned a list of messages last, by the last message of the list.
_CONTEXTS: Final[IdentityWeakMap[weakref.ref[Any]]] = IdentityWeakMap()
#: The context that was read last, if it returned no messages.
_EMPTY_CONTEXT: Final[ContextVar[weakref.ref[Any] | None]] = ContextVar("otel_assembly_autogen_empty", default=None)


def remember_call(context: Any, call: ModelCall) -> None:
    """Remember the call of a context that was read while no call was prepared, for `client_request`."""
    _CALLS.put(context, call)
    with suppress(TypeError):  # the context supports no weak references
        reference = weakref.ref(context)
        _EMPTY_CONTEXT.set(None if call.out else reference)
        if call.out:
            _CONTEXTS.put(call.out[-1], reference)


def end_unsent_call(context: Any) -> None:
    """Forget the remembered call of a context that is read again.

    If no client was given its messages, and the context had removed some, the call is recorded without a model call.
    """
    call = _CALLS.pop(context)
    if call is not None and not call.sent and len(call.out) < len(call.messages or ()):
        call.end()


def _remembered_call(messages: Sequence[Any]) -> ModelCall | None:
    """Return the remembered call whose messages a client is given; None if there is none.

    If all messages are system messages, they are prompts, and the context that was read last returned no messages.
    """
    has_conversation = any(not isinstance(message, SystemMessage) for message in messages)
    context_refs = map(_CONTEXTS.get, reversed(messages)) if has_conversation else [_EMPTY_CONTEXT.get()]
    for context_ref in context_refs:
        call = _CALLS.get(context_ref()) if context_ref is not None else None
        if call is not None and bool(call.out) is has_conversation and locate(messages, call.out) is not None:
            return call
    return None


def client_request(
    client: Any, messages: Sequence[Any], *, tools: Sequence[Any] = (), extra_create_args: Any = None, **_: Any
) -> ClientRequest:
    """Return the request to a model's client."""
    call = CALL.get() or _remembered_call(messages)
    # The leading system messages are the prompts, except those that the model context returned.
    context_ids = set(map(id, call.out)) if call is not None else ()
    leading, rest = in_front(
        messages, lambda message: isinstance(message, SystemMessage) and id(message) not in context_ids
    )
    prompts, schemas = [message.content for message in leading], schemas_of(tools)
    model = (extra_create_args or {}).get("model") or model_of(client)
    window, agent, rules = window_of(client, model), invoking_agent(), client_of(client)
    return ClientRequest(rest, prompts, schemas, model, window, invoking_agent=agent, call=call, client=rules)


def text_of(answer: Any) -> str:
    content = getattr(answer, "content", None)
    return content if isinstance(content, str) else ""  # tool calls


def agent_request_on_stack(context: Any) -> Mapping[str, Any] | None:
    """Return the system messages, tools and client of the AgentChat agent that reads a context; None without one.

    AutoGen passes none of them to a context. The call stack has them also without instrumentation.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # the only access to the call stack
    for _ in range(_MAX_FRAMES):
        names = _AGENT_VARIABLES.get(frame.f_code.co_name)
        if names is not None and str(frame.f_globals.get("__name__")).startswith("autogen_agentchat."):
            values = frame.f_locals
            if values["model_context"] is not context:
                return None
            return {name: values[name] for name in names if name in values}
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None
