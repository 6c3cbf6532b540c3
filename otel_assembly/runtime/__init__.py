"""The agent runtime: `Agent`, sessions, event streams, observers, middlewares and model clients."""

from otel_assembly.messages.provider_rules import NO_RESULT_YET
from otel_assembly.runtime.agent import Agent
from otel_assembly.runtime.aggregation import AggregateObserver
from otel_assembly.runtime.anthropic_messages import to_anthropic
from otel_assembly.runtime.anthropic_model import AnthropicModel
from otel_assembly.runtime.assembler_middleware import AssemblerMiddleware
from otel_assembly.runtime.mcp_client import mcp_tools
from otel_assembly.runtime.middleware import MiddlewareBase, PermissionDecision
from otel_assembly.runtime.model_client import ModelClient
from otel_assembly.runtime.monitors import BudgetMonitor, LoopDetector, TokenMonitor
from otel_assembly.runtime.observers import MAX_TIMEOUTS, Attachment, Observer, attach
from otel_assembly.runtime.openai_messages import to_openai
from otel_assembly.runtime.openai_model import OpenAIModel
from otel_assembly.runtime.session import Session, UnfinishedCalls
from otel_assembly.runtime.stream import MAX_NESTED_SENDS, EventIterator, NestedSendError, Stream, Subscription
from otel_assembly.runtime.tools import Tool

__all__ = [
    "MAX_NESTED_SENDS",
    "MAX_TIMEOUTS",
    "NO_RESULT_YET",
    "Agent",
    "AggregateObserver",
    "AnthropicModel",
    "AssemblerMiddleware",
    "Attachment",
    "BudgetMonitor",
    "EventIterator",
    "LoopDetector",
    "MiddlewareBase",
    "ModelClient",
    "NestedSendError",
    "Observer",
    "OpenAIModel",
    "PermissionDecision",
    "Session",
    "Stream",
    "Subscription",
    "TokenMonitor",
    "Tool",
    "UnfinishedCalls",
    "attach",
    "mcp_tools",
    "to_anthropic",
    "to_openai",
]
