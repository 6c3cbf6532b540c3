"""Detects that an AutoGen memory, not a model call, reads the messages of a context."""

from __future__ import annotations

import sys
from typing import Any, Final

#: The name of the AutoGen memory method that reads a context.
_MEMORY_METHOD: Final = "update_context"
#: The most stack frames between a memory's method and the context.
_MAX_FRAMES: Final = 16


def is_memory_on_stack(context: Any) -> bool:
    """Return True if an ``update_context`` method of a memory is reading the messages of this context.

    The call stack is inspected, because AutoGen passes no information about the caller. A read by a memory is not a
    model call and must not be recorded as an assembly.

    Args:
        context: The model context whose messages are read.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # the only access to the call stack
    for _ in range(_MAX_FRAMES):
        if frame.f_code.co_name == _MEMORY_METHOD and any(value is context for value in frame.f_locals.values()):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
