"""What runs around the assembler: the stream of events, its observers, and the halt."""

from otel_assembly.runtime.model_client import ModelClient
from otel_assembly.runtime.monitors import BudgetMonitor, LoopDetector, TokenMonitor
from otel_assembly.runtime.observers import MAX_TIMEOUTS, Attachment, Observer, attach
from otel_assembly.runtime.stream import MAX_NESTED_SENDS, EventIterator, NestedSendError, Stream, Subscription

__all__ = [
    "MAX_NESTED_SENDS",
    "MAX_TIMEOUTS",
    "Attachment",
    "BudgetMonitor",
    "EventIterator",
    "LoopDetector",
    "ModelClient",
    "NestedSendError",
    "Observer",
    "Stream",
    "Subscription",
    "TokenMonitor",
    "attach",
]
