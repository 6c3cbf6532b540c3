"""Whether it is a memory that asks a context, and no model: what it is told is a query, and no assembly."""

from __future__ import annotations

import sys
from typing import Any, Final

#: What a memory does with a context, by the name that AutoGen gives it.
_ASKS: Final = "update_context"
#: So many functions may stand between a memory and the context that it asks.
_BETWEEN: Final = 16


def asked_by_memory(context: Any) -> bool:
    """Whether an ``update_context`` that was given this context awaits its answer.

    A context is told nothing of who asks it. What awaits the answer is looked at, instrumented or not, so that both
    tell of the same assemblies.

    Args:
        context: The context that is asked.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # the interpreter's
    for _ in range(_BETWEEN):
        if frame.f_code.co_name == _ASKS and any(held is context for held in frame.f_locals.values()):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
