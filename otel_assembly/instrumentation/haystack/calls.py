"""Hooks for the runs of Haystack's agents and pipelines, and for the steps of agents.

A model call of an agent begins in `Agent._run_step`, with the messages of the agent's state. Each hook of the agent
that `_run_hooks` calls can change these messages; a change is recorded as a step. The model call ends when the agent's
chat generator is called, see `generators`.

These hooks take effect while Haystack is still being imported, so this module must not import Haystack.
"""

from __future__ import annotations

from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.conversation import InvokingAgent, LedgerKey
from otel_assembly.instrumentation.haystack import generators
from otel_assembly.instrumentation.hooks import observe_hook
from otel_assembly.instrumentation.model_call import ClientRequest, ModelCall
from otel_assembly.instrumentation.reducers import is_ours, is_own, left_for, limit_of, policy_name, settings_of
from otel_assembly.instrumentation.reductions import observe_edits, reducer, reducing
from otel_assembly.instrumentation.run_types import ContextBoundRun, Preparing
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from otel_assembly.instrumentation.haystack import messages as rows
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import ReducerObservation
else:
    rows = LazyModule(f"{__package__}.messages")

_TRACING: Final[Any] = LazyModule("haystack.tracing")
#: Haystack's tracers that create no OpenTelemetry spans.
_OTHER_TRACERS: Final = frozenset({"NullTracer", "LoggingTracer", "DatadogTracer"})
_SUMMARIZATION: Final = "haystack.hooks.compaction.summarization"
#: The agent of the current run.
_INVOKING_AGENT: Final[ContextVar[InvokingAgent | None]] = ContextVar(
    "otel_assembly_haystack_invoking_agent", default=None
)
#: The name of the tool that is currently called. The tool can be an agent, which then gets this name.
_TOOL: Final[ContextVar[str | None]] = ContextVar("otel_assembly_haystack_tool", default=None)


def _span_name(name: str) -> str | None:
    """Return the name for a run's span; None if Haystack creates a span itself."""
    return name if type(_TRACING.tracer.actual_tracer).__name__ in _OTHER_TRACERS else None


@run_hook
def run(instrumentation: Instrumentation, agent: Any, /, messages: Any = None, *_: Any, **__: Any) -> ContextBoundRun:
    """Begin a run of an agent. Its conversation is found by the first message of the run."""
    name = generators.component_name(agent) or _TOOL.get() or type(agent).__name__
    invoking_agent = InvokingAgent(generators.CONVERSATIONS.of(messages or (), LedgerKey()), name, name)
    return ContextBoundRun(
        instrumentation, _span_name(name), {_INVOKING_AGENT: invoking_agent, _TOOL: None, CALL: None}
    )


@run_hook
def pipeline_run(instrumentation: Instrumentation, pipeline: Any, /, *_: Any, **__: Any) -> ContextBoundRun | None:
    """Open a span for a run of a pipeline; None if no component of the pipeline calls a model."""
    name = _span_name(str(pipeline.metadata.get("name") or type(pipeline).__name__))
    return ContextBoundRun(instrumentation, name, {CALL: None}) if _calls_model(pipeline) else None


@observe_hook
def pipeline_copy(_: Instrumentation, original: Any, /) -> Observation:
    """Hook the function by which a pipeline copies inputs: a message's copy has to find the original's conversation."""
    copies = yield
    values = [(original[key], copies[key]) for key in original] if isinstance(original, dict) else [(original, copies)]
    for messages, copied in values:
        if isinstance(copied, list) and rows.input_messages(copied):
            generators.CONVERSATIONS.of(copied, generators.CONVERSATIONS.of(messages))


def _calls_model(component: Any) -> bool:
    """Return whether a component, or one that it contains, calls a model; pipelines contain their nodes."""
    if hasattr(component, "graph"):
        return any(_calls_model(node) for _, node in component.graph.nodes(data="instance"))
    parts = [component, *generators.attribute_values(component)]
    is_caller = any(generators.returns_replies(part) or generators.is_agent(type(part)) for part in parts)
    return is_caller or any(hasattr(part, "graph") and _calls_model(part) for part in parts)


@run_hook
def tool_call(instrumentation: Instrumentation, tool: Any, /, **_: Any) -> ContextBoundRun:
    return ContextBoundRun(instrumentation, None, {_TOOL: tool.name, CALL: None})


@run_hook
def agent_step(instrumentation: Instrumentation, agent: Any, /, exe_context: Any, *_: Any, **__: Any) -> Preparing:
    """Begin the model call of an agent's step, which ends when the chat generator is called.

    A hook of the agent can end the run before that. Then the call ends with the step, and no model was called.
    """
    generator_type, state = type(agent.chat_generator), exe_context.state
    invoking_agent = _INVOKING_AGENT.get() or InvokingAgent()
    # A chat generator need not be a component, so the hook of all components does not wrap each of them.
    for method in ("run", "run_async"):
        instrumentation.wrap_once(
            generator_type,
            method,
            lambda original, instrumentation: generators.generator_hook(original, generator_type, instrumentation),
        )
    limits = (limit_of(hook, "context_window") for hook in agent.hooks.get("before_llm", ()))
    request, window = _state_request(state), next(filter(None, limits), None)
    call = ModelCall(instrumentation, invoking_agent, messages=request.messages, prompts=request.prompts, window=window)

    def step_done(_: Any) -> None:
        """Find the conversation by the first message after the step, too: a hook may have put another one in front."""
        generators.CONVERSATIONS.of(_state_request(state).messages, invoking_agent.conversation)
        call.end()

    return Preparing(instrumentation, call, returned=step_done)


@run_hook
def agent_hooks(
    instrumentation: Instrumentation, /, hooks: Any, hook_point: str, *_: Any, **__: Any
) -> ContextBoundRun:
    """Wrap the classes of an agent's hooks, which are known only now, before the hooks of one hook point run."""
    for hook in hooks.get(hook_point, ()):
        for method in ("run", "run_async"):
            instrumentation.wrap_once(type(hook), method, _hook_reducer)
    # Changes of all other hook points belong to the next model call.
    return ContextBoundRun(instrumentation, None, {} if hook_point == "before_llm" else {CALL: None})


def _state_request(state: Any) -> ClientRequest:
    prompts, messages = rows.split_prompts(state.data.get("messages") or ())
    return ClientRequest(messages, prompts)


def _observe_hook(_: Instrumentation, hook: Any, state: Any) -> ReducerObservation:
    """Record the changes of one hook of an agent. `AssemblyHook` records its own assembly and is left out."""
    if is_ours(hook) or _INVOKING_AGENT.get() is None:
        return None
    # The step has the name of the hook's compactor or function, or of the hook itself if it has neither.
    parts = (getattr(hook, name, None) for name in ("compactor", "function", "async_function"))
    part = next(filter(None, parts), hook)
    is_reducer = hasattr(hook, "compactor") or is_own(hook, ("haystack.hooks.tool_result_offloading",))
    report = StepReport(
        policy_name(part, generators.PACKAGES, "Hook", "Compactor"),
        kind="reduction" if is_reducer else None,
        config={**settings_of(hook), **settings_of(part)} if is_own(hook, generators.PACKAGES) else {},
    )
    report = yield from observe_edits(report, partial(_state_request, state))
    if not is_own(hook, ("haystack.hooks.compaction",)):
        return report
    after, summarizes = report.after or (), is_own(part, (_SUMMARIZATION,))
    # Haystack's compaction states in a note how many messages it removed.
    counts = [limit_of(message.meta.get(rows.COMPACTION), "removed_messages") for message in after]
    return replace(
        report,
        budget=int(hook.context_window * hook.compact_to),
        of_prompt=True,
        reported=next((count for count in counts if count is not None), None),
        verdicts=left_for(report.before, after, lambda _: DecisionReason.COMPACTED) if summarizes else (),
        reason=DecisionReason.POLICY if summarizes else DecisionReason.OVER_BUDGET,
    )


_hook_reducer: Final = reducer(_observe_hook, invoking_agent=lambda hook, state: _INVOKING_AGENT.get())


@observe_hook
def outer_span_hook(_: Instrumentation, /, *__: Any, **___: Any) -> Observation:
    """Wrap a function that records something about a reducer on the current span, which is not the reducer's step."""
    reduction = reducing()
    with reduction.in_outer_context() if reduction is not None else nullcontext():
        yield
