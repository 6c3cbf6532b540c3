"""Hooks of the SDK's agent runs, turns and model calls.

A model call begins in ``maybe_filter_model_input``, with all items of the run. It is recorded when ``get_response`` or
``stream_response`` of a `Model` receives the final items.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from agents.models.interface import Model

from otel_assembly.instrumentation.clients import innermost_client_hook, model_in
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.openai_agents.messages import SCHEMAS, items_of
from otel_assembly.instrumentation.openai_agents.multi_call_runs import MultiCallRun
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import name_of
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.run_types import Preparing
from otel_assembly.instrumentation.runs import run_hook

if TYPE_CHECKING:
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ModelCall
    from otel_assembly.instrumentation.run_types import ContextBoundRun

#: The current run of an agent.
RUN: Final[ContextVar[MultiCallRun | None]] = ContextVar("otel_assembly_openai_agents_run", default=None)


def session_id_of(session: Any) -> str | None:
    """Return a session's id; None without a session, or if the provider has not assigned the id yet."""
    try:
        session_id = getattr(session, "session_id", None)
    except ValueError:  # `OpenAIConversationsSession` raises it before its first request
        return None
    return session_id if isinstance(session_id, str) and session_id else None


@run_hook
def run(
    instrumentation: Instrumentation, *args: Any, session: Any = None, conversation_id: str | None = None, **kwargs: Any
) -> MultiCallRun:
    """Hook of ``AgentRunner.run`` and ``start_streaming``: begin a run of an agent."""
    # A resumed run gets its agent and conversation id from the `RunState`, which is the input.
    state = kwargs.get("run_state") or argument(args, kwargs, 2, "input")
    agent = getattr(state, "_current_agent", None) or argument(args, kwargs, 1, "starting_agent")
    conversation_id = conversation_id or getattr(state, "_conversation_id", None) or session_id_of(session)
    return MultiCallRun(instrumentation, name_of(agent), conversation_id, RUN)


def current_run() -> MultiCallRun | None:
    """Return the current run; None inside a reducer, because its calls (such as a summarizer's) are not the run's."""
    return RUN.get() if reducing() is None else None


@run_hook
def turn(_: Instrumentation, *__: Any, **___: Any) -> ContextBoundRun | None:
    """Hook of ``run_single_turn`` and ``run_single_turn_streamed``: one turn, a model call and its tools."""
    agent_run = current_run()
    return None if agent_run is None else agent_run.turn()


@run_hook
def prepare_call(instrumentation: Instrumentation, *_: Any, agent: Any, **kwargs: Any) -> Preparing | None:
    """Hook of ``maybe_filter_model_input``: begin a model call with all items of the run as its input."""
    agent_run = current_run()
    if agent_run is None:
        return None
    call = agent_run.begin_call(agent.name)
    call.set_input(kwargs["input_items"], prompts=as_prompts(kwargs["system_instructions"]))
    return Preparing(instrumentation, call)


@run_hook
def resume_call(_: Instrumentation, *__: Any, **kwargs: Any) -> ModelCall | None:
    """Hook of ``get_response_with_retry`` and its streaming variant: make the prepared call current for all retries."""
    agent_run = current_run()
    call = agent_run.call if agent_run is not None else None
    if call is not None:  # if the provider stores the conversation, the SDK sends only new items
        call.unknown = bool(kwargs.get("previous_response_id") or kwargs.get("conversation_id"))
    return call


def _client_request(model: Any, *args: Any, **kwargs: Any) -> ClientRequest:
    tools = [*argument(args, kwargs, 3, "tools", ()), *argument(args, kwargs, 5, "handoffs", ())]
    prompts = as_prompts(argument(args, kwargs, 0, "system_instructions"))
    return ClientRequest(items_of(argument(args, kwargs, 1, "input")), prompts, SCHEMAS.of(tools), model_in(model))


def _response_text(response: Any) -> str:
    parts = (part for item in response.output for part in getattr(item, "content", None) or ())
    return "".join(getattr(part, "text", "") for part in parts)


_MODELS: Final[Any] = {"is_client": lambda value: isinstance(value, Model)}
#: Hooks of a model class's methods. If a model calls another one, only the inner model is recorded.
get_response: Final = innermost_client_hook(
    "get_response", _client_request, _response_text, delegated_methods=("get_response",), **_MODELS
)
stream_response: Final = innermost_client_hook(
    "stream_response", _client_request, delegated_methods=("stream_response",), **_MODELS
)
