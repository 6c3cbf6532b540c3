"""otel-assembly: see, bound and explain what an agent's model gets to see, through OpenTelemetry.

The public names, one screen: everything else is private to the package, or has a module of its own
(`otel_assembly.telemetry`, `otel_assembly.testing`). A name's module is imported when the name is first asked for:
whoever instruments a program pays in each of its processes for what that process uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal import current_recorder as _current_recorder
from otel_assembly._internal.faces import homes as _homes
from otel_assembly._version import __version__

if TYPE_CHECKING:
    from otel_assembly.assembler import Assembler
    from otel_assembly.assembly import Assembly
    from otel_assembly.budget.allocation import Allocation, BlockDecision, ItemDecision
    from otel_assembly.budget.allocator import allocate, allocate_async
    from otel_assembly.budget.attempt import Attempt, CompactionOutcome
    from otel_assembly.budget.block import Block, BlockItem, Cut
    from otel_assembly.budget.compact_model import ModelCompactor
    from otel_assembly.budget.compact_turns import compact_history, compact_history_async
    from otel_assembly.budget.compacted_block import CompactedBlock
    from otel_assembly.budget.compaction import Compactors
    from otel_assembly.budget.extractive import ExtractiveCompactor
    from otel_assembly.budget.ordering import OrderedPrompt, order_for_attention_and_cache
    from otel_assembly.context import Context
    from otel_assembly.context_assembler.assembler import AssembledContext, ContextAssembler
    from otel_assembly.context_assembler.candidates import Candidate, Recall, Retriever, Task
    from otel_assembly.context_assembler.queued_gate import QueuedWriteGate
    from otel_assembly.context_assembler.retention import (
        KnowledgeRecall,
        KnowledgeWriteGate,
        Proposal,
        Retained,
        RetentionOutcome,
        WriteGate,
    )
    from otel_assembly.conversation import HaltGuard, on_halt
    from otel_assembly.decision import (
        Decision,
        DecisionOutcome,
        DecisionReason,
        Outcome,
        Overflow,
        OverflowCause,
        Verdict,
    )
    from otel_assembly.errors import (
        AccessDeniedError,
        AdapterError,
        AssemblyError,
        CompactionError,
        ConfigurationError,
        ContextOverflowError,
        DescribeError,
        HaltedError,
        InboxFull,
        KnowledgeConflictError,
        KnowledgeError,
        KnowledgePathError,
        KnowledgeStoreError,
        LogConflictError,
        LogDamagedError,
        LogRegressed,
        LogUnavailableError,
        LogUnsureError,
        MiddlewareError,
        ModelCallError,
        ModelContextLengthError,
        NetworkError,
        NotFoundError,
        PolicyContractError,
        PolicyError,
        PolicyFailedError,
        ProtocolError,
        RenderError,
        SessionError,
        SessionLogError,
        SourceFailedError,
        StructuredOutputError,
        TokenizerError,
        ToolError,
        TranscriptError,
        UnknownNameError,
    )
    from otel_assembly.events import (
        AggregationCompleted,
        AggregationFailed,
        AssemblyCompleted,
        CompactionSummary,
        ConfirmResult,
        ConversationResumed,
        Event,
        ExternalExecutionResultEvent,
        HaltEvent,
        ModelRequest,
        ModelResponse,
        ObserverAlert,
        ObserverCompleted,
        ObserverStarted,
        ResponseChunk,
        Severity,
        Thinking,
        ToolCallEvent,
        ToolErrorEvent,
        ToolResultEvent,
        ToolResultsEvent,
        TurnCompleted,
        TurnStarted,
        Usage,
        UsageEvent,
        UserConfirmResultEvent,
        event_from_json,
        event_to_json,
    )
    from otel_assembly.history.history import History
    from otel_assembly.history.view import View
    from otel_assembly.instrumentation import instrument, uninstrument
    from otel_assembly.knowledge import (
        AggregateTrigger,
        ConversationSummaryAggregate,
        DiskKnowledgeStore,
        KnowledgeStore,
        MemoryKnowledgeStore,
        RedisKnowledgeStore,
        SqliteKnowledgeStore,
        WorkingMemoryAggregate,
    )
    from otel_assembly.ledger.figures import Breakpoints, Prefix, Totals
    from otel_assembly.messages.describe import EventFacts, EventKind, ToolCallFacts, describe
    from otel_assembly.policies import (
        AlertPolicy,
        AssemblyPolicy,
        BudgetPolicy,
        ConversationPolicy,
        DecidingPolicy,
        EpisodicMemoryPolicy,
        HeadAndTailPolicy,
        PolicyLimit,
        SlidingWindowPolicy,
        TokenBudgetPolicy,
        WorkingMemoryPolicy,
        validate_order,
    )
    from otel_assembly.runtime import (
        AggregateObserver,
        AnthropicModel,
        BudgetMonitor,
        LoopDetector,
        ModelClient,
        Observer,
        OpenAIModel,
        Stream,
        TokenMonitor,
        attach,
        to_anthropic,
        to_openai,
    )
    from otel_assembly.runtime.agent import Agent
    from otel_assembly.runtime.assembler_middleware import AssemblerMiddleware
    from otel_assembly.runtime.mcp_tools import mcp_tools
    from otel_assembly.runtime.middleware import MiddlewareBase, PermissionDecision
    from otel_assembly.runtime.session import Session
    from otel_assembly.runtime.tools import Tool
    from otel_assembly.telemetry import configure, invoke_agent
    from otel_assembly.telemetry.recorder import OpenTelemetryRecorder
    from otel_assembly.telemetry.tracing_middleware import TracingMiddleware
    from otel_assembly.tokens import (
        CalibratedCounter,
        CharacterCounter,
        FastTiktokenCounter,
        MessageFraming,
        TiktokenCounter,
        TokenCounter,
        TokenMeter,
        counter_for,
    )

__all__ = [
    "AccessDeniedError",
    "AdapterError",
    "Agent",
    "AggregateObserver",
    "AggregateTrigger",
    "AggregationCompleted",
    "AggregationFailed",
    "AlertPolicy",
    "Allocation",
    "AnthropicModel",
    "AssembledContext",
    "Assembler",
    "AssemblerMiddleware",
    "Assembly",
    "AssemblyCompleted",
    "AssemblyError",
    "AssemblyPolicy",
    "Attempt",
    "Block",
    "BlockDecision",
    "BlockItem",
    "Breakpoints",
    "BudgetMonitor",
    "BudgetPolicy",
    "CalibratedCounter",
    "Candidate",
    "CharacterCounter",
    "CompactedBlock",
    "CompactionError",
    "CompactionOutcome",
    "CompactionSummary",
    "Compactors",
    "ConfigurationError",
    "ConfirmResult",
    "Context",
    "ContextAssembler",
    "ContextOverflowError",
    "ConversationPolicy",
    "ConversationResumed",
    "ConversationSummaryAggregate",
    "Cut",
    "DecidingPolicy",
    "Decision",
    "DecisionOutcome",
    "DecisionReason",
    "DescribeError",
    "DiskKnowledgeStore",
    "EpisodicMemoryPolicy",
    "Event",
    "EventFacts",
    "EventKind",
    "ExternalExecutionResultEvent",
    "ExtractiveCompactor",
    "FastTiktokenCounter",
    "HaltEvent",
    "HaltGuard",
    "HaltedError",
    "HeadAndTailPolicy",
    "History",
    "InboxFull",
    "ItemDecision",
    "KnowledgeConflictError",
    "KnowledgeError",
    "KnowledgePathError",
    "KnowledgeRecall",
    "KnowledgeStore",
    "KnowledgeStoreError",
    "KnowledgeWriteGate",
    "LogConflictError",
    "LogDamagedError",
    "LogRegressed",
    "LogUnavailableError",
    "LogUnsureError",
    "LoopDetector",
    "MemoryKnowledgeStore",
    "MessageFraming",
    "MiddlewareBase",
    "MiddlewareError",
    "ModelCallError",
    "ModelClient",
    "ModelCompactor",
    "ModelContextLengthError",
    "ModelRequest",
    "ModelResponse",
    "NetworkError",
    "NotFoundError",
    "Observer",
    "ObserverAlert",
    "ObserverCompleted",
    "ObserverStarted",
    "OpenAIModel",
    "OpenTelemetryRecorder",
    "OrderedPrompt",
    "Outcome",
    "Overflow",
    "OverflowCause",
    "PermissionDecision",
    "PolicyContractError",
    "PolicyError",
    "PolicyFailedError",
    "PolicyLimit",
    "Prefix",
    "Proposal",
    "ProtocolError",
    "QueuedWriteGate",
    "Recall",
    "RedisKnowledgeStore",
    "RenderError",
    "ResponseChunk",
    "Retained",
    "RetentionOutcome",
    "Retriever",
    "Session",
    "SessionError",
    "SessionLogError",
    "Severity",
    "SlidingWindowPolicy",
    "SourceFailedError",
    "SqliteKnowledgeStore",
    "Stream",
    "StructuredOutputError",
    "Task",
    "Thinking",
    "TiktokenCounter",
    "TokenBudgetPolicy",
    "TokenCounter",
    "TokenMeter",
    "TokenMonitor",
    "TokenizerError",
    "Tool",
    "ToolCallEvent",
    "ToolCallFacts",
    "ToolError",
    "ToolErrorEvent",
    "ToolResultEvent",
    "ToolResultsEvent",
    "Totals",
    "TracingMiddleware",
    "TranscriptError",
    "TurnCompleted",
    "TurnStarted",
    "UnknownNameError",
    "Usage",
    "UsageEvent",
    "UserConfirmResultEvent",
    "Verdict",
    "View",
    "WorkingMemoryAggregate",
    "WorkingMemoryPolicy",
    "WriteGate",
    "__version__",
    "allocate",
    "allocate_async",
    "attach",
    "compact_history",
    "compact_history_async",
    "configure",
    "counter_for",
    "describe",
    "event_from_json",
    "event_to_json",
    "instrument",
    "invoke_agent",
    "mcp_tools",
    "on_halt",
    "order_for_attention_and_cache",
    "to_anthropic",
    "to_openai",
    "uninstrument",
    "validate_order",
]

#: The modules that have these names.
_NAMES: Final = {
    "assembler": "Assembler",
    "assembly": "Assembly",
    "budget.allocation": "Allocation BlockDecision ItemDecision",
    "budget.allocator": "allocate allocate_async",
    "budget.attempt": "Attempt CompactionOutcome",
    "budget.block": "Block BlockItem Cut",
    "budget.compact_model": "ModelCompactor",
    "budget.compact_turns": "compact_history compact_history_async",
    "budget.compacted_block": "CompactedBlock",
    "budget.compaction": "Compactors",
    "budget.extractive": "ExtractiveCompactor",
    "budget.ordering": "OrderedPrompt order_for_attention_and_cache",
    "context": "Context",
    "context_assembler.assembler": "AssembledContext ContextAssembler",
    "context_assembler.candidates": "Candidate Recall Retriever Task",
    "context_assembler.queued_gate": "QueuedWriteGate",
    "context_assembler.retention": "KnowledgeRecall KnowledgeWriteGate Proposal Retained RetentionOutcome WriteGate",
    "conversation": "HaltGuard on_halt",
    "decision": "Decision DecisionOutcome DecisionReason Outcome Overflow OverflowCause Verdict",
    "errors": (
        "AccessDeniedError AdapterError AssemblyError CompactionError ConfigurationError ContextOverflowError "
        "DescribeError HaltedError InboxFull KnowledgeConflictError KnowledgeError KnowledgePathError "
        "KnowledgeStoreError LogConflictError LogDamagedError LogRegressed LogUnavailableError LogUnsureError "
        "MiddlewareError ModelCallError ModelContextLengthError NetworkError NotFoundError PolicyContractError "
        "PolicyError PolicyFailedError ProtocolError RenderError SessionError SessionLogError SourceFailedError "
        "StructuredOutputError TokenizerError ToolError TranscriptError UnknownNameError"
    ),
    "events": (
        "AggregationCompleted AggregationFailed AssemblyCompleted CompactionSummary ConfirmResult "
        "ConversationResumed Event ExternalExecutionResultEvent HaltEvent ModelRequest ModelResponse "
        "ObserverAlert ObserverCompleted ObserverStarted ResponseChunk Severity Thinking ToolCallEvent ToolErrorEvent "
        "ToolResultEvent ToolResultsEvent TurnCompleted TurnStarted Usage UsageEvent UserConfirmResultEvent "
        "event_from_json event_to_json"
    ),
    "history.history": "History",
    "history.view": "View",
    "instrumentation": "instrument uninstrument",
    "knowledge": (
        "AggregateTrigger ConversationSummaryAggregate DiskKnowledgeStore KnowledgeStore MemoryKnowledgeStore "
        "RedisKnowledgeStore SqliteKnowledgeStore WorkingMemoryAggregate"
    ),
    "ledger.figures": "Breakpoints Prefix Totals",
    "messages.describe": "EventFacts EventKind ToolCallFacts describe",
    "policies": (
        "AlertPolicy AssemblyPolicy BudgetPolicy ConversationPolicy DecidingPolicy EpisodicMemoryPolicy "
        "HeadAndTailPolicy PolicyLimit SlidingWindowPolicy TokenBudgetPolicy WorkingMemoryPolicy validate_order"
    ),
    "runtime": (
        "AggregateObserver AnthropicModel BudgetMonitor LoopDetector ModelClient Observer OpenAIModel Stream "
        "TokenMonitor attach to_anthropic to_openai"
    ),
    "runtime.agent": "Agent",
    "runtime.assembler_middleware": "AssemblerMiddleware",
    "runtime.mcp_tools": "mcp_tools",
    "runtime.middleware": "MiddlewareBase PermissionDecision",
    "runtime.session": "Session",
    "runtime.tools": "Tool",
    "telemetry": "configure invoke_agent",
    "telemetry.recorder": "OpenTelemetryRecorder",
    "telemetry.tracing_middleware": "TracingMiddleware",
    "tokens": (
        "CalibratedCounter CharacterCounter FastTiktokenCounter MessageFraming TiktokenCounter TokenCounter "
        "TokenMeter counter_for"
    ),
}
_MODULES: Final = _homes(_NAMES)


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is not None:
        value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
        return value
    if not name.startswith("_"):
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _recorder() -> Any:
    return __getattr__("OpenTelemetryRecorder")()


def _halted(*closed: Any) -> None:
    import_module(f"{__name__}.telemetry.recorder").halted(*closed)


def _resumed(guard: Any) -> None:
    import_module(f"{__name__}.telemetry.recorder").resumed(guard)


_current_recorder.set_default_recorder(_recorder)
_current_recorder.halt_listeners.append(_halted)
_current_recorder.resume_listeners.append(_resumed)
