"""Runs of agents, and in them each model call from what prepares it to the model that receives it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from agents.models.interface import Model

from otel_assembly.instrumentation.clients import innermost_client_hook, model_in
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.openai_agents.messages import SCHEMAS, items_of
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import name_of
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.run_calls import MultiCallRun, Preparing
from otel_assembly.instrumentation.runs import run_hook

if TYPE_CHECKING:
    from otel_assembly.instrumentation.bound_runs import ContextBoundRun
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ModelCall

RUN: Final[ContextVar[MultiCallRun | None]] = ContextVar("otel_assembly_openai_agents_run", default=None)


def id_of(session: Any) -> str | None:
    """A session's id; one that the provider holds has none before it is first read."""
    try:
        found = getattr(session, "session_id", None)
    except ValueError:
        return None
    return found if isinstance(found, str) and found else None


@run_hook
def run(
    instrumentation: Instrumentation, *args: Any, session: Any = None, conversation_id: str | None = None, **named: Any
) -> MultiCallRun:
    """One run, streamed or not: `AgentRunner.run` has its agent, and what it is asked, behind itself."""
    state = named.get("run_state") or argument(args, named, 2, "input")  # of a run that is resumed
    agent = getattr(state, "_current_agent", None) or argument(args, named, 1, "starting_agent")
    conversation_id = conversation_id or getattr(state, "_conversation_id", None) or id_of(session)
    return MultiCallRun(instrumentation, name_of(agent), conversation_id, RUN)


def wrap_middleware() -> MultiCallRun | None:
    """The run that goes on here; none where it works for a reducer, such as a summariser's."""
    return RUN.get() if reducing() is None else None


@run_hook
def turn(_: Instrumentation, *__: Any, **___: Any) -> ContextBoundRun | None:
    """One turn of a run."""
    of = wrap_middleware()
    return None if of is None else of.turn()


@run_hook
def prepares(instrumentation: Instrumentation, *_: Any, agent: Any, **given: Any) -> Preparing | None:
    """A call is prepared, with all that the run holds."""
    of = wrap_middleware()
    if of is None:
        return None
    call = of.begins(agent.name)
    call.set_input(given["input_items"], prompts=as_prompts(given["system_instructions"]))
    return Preparing(instrumentation, call)


@run_hook
def made(_: Instrumentation, *__: Any, **given: Any) -> ModelCall | None:
    """The model is called, and again where that fails; where the provider holds what was said, with what is new."""
    of = wrap_middleware()
    call = of.call if of is not None else None
    if call is not None:
        call.unknown = bool(given.get("previous_response_id") or given.get("conversation_id"))
    return call


def _sent(model: Any, *args: Any, **named: Any) -> ClientRequest:
    tools = [*argument(args, named, 3, "tools", ()), *argument(args, named, 5, "handoffs", ())]
    prompts = as_prompts(argument(args, named, 0, "system_instructions"))
    return ClientRequest(items_of(argument(args, named, 1, "input")), prompts, SCHEMAS.of(tools), model_in(model))


def _said(answer: Any) -> str:
    parts = (part for item in answer.output for part in getattr(item, "content", None) or ())
    return "".join(getattr(part, "text", "") for part in parts)


_MODELS: Final[Any] = {"holds": lambda one: isinstance(one, Model)}
#: What each class of models is given; one that asks another is looked through.
get_response: Final = innermost_client_hook("get_response", _sent, _said, asks=("get_response",), **_MODELS)
stream_response: Final = innermost_client_hook("stream_response", _sent, asks=("stream_response",), **_MODELS)
