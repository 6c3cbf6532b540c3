"""Runs of agents and pipelines, and in an agent's each step: what its hooks do to the messages, and the model's call.

What is hooked here is met while Haystack is imported, so that nothing of it may be imported for this.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.conversation import InvokingAgent, LedgerKey
from otel_assembly.instrumentation.haystack import generators as made
from otel_assembly.instrumentation.model_call import CALL, ClientRequest, ModelCall
from otel_assembly.instrumentation.reducers import is_ours, is_own, left_for, limit_of, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reducer, reducer
from otel_assembly.instrumentation.run_calls import Preparing
from otel_assembly.instrumentation.runs import run_hook

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.instrumentation.haystack import messages as rows
    from otel_assembly.instrumentation.instrumented import Instrumentation
else:
    rows = LazyModule(f"{__package__}.messages")

_TRACING: Final[Any] = LazyModule("haystack.tracing")
#: Haystack's tracers that open no span of OpenTelemetry's.
_UNSEEN: Final = frozenset({"NullTracer", "LoggingTracer", "DatadogTracer"})
_SUMMARIES: Final = "haystack.hooks.compaction.summarization"
#: Who asks in the run of an agent that goes on here.
_ASKER: Final[ContextVar[InvokingAgent | None]] = ContextVar("otel_assembly_haystack_asker", default=None)
#: The tool that is called here, which may be an agent.
_TOOL: Final[ContextVar[str | None]] = ContextVar("otel_assembly_haystack_tool", default=None)


def _named(name: str) -> str | None:
    """The name of a run's span; None where Haystack opens one itself."""
    return name if type(_TRACING.tracer.actual_tracer).__name__ in _UNSEEN else None


@run_hook
def run(instrumentation: Instrumentation, agent: Any, /, messages: Any = None, *_: Any, **__: Any) -> ContextBoundRun:
    """A run of an agent; who asks is known by the messages that it begins with, or goes on with."""
    name = made.component_name(agent) or _TOOL.get() or type(agent).__name__
    invoking_agent = InvokingAgent(made.OPENINGS.of(messages or (), LedgerKey()), name, name)
    return ContextBoundRun(instrumentation, _named(name), {_ASKER: invoking_agent, _TOOL: None, CALL: None})


@run_hook
def pipeline_run(instrumentation: Instrumentation, pipeline: Any, /, *_: Any, **__: Any) -> ContextBoundRun | None:
    """A run of a pipeline, if a model may be called in it."""
    name = _named(str(pipeline.metadata.get("name") or type(pipeline).__name__))
    return ContextBoundRun(instrumentation, name, {CALL: None}) if _calls_model(pipeline) else None


def _calls_model(one: Any) -> bool:
    """Whether a component calls a model, or holds one that does, as a pipeline does."""
    if hasattr(one, "graph"):
        return any(_calls_model(component) for _, component in one.graph.nodes(data="instance"))
    held = [one, *made.held_by(one)]
    asks = any(made.gives_replies(each) or made.is_agent(type(each)) for each in held)
    return asks or any(hasattr(each, "graph") and _calls_model(each) for each in held)


@run_hook
def in_tool(instrumentation: Instrumentation, tool: Any, /, **_: Any) -> ContextBoundRun:
    """A tool runs, which works for no call of the agent's; an agent that runs in it is called by its name."""
    return ContextBoundRun(instrumentation, None, {_TOOL: tool.name, CALL: None})


@run_hook
def step(instrumentation: Instrumentation, agent: Any, /, exe_context: Any, *_: Any, **__: Any) -> Preparing:
    """A step of an agent: its hooks prepare a call, which is then made; where they end the run, none is."""
    met, state, invoking_agent = type(agent.chat_generator), exe_context.state, _ASKER.get() or InvokingAgent()
    for method in ("run", "run_async"):  # of a generator that is no component
        instrumentation.take(met, method, lambda original, ours: made.call(original, met, ours))
    limits = (limit_of(hook, "context_window") for hook in agent.hooks.get("before_llm", ()))
    sent, window = _read(state), next(filter(None, limits), None)
    call = ModelCall(instrumentation, invoking_agent, messages=sent.messages, prompts=sent.prompts, window=window)

    def done(_: Any) -> None:
        """What hooks have put in front is how the conversation begins from here on."""
        made.OPENINGS.of(_read(state).messages, invoking_agent.conversation)
        call.end()

    return Preparing(instrumentation, call, returned=done)


@run_hook
def hooked(instrumentation: Instrumentation, /, hooks: Any, hook_point: str, *_: Any, **__: Any) -> ContextBoundRun:
    """Hooks run, whose classes are met here: for the call of their step, or for the next one."""
    for hook in hooks.get(hook_point, ()):
        for method in ("run", "run_async"):
            instrumentation.take(type(hook), method, _hook)
    return ContextBoundRun(instrumentation, None, {} if hook_point == "before_llm" else {CALL: None})


def _read(state: Any) -> ClientRequest:
    prompts, held = rows.behind_prompts(state.data.get("messages") or ())
    return ClientRequest(held, prompts)


def _what(hook: Any) -> Any:
    """What a hook runs: what compacts, or a function."""
    held = (getattr(hook, name, None) for name in ("compactor", "function", "async_function"))
    return next(filter(None, held), hook)


def _kind(hook: Any) -> str | None:
    reduces = hasattr(hook, "compactor") or is_own(hook, ("haystack.hooks.tool_result_offloading",))
    return "reduction" if reduces else None


def _said(before: Sequence[Any], after: Sequence[Any], hook: Any) -> Mapping[str, Any]:
    """The tokens that a compaction is to keep within, how many messages it says that it has left out, and why."""
    if not is_own(hook, ("haystack.hooks.compaction",)):
        return {}
    notes = (message.meta.get(rows.COMPACTION) for message in after)
    reported = next((number for note in notes if (number := limit_of(note, "removed_messages")) is not None), None)
    budget, summed = int(hook.context_window * hook.compact_to), is_own(_what(hook), (_SUMMARIES,))
    verdicts = left_for(before, after, lambda _: DecisionReason.COMPACTED) if summed else ()
    said = {"budget": budget, "of_prompt": True, "reported": reported, "verdicts": verdicts}
    return said if summed else {**said, "reason": DecisionReason.OVER_BUDGET}


#: What one hook of an agent does to its messages; a plug-in of ours tells itself what it does.
_hook: Final = reducer(
    Reducer(
        lambda _, state: _read(state),
        policy=lambda hook: policy_name(_what(hook), made.PACKAGES, "Hook", "Compactor"),
        kind=_kind,
        config=lambda hook: {**settings_of(hook), **settings_of(_what(hook))} if is_own(hook, made.PACKAGES) else {},
        said=_said,
        invoking_agent=lambda hook, state: _ASKER.get(),
        by=lambda hook, state: None if is_ours(hook) or _ASKER.get() is None else hook,
    )
)
