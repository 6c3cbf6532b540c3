"""The hooks of the OpenAI Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, SubclassHook, in_module, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.openai_agents import reducers, runs
else:
    reducers, runs = (LazyWrappers(f"{__package__}.{module}") for module in ("reducers", "runs"))

_RUN: Final = "a run that has no span of its own as one trace"
_MADE: Final = "which call is made, and whether the provider holds what was said before"
_GIVEN: Final = "what a model receives"
_SESSION: Final = "what a session's limit and callback leave out"
_COMPACTION: Final = "memory.openai_responses_compaction_session"
_COMPACTED: Final = "what a session has compacted"
_CUTS: Final = SubclassHook.for_method("process_context", reducers.cuts)


class OpenAIAgentsInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of the OpenAI Agents SDK: its model calls, sessions, handoffs, filters, runs."""

    framework = "openai_agents"
    requires = ("openai-agents >= 0.12, < 1",)
    rows: ClassVar = {"agents": f"{__package__}.messages"}
    hooks: ClassVar = in_package(
        "agents",
        ("models.interface", "Model.get_response", SubclassHook("get_response", runs.get_response), _GIVEN),
        ("models.interface", "Model.stream_response", SubclassHook("stream_response", runs.stream_response), _GIVEN),
        ("run", "AgentRunner.run start_streaming", runs.run, _RUN),
        ("run", "run_single_turn", runs.turn, _RUN),
        ("run", "prepare_input_with_session", reducers.loads, _SESSION),
        ("run_internal.run_loop", "run_single_turn_streamed", runs.turn, _RUN),
        ("run_internal.run_loop", "prepare_input_with_session", reducers.loads, _SESSION),
        ("run_internal.run_loop", "maybe_filter_model_input", reducers.prepared, "who asks, and what a filter changes"),
        ("run_internal.run_loop", "get_response_with_retry stream_response_with_retry", runs.made, _MADE),
        ("run_internal.turn_resolution", "execute_handoffs", reducers.hands_off, "what a handoff leaves out"),
        (_COMPACTION, "OpenAIResponsesCompactionSession.run_compaction", reducers.compacts, _COMPACTED),
        ("sandbox.capabilities.capability", "Capability.process_context", _CUTS, "what a sandbox cuts", ">= 0.14"),
    ) + in_module(
        "openai.resources.responses.responses",
        ("AsyncResponses.compact", reducers.compaction_called, "what a provider is given to compact"),
        after="agents",
    )
