"""The hooks of Haystack: which of its functions are wrapped, and what their wrappers record."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, in_module, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.haystack import calls, generators
else:
    calls, generators = (LazyWrappers(f"{__package__}.{module}") for module in ("calls", "generators"))

_AGENT: Final = "components.agents.agent"
_COMPACTION: Final = "hooks.compaction.hooks"
_ATTRIBUTES: Final = "attributes that compaction sets on Haystack's own span"
_COMPONENTS: Final = "ComponentMeta.run ComponentMeta.run_async"
_STEP: Final = "Agent._run_step Agent._run_step_async"
_PIPELINE: Final = "core.pipeline.pipeline"


class HaystackInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Haystack: its generators, the hooks of its agents, agents, pipelines."""

    framework = "haystack"
    requires = ("haystack-ai >= 3, < 4",)
    rows: ClassVar = {"haystack": f"{__package__}.messages"}
    hooks: ClassVar = [
        *in_module(
            "haystack.core.component.component",
            (_COMPONENTS, generators.generator_hook, "requests that generators receive"),
            followed=generators.is_no_generator,
        ),
        *in_module(
            "haystack.tools.tool",
            ("Tool.invoke Tool.invoke_async", calls.tool_call, "model calls inside tools, as separate assemblies"),
            followed=True,
        ),
        *in_package(
            "haystack",
            (_AGENT, "Agent.run Agent.run_async", calls.run, "runs as one trace, and the invoking agent"),
            (_AGENT, _STEP, calls.agent_step, "the messages of an agent's model calls"),
            (_AGENT, "_run_hooks _run_hooks_async", calls.agent_hooks, "changes that hooks make to the messages"),
            (_COMPACTION, "CompactionHook._apply", calls.outer_span_hook, _ATTRIBUTES, ">= 3.1"),
            *(
                (module, "_deepcopy_with_exceptions", calls.pipeline_copy, "conversations of messages that are copied")
                for module in (_PIPELINE, "core.pipeline.base")
            ),
            (_PIPELINE, "Pipeline.run Pipeline.run_async_generator", calls.pipeline_run, "runs as one trace"),
        ),
    ]
