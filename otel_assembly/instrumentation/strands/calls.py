"""Hooks for the runs and the model calls of Strands agents.

The input of a model call is the agent's messages. Middleware of the stage ``invokeModel`` can edit them; each edit is
recorded as a step. The model call ends when `Model.stream` or `Model.structured_output` receives the request. Changes
that the agent made to its messages before, see `reducers`, are the first steps of the model call.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.clients import innermost_client_hook
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.hooks import replace_hook
from otel_assembly.instrumentation.instrumented import has_tracer_provider
from otel_assembly.instrumentation.middleware_calls import MiddlewareCall, MiddlewareReduction, wrap_middleware
from otel_assembly.instrumentation.model_call import ClientRequest, ModelCall
from otel_assembly.instrumentation.reducers import is_ours, limit_of, name_of, policy_name
from otel_assembly.instrumentation.run_types import ContextBoundRun
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.instrumentation.strands.messages import (
    agent_messages,
    known_copies,
    model_messages,
    output_schema,
    prompts_of,
    schemas_of,
)
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly._internal.tracked_runs import TrackedRun
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: The agent that is currently calling its model.
CURRENT_AGENT: Final[ContextVar[Any]] = ContextVar("otel_assembly_strands_agent", default=None)
PACKAGES: Final = ("strands",)
#: The name of the middleware stage that is a model call.
MODEL_STAGE: Final = "invokeModel"


def invoking_agent_of(agent: Any) -> InvokingAgent:
    # The conversation is the agent's session, which another object may continue; without a session, it is the object.
    session = getattr(getattr(agent, "_session_manager", None), "session_id", None)
    session_id = session if isinstance(session, str) else None
    return InvokingAgent(session_id or agent, str(getattr(agent, "agent_id", "")), name_of(agent), session_id)


def _begin_run(instrumentation: Instrumentation, runner: Any, variables: Mapping[ContextVar[Any], Any]) -> TrackedRun:
    """Begin a run of an agent, a graph or a swarm; open a span if no tracer provider records Strands' own spans."""
    invoking_agent = invoking_agent_of(runner)
    name = None if has_tracer_provider() else invoking_agent.agent_name
    return ContextBoundRun(instrumentation, name, variables, conversation_id=invoking_agent.conversation_id)


#: The hook of `stream_async` of agents, graphs and swarms.
run: Final = run_hook(lambda instrumentation, runner, *_, **__: _begin_run(instrumentation, runner, {}))
#: The hook of the functions in which an agent calls its model. They include retries, and the agent's hooks that run
#: before the model call.
model_execution: Final = run_hook(
    lambda instrumentation, agent, *_, **__: _begin_run(instrumentation, agent, {CURRENT_AGENT: agent, CALL: None})
)


#: The hook of `MiddlewareRegistry.invoke`, which calls the model through the middleware.
middleware_invoke: Final = run_hook(
    lambda instrumentation, _, stage, context, *__: (
        ModelCall(instrumentation, invoking_agent_of(context.agent)) if stage.name == MODEL_STAGE else None
    )
)


def _set_agent_input(call: ModelCall, agent: Any) -> None:
    """Set an agent's messages and prompts as the input of a model call, unless it has one already."""
    if call.messages is None and agent is not None:
        prompts = prompts_of(agent.system_prompt, getattr(agent, "_system_prompt_content", None))
        call.set_input(agent_messages(agent), prompts=prompts)


def _record_request(instrumentation: Instrumentation, request: ClientRequest) -> ModelCall:
    """Record the request that a model receives as the end of the agent's model call."""
    agent = CURRENT_AGENT.get()
    call = CALL.get() or ModelCall(instrumentation, invoking_agent_of(agent) if agent is not None else InvokingAgent())
    _set_agent_input(call, agent)
    call.client_called(request)
    return call


@replace_hook
def middleware_compose(instrumentation: Instrumentation, compose: Any, registry: Any, stage: Any, terminal: Any) -> Any:
    """Replace `MiddlewareRegistry.compose`, to wrap the handlers of a model call; `registry` itself is not changed."""
    call, handlers = CALL.get(), registry._handlers.get(stage)  # noqa: SLF001  # has no public name
    if call is not None and handlers and stage.name == MODEL_STAGE:
        with instrumentation.suppress_errors():
            _set_agent_input(call, CURRENT_AGENT.get())
            wrapped = [replace(entry, handler=_wrap_handler(entry.handler, call)) for entry in handlers]
            registry = copy(registry)
            registry._handlers = {stage: wrapped}  # noqa: SLF001  # has no public name
    return compose(registry, stage, terminal)


def _wrap_handler(handler: Callable[..., Any], call: ModelCall) -> Callable[..., Any]:
    """Wrap a middleware, so that its changes are recorded as a step of the model call."""
    if is_ours(getattr(handler, "__self__", None)):  # the plug-in records its own changes
        return handler
    policy, next_variables = function_name(handler), {CALL: call, CURRENT_AGENT: CURRENT_AGENT.get()}

    def begin_reduction(messages: Sequence[Any]) -> MiddlewareReduction:
        return MiddlewareReduction(call.instrumentation, StepReport(policy, messages, kind=None), call=call)

    middleware_call = partial(
        MiddlewareCall,
        call.instrumentation,
        begin_reduction,
        _stage_request,
        middleware_context=dict.fromkeys(next_variables),  # a model that the middleware calls has a separate call
        next_layer_context=next_variables,
    )
    return wrap_middleware(handler, call.instrumentation, middleware_call)


def function_name(function: Any) -> str:
    """Return a policy name for a function: the class of a method, else the function's own name.

    A lambda, or a function that Strands created, gets the name of the function that contains it.
    """
    function = function.func if isinstance(function, partial) else function
    if isinstance(function, FunctionType) and is_framework_function(function):
        # Strands wraps middleware of one phase in a closure, whose variable `handler` is the program's function.
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        function = cells["handler"].cell_contents if "handler" in cells else function
    if hasattr(function, "__self__"):
        return policy_name(function.__self__, PACKAGES)
    name = policy_name(function, ())
    is_lambda = name[0] == "<"
    if not is_lambda and not is_framework_function(function):
        return name
    outer_name = str(getattr(function, "__qualname__", name)).partition(".")[0]
    return outer_name.strip("_").removeprefix("create_").removesuffix("_middleware")


def is_framework_function(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] in PACKAGES


def _stage_request(context: Any) -> ClientRequest:
    """Return the messages and system prompts of an `InvokeModelContext`, which middleware receives."""
    messages = model_messages(context.messages, known_copies(context.agent))  # unchanged ones are the same objects
    return ClientRequest(messages, prompts_of(context.system_prompt))


def _stream_request(
    model: Any, messages: Any, tool_specs: Any = None, system_prompt: Any = None, *_: Any, **options: Any
) -> ClientRequest:
    """Return the client request of `Model.stream`."""
    prompts = prompts_of(system_prompt, options.get("system_prompt_content"))
    window = limit_of(_config(model), "context_window_limit")
    return ClientRequest(messages, prompts, schemas_of(tool_specs), model_of(model), window)


def _output_request(
    model: Any, output_model: Any, prompt: Any, system_prompt: Any = None, *_: Any, **__: Any
) -> ClientRequest:
    """Return the client request of `Model.structured_output`; its tool is the schema of the output."""
    agent, request = CURRENT_AGENT.get(), _stream_request(model, prompt, None, system_prompt)
    return request._replace(
        tools=[output_schema(output_model)],
        invoking_agent=invoking_agent_of(agent) if agent is not None else InvokingAgent(),
    )


def model_of(model: Any) -> str | None:
    config = _config(model)
    name: Any = config.get("model_id") if isinstance(config, dict) else getattr(config, "model_id", None)
    return name if isinstance(name, str) else None


def _config(model: Any) -> Any:
    with suppress(Exception):  # a model class of a program may not implement it
        return model.get_config()
    return None


#: The hooks of `Model.stream` and `Model.structured_output`, in each class of models.
stream: Final = innermost_client_hook(
    "stream",
    _stream_request,
    record=_record_request,
    chunk_text=lambda chunk: chunk.get("contentBlockDelta", {}).get("delta", {}).get("text"),
)
structured_output: Final = innermost_client_hook("structured_output", _output_request)
