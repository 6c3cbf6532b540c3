"""The table of hooks for agent-framework, and its instrumentor.

The hooks wrap runs of agents and workflows, chat clients (`BaseChatClient`), chat middleware, compaction strategies and
history providers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, SubclassHook, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.agent_framework import calls
else:
    calls = LazyWrappers(f"{__package__}.calls")

_INNER: Final = "_inner_get_response"
_COMPACTED: Final = "BaseChatClient._prepare_messages_for_model_call"
_PER_CALL: Final = "PerServiceCallHistoryPersistingMiddleware._prepare_service_call_context"
_RUN: Final = "runs without a span of the framework"


class AgentFrameworkInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Microsoft's agent-framework: model calls, compaction, providers, runs."""

    framework = "agent_framework"
    requires = ("agent-framework-core >= 1.11, < 2",)
    rows: ClassVar = {"agent_framework": f"{__package__}.messages"}
    hooks: ClassVar = in_package(
        "agent_framework",
        ("_clients", "BaseChatClient.get_response", calls.call, "model calls"),
        ("_clients", f"BaseChatClient.{_INNER}", SubclassHook(_INNER, calls.inner_client), "requests to the model"),
        ("_clients", _COMPACTED, calls.compaction, "compaction before each model call"),
        ("_middleware", "ChatMiddlewareLayer.get_response", calls.middleware_entry, "edits by middleware"),
        ("_middleware", "AgentMiddlewareLayer.run", calls.run, _RUN),
        ("_agents", "RawAgent.run", calls.run, _RUN),
        ("_agents", "RawAgent._prepare_run_context", calls.run_preparation, "reductions by providers"),
        ("_agents", "RawAgent._call_chat_client", calls.model_rounds, "the agent's name and session"),
        ("_compaction", "CompactionProvider.before_run", calls.before_run, "compaction before a run"),
        ("_compaction", "CompactionProvider.after_run", calls.after_run, "compaction of the stored history"),
        ("_sessions", "InMemoryHistoryProvider.get_messages", calls.skips_excluded, "messages that a store leaves out"),
        ("_sessions", _PER_CALL, calls.loaded_history, "history that is loaded for each model call"),
        ("_workflows._workflow", "Workflow._run_core", calls.run, _RUN),
        ("_workflows._functional", "FunctionalWorkflow._run_core", calls.run, _RUN),
    )
