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
    "bound_runs": "BoundRun",
    "causes": "CausedRun Causes reported_in_run",
    "clients": "client innermost model_in summariser_call tell_alone",
    "conversation": "Asker ByIdentity Openings",
    "counted_trims": "CountedTrim trims",
    "halts": "already_reported assembled report_halt",
    "handing_on": "GoingOn Handed MiddlewareReduction going_on handed_to handling hands reduces_and_hands_on",
    "hooks": "Following Hook HookState around around_awaited find in_module in_package instead",
    "instrumented": "Instrumentation Patches argument bound",
    "instrumentor": "AssemblyInstrumentor",
    "known_reducers": "KnownReducer MadeWith behind known_of newest",
    "late_runs": "LateRun",
    "message_parts": "MessagePart MessageParts",
    "model_call": "ModelCall Sent current_model_call",
    "offered_tools": "Offered ToolSchemas offered",
    "otlp_endpoint": "hint_at_file",
    "prepared_calls": "Place Places PreparedCalls PreparedOutside Where",
    "prepared_runs": "PreparedRun",
    "prompts": "PromptsInFront as_prompts in_front",
    "readings": "Read Reading ReadingRun Readings",
    "reducers": "left_for limit_of name_of policy_name settings_of unsummed",
    "reductions": "Reducer Reduction plugged_in reducer says_beneath",
    "run_calls": "CallsInTurn CallsOfOneStart Preparing RunOfCalls",
    "runs": "Steps awaited stepping within within_argument",
    "stored_histories": "StoredHistories",
    "summaries": "Summary read_by_summariser summarises summed_up",
    "upkeep": "keeps_up",
    "views": "View unseen view",
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
    "Asker",
    "AssemblyInstrumentor",
    "AutoGenInstrumentor",
    "BoundRun",
    "ByIdentity",
    "CallsInTurn",
    "CallsOfOneStart",
    "CausedRun",
    "Causes",
    "CountedTrim",
    "Following",
    "GoingOn",
    "GoogleADKInstrumentor",
    "Handed",
    "HaystackInstrumentor",
    "Hook",
    "HookState",
    "Instrumentation",
    "KnownReducer",
    "LangChainInstrumentor",
    "LateRun",
    "LlamaIndexInstrumentor",
    "MadeWith",
    "MessagePart",
    "MessageParts",
    "MiddlewareReduction",
    "ModelCall",
    "Offered",
    "OpenAIAgentsInstrumentor",
    "Openings",
    "Patches",
    "Place",
    "Places",
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
    "Reduction",
    "RunOfCalls",
    "SemanticKernelInstrumentor",
    "Sent",
    "Steps",
    "StoredHistories",
    "StrandsInstrumentor",
    "Summary",
    "ToolSchemas",
    "View",
    "Where",
    "already_reported",
    "argument",
    "around",
    "around_awaited",
    "as_prompts",
    "assembled",
    "awaited",
    "behind",
    "bound",
    "client",
    "current_model_call",
    "find",
    "going_on",
    "handed_to",
    "handling",
    "hands",
    "hint_at_file",
    "in_front",
    "in_module",
    "in_package",
    "innermost",
    "instead",
    "instrument",
    "instrumentor_of",
    "keeps_up",
    "known_of",
    "left_for",
    "limit_of",
    "model_in",
    "name_of",
    "newest",
    "offered",
    "plugged_in",
    "policy_name",
    "read_by_summariser",
    "reducer",
    "reduces_and_hands_on",
    "report_halt",
    "reported_in_run",
    "says_beneath",
    "settings_of",
    "stepping",
    "summariser_call",
    "summarises",
    "summed_up",
    "tell_alone",
    "trims",
    "uninstrument",
    "unseen",
    "unsummed",
    "view",
    "within",
    "within_argument",
]
