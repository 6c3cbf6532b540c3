"""Runs of agents, and in them each model call, from the request that is prepared to the model that receives it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly.decision import DecisionReason
from otel_assembly.errors import AssemblyError
from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.clients import called, client, innermost_client_hook
from otel_assembly.instrumentation.google_adk.contents import AgentCall
from otel_assembly.instrumentation.google_adk.messages import prompts_of, schemas_of
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.model_call import CALL, ClientRequest
from otel_assembly.instrumentation.reducers import is_ours, policy_name
from otel_assembly.instrumentation.reductions import Reducer, reducer
from otel_assembly.instrumentation.run_calls import SequentialCalls
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.messages.provider_rules import NO_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.run_calls import Preparing
    from otel_assembly.instrumentation.runs import Run

_PACKAGES: Final = ("google.adk",)
#: Known by the request that is handed from where a call is prepared to where it is made.
CALLS: Final = SequentialCalls("google_adk")
#: Whether a model hands on what it receives to others, which are told of; else it ends it with a message of the user's.
_HANDS_ON: Final = {"FallbackModel": True, **dict.fromkeys(("Gemini", "LiteLlm"), False)}


@run_hook
def run(instrumentation: Instrumentation, runner: Any, /, *_: Any, session_id: Any = None, **__: Any) -> Run | None:
    """One run of an agent or a workflow is one trace, where ADK's own spans are recorded nowhere."""
    unseen = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    name = getattr(runner.agent, "name", None) or runner.app_name
    return instrumentation.begin_run(name, conversation_id=session_id) if unseen else None


@run_hook
def turns(instrumentation: Instrumentation, _: Any, /, invocation_context: Any) -> Run:
    """An agent calls its model, in turns."""
    return CALLS.run(instrumentation, invocation_context.agent.name, invocation_context.session.id)


@run_hook
def prepares(
    instrumentation: Instrumentation, _: Any, /, invocation_context: Any, llm_request: Any, **__: Any
) -> Preparing | None:
    """A request is prepared; that of a live connection is sent on its own way."""
    if invocation_context.live_request_queue is not None:
        return None
    return CALLS.prepares(instrumentation, llm_request, lambda: AgentCall(instrumentation, invocation_context))


def given(request: Any) -> ClientRequest:
    """What a request holds."""
    # A content has the object around a result already.
    return ClientRequest(list(request.contents), prompts_of(request), client=NO_NAMES)


def _sent(model: Any, /, llm_request: Any, *_: Any, **__: Any) -> ClientRequest | None:
    """What a model is given; None of one that hands it on."""
    hands_on = known_of(type(model), _HANDS_ON, _PACKAGES)
    if hands_on is False:
        llm_request = llm_request.model_copy(update={"contents": list(llm_request.contents)})
        model._maybe_append_user_content(llm_request)  # noqa: SLF001  # as it does itself, behind this
    name = llm_request.model or model.model
    return None if hands_on else given(llm_request)._replace(tools=schemas_of(llm_request), model=name)


def _call_of(instrumentation: Instrumentation, _: Any, /, llm_request: Any, *__: Any, **___: Any) -> Run | None:
    """The call that was prepared for a request; a program's own request is none of them, wherever it is made."""
    return None if called() else CALLS.of(llm_request) or ContextBoundRun(instrumentation, None, {CALL: None})


def _said_in(answer: Any) -> str | None:
    """What an answer says that is whole; those before it are the parts of it."""
    if answer.partial or answer.content is None:
        return None
    return "".join(part.text or "" for part in answer.content.parts or ())


#: What each class of models is given, streamed or not.
client_called: Final = innermost_client_hook("generate_content_async", _sent, chunk_text=_said_in, prepared=_call_of)
#: What a model hands to a client that is none.
completions: Final = client(_sent, chunk_text=_said_in, prepared=_call_of)


def _called_for(_: Any, llm_request: Any, *__: Any, **___: Any) -> Sequence[Any] | None:
    return list(llm_request.contents) if CALL.get() is not None else None


_adds: Final = partial(Reducer, _called_for, kind="injection")
instructions: Final = reducer(_adds(policy="dynamic_instruction"))
model_input: Final = reducer(_adds(policy="model_input_context"))
#: What a tool adds to a request, before anybody has called it.
tool: Final = reducer(_adds(policy=lambda tool, **_: policy_name(tool, _PACKAGES, "Tool")))


def _filters(plugin: Any) -> bool:
    return type(plugin).__name__ == "ContextFilterPlugin"


def _settings(plugin: Any) -> Mapping[str, Any]:
    """What a filter was made with, which it holds by private names."""
    held = vars(plugin).items() if _filters(plugin) else ()
    return {name.lstrip("_"): value for name, value in held if type(value) is int}


def _why(_: Any, __: Any, plugin: Any) -> Mapping[str, Any]:
    """A filter keeps the newest invocations, unless the program says itself what it keeps."""
    own = _filters(plugin) and plugin._custom_filter is None  # noqa: SLF001  # it has no public name
    return {"reason": DecisionReason.OUTSIDE_WINDOW} if own else {}


#: What a plugin does to a request; one of ours tells itself what it does.
plugin: Final = reducer(
    Reducer(
        lambda _, *, llm_request, **__: given(llm_request),
        policy=lambda plugin: policy_name(plugin, _PACKAGES, "Plugin"),
        kind=lambda plugin: "reduction" if _filters(plugin) else None,
        config=_settings,
        said=_why,
        by=lambda plugin, **_: plugin if CALL.get() is not None and not is_ours(plugin) else None,
    )
)


def _callbacks(invocation: Any) -> Sequence[Any]:
    return getattr(invocation.agent, "canonical_before_model_callbacks", ())


def _named(_: Any, /, invocation_context: Any, *__: Any, **___: Any) -> str:
    """The name of an agent's callback, where it has one that has a name, and no other."""
    names = [policy_name(one, ()) for one in _callbacks(invocation_context)]
    return "before_model_callback" if len(names) != 1 or names[0].startswith("<") else names[0]


def _before_them(_: Any, /, invocation_context: Any, llm_request: Any, *__: Any, **___: Any) -> ClientRequest | None:
    """What an agent's callbacks are given; what plugins do is told of each of them."""
    return given(llm_request) if _callbacks(invocation_context) else None


_called_back: Final = reducer(Reducer(_before_them, policy=_named, kind=None, expected_errors=(AssemblyError,)))


@run_hook
def _for_its_call(
    instrumentation: Instrumentation, _: Any, /, invocation_context: Any, llm_request: Any, *__: Any, **___: Any
) -> ContextBoundRun | None:
    """What is done for the call that a request is for; what the request holds by now is seen first."""
    call, now = CALLS.of(llm_request), given(llm_request)
    if call is None:
        return None
    call.observe_messages(now.messages, prompts=now.prompts)
    return ContextBoundRun(instrumentation, None, {CALL: call})


def called_back(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of what asks plugins, and then the agent's callbacks, before a model is called."""
    return _for_its_call(_called_back(original, instrumentation), instrumentation)
