"""Detects that a memory, not a model call, requests the messages of a context."""

from __future__ import annotations

import sys
from typing import Any, Final

#: The name of the AutoGen memory method that reads a context.
_ASKS: Final = "update_context"
#: The most stack frames between a memory's method and the context.
_BETWEEN: Final = 16


def asked_by_memory(context: Any) -> bool:
    """Return True if a memory's ``update_context`` is awaiting this context.

    A context does not receive its caller, so the call stack is inspected. A memory's query is not a model call and must
    not be recorded as an assembly, with or without instrumentation.

    Args:
        context: The context whose messages are requested.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # the only access to the call stack
    for _ in range(_BETWEEN):
        if frame.f_code.co_name == _ASKS and any(held is context for held in frame.f_locals.values()):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
