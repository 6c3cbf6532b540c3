"""Runs of agents, and in them each model call: from the request that is prepared to the model that receives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly.instrumentation.bound_runs import BoundRun
from otel_assembly.instrumentation.clients import called, innermost
from otel_assembly.instrumentation.conversation import Asker
from otel_assembly.instrumentation.google_adk.contents import AgentCall
from otel_assembly.instrumentation.google_adk.messages import prompts_of, schemas_of
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.model_call import CALL, Sent
from otel_assembly.instrumentation.run_calls import CallsInTurn
from otel_assembly.instrumentation.runs import within

if TYPE_CHECKING:
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.run_calls import Preparing
    from otel_assembly.instrumentation.runs import Run

#: Known by the request that is handed from where a call is prepared to where it is made.
CALLS: Final = CallsInTurn("google_adk")
#: Models that hand on what they receive to others, which are told of.
_HANDS_ON: Final = {"FallbackModel": True}


@within
def run(instrumentation: Instrumentation, runner: Any, /, *_: Any, session_id: Any = None, **__: Any) -> Run | None:
    """One run of an agent or a workflow is one trace, where ADK's own spans are recorded nowhere."""
    unseen = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    name = getattr(runner.agent, "name", None) or runner.app_name
    return instrumentation.begin_run(name, conversation_id=session_id) if unseen else None


@within
def turns(instrumentation: Instrumentation, _: Any, invocation: Any) -> Run:
    """An agent calls its model, in turns."""
    return CALLS.run(instrumentation, invocation.agent.name, invocation.session.id)


@within
def prepares(instrumentation: Instrumentation, _: Any, invocation: Any, request: Any, **__: Any) -> Preparing | None:
    """A request is prepared; one of a live connection is sent on its own way."""
    if invocation.live_request_queue is not None:
        return None
    return CALLS.prepares(instrumentation, request, lambda: AgentCall(instrumentation, invocation))


def given(request: Any) -> Sent:
    """What a request holds."""
    return Sent(list(request.contents), prompts_of(request))


def _sent(model: Any, request: Any, *_: Any, **__: Any) -> Sent | None:
    """What a model is given; None of one that hands it on."""
    if known_of(type(model), _HANDS_ON, ("google.adk.models",)):
        return None
    return given(request)._replace(tools=schemas_of(request), model=request.model or model.model)


def _call_of(instrumentation: Instrumentation, _: Any, request: Any, *__: Any, **___: Any) -> Run | None:
    """The call that was prepared for a request; a program's own request is none of them, wherever it is made."""
    if called():
        return None
    return CALLS.of(request) or BoundRun(instrumentation, None, {CALL: None})


#: What each class of models is given, streamed or not.
client_called: Final = innermost("generate_content_async", _sent, prepared=_call_of)
