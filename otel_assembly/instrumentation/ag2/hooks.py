"""The hooks of AG2."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Following, Hook, Wraps
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from otel_assembly.instrumentation.ag2 import channels, compaction, conversation, messages, reducers
    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
else:
    channels, compaction, conversation, messages, reducers = (
        Wraps(f"{__package__}.{module}")
        for module in ("channels", "compaction", "conversation", "messages", "reducers")
    )

_RELEASED: Final = ">= 1.0.0a0"
_BETA: Final = "< 1.0.0a0"
_TURNS: Final = "model calls, and asks, each as one run"


def _hooks(package: str, since: str, networks: str, named: str) -> list[Hook]:
    """The hooks of one of the two packages in which AG2's agents live: the names in them are the same.

    Args:
        package: ``ag2`` or ``autogen.beta``.
        since: The versions that have the package.
        networks: Of those, the ones that have networks of agents.
        named: Of those, the ones that have views with names, and turns that are handed out as a scope.
    """
    summary, memory = "ConversationSummaryAggregate", "WorkingMemoryAggregate"
    characters = "token budgets whose characters per token are not AG2's default"
    clients = "models that are asked outside of a turn, or by a policy"
    seen = "what an agent is shown of a channel"
    causes = "turns in a channel, in the trace of their cause"
    limits, views, handlers = "middleware.builtin", "network.views.builtin", "network.client.handlers"
    rows: tuple[tuple[str, str, Wrap | Following, str, str], ...] = (
        ("agent", "Agent._turn_scope", conversation.turn_scope, _TURNS, named),
        ("history", "History.get_events", conversation.history_read, "what a model call begins with", since),
        ("config.client", "LLMClient.__call__", Following("__call__", conversation.asked), clients, since),
        ("assembly", "AssemblerMiddleware.on_llm_call", reducers.assembler, "the policies of assemblers", since),
        ("policies.token_budget", "TokenBudgetPolicy.__init__", reducers.limited, characters, since),
        (f"{limits}.history_limiter", "_HistoryLimiter.on_llm_call", reducers.history_limiter, "HistoryLimiter", since),
        (f"{limits}.token_limiter", "_TokenLimiter.on_llm_call", reducers.token_limiter, "TokenLimiter", since),
        ("stream", "MemoryStream.send", conversation.sent, "halts", since),
        ("agent", "_CompactionMiddleware.on_turn", compaction.on_turn, "users' compaction", since),
        ("agent", "_AggregationMiddleware.on_turn", compaction.on_turn, "users' aggregation", since),
        ("compact", "TailWindowCompact.compact SummarizeCompact.compact", compaction.compact, "compaction", since),
        ("compact", "SummarizeCompact._summarize", compaction.summarize, "its model's call", since),
        ("aggregate", f"{summary}.aggregate {memory}.aggregate", compaction.aggregate, "aggregation to memory", since),
        ("aggregate", f"{summary}._summarize {memory}._merge", compaction.summarize, "its model's call", since),
        ("network.hub.core", "Hub._dispatch", channels.dispatched, causes, networks),
        ("network.client.agent_client", "AgentClient.receive", channels.received, causes, networks),
        (views, "FullTranscript.project WindowedSummary.project", channels.project, seen, networks),
        (views, "NamedTranscript.project NamedWindowedSummary.project", channels.project, seen, named),
        (handlers, "resolve_view_policy", channels.view_policy, "users' views", networks),
        (handlers, "_render_current_input", channels.current_input, "which projections are of a history", named),
    )
    return [
        Hook(f"{package}.{module}", target, wrap, gives, versions)
        for module, targets, wrap, gives, versions in rows
        for target in targets.split()
    ]


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
