"""otel-assembly: observe, bound and explain the context of an AI agent's model calls, through OpenTelemetry.

This module has the names that most programs need. Each other public name is imported from the module that owns it, for
example `otel_assembly.errors`, `otel_assembly.events`, `otel_assembly.budget` or `otel_assembly.telemetry`.

Names are imported on first use, so that an instrumented process pays only for what it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal import current_recorder as _current_recorder
from otel_assembly._internal.lazy_imports import modules_of as _modules_of
from otel_assembly._version import __version__

if TYPE_CHECKING:
    from otel_assembly.assembler import Assembler
    from otel_assembly.assembly import Assembly
    from otel_assembly.bounded_clients import bounded
    from otel_assembly.budget.allocator import allocate, allocate_async
    from otel_assembly.budget.block import Block, BlockItem
    from otel_assembly.context import Context
    from otel_assembly.context_assembler.assembler import ContextAssembler
    from otel_assembly.context_assembler.candidates import Task
    from otel_assembly.conversation_state import HaltGuard, on_halt
    from otel_assembly.decision import DecisionReason, Verdict
    from otel_assembly.errors import AssemblyError, ConfigurationError, ContextOverflowError, HaltedError
    from otel_assembly.events import (
        HaltEvent,
        ModelRequest,
        ModelResponse,
        ObserverAlert,
        Severity,
        ToolCallEvent,
        ToolResultEvent,
    )
    from otel_assembly.history.history import History
    from otel_assembly.instrumentation import instrument, uninstrument
    from otel_assembly.instrumentation.provider_clients import conversation, record_reduction
    from otel_assembly.messages.event_facts import EventFacts, describe
    from otel_assembly.policies import (
        AlertPolicy,
        AssemblyPolicy,
        BudgetPolicy,
        ConversationPolicy,
        DecidingPolicy,
        EpisodicMemoryPolicy,
        HeadAndTailPolicy,
        SlidingWindowPolicy,
        TokenBudgetPolicy,
        WorkingMemoryPolicy,
        validate_order,
    )
    from otel_assembly.runtime import AnthropicModel, Observer, OpenAIModel, attach, to_anthropic, to_openai
    from otel_assembly.runtime.agent import Agent
    from otel_assembly.runtime.middleware import MiddlewareBase
    from otel_assembly.runtime.tools import Tool
    from otel_assembly.telemetry import configure, invoke_agent
    from otel_assembly.telemetry.recorder import OpenTelemetryRecorder
    from otel_assembly.tokens import TokenCounter, counter_for

__all__ = [
    "Agent",
    "AlertPolicy",
    "AnthropicModel",
    "Assembler",
    "Assembly",
    "AssemblyError",
    "AssemblyPolicy",
    "Block",
    "BlockItem",
    "BudgetPolicy",
    "ConfigurationError",
    "Context",
    "ContextAssembler",
    "ContextOverflowError",
    "ConversationPolicy",
    "DecidingPolicy",
    "DecisionReason",
    "EpisodicMemoryPolicy",
    "EventFacts",
    "HaltEvent",
    "HaltGuard",
    "HaltedError",
    "HeadAndTailPolicy",
    "History",
    "MiddlewareBase",
    "ModelRequest",
    "ModelResponse",
    "Observer",
    "ObserverAlert",
    "OpenAIModel",
    "OpenTelemetryRecorder",
    "Severity",
    "SlidingWindowPolicy",
    "Task",
    "TokenBudgetPolicy",
    "TokenCounter",
    "Tool",
    "ToolCallEvent",
    "ToolResultEvent",
    "Verdict",
    "WorkingMemoryPolicy",
    "__version__",
    "allocate",
    "allocate_async",
    "attach",
    "bounded",
    "configure",
    "conversation",
    "counter_for",
    "describe",
    "instrument",
    "invoke_agent",
    "on_halt",
    "record_reduction",
    "to_anthropic",
    "to_openai",
    "uninstrument",
    "validate_order",
]

#: The modules that define these names.
_NAMES: Final = {
    "assembler": "Assembler",
    "assembly": "Assembly",
    "bounded_clients": "bounded",
    "budget.allocator": "allocate allocate_async",
    "budget.block": "Block BlockItem",
    "context": "Context",
    "context_assembler.assembler": "ContextAssembler",
    "context_assembler.candidates": "Task",
    "conversation_state": "HaltGuard on_halt",
    "decision": "DecisionReason Verdict",
    "errors": "AssemblyError ConfigurationError ContextOverflowError HaltedError",
    "events": "HaltEvent ModelRequest ModelResponse ObserverAlert Severity ToolCallEvent ToolResultEvent",
    "history.history": "History",
    "instrumentation": "instrument uninstrument",
    "instrumentation.provider_clients": "conversation record_reduction",
    "messages.event_facts": "EventFacts describe",
    "policies": (
        "AlertPolicy AssemblyPolicy BudgetPolicy ConversationPolicy DecidingPolicy EpisodicMemoryPolicy "
        "HeadAndTailPolicy SlidingWindowPolicy TokenBudgetPolicy WorkingMemoryPolicy validate_order"
    ),
    "runtime": "AnthropicModel Observer OpenAIModel attach to_anthropic to_openai",
    "runtime.agent": "Agent",
    "runtime.middleware": "MiddlewareBase",
    "runtime.tools": "Tool",
    "telemetry": "configure invoke_agent",
    "telemetry.recorder": "OpenTelemetryRecorder",
    "tokens": "TokenCounter counter_for",
}
_MODULES: Final = _modules_of(_NAMES)


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


def _new_recorder() -> Any:
    return __getattr__("OpenTelemetryRecorder")()


def _record_halt(*halt: Any) -> None:
    import_module(f"{__name__}.telemetry.recorder").halted(*halt)


def _record_resume(guard: Any) -> None:
    import_module(f"{__name__}.telemetry.recorder").resumed(guard)


_current_recorder.set_default_recorder(_new_recorder)
_current_recorder.halt_listeners.append(_record_halt)
_current_recorder.resume_listeners.append(_record_resume)
