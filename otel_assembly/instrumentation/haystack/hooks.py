"""The hooks of Haystack."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, in_module, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation import reductions
    from otel_assembly.instrumentation.haystack import calls, generators
else:
    calls, generators = (LazyWrappers(f"{__package__}.{module}") for module in ("calls", "generators"))
    reductions = LazyWrappers("otel_assembly.instrumentation.reductions")

_AGENT: Final = "components.agents.agent"
_COMPACTION: Final = "hooks.compaction.hooks"
_PIPELINE: Final = "core.pipeline.pipeline"


class HaystackInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Haystack: its generators, the hooks of its agents, agents, pipelines."""

    framework = "haystack"
    requires = ("haystack-ai >= 3, < 4",)
    rows: ClassVar = {"haystack": f"{__package__}.messages"}
    hooks: ClassVar = [
        *in_module(
            "haystack.core.component.component",
            ("ComponentMeta.run ComponentMeta.run_async", generators.call, "what each generator receives"),
            followed=generators.calls_no_model,
        ),
        *in_module(
            "haystack.tools.tool",
            ("Tool.invoke Tool.invoke_async", calls.in_tool, "that tools call models of their own"),
            followed=True,
        ),
        *in_package(
            "haystack",
            (_AGENT, "Agent.run Agent.run_async", calls.run, "a run as one trace, and who asks"),
            (_AGENT, "Agent._run_step Agent._run_step_async", calls.step, "what each call of an agent holds"),
            (_AGENT, "_run_hooks _run_hooks_async", calls.hooked, "what hooks do to the messages"),
            (
                _COMPACTION,
                "CompactionHook._apply",
                reductions.outer_span_hook,
                "what it says on its own span",
                ">= 3.1",
            ),
            (_PIPELINE, "Pipeline.run Pipeline.run_async_generator", calls.pipeline_run, "a run as one trace"),
        ),
    ]
