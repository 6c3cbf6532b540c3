"""Instrumentation of existing agent frameworks: records the context assembly of each model call as spans and metrics.

``opentelemetry-instrument python my_agent.py`` finds the instrumentors by their entry points; `instrument` does the
same from inside a program. Each framework has a subpackage with its instrumentor and its plug-in, which runs the
policies of this library inside the framework.
"""

from __future__ import annotations

import logging
import os
from collections import ChainMap
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.lazy_imports import lazy_attributes, modules_of
from otel_assembly.errors import UnknownNameError

if TYPE_CHECKING:
    from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor as AssemblyInstrumentor  # exported
    from otel_assembly.instrumentation.uncaptured import Watch

logger = logging.getLogger("otel_assembly")

#: The standard variable that switches instrumentations off, by entry point, separated by commas; ``*`` for all.
OTEL_PYTHON_DISABLED_INSTRUMENTATIONS: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"

#: The clients of model providers, which programs call without a framework; each with its instrumentor.
PROVIDER_CLIENTS: Final = {
    "openai": "OpenAIInstrumentor",
    "anthropic": "AnthropicInstrumentor",
    "google_genai": "GoogleGenAIInstrumentor",
    "litellm": "LiteLLMInstrumentor",
    "botocore": "BedrockInstrumentor",
    "groq": "GroqInstrumentor",
    "ollama": "OllamaInstrumentor",
    "mistralai": "MistralInstrumentor",
    "cohere": "CohereInstrumentor",
}
#: The agent frameworks whose model calls are recorded at the clients; each with its instrumentor.
CLIENT_FRAMEWORKS: Final = {
    "crewai": "CrewAIInstrumentor",
    "smolagents": "SmolagentsInstrumentor",
    "dspy": "DSPyInstrumentor",
    "agno": "AgnoInstrumentor",
}
#: The agent frameworks; each with its instrumentor.
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
#: All of these, the agent frameworks first.
INSTRUMENTORS: Final = ChainMap(PROVIDER_CLIENTS, CLIENT_FRAMEWORKS, FRAMEWORKS)
#: The names that each module of this package provides. A module is imported when one of its names is first used,
#: because a program that instruments nothing needs none of them.
_MODULE_NAMES: Final = {
    "clients": "client innermost_client_hook model_in summariser_call record_standalone_call",
    "conversation": "InvokingAgent IdentityWeakMap ConversationsByFirstMessage",
    "hooks": "SubclassHook Hook HookState observe_hook observe_async_hook find in_module in_package replace_hook",
    "instrumented": "Instrumentation Patches argument context_value",
    "instrumentor": "AssemblyInstrumentor",
    "middleware_calls": "MiddlewareCall MiddlewareReduction wrap_middleware",
    "model_call": "ModelCall ClientRequest current_model_call",
    "otlp_endpoint": "hint_at_file",
    "prompts": "as_prompts in_front",
    "reducers": "ReducerSpec known_of left_for limit_of name_of policy_name settings_of",
    "reductions": "ReducerObservation Reduction StepReport compacted_verdict plugin_scope reducer",
    "run_types": "ContextBoundRun LazyRun Preparing SequentialCalls",
    "runs": "TrackedRun TrackedStream awaited track_generator run_hook run_argument_hook",
    "tool_schemas": "ToolSchemas",
    "ag2.channels": "CausedRun Causes View reported_in_run unseen view",
    "ag2.conversation": "Offered already_reported assembled middleware_scope offered report_halt",
    "ag2.policies": "MadeWith behind newest",
    "ag2.reducers": "maintenance_hook reducing_middleware_hook without_summaries",
    "agent_framework.chat_middleware": "MiddlewareInput middleware_entry_hook middleware_exit_hook",
    "agent_framework.shared_start": "CallsFromSharedStart",
    "agentscope.message_parts": "MessagePart MessageParts",
    "client_frameworks": " ".join(CLIENT_FRAMEWORKS.values()),
    "haystack.calls": "outer_span_hook",
    "langchain.prepared_calls": "GraphPosition GraphContext PreparedCalls PreparedOutside Where",
    "langchain.reducers": "Summary summarizer_input_hook summary_hook",
    "langchain.runs": "PreparedRun",
    "langchain.trims": "CountedTrim trims",
    "litellm": "LiteLLMInstrumentor",
    "llama_index.memory_reads": "Read Reading ReadingRun Readings",
    "openai_agents.multi_call_runs": "MultiCallRun",
    "openai_agents.stored_histories": "StoredHistories",
    "provider_clients.instrumentors": " ".join({*PROVIDER_CLIENTS.values()} - {"LiteLLMInstrumentor"}),
    "pydantic_ai.prompts": "PromptsInFront",
}


def instrumentor_of(framework: str) -> AssemblyInstrumentor:
    """Return the instrumentor of a framework, of which a process has only one.

    Raises:
        UnknownNameError: No framework of that name is supported.
    """
    if framework not in INSTRUMENTORS:
        raise UnknownNameError("framework", framework, INSTRUMENTORS)
    instrumentor: AssemblyInstrumentor = __getattr__(INSTRUMENTORS[framework])()
    return instrumentor


def _watch() -> Watch:
    """Return the object that detects model calls which no instrumentor captures."""
    from otel_assembly.instrumentation.uncaptured import WATCH  # imported on first use, like the instrumentors

    return WATCH


def instrument(*frameworks: str, **providers: Any) -> tuple[str, ...]:
    """Instrument the named frameworks, or all that are installed if none is named.

    The call imports no framework, may come before or after the program's own import, and may be repeated. A framework
    is skipped if ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS`` lists it, for example as ``otel_assembly_ag2``.

    Args:
        frameworks: ``ag2``, ``autogen``, ``agentscope``, ``langchain``, ``pydantic_ai``, ``agent_framework``,
            ``openai_agents``, ``google_adk``, ``strands``, ``llama_index``, ``haystack``, ``semantic_kernel``; those
            that use the providers' clients, ``crewai``, ``smolagents``, ``dspy``, ``agno``; and these clients
            ``openai``, ``anthropic``, ``google_genai``, ``litellm``, ``botocore``, ``groq``, ``ollama``,
            ``mistralai``, ``cohere``.
        providers: ``tracer_provider``, ``meter_provider``, ``logger_provider``, instead of the global ones.

    Returns:
        The frameworks, among the named ones, that are instrumented now.

    Raises:
        UnknownNameError: No framework of that name is supported.
    """
    disabled = {name.strip() for name in os.environ.get(OTEL_PYTHON_DISABLED_INSTRUMENTATIONS, "").split(",")}
    instrumented = []
    if not frameworks and "*" not in disabled:
        # Watch for model calls that no instrumentor captures, also if no framework is installed. The key, this
        # function, stands for the call; `uninstrument()` ends it.
        _watch().begin(instrument, own_provider=bool(providers))
    for framework in frameworks or INSTRUMENTORS:
        instrumentor = instrumentor_of(framework)
        if "*" in disabled or f"otel_assembly_{framework}" in disabled:
            continue
        if instrumentor.version is None:
            if frameworks:
                logger.warning("otel-assembly: %s is not installed: %s", framework, " or ".join(instrumentor.requires))
            continue
        if not instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.instrument(**providers)
        if instrumentor.is_instrumented_by_opentelemetry:
            instrumented.append(framework)
    return tuple(instrumented)


def uninstrument(*frameworks: str) -> None:
    """Restore everything that was replaced in the named frameworks, or in all if none is named.

    Raises:
        UnknownNameError: No framework of that name is supported.
    """
    if not frameworks:
        _watch().end(instrument)
    for framework in frameworks or INSTRUMENTORS:
        instrumentor = instrumentor_of(framework)
        if instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.uninstrument()


_MODULE_OF: Final = modules_of({**FRAMEWORKS, **_MODULE_NAMES})
__getattr__, __dir__ = lazy_attributes(__name__, _MODULE_OF)

__all__ = sorted(
    {
        *_MODULE_OF,
        "CLIENT_FRAMEWORKS",
        "FRAMEWORKS",
        "INSTRUMENTORS",
        "PROVIDER_CLIENTS",
        "instrument",
        "instrumentor_of",
        "uninstrument",
    }
)
