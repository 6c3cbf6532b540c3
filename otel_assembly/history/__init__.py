"""The append-only log of a conversation's events, views of it, and the tokens of its items."""

from otel_assembly.history.history import History
from otel_assembly.history.view import View

__all__ = [
    "History",
    "View",
]
