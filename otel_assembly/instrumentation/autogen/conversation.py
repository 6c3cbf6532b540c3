"""Who asks a model in AutoGen, which context has answered for whom, and what a model's client is given."""

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

from otel_assembly.instrumentation.conversation import LEDGER_KEYS, IdentityWeakMap, InvokingAgent
from otel_assembly.instrumentation.message_alignment import locate
from otel_assembly.instrumentation.model_call import CALL, ClientRequest
from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.instrumentation.tool_schemas import ToolSchemas
from otel_assembly.messages.provider_rules import rules_of_client
from otel_assembly.tokens.prices import ListedWindow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.instrumentation.model_call import ModelCall
    from otel_assembly.messages.provider_rules import ClientRules

#: So many clients stand around a client, at most.
_AROUND: Final = 8
#: Teams put their own id behind the names of their managers and agents.
_TEAM_ID: Final = re.compile(r"_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
#: The agent whose run this is.
AGENT: Final[ContextVar[Any]] = ContextVar("otel_assembly_autogen_agent", default=None)


def invoking_agent(conversation: Any = None, name: str | None = None) -> InvokingAgent:
    """Who asks here: the agent whose run this is, else whose handler runs in AutoGen's runtime, else its span's agent.

    Args:
        conversation: The context that was asked; by default the agent, or nothing that lasts.
        name: The agent's name, where that is known.
    """
    agent, key = AGENT.get(), name
    if agent is not None:
        key = name = name or str(agent.name)
        conversation = agent if conversation is None else conversation
    elif name is None:
        with suppress(RuntimeError):  # outside of any handler
            handler = MessageHandlerContext.agent_id()
            key, name = f"{handler}", _TEAM_ID.sub("", handler.type)
            conversation = key if conversation is None else conversation
    if name is None:
        attributes: Mapping[str, Any] = getattr(trace.get_current_span(), "attributes", None) or {}
        name = key = attributes.get("gen_ai.agent.name")
    if conversation is not None and not isinstance(conversation, str):
        conversation = LEDGER_KEYS.of(conversation, key or "")  # it goes with the context, and does not hold it
    return InvokingAgent(conversation, key or "", name)


def _innermost(client: Any) -> Any:
    """The client that calls a model: others, such as a cache, stand in front of it."""
    for _ in range(_AROUND):
        inner = getattr(client, "client", None)
        if not hasattr(inner, "model_info"):
            break
        client = inner
    return client


def client_of(client: Any) -> ClientRules | None:
    """Return what a client adds to messages; others, such as a cache, stand in front of it."""
    return rules_of_client(_innermost(client))


def model_of(client: Any) -> str | None:
    """The model that a client calls; its family where the client keeps the name to itself."""
    client = _innermost(client)
    arguments = getattr(client, "_create_args", None)
    model = arguments.get("model") if isinstance(arguments, dict) else None
    if isinstance(model, str):
        return model
    info = getattr(client, "model_info", None)
    family = info.get("family") if isinstance(info, dict) else None
    return str(family) if isinstance(family, str) and family not in {"unknown", "any"} else None


def window_of(client: Any, model: str | None) -> ListedWindow | None:
    """A model's limit in tokens, where the table that its client came with has it; what that supposes is left out."""
    for owner in type(_innermost(client)).__mro__:
        table = getattr(sys.modules.get(owner.__module__), "_model_info", None)
        limits = getattr(table, "_MODEL_TOKEN_LIMITS", None)
        if isinstance(limits, dict):
            resolve = getattr(table, "resolve_model", getattr(table, "resolve_model_class", str))
            known = limits.get(model) or limits.get(resolve(model or ""))
            return ListedWindow(known) if known else None
    return None


#: The schemas of tools.
schemas_of: Final = ToolSchemas(attrgetter("schema")).of

#: What a context has answered last where no call was prepared; and which context it was, by the last message of it, or
#: where it had none to give.
_ANSWERS: Final[IdentityWeakMap[ModelCall]] = IdentityWeakMap()
_ANSWERED: Final[IdentityWeakMap[weakref.ref[Any]]] = IdentityWeakMap()
_EMPTY: Final[ContextVar[weakref.ref[Any] | None]] = ContextVar("otel_assembly_autogen_empty", default=None)


def answered(context: Any, call: ModelCall) -> None:
    """A context has answered where no call is prepared: a client that is called with this answer ends the call."""
    _ANSWERS.put(context, call)
    with suppress(TypeError):
        held = weakref.ref(context)
        _EMPTY.set(None if call.out else held)
        if call.out:
            _ANSWERED.put(call.out[-1], held)


def asked_again(context: Any) -> None:
    """A context is asked again: what it answered before, and nobody was sent, is told where it had left out some."""
    call = _ANSWERS.pop(context)
    if call is not None and not call.sent and len(call.out) < len(call.messages or ()):
        call.end()


def _prepared_for(messages: Sequence[Any]) -> ModelCall | None:
    own = any(not isinstance(message, SystemMessage) for message in messages)
    for held in map(_ANSWERED.get, reversed(messages)) if own else [_EMPTY.get()]:
        call = _ANSWERS.get(held()) if held is not None else None
        if call is not None and bool(call.out) is own and locate(messages, call.out) is not None:
            return call
    return None


def received(
    client: Any, messages: Sequence[Any], *, tools: Sequence[Any] = (), extra_create_args: Any = None, **_: Any
) -> ClientRequest:
    """What a model's client is given; the system messages in front that no context gave are its prompts."""
    call = CALL.get() or _prepared_for(messages)
    given = set(map(id, call.out)) if call is not None else ()
    front, rest = in_front(messages, lambda one: isinstance(one, SystemMessage) and id(one) not in given)
    prompts, schemas = [message.content for message in front], schemas_of(tools)
    model = (extra_create_args or {}).get("model") or model_of(client)
    return ClientRequest(
        rest, prompts, schemas, model, window_of(client, model), invoking_agent(), call, client_of(client)
    )


def text_of(answer: Any) -> str:
    """The text of a model's answer."""
    content = getattr(answer, "content", None)
    return content if isinstance(content, str) else ""
