"""What runs around the assembler: the stream of events, who watches it, and the halt."""

from otel_assembly.runtime.monitors import BudgetMonitor, LoopDetector, TokenMonitor
from otel_assembly.runtime.observers import Attachment, Observer, attach
from otel_assembly.runtime.stream import EventIterator, NestedSendError, Stream, Subscription

__all__ = [
    "Attachment",
    "BudgetMonitor",
    "EventIterator",
    "LoopDetector",
    "NestedSendError",
    "Observer",
    "Stream",
    "Subscription",
    "TokenMonitor",
    "attach",
]
