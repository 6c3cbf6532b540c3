"""Runs of agents, and in them each model call, from the messages that an agent holds to the model that receives them."""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly.instrumentation.bound_runs import BoundRun
from otel_assembly.instrumentation.clients import innermost, model_in
from otel_assembly.instrumentation.conversation import Asker
from otel_assembly.instrumentation.handing_on import GoingOn, MiddlewareReduction, going_on
from otel_assembly.instrumentation.hooks import instead
from otel_assembly.instrumentation.model_call import CALL, ModelCall, Sent
from otel_assembly.instrumentation.reducers import is_ours, limit_of, name_of, policy_name
from otel_assembly.instrumentation.runs import within
from otel_assembly.instrumentation.strands.messages import as_sent, held_by, output_schema, prompts_of, schemas_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.runs import Run

#: The agent that is about to call its model, or does.
ASKING: Final[ContextVar[Any]] = ContextVar("otel_assembly_strands_asking", default=None)
PACKAGES: Final = ("strands",)
_MODEL_CALLS: Final = "invokeModel"


def asker_of(agent: Any) -> Asker:
    """Who asks: an agent in its session, if that is kept anywhere, for then it may be another object that goes on."""
    session = getattr(getattr(agent, "_session_manager", None), "session_id", None)
    own = session if isinstance(session, str) else None
    return Asker(own or agent, str(getattr(agent, "agent_id", "")), name_of(agent), own)


def _begin(instrumentation: Instrumentation, runs: Any, variables: Mapping[ContextVar[Any], Any]) -> Run:
    """A run, with a span of ours only where the framework's own are recorded nowhere."""
    unseen = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    name, conversation = name_of(runs) if unseen else None, asker_of(runs).conversation_id
    return BoundRun(instrumentation, name, variables, conversation_id=conversation)


@within
def run(instrumentation: Instrumentation, runs: Any, /, *_: Any, **__: Any) -> Run:
    """One run of an agent, a graph or a swarm is one trace."""
    return _begin(instrumentation, runs, {})


@within
def asks_for_output(instrumentation: Instrumentation, agent: Any, /, *_: Any, **__: Any) -> Run:
    """A run of an agent that is but one call, which is not added to its messages."""
    return _begin(instrumentation, agent, {ASKING: agent, CALL: None})


@within
def asks(instrumentation: Instrumentation, agent: Any, /, *_: Any, **__: Any) -> Run:
    """An agent calls its model, again where that is to be tried again; what its hooks do to its messages is before."""
    return BoundRun(instrumentation, None, {ASKING: agent, CALL: None})


def _begun(instrumentation: Instrumentation, agent: Any) -> ModelCall:
    prompts = prompts_of(agent.system_prompt, getattr(agent, "_system_prompt_content", None))
    return ModelCall(instrumentation, asker_of(agent), messages=held_by(agent), prompts=prompts)


@within
def invokes(instrumentation: Instrumentation, _: Any, stage: Any, context: Any, /, *__: Any, **___: Any) -> Run | None:
    """The middleware around one model call, and the call."""
    return _begun(instrumentation, context.agent) if stage.name == _MODEL_CALLS else None


def _told(instrumentation: Instrumentation, sent: Sent) -> ModelCall:
    call, agent = CALL.get(), ASKING.get()
    if call is None:
        call = ModelCall(instrumentation, sent.asker) if agent is None else _begun(instrumentation, agent)
    call.receives(sent)
    return call


def _composed(instrumentation: Instrumentation, compose: Any, registry: Any, stage: Any, terminal: Any) -> Any:
    call, handlers = CALL.get(), registry._handlers.get(stage)  # noqa: SLF001  # nothing else gives them
    if call is not None and handlers and stage.name == _MODEL_CALLS:
        with instrumentation.contained():
            watched = [replace(one, handler=_watched(one.handler, call, instrumentation)) for one in handlers]
            registry = copy(registry)
            registry._handlers = {stage: watched}  # noqa: SLF001  # as above
    return compose(registry, stage, terminal)


def _watched(handler: Callable[..., Any], call: ModelCall, instrumentation: Instrumentation) -> Callable[..., Any]:
    """A middleware whose changes are a step of the call; a model that it calls itself is called for no call of ours."""
    if is_ours(getattr(handler, "__self__", None)):
        return handler

    def reduces(before: Sequence[Any]) -> MiddlewareReduction:
        return MiddlewareReduction(instrumentation, function_name(handler), before, call=call)

    behind = {CALL: call, ASKING: ASKING.get()}
    begun = partial(GoingOn, instrumentation, reduces, _read, inside=dict.fromkeys(behind), behind=behind)
    return going_on(handler, instrumentation, begun)


def function_name(function: Any) -> str:
    """A name of low cardinality: the class whose method a function is, or how it is called; else where it was made."""
    inside = getattr(getattr(function, "__code__", None), "co_freevars", ()), getattr(function, "__closure__", None) or ()
    function = dict(zip(*inside, strict=True)).get("handler", function)
    function = getattr(function, "cell_contents", function)  # of a middleware for one phase
    if hasattr(function, "__self__"):
        return policy_name(function.__self__, PACKAGES)
    name = policy_name(function, ())
    made_in = str(getattr(function, "__qualname__", name)).partition(".")[0]
    return made_in.strip("_").removeprefix("create_") if is_framework_s(function) or name[0] == "<" else name


def is_framework_s(function: Any) -> bool:
    """Whether a function, or a method, is the framework's."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in PACKAGES


def _read(context: Any) -> Sent:
    return Sent(as_sent(context.messages), prompts_of(context.system_prompt))


def _sent(
    model: Any, /, messages: Any, tool_specs: Any = None, system_prompt: Any = None, *_: Any, **given: Any
) -> Sent:
    prompts = prompts_of(system_prompt, given.get("system_prompt_content"))
    return _to(model, messages, prompts, schemas_of(tool_specs))


def _output(model: Any, output: Any, /, prompt: Any, system_prompt: Any = None, *_: Any, **__: Any) -> Sent:
    agent = ASKING.get()
    sent = _to(model, prompt, prompts_of(system_prompt), [output_schema(output)])
    return sent if agent is None else sent._replace(asker=asker_of(agent))


def _to(model: Any, *sent: Any) -> Sent:
    config: Any = None
    with suppress(NotImplementedError):
        config = model.get_config()
    window = limit_of(config, "context_window_limit")
    return Sent(*sent, model=model_in({"model": config.get("model_id")} if isinstance(config, dict) else config), window=window)


def _said(chunk: Any) -> str | None:
    delta = chunk.get("contentBlockDelta", {}).get("delta", {})
    return delta.get("text")


#: What each class of models is given.
stream: Final = innermost("stream", _sent, told=_told, said_in=_said)
structured_output: Final = innermost("structured_output", _output)
composes: Final = instead(_composed)
