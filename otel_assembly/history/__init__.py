"""The append-only log of events, views of it, and what its items take in tokens."""

from otel_assembly.history.history import History
from otel_assembly.history.view import View

__all__ = [
    "History",
    "View",
]
