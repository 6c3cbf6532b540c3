"""The table of hooks for AG2, and AG2's instrumentor.

The hooks wrap turns (`Agent._turn_scope`), reads of the history, policies, limiters, compaction, aggregation, the
clients of models, and the views and envelopes of networks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Hook, LazyWrappers, SubclassHook, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.ag2 import channels, conversation, messages, policies, reducers
    from otel_assembly.instrumentation.client_frameworks import agents
    from otel_assembly.instrumentation.client_frameworks import reducers as transforms
else:
    channels, conversation, messages, policies, reducers = (
        LazyWrappers(f"{__package__}.{module}")
        for module in ("channels", "conversation", "messages", "policies", "reducers")
    )
    agents, transforms = (
        LazyWrappers(f"otel_assembly.instrumentation.client_frameworks.{module}") for module in ("agents", "reducers")
    )

_RELEASED: Final = ">= 1.0.0a0"
_BETA: Final = "< 1.0.0a0"
_TURNS: Final = "model calls and agent runs"
#: The older agents of the package `autogen`, whose model calls are recorded at the clients.
_RUNS: Final = "names and runs of `ConversableAgent`"
_TRANSFORMS: Final = "contrib.capabilities.transform_messages"
_TRANSFORM: Final = "TransformMessages._transform_messages"


def _hooks(package: str, versions: str, network_versions: str, scope_versions: str) -> list[Hook]:
    """Return the hooks of ``ag2`` or ``autogen.beta``, which define the same names.

    The versions are specifiers of AG2: those that have the package, those with networks of agents, and those with
    `Agent._turn_scope` and with views that have names of participants.
    """
    summary, memory = "ConversationSummaryAggregate", "WorkingMemoryAggregate"
    standalone_call = SubclassHook.for_method("__call__", conversation.standalone_call)
    limiters, agent_client = "middleware.builtin", "network.client.agent_client"
    views, handlers = "network.views.builtin", "network.client.handlers"
    named_views = "NamedTranscript.project NamedWindowedSummary.project"
    view_of_channel, cause_of_turn = "agents' views of channels", "the cause of a turn in a channel"
    messages_of_channel = "the messages that an agent gets from a channel"
    return in_package(
        package,
        # module, functions, hook, what would not be recorded without it, versions if not those of the package
        ("agent", "Agent._turn_scope", conversation.turn_scope, _TURNS, scope_versions),
        ("history", "History.get_events", conversation.history_read, "the input of model calls"),
        ("config.client", "LLMClient.__call__", standalone_call, "model calls outside of turns, or by policies"),
        ("assembly", "AssemblerMiddleware.on_llm_call", reducers.assembler_middleware, "your own policies"),
        ("policies.token_budget", "TokenBudgetPolicy.__init__", policies.token_budget_init, "limits of token budgets"),
        (f"{limiters}.history_limiter", "_HistoryLimiter.on_llm_call", reducers.history_limiter, "HistoryLimiter"),
        (f"{limiters}.token_limiter", "_TokenLimiter.on_llm_call", reducers.token_limiter, "TokenLimiter"),
        ("stream", "MemoryStream.send", conversation.stream_send, "halts"),
        ("agent", "_CompactionMiddleware.on_turn", reducers.on_turn, "your own compaction strategies"),
        ("agent", "_AggregationMiddleware.on_turn", reducers.on_turn, "your own aggregation strategies"),
        ("compact", "TailWindowCompact.compact SummarizeCompact.compact", reducers.compact, "compaction"),
        ("compact", "SummarizeCompact._summarize", reducers.summarize, "model calls of compaction"),
        ("aggregate", f"{summary}.aggregate {memory}.aggregate", reducers.aggregate, "aggregation into memory"),
        ("aggregate", f"{summary}._summarize {memory}._merge", reducers.summarize, "model calls of aggregation"),
        ("network.hub.core", "Hub._dispatch", channels.hub_dispatch, cause_of_turn, network_versions),
        (agent_client, "AgentClient.receive", channels.client_receive, cause_of_turn, network_versions),
        (views, "FullTranscript.project WindowedSummary.project", channels.project, view_of_channel, network_versions),
        (views, named_views, channels.project, view_of_channel, scope_versions),
        (handlers, "resolve_view_policy", channels.view_policy, "your own views", network_versions),
        (handlers, "_render_current_input", channels.current_input, messages_of_channel, scope_versions),
        versions=versions,
    )


class AG2Instrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of AG2: model calls, policies, compaction, aggregation, networks, halts."""

    framework = "ag2"
    requires = ("ag2 >= 0.12.2, < 2",)
    # Not the package: a folder of the program can also be named `ag2`, but does not contain this module.
    on_import: ClassVar = dict.fromkeys(
        ("ag2.agent", "autogen.beta.agent"), lambda module, _: messages.register(str(module.__package__))
    )
    hooks: ClassVar = (
        *_hooks("ag2", _RELEASED, _RELEASED, _RELEASED),
        *_hooks("autogen.beta", _BETA, f">= 0.13, {_BETA}", f">= 0.14, {_BETA}"),
        Hook("autogen.beta.agent", "Agent._execute", conversation.execute, _TURNS, "< 0.14"),
        *in_package(
            "autogen.agentchat",
            ("conversable_agent", "ConversableAgent.generate_reply", agents.ag2_run, _RUNS),
            ("conversable_agent", "ConversableAgent.a_generate_reply", agents.ag2_run, _RUNS),
            ("conversable_agent", "ConversableAgent.initiate_chat", agents.ag2_run, _RUNS),
            ("conversable_agent", "ConversableAgent.a_initiate_chat", agents.ag2_run, _RUNS),
            ("conversable_agent", "ConversableAgent._generate_oai_reply_from_client", agents.ag2_client, _RUNS),
            (_TRANSFORMS, _TRANSFORM, transforms.transform_messages, "transforms of `ConversableAgent`"),
            versions=_BETA,
        ),
    )
