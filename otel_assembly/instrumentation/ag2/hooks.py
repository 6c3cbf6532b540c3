"""The hooks of AG2."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Hook, LazyWrappers, SubclassHook, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from otel_assembly.instrumentation.ag2 import channels, conversation, messages, reducers
    from otel_assembly.instrumentation.instrumented import Instrumentation
else:
    channels, conversation, messages, reducers = (
        LazyWrappers(f"{__package__}.{module}") for module in ("channels", "conversation", "messages", "reducers")
    )

_RELEASED: Final = ">= 1.0.0a0"
_BETA: Final = "< 1.0.0a0"
_TURNS: Final = "model calls, and asks, each as one run"


def _hooks(package: str, since: str, networks: str, named: str) -> list[Hook]:
    """The hooks of one of the two packages in which AG2's agents live: the names in them are the same.

    Versions have the package, networks of agents, and views with names and turns that are handed out as a scope.
    """
    summary, memory = "ConversationSummaryAggregate", "WorkingMemoryAggregate"
    characters = "token budgets whose characters per token are not AG2's default"
    clients = "models that are asked outside of a turn, or by a policy"
    seen = "what an agent is shown of a channel"
    causes = "turns in a channel, in the trace of their cause"
    limits, views, handlers = "middleware.builtin", "network.views.builtin", "network.client.handlers"
    return in_package(
        package,
        ("agent", "Agent._turn_scope", conversation.turn_scope, _TURNS, named),
        ("history", "History.get_events", conversation.history_read, "what a model call begins with"),
        ("config.client", "LLMClient.__call__", SubclassHook.for_method("__call__", conversation.asked), clients),
        ("assembly", "AssemblerMiddleware.on_llm_call", reducers.assembler, "the policies of assemblers"),
        ("policies.token_budget", "TokenBudgetPolicy.__init__", reducers.limited, characters),
        (f"{limits}.history_limiter", "_HistoryLimiter.on_llm_call", reducers.history_limiter, "HistoryLimiter"),
        (f"{limits}.token_limiter", "_TokenLimiter.on_llm_call", reducers.token_limiter, "TokenLimiter"),
        ("stream", "MemoryStream.send", conversation.sent, "halts"),
        ("agent", "_CompactionMiddleware.on_turn", reducers.on_turn, "users' compaction"),
        ("agent", "_AggregationMiddleware.on_turn", reducers.on_turn, "users' aggregation"),
        ("compact", "TailWindowCompact.compact SummarizeCompact.compact", reducers.compact, "compaction"),
        ("compact", "SummarizeCompact._summarize", reducers.summarize, "its model's call"),
        ("aggregate", f"{summary}.aggregate {memory}.aggregate", reducers.aggregate, "aggregation to memory"),
        ("aggregate", f"{summary}._summarize {memory}._merge", reducers.summarize, "its model's call"),
        ("network.hub.core", "Hub._dispatch", channels.dispatched, causes, networks),
        ("network.client.agent_client", "AgentClient.receive", channels.received, causes, networks),
        (views, "FullTranscript.project WindowedSummary.project", channels.project, seen, networks),
        (views, "NamedTranscript.project NamedWindowedSummary.project", channels.project, seen, named),
        (handlers, "resolve_view_policy", channels.view_policy, "users' views", networks),
        (handlers, "_render_current_input", channels.current_input, "which projections are of a history", named),
        versions=since,
    )


class AG2Instrumentor(AssemblyInstrumentor):
    """Instruments AG2."""

    framework = "ag2"
    requires = ("ag2 >= 0.12.2, < 2",)
    # Not the package itself: any folder of that name is one, and this module is imported with the real one.
    on_import: ClassVar[Mapping[str, Callable[[ModuleType, Instrumentation], None]]] = dict.fromkeys(
        ("ag2.agent", "autogen.beta.agent"), lambda module, _: messages.register(str(module.__package__))
    )
    hooks: ClassVar[tuple[Hook, ...]] = (
        *_hooks("ag2", _RELEASED, _RELEASED, _RELEASED),
        *_hooks("autogen.beta", _BETA, f">= 0.13, {_BETA}", f">= 0.14, {_BETA}"),
        Hook("autogen.beta.agent", "Agent._execute", conversation.execute, _TURNS, "< 0.14"),
    )
