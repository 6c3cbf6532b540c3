"""Runs of agents, and in them each model call, from the messages that an agent holds to what a model receives."""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.clients import innermost_client_hook
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.hooks import replace_hook
from otel_assembly.instrumentation.middleware_calls import MiddlewareCall, MiddlewareReduction, wrap_middleware
from otel_assembly.instrumentation.model_call import CALL, ClientRequest, ModelCall
from otel_assembly.instrumentation.reducers import is_ours, limit_of, name_of, policy_name
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.instrumentation.strands.messages import as_sent, held_by, output_schema, prompts_of, schemas_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.runs import Run

#: The agent that calls its model here.
ASKING: Final[ContextVar[Any]] = ContextVar("otel_assembly_strands_asking", default=None)
PACKAGES: Final = ("strands",)
#: The name of the stage of middleware that is a model call.
MODEL_CALLS: Final = "invokeModel"


def invoking_agent_of(agent: Any) -> InvokingAgent:
    """Who asks: an agent in its session, if that is kept anywhere, for then another object may go on as that agent."""
    session = getattr(getattr(agent, "_session_manager", None), "session_id", None)
    own = session if isinstance(session, str) else None
    return InvokingAgent(own or agent, str(getattr(agent, "agent_id", "")), name_of(agent), own)


def _bound(instrumentation: Instrumentation, runs: Any, variables: Mapping[ContextVar[Any], Any]) -> Run:
    """A run, which has a span of ours only where the framework's own are recorded nowhere."""
    unseen = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    own = invoking_agent_of(runs)
    return ContextBoundRun(
        instrumentation, own.agent_name if unseen else None, variables, conversation_id=own.conversation_id
    )


#: One run of an agent, a graph or a swarm is one trace.
run: Final = run_hook(lambda instrumentation, runs, *_, **__: _bound(instrumentation, runs, {}))
#: An agent calls its model, again where that is to be tried again; what hooks do to its messages is done before.
asks: Final = run_hook(
    lambda instrumentation, agent, *_, **__: _bound(instrumentation, agent, {ASKING: agent, CALL: None})
)


#: The middleware around one model call, and the call.
invokes: Final = run_hook(
    lambda instrumentation, _, stage, context, *__: (
        ModelCall(instrumentation, invoking_agent_of(context.agent)) if stage.name == MODEL_CALLS else None
    )
)


def _holds(call: ModelCall, agent: Any) -> None:
    """What an agent holds goes into its call; what has waited for that is told here."""
    if call.messages is None and agent is not None:
        prompts = prompts_of(agent.system_prompt, getattr(agent, "_system_prompt_content", None))
        call.set_input(held_by(agent), prompts=prompts)


def _told(instrumentation: Instrumentation, sent: ClientRequest) -> ModelCall:
    agent = ASKING.get()
    call = CALL.get() or ModelCall(instrumentation, invoking_agent_of(agent) if agent is not None else InvokingAgent())
    _holds(call, agent)
    call.client_called(sent)
    return call


def _composed(instrumentation: Instrumentation, compose: Any, registry: Any, stage: Any, terminal: Any) -> Any:
    call, handlers = CALL.get(), registry._handlers.get(stage)  # noqa: SLF001  # nothing else gives them
    if call is not None and handlers and stage.name == MODEL_CALLS:
        with instrumentation.suppress_errors():
            _holds(call, ASKING.get())
            watched = [replace(one, handler=_watched(one.handler, call)) for one in handlers]
            registry = copy(registry)
            registry._handlers = {stage: watched}  # noqa: SLF001  # as above
    return compose(registry, stage, terminal)


def _watched(handler: Callable[..., Any], call: ModelCall) -> Callable[..., Any]:
    """A middleware whose changes are a step of the call; a model that it calls itself is called for no call of ours."""
    if is_ours(getattr(handler, "__self__", None)):
        return handler
    policy, behind = function_name(handler), {CALL: call, ASKING: ASKING.get()}
    reduces = partial(MiddlewareReduction, call.instrumentation, policy, call=call)
    inside = dict.fromkeys(behind)
    begun = partial(MiddlewareCall, call.instrumentation, reduces, _read, inside=inside, behind=behind)
    return wrap_middleware(handler, call.instrumentation, begun)


composes: Final = replace_hook(_composed)


def function_name(function: Any) -> str:
    """A name of low cardinality: the class whose method a function is, or how it is called; else where it was made."""
    function = function.func if isinstance(function, partial) else function
    if isinstance(function, FunctionType) and is_framework_s(function):  # around middleware for one phase
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        function = cells["handler"].cell_contents if "handler" in cells else function
    if hasattr(function, "__self__"):
        return policy_name(function.__self__, PACKAGES)
    name = policy_name(function, ())
    if name[0] != "<" and not is_framework_s(function):
        return name
    made_in = str(getattr(function, "__qualname__", name)).partition(".")[0]
    return made_in.strip("_").removeprefix("create_").removesuffix("_middleware")


def is_framework_s(function: Any) -> bool:
    """Whether a function, or a method, is the framework's."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in PACKAGES


def _read(context: Any) -> ClientRequest:
    return ClientRequest(as_sent(context.messages), prompts_of(context.system_prompt))


def _sent(
    model: Any, messages: Any, tool_specs: Any = None, system_prompt: Any = None, *_: Any, **more: Any
) -> ClientRequest:
    prompts = prompts_of(system_prompt, more.get("system_prompt_content"))
    window = limit_of(_config(model), "context_window_limit")
    return ClientRequest(messages, prompts, schemas_of(tool_specs), model_of(model), window)


def _output(model: Any, output_model: Any, prompt: Any, system_prompt: Any = None, *_: Any, **__: Any) -> ClientRequest:
    """What a model is given that is asked for an output; an agent does not keep what it asks for that."""
    agent, sent = ASKING.get(), _sent(model, prompt, None, system_prompt)
    return sent._replace(
        tools=[output_schema(output_model)],
        invoking_agent=invoking_agent_of(agent) if agent is not None else InvokingAgent(),
    )


def model_of(model: Any) -> str | None:
    """The name of a model, as far as it says that."""
    config = _config(model)
    name: Any = config.get("model_id") if isinstance(config, dict) else getattr(config, "model_id", None)
    return name if isinstance(name, str) else None


def _config(model: Any) -> Any:
    with suppress(Exception):  # it is the user's, who need not have one
        return model.get_config()
    return None


#: What each class of models is given, to stream or for an output.
stream: Final = innermost_client_hook(
    "stream",
    _sent,
    told=_told,
    chunk_text=lambda chunk: chunk.get("contentBlockDelta", {}).get("delta", {}).get("text"),
)
structured_output: Final = innermost_client_hook("structured_output", _output)
