"""The hooks of AG2."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_assembly.instrumentation.hooks import Hook, Wraps, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from otel_assembly.instrumentation.ag2 import compaction, conversation, reducers, runs
    from otel_assembly.instrumentation.instrumented import Instrumentation
else:
    compaction, conversation, reducers, runs = (
        Wraps(f"{__package__}.{module}") for module in ("compaction", "conversation", "reducers", "runs")
    )

_RELEASED: Final = ">= 1.0.0a0"
_BETA: Final = "< 1.0.0a0"


def _hooks(package: str, versions: str, networks: str, named: str) -> tuple[Hook, ...]:
    """The hooks of one of the two packages in which AG2's agents live: the names in them are the same.

    Args:
        package: ``ag2`` or ``autogen.beta``.
        versions: The versions that have the package.
        networks: Of those, the ones that have networks of agents.
        named: Of those, the ones that have views with names, and render the message that asks for a turn by the view.
    """
    of_summary = "the model call of a summarising compaction"
    of_aggregation = "the model call of an aggregation"
    limits = "token budgets whose characters per token are not AG2's default"

    def of(module: str, *rows: Any, versions: str = versions) -> list[Hook]:
        return in_module(f"{package}.{module}", *rows, versions=versions)

    return (
        *of("assembly", ("AssemblerMiddleware.on_llm_call", reducers.assembler, "the policies of assemblers")),
        *of("policies.token_budget", ("TokenBudgetPolicy.__init__", reducers.limited, limits)),
        *of(
            "middleware.builtin.history_limiter",
            ("_HistoryLimiter.on_llm_call", reducers.history_limiter, "HistoryLimiter"),
        ),
        *of("middleware.builtin.token_limiter", ("_TokenLimiter.on_llm_call", reducers.token_limiter, "TokenLimiter")),
        *of("stream", ("MemoryStream.send", partial(conversation.halts, package), "halts")),
        *of(
            "agent",
            ("_execute_turn", runs.execute_turn, "an ask as one trace"),
            ("_CompactionMiddleware.on_turn", compaction.compaction_turn, "users' compaction"),
            ("_AggregationMiddleware.on_turn", compaction.aggregation_turn, "users' aggregation"),
        ),
        *of(
            "compact",
            ("TailWindowCompact.compact", compaction.compact, "compaction to a tail"),
            ("SummarizeCompact.compact", compaction.compact, "compaction to a summary"),
            ("SummarizeCompact._summarize", compaction.summarize, of_summary),
        ),
        *of(
            "aggregate",
            ("ConversationSummaryAggregate.aggregate", compaction.aggregate, "aggregation to memory"),
            ("ConversationSummaryAggregate._summarize", compaction.summarize, of_aggregation),
            ("WorkingMemoryAggregate.aggregate", compaction.aggregate, "aggregation to memory"),
            ("WorkingMemoryAggregate._merge", compaction.summarize, of_aggregation),
        ),
        *of(
            "network.views.builtin",
            *(
                (f"{view}.project", runs.project, f"{view} of a channel", since)
                for view, since in (
                    ("FullTranscript", networks),
                    ("WindowedSummary", networks),
                    ("NamedTranscript", named),
                    ("NamedWindowedSummary", named),
                )
            ),
        ),
        *of(
            "network.client.handlers",
            ("resolve_view_policy", runs.view_policy, "users' views", networks),
            ("_render_current_input", runs.current_input, "which projections are of a history", named),
        ),
    )


def _imported(package: str, module: ModuleType, instrumentation: Instrumentation) -> None:
    """AG2 is there: how its events are read is registered."""
    from otel_assembly.instrumentation.ag2.messages import register

    register(package)


class AG2Instrumentor(AssemblyInstrumentor):
    """Instruments AG2."""

    framework = "ag2"
    requires = ("ag2 >= 0.12.2, < 2",)
    # Not the package itself: any folder of that name is one, and this module is imported with the real one.
    on_import: ClassVar[Mapping[str, Callable[[ModuleType, Instrumentation], None]]] = {
        f"{package}.agent": partial(_imported, package) for package in ("ag2", "autogen.beta")
    }
    hooks: ClassVar[tuple[Hook, ...]] = (
        *_hooks("ag2", _RELEASED, _RELEASED, _RELEASED),
        Hook("ag2.agent", "Agent._turn_scope", runs.turn_scope, "asks, each as one run", _RELEASED),
        *_hooks("autogen.beta", _BETA, f">= 0.13, {_BETA}", f">= 0.14, {_BETA}"),
        Hook("autogen.beta.agent", "Agent._turn_scope", runs.turn_scope, "asks, each as one run", f">= 0.14, {_BETA}"),
        Hook("autogen.beta.agent", "Agent._execute", runs.execute, "asks, each as one run", "< 0.14"),
    )
