"""The table of the SDK's functions that are instrumented.

Hooks wrap the functions that run an agent (``AgentRunner.run``, ``run_single_turn``), the functions that change the
input of a model (sessions, handoffs, filters, sandbox capabilities), and ``get_response`` and ``stream_response`` of
models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, SubclassHook, in_module, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.openai_agents import reducers, runs
else:
    reducers, runs = (LazyWrappers(f"{__package__}.{module}") for module in ("reducers", "runs"))

_RUNS: Final = "runs, as one span each if no other tracer records them"
_REQUEST_MODE: Final = "whether the provider stores the earlier items of a call"
_REQUESTS: Final = "items, instructions and tools of each model call"
_FILTER: Final = "the invoking agent, and changes by a filter"
_HANDOFFS: Final = "items dropped or changed by a handoff"
_LOOP: Final = "run_internal.run_loop"
_SESSION: Final = "items dropped or changed by a session's limit and callback"
_COMPACTION_MODULE: Final = "memory.openai_responses_compaction_session"
_COMPACTION: Final = "items compacted by a session"
_SANDBOX: Final = "sandbox.capabilities.capability"
_CAPABILITIES: Final = SubclassHook.for_method("process_context", reducers.process_context)


class OpenAIAgentsInstrumentor(AssemblyInstrumentor):
    """Records context assembly in the OpenAI Agents SDK: model calls, sessions, handoffs, filters and runs."""

    framework = "openai_agents"
    requires = ("openai-agents >= 0.12, < 1",)
    rows: ClassVar = {"agents": f"{__package__}.messages"}
    hooks: ClassVar = in_package(
        "agents",
        ("models.interface", "Model.get_response", SubclassHook("get_response", runs.get_response), _REQUESTS),
        ("models.interface", "Model.stream_response", SubclassHook("stream_response", runs.stream_response), _REQUESTS),
        ("run", "AgentRunner.run start_streaming", runs.run, _RUNS),
        ("run", "run_single_turn", runs.turn, _RUNS),
        ("run", "prepare_input_with_session", reducers.prepare_input, _SESSION),
        (_LOOP, "run_single_turn_streamed", runs.turn, _RUNS),
        (_LOOP, "prepare_input_with_session", reducers.prepare_input, _SESSION),
        (_LOOP, "maybe_filter_model_input", reducers.filter_input, _FILTER),
        (_LOOP, "get_response_with_retry stream_response_with_retry", runs.resume_call, _REQUEST_MODE),
        ("run_internal.turn_resolution", "execute_handoffs", reducers.execute_handoffs, _HANDOFFS),
        (_COMPACTION_MODULE, "OpenAIResponsesCompactionSession.run_compaction", reducers.run_compaction, _COMPACTION),
        (_SANDBOX, "Capability.process_context", _CAPABILITIES, "changes by sandbox capabilities", ">= 0.14"),
    ) + in_module(
        "openai.resources.responses.responses",
        ("AsyncResponses.compact", reducers.compaction_request, "compaction requests to the provider"),
        after="agents",
    )
