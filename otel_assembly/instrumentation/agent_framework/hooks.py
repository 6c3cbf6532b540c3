"""The hooks of agent-framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Following, Hook, Wraps, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.agent_framework import calls, reducers
else:
    calls, reducers = (Wraps(f"{__package__}.{module}") for module in ("calls", "reducers"))

_INNER: Final = "_inner_get_response"
_AROUND: Final = "PerServiceCallHistoryPersistingMiddleware"
_RUN: Final = "a run that has no span of the framework's as one trace"


class AgentFrameworkInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Microsoft's agent-framework: its model calls, compaction, providers, runs."""

    framework = "agent_framework"
    requires = ("agent-framework-core >= 1.11, < 2",)
    hooks: ClassVar[tuple[Hook, ...]] = (
        *in_module(
            "agent_framework._clients",
            ("BaseChatClient.get_response", calls.call, "model calls"),
            (f"BaseChatClient.{_INNER}", Following(_INNER, calls.inner_client), "what each class of clients is given"),
            ("BaseChatClient._prepare_messages_for_model_call", reducers.compaction, "what a strategy leaves out"),
        ),
        *in_module(
            "agent_framework._middleware",
            ("ChatMiddlewareLayer.get_response", calls.handing, "what middleware edits"),
            ("AgentMiddlewareLayer.run", calls.run, _RUN),
        ),
        *in_module(
            "agent_framework._agents",
            ("RawAgent.run", calls.run, _RUN),
            ("RawAgent._prepare_run_context", calls.prepares, "what providers leave out"),
            ("RawAgent._call_chat_client", calls.calls_client, "the agent's name and its session"),
        ),
        *in_module(
            "agent_framework._compaction",
            ("CompactionProvider.before_run", reducers.before_run, "what a provider leaves out"),
            ("CompactionProvider.after_run", reducers.after_run, "what a provider changes in what is stored"),
        ),
        *in_module(
            "agent_framework._sessions",
            ("InMemoryHistoryProvider.get_messages", reducers.skips_excluded, "what a store leaves out"),
            (f"{_AROUND}._prepare_service_call_context", calls.loads, "what is loaded around each call"),
        ),
        Hook("agent_framework._workflows._workflow", "Workflow._run_core", calls.run, _RUN),
        Hook("agent_framework._workflows._functional", "FunctionalWorkflow._run_core", calls.run, _RUN),
    )
    rows: ClassVar = {"agent_framework": f"{__package__}.messages"}
