"""Hooks for the runs and the model calls of Google ADK's agents.

A model call begins in `BaseLlmFlow._preprocess_async`, which prepares an `LlmRequest`. Tools (`process_llm_request`),
plugins and the agent's callbacks (`before_model_callback`) then edit the request; each edit is recorded as a step. The
model call ends when `BaseLlm.generate_content_async` receives the request.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.errors import AssemblyError
from otel_assembly.instrumentation.clients import client, in_client_call, innermost_client_hook
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.google_adk.contents import AgentCall
from otel_assembly.instrumentation.google_adk.messages import prompts_of, schemas_of
from otel_assembly.instrumentation.instrumented import has_tracer_provider
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.reducers import is_ours, known_of, policy_name
from otel_assembly.instrumentation.reductions import observe_edits, reducer
from otel_assembly.instrumentation.run_types import ContextBoundRun, SequentialCalls
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.messages.provider_rules import NO_NAMES
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly._internal.tracked_runs import TrackedRun
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import ReducerObservation
    from otel_assembly.instrumentation.run_types import Preparing

_PACKAGES: Final = ("google.adk",)
#: The model calls in preparation, found by their `LlmRequest`.
CALLS: Final = SequentialCalls()
#: By class name: True for models that forward requests to other models, whose calls are recorded instead. False for
#: models that append a user message to a request that does not end with one.
_FORWARDS_REQUESTS: Final = {"FallbackModel": True, **dict.fromkeys(("Gemini", "LiteLlm"), False)}


@run_hook
def run(
    instrumentation: Instrumentation, runner: Any, /, *_: Any, session_id: Any = None, **__: Any
) -> TrackedRun | None:
    """Open a span for a run of an agent or a workflow if no tracer provider records ADK's own spans."""
    name = getattr(runner.agent, "name", None) or runner.app_name
    return None if has_tracer_provider() else instrumentation.begin_run(name, conversation_id=session_id)


@run_hook
def flow_run(instrumentation: Instrumentation, _: Any, /, invocation_context: Any) -> TrackedRun:
    """Begin the sequence of model calls that an agent makes in one run of its flow."""
    return CALLS.run(instrumentation, invocation_context.agent.name, invocation_context.session.id)


@run_hook
def preprocess(
    instrumentation: Instrumentation, _: Any, /, invocation_context: Any, llm_request: Any, **__: Any
) -> Preparing | None:
    """Begin the model call of a request; None for a live connection, which does not send requests one by one."""
    if invocation_context.live_request_queue is not None:
        return None
    return CALLS.preparing(instrumentation, llm_request, lambda: AgentCall(instrumentation, invocation_context))


def client_request(request: Any) -> ClientRequest:
    # Not the rules of Gemini's client: in ADK's contents, tool results are already in the object that Gemini requires.
    return ClientRequest(list(request.contents), prompts_of(request), client=NO_NAMES)


def _model_request(model: Any, /, llm_request: Any, *_: Any, **__: Any) -> ClientRequest | None:
    """Return the request that a model sends; None for a model that forwards it to other models."""
    forwards = known_of(type(model), _FORWARDS_REQUESTS, _PACKAGES)
    if forwards:
        return None
    if forwards is False:  # not None, as for classes that are not in the table
        llm_request = llm_request.model_copy(update={"contents": list(llm_request.contents)})
        # The model does this itself, but only after this hook.
        model._maybe_append_user_content(llm_request)  # noqa: SLF001  # has no public name
    name = llm_request.model or model.model
    return client_request(llm_request)._replace(tools=schemas_of(llm_request), model=name)


def _call_of(instrumentation: Instrumentation, _: Any, /, llm_request: Any, *__: Any, **___: Any) -> TrackedRun | None:
    """Return the model call that a request was prepared for; None inside a client whose call is already recorded.

    A request that a program built itself is a separate model call, even inside another one: `CALL` is cleared for it.
    """
    return None if in_client_call() else CALLS.of(llm_request) or ContextBoundRun(instrumentation, None, {CALL: None})


def _response_text(response: Any) -> str | None:
    if response.partial or response.content is None:
        return None  # the complete response repeats the text of a part
    return "".join(part.text or "" for part in response.content.parts or ())


#: The hook of `BaseLlm.generate_content_async`, streamed or not, in each class of models.
client_called: Final = innermost_client_hook(
    "generate_content_async", _model_request, chunk_text=_response_text, prepared=_call_of
)
#: The hook of `CompletionsHTTPClient.generate_content_async`, which an Apigee model calls; it is no `BaseLlm`.
completions: Final = client(_model_request, chunk_text=_response_text, prepared=_call_of)


def _observe_injection(
    policy: str, _: Instrumentation, source: Any, llm_request: Any, *__: Any, **___: Any
) -> ReducerObservation:
    """Record the contents that a function, or without a `policy` the tool `source`, adds to a request."""
    if CALL.get() is None:
        return None
    report = StepReport(policy or policy_name(source, _PACKAGES, "Tool"), llm_request.contents, kind="injection")
    yield report
    return replace(report, after=list(llm_request.contents))


instructions: Final = reducer(partial(_observe_injection, "dynamic_instruction"))
model_input: Final = reducer(partial(_observe_injection, "model_input_context"))
#: The hook of `BaseTool.process_llm_request`: a tool adds contents to a request before the model can call it.
tool_request: Final = reducer(partial(_observe_injection, ""))


@reducer
def plugin_callback(_: Instrumentation, plugin: Any, *, llm_request: Any, **__: Any) -> ReducerObservation:
    """The hook of `before_model_callback` of each plugin. `AssemblyPlugin` records its own assembly and is left out."""
    if CALL.get() is None or is_ours(plugin):
        return None
    report = StepReport(policy_name(plugin, _PACKAGES, "Plugin"), kind=None)
    if type(plugin).__name__ == "ContextFilterPlugin":
        settings = {name.lstrip("_"): value for name, value in vars(plugin).items() if type(value) is int}
        report = replace(report, kind="reduction", config=settings)
        if plugin._custom_filter is None:  # noqa: SLF001  # has no public name; by default, the newest messages are kept
            report = replace(report, reason=DecisionReason.OUTSIDE_WINDOW)
    return (yield from observe_edits(report, partial(client_request, llm_request)))


def _observe_agent_callbacks(
    _: Instrumentation, __: Any, /, invocation_context: Any, llm_request: Any, *___: Any, **____: Any
) -> ReducerObservation:
    callbacks = getattr(invocation_context.agent, "canonical_before_model_callbacks", ())
    names = [policy_name(callback, (), lambda_name="before_model_callback") for callback in callbacks]
    if not names:
        return None
    name = names[0] if len(names) == 1 else "before_model_callback"
    return (yield from observe_edits(StepReport(name, kind=None), partial(client_request, llm_request)))


_agent_callbacks: Final = reducer(_observe_agent_callbacks, expected_errors=(AssemblyError,))


@run_hook
def _bind_call(
    instrumentation: Instrumentation, _: Any, /, invocation_context: Any, llm_request: Any, *__: Any, **___: Any
) -> ContextBoundRun | None:
    """Set a request's model call as the current one; first record changes to the request that no hook observed."""
    call, request = CALLS.of(llm_request), client_request(llm_request)
    if call is None:
        return None
    call.observe_messages(request.messages, prompts=request.prompts)
    return ContextBoundRun(instrumentation, None, {CALL: call})


def before_model_callbacks(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Hook the function that runs the plugins' callbacks, and then the agent's, before a model is called."""
    return _bind_call(_agent_callbacks(original, instrumentation), instrumentation)
