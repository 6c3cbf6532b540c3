"""Instrumentation of agents that exist already: what their context reducers do, as spans and metrics.

``opentelemetry-instrument python my_agent.py`` finds the instrumentors by their entry points; `instrument` does the
same from inside a program. The plug-ins, by which our policies run inside a framework, stand beside each instrumentor.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.lazy_imports import lazy_attributes, modules_of
from otel_assembly.errors import UnknownNameError

if TYPE_CHECKING:
    from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor
    from otel_assembly.instrumentation.uncaptured import Watchers

logger = logging.getLogger("otel_assembly")

#: The standard variable that switches instrumentations off, by entry point, separated by commas; ``*`` for all.
OTEL_PYTHON_DISABLED_INSTRUMENTATIONS: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"

FRAMEWORKS: Final = {
    "ag2": "AG2Instrumentor",
    "autogen": "AutoGenInstrumentor",
    "agentscope": "AgentScopeInstrumentor",
    "langchain": "LangChainInstrumentor",
    "pydantic_ai": "PydanticAIInstrumentor",
    "agent_framework": "AgentFrameworkInstrumentor",
    "openai_agents": "OpenAIAgentsInstrumentor",
    "google_adk": "GoogleADKInstrumentor",
    "strands": "StrandsInstrumentor",
    "llama_index": "LlamaIndexInstrumentor",
    "haystack": "HaystackInstrumentor",
    "semantic_kernel": "SemanticKernelInstrumentor",
}
#: What the modules here have beside this one; loaded when asked for, for a program that instruments nothing has no use
#: for any of it.
_MODULE_NAMES: Final = {
    "bound_runs": "ContextBoundRun",
    "ag2.message_causality": "CausedRun Causes reported_in_run",
    "clients": "client innermost_client_hook model_in summariser_call record_standalone_call",
    "conversation": "InvokingAgent IdentityWeakMap ConversationsByFirstMessage",
    "langchain.token_trimming": "CountedTrim trims",
    "halts": "already_reported assembled report_halt",
    "middleware_calls": (
        "MiddlewareCall MiddlewareInput MiddlewareReduction wrap_middleware "
        "middleware_exit_hook middleware_scope middleware_entry_hook reducing_middleware_hook"
    ),
    "hooks": "SubclassHook Hook HookState observe_hook observe_async_hook find in_module in_package replace_hook",
    "instrumented": "Instrumentation Patches argument context_value",
    "instrumentor": "AssemblyInstrumentor",
    "known_reducers": "ReducerSpec MadeWith behind known_of newest",
    "lazy_runs": "LazyRun",
    "agentscope.message_parts": "MessagePart MessageParts",
    "model_call": "ModelCall ClientRequest current_model_call",
    "tool_schemas": "Offered ToolSchemas offered",
    "otlp_endpoint": "hint_at_file",
    "langchain.prepared_calls": "GraphPosition GraphContext PreparedCalls PreparedOutside Where",
    "langchain.prepared_runs": "PreparedRun",
    "prompts": "PromptsInFront as_prompts in_front",
    "llama_index.memory_reads": "Read Reading ReadingRun Readings",
    "reducers": "left_for limit_of name_of policy_name settings_of without_summaries",
    "reductions": "Reducer Reduction plugin_scope reducer outer_span_hook",
    "run_calls": "SequentialCalls CallsFromSharedStart Preparing MultiCallRun",
    "runs": "TrackedStream awaited track_generator run_hook run_argument_hook",
    "openai_agents.stored_histories": "StoredHistories",
    "summaries": "Summary read_by_summariser summarises summed_up",
    "ag2.history_maintenance": "maintenance_hook",
    "ag2.views": "View unseen view",
}


def instrumentor_of(framework: str) -> AssemblyInstrumentor:
    """The instrumentor of a framework; there is one in a process.

    Raises:
        UnknownNameError: There is none of that name.
    """
    if framework not in FRAMEWORKS:
        raise UnknownNameError("framework", framework, FRAMEWORKS)
    made: AssemblyInstrumentor = __getattr__(FRAMEWORKS[framework])()
    return made


def _watch() -> Watchers:
    """What watches for model calls that nothing captures."""
    from otel_assembly.instrumentation.uncaptured import WATCH  # as the instrumentors, once it is used

    return WATCH


def instrument(*frameworks: str, **providers: Any) -> tuple[str, ...]:
    """Instrument these frameworks, or all that are installed; none of them is imported for it.

    It may be called before or after they are imported, and again. Those that
    ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS`` names (as ``otel_assembly_ag2``) are left out.

    Args:
        frameworks: ``ag2``, ``autogen``, ``agentscope``, ``langchain``, ``pydantic_ai``, ``agent_framework``,
            ``openai_agents``, ``google_adk``, ``strands``, ``llama_index``, ``haystack``, ``semantic_kernel``.
        providers: ``tracer_provider``, ``meter_provider``, ``logger_provider``, instead of the global ones.

    Returns:
        Those that are instrumented now.

    Raises:
        UnknownNameError: There is no instrumentation of that name.
    """
    disabled = {name.strip() for name in os.environ.get(OTEL_PYTHON_DISABLED_INSTRUMENTATIONS, "").split(",")}
    done = []
    if not frameworks and "*" not in disabled:  # also if no framework is installed: then it is all the more useful
        _watch().begin(instrument)
    for framework in frameworks or FRAMEWORKS:
        chosen = instrumentor_of(framework)
        if "*" in disabled or f"otel_assembly_{framework}" in disabled:
            continue
        if chosen.version is None:
            if frameworks:
                logger.warning("otel-assembly: %s is not installed: %s", framework, " or ".join(chosen.requires))
            continue
        if not chosen.is_instrumented_by_opentelemetry:
            chosen.instrument(**providers)
        if chosen.is_instrumented_by_opentelemetry:
            done.append(framework)
    return tuple(done)


def uninstrument(*frameworks: str) -> None:
    """Put everything back that was replaced, in these frameworks or in all.

    Raises:
        UnknownNameError: There is no instrumentation of that name.
    """
    if not frameworks:
        _watch().end(instrument)
    for framework in frameworks or FRAMEWORKS:
        chosen = instrumentor_of(framework)
        if chosen.is_instrumented_by_opentelemetry:
            chosen.uninstrument()


__getattr__, __dir__ = lazy_attributes(__name__, modules_of({**FRAMEWORKS, **_MODULE_NAMES}))

__all__ = [  # those that are not here are found by _HOMES
    "FRAMEWORKS",
    "AG2Instrumentor",
    "AgentFrameworkInstrumentor",
    "AgentScopeInstrumentor",
    "AssemblyInstrumentor",
    "AutoGenInstrumentor",
    "CallsFromSharedStart",
    "CausedRun",
    "Causes",
    "ClientRequest",
    "ContextBoundRun",
    "ConversationsByFirstMessage",
    "CountedTrim",
    "GoogleADKInstrumentor",
    "GraphContext",
    "GraphPosition",
    "HaystackInstrumentor",
    "Hook",
    "HookState",
    "IdentityWeakMap",
    "Instrumentation",
    "InvokingAgent",
    "LangChainInstrumentor",
    "LazyRun",
    "LlamaIndexInstrumentor",
    "MadeWith",
    "MessagePart",
    "MessageParts",
    "MiddlewareCall",
    "MiddlewareInput",
    "MiddlewareReduction",
    "ModelCall",
    "MultiCallRun",
    "Offered",
    "OpenAIAgentsInstrumentor",
    "Patches",
    "PreparedCalls",
    "PreparedOutside",
    "PreparedRun",
    "Preparing",
    "PromptsInFront",
    "PydanticAIInstrumentor",
    "Read",
    "Reading",
    "ReadingRun",
    "Readings",
    "Reducer",
    "ReducerSpec",
    "Reduction",
    "SemanticKernelInstrumentor",
    "SequentialCalls",
    "StoredHistories",
    "StrandsInstrumentor",
    "SubclassHook",
    "Summary",
    "ToolSchemas",
    "TrackedStream",
    "View",
    "Where",
    "already_reported",
    "argument",
    "as_prompts",
    "assembled",
    "awaited",
    "behind",
    "client",
    "context_value",
    "current_model_call",
    "find",
    "hint_at_file",
    "in_front",
    "in_module",
    "in_package",
    "innermost_client_hook",
    "instrument",
    "instrumentor_of",
    "known_of",
    "left_for",
    "limit_of",
    "maintenance_hook",
    "middleware_entry_hook",
    "middleware_exit_hook",
    "middleware_scope",
    "model_in",
    "name_of",
    "newest",
    "observe_async_hook",
    "observe_hook",
    "offered",
    "outer_span_hook",
    "plugin_scope",
    "policy_name",
    "read_by_summariser",
    "record_standalone_call",
    "reducer",
    "reducing_middleware_hook",
    "replace_hook",
    "report_halt",
    "reported_in_run",
    "run_argument_hook",
    "run_hook",
    "settings_of",
    "summariser_call",
    "summarises",
    "summed_up",
    "track_generator",
    "trims",
    "uninstrument",
    "unseen",
    "view",
    "without_summaries",
    "wrap_middleware",
]
