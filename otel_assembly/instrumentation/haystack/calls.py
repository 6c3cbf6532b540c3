"""Runs of agents and pipelines, and in an agent's each step: what its hooks do to the messages, and the model's call.

What is hooked here is met while Haystack is imported, so that nothing of it may be imported for this.
"""

from __future__ import annotations

from contextlib import nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.faces import Later
from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.bound_runs import BoundRun
from otel_assembly.instrumentation.conversation import Asker, LedgerKey
from otel_assembly.instrumentation.haystack.generators import (
    OPENINGS,
    PACKAGES,
    component_name,
    held_by,
    is_agent,
    meet,
    outputs_of,
)
from otel_assembly.instrumentation.hooks import around
from otel_assembly.instrumentation.model_call import CALL, ModelCall, Sent
from otel_assembly.instrumentation.reducers import is_ours, is_own, limit_of, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reducer, reducer, reducing
from otel_assembly.instrumentation.run_calls import Preparing
from otel_assembly.instrumentation.runs import within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.instrumentation.haystack import messages as rows
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
else:
    rows = Later(f"{__package__}.messages")

tracing: Any = Later("haystack.tracing")

#: Who asks in the run of an agent that goes on here.
_ASKER: Final[ContextVar[Asker | None]] = ContextVar("otel_assembly_haystack_asker", default=None)
#: The tool that is called here, which may be an agent.
_TOOL: Final[ContextVar[str | None]] = ContextVar("otel_assembly_haystack_tool", default=None)
#: Tracers of Haystack's that open no span of OpenTelemetry's.
_UNSEEN: Final = frozenset({"NullTracer", "LoggingTracer", "DatadogTracer"})


def _named(name: str) -> str | None:
    """The name of a run's span; None where Haystack opens one itself."""
    return name if type(tracing.tracer.actual_tracer).__name__ in _UNSEEN else None


@within
def run(instrumentation: Instrumentation, agent: Any, /, messages: Any = None, *_: Any, **__: Any) -> BoundRun:
    """A run of an agent; who asks is known by the messages that it begins with, or goes on with."""
    name = component_name(agent) or _TOOL.get() or type(agent).__name__
    asker = Asker(OPENINGS.of(messages or (), LedgerKey()), name, name)
    return BoundRun(instrumentation, _named(name), {_ASKER: asker, _TOOL: None, CALL: None})


@within
def pipeline_run(instrumentation: Instrumentation, pipeline: Any, /, *_: Any, **__: Any) -> BoundRun | None:
    """A run of a pipeline, if a model may be called in it."""
    name = pipeline.metadata.get("name")
    named = name if isinstance(name, str) and name else type(pipeline).__name__
    return BoundRun(instrumentation, _named(named), {CALL: None}) if _calls_model(pipeline) else None


def _calls_model(one: Any) -> bool:
    """Whether a component calls a model, holds one that does, or a pipeline with one."""
    components = getattr(getattr(one, "graph", None), "nodes", None)
    if components is not None:
        return any(_calls_model(instance) for _, instance in components(data="instance"))
    return _asks(one) or any(_asks(held) or (hasattr(held, "graph") and _calls_model(held)) for held in held_by(one))


def _asks(one: Any) -> bool:
    return "replies" in outputs_of(one) or is_agent(type(one))


@within
def in_tool(instrumentation: Instrumentation, tool: Any, /, **_: Any) -> BoundRun:
    """A tool is called: an agent that runs in it is called by its name."""
    return BoundRun(instrumentation, None, {_TOOL: tool.name})


@within
def step(instrumentation: Instrumentation, agent: Any, /, exe_context: Any, *_: Any, **__: Any) -> Preparing:
    """A step of an agent: its hooks prepare a call, which is then made; where they end the run, none is."""
    meet(instrumentation, agent.chat_generator)
    state, asker = exe_context.state, _ASKER.get() or Asker()
    sent = _read(state)
    limits = (limit_of(hook, "context_window") for hook in agent.hooks.get("before_llm", ()))
    window = next((limit for limit in limits if limit is not None), None)
    call = ModelCall(instrumentation, asker, messages=sent.messages, prompts=sent.prompts, window=window)

    def done(_: Any) -> None:
        """What hooks have put in front is how the conversation begins from here on."""
        OPENINGS.of(_read(state).messages, asker.conversation)
        call.end()

    return Preparing(instrumentation, call, returned=done)


@within
def outside(instrumentation: Instrumentation, /, *_: Any, **__: Any) -> BoundRun:
    """Tools run, which work for no call of the agent's."""
    return BoundRun(instrumentation, None, {CALL: None})


@within
def hooked(instrumentation: Instrumentation, /, hooks: Any, hook_point: str, *_: Any, **__: Any) -> BoundRun:
    """Hooks run, whose classes are met here: for the call of their step, or for the next one."""
    for hook in hooks.get(hook_point, ()):
        for method in ("run", "run_async"):
            instrumentation.take(type(hook), method, _hook)
    return BoundRun(instrumentation, None, {} if hook_point == "before_llm" else {CALL: None})


@around
def says(_: Instrumentation, /, *__: Any, **___: Any) -> Observation:
    """A compaction says what came of it on the span that it was called in, whatever a summariser has opened since."""
    reduction = reducing()
    with reduction.beneath() if reduction is not None else nullcontext():
        yield


def _read(state: Any) -> Sent:
    prompts, held = rows.behind_prompts(state.data.get("messages") or ())
    return Sent(held, prompts)


def _reduces(hook: Any, *_: Any, **__: Any) -> Any:
    return None if is_ours(hook) or _ASKER.get() is None else hook


def _what(hook: Any) -> Any:
    """What a hook runs: a function, or what compacts."""
    return getattr(hook, "compactor", None) or getattr(hook, "function", None) or getattr(hook, "async_function", hook)


def _kind(hook: Any) -> str | None:
    return (
        "reduction" if hasattr(hook, "compactor") or is_own(hook, ("haystack.hooks.tool_result_offloading",)) else None
    )


def _config(hook: Any) -> Mapping[str, Any]:
    held = [one for one in (hook, _what(hook)) if is_own(one, PACKAGES) or hasattr(hook, "compactor")]
    return {name: value for one in held for name, value in settings_of(one).items()}


def _said(_: Sequence[Any], after: Sequence[Any], hook: Any) -> Mapping[str, Any]:
    """The tokens that a compaction is to keep within, and how many messages it says that it has left out."""
    if not hasattr(hook, "compactor") or limit_of(hook, "context_window") is None:
        return {}
    notes = (message.meta.get(rows.COMPACTION) for message in after)
    removed = [note.get("removed_messages") for note in notes if isinstance(note, dict)]
    reported = next((number for number in removed if isinstance(number, int)), None)
    budget = int(hook.context_window * hook.compact_to)
    return {"budget": budget, "of_prompt": True, "reported": reported, "reason": DecisionReason.OVER_BUDGET}


#: What one hook of an agent does to its messages.
_hook: Final = reducer(
    Reducer(
        lambda _, state: _read(state),
        policy=lambda hook: policy_name(_what(hook), PACKAGES, "Hook", "Compactor"),
        kind=_kind,
        config=_config,
        said=_said,
        asker=lambda *_: _ASKER.get(),
        by=_reduces,
    )
)
