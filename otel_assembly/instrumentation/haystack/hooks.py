"""The hooks of Haystack."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Following, Wraps, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.haystack import calls, generators
else:
    calls, generators = (Wraps(f"{__package__}.{module}") for module in ("calls", "generators"))

_AGENT: Final = "components.agents.agent"
_PIPELINE: Final = "core.pipeline.pipeline"
_COMPONENT: Final = "core.component.component"
_RECEIVED: Final = "what each generator receives"


class HaystackInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Haystack: its generators, the hooks of its agents, agents, pipelines."""

    framework = "haystack"
    requires = ("haystack-ai >= 3, < 4",)
    rows: ClassVar = {"haystack": f"{__package__}.messages"}
    hooks: ClassVar = in_package(
        "haystack",
        (_COMPONENT, "ComponentMeta.run", Following("run", generators.run, generators.calls_no_model), _RECEIVED),
        (
            _COMPONENT,
            "ComponentMeta.run_async",
            Following("run_async", generators.run_async, generators.calls_no_model),
            _RECEIVED,
        ),
        (_AGENT, "Agent.run Agent.run_async", calls.run, "a run as one trace, and who asks"),
        (_AGENT, "Agent._run_step Agent._run_step_async", calls.step, "what each call of an agent holds"),
        (_AGENT, "_run_hooks _run_hooks_async", calls.hooked, "what hooks do to the messages"),
        (_AGENT, "_run_tool _run_tool_async", calls.outside, "that tools call models of their own"),
        (
            _PIPELINE,
            "Pipeline.run Pipeline.run_async_generator",
            calls.pipeline_run,
            "a run as one trace",
        ),
        (
            "hooks.compaction.hooks",
            "CompactionHook._apply",
            calls.says,
            "what compaction says on its own span",
            ">= 3.1",
        ),
        ("tools.tool", "Tool.invoke Tool.invoke_async", calls.in_tool, "the name of an agent that is a tool"),
    )
