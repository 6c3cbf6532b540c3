"""The hooks of agent-framework."""

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
_RUN: Final = "a run that has no span of the framework's as one trace"


class AgentFrameworkInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Microsoft's agent-framework: its model calls, compaction, providers, runs."""

    framework = "agent_framework"
    requires = ("agent-framework-core >= 1.11, < 2",)
    rows: ClassVar = {"agent_framework": f"{__package__}.messages"}
    hooks: ClassVar = in_package(
        "agent_framework",
        ("_clients", "BaseChatClient.get_response", calls.call, "model calls"),
        ("_clients", f"BaseChatClient.{_INNER}", SubclassHook(_INNER, calls.inner_client), "what each client is given"),
        ("_clients", _COMPACTED, calls.compaction, "what a strategy leaves out"),
        ("_middleware", "ChatMiddlewareLayer.get_response", calls.handing, "what middleware edits"),
        ("_middleware", "AgentMiddlewareLayer.run", calls.run, _RUN),
        ("_agents", "RawAgent.run", calls.run, _RUN),
        ("_agents", "RawAgent._prepare_run_context", calls.prepares, "what providers leave out"),
        ("_agents", "RawAgent._call_chat_client", calls.calls_client, "the agent's name and its session"),
        ("_compaction", "CompactionProvider.before_run", calls.before_run, "what a provider leaves out"),
        ("_compaction", "CompactionProvider.after_run", calls.after_run, "what it changes in what is stored"),
        ("_sessions", "InMemoryHistoryProvider.get_messages", calls.skips_excluded, "what a store leaves out"),
        ("_sessions", _PER_CALL, calls.loads, "what is loaded around each call"),
        ("_workflows._workflow", "Workflow._run_core", calls.run, _RUN),
        ("_workflows._functional", "FunctionalWorkflow._run_core", calls.run, _RUN),
    )
