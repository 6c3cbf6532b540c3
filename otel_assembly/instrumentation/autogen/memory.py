"""Memories: what ``update_context`` puts into a context is an injection of the assembly that follows.

It is no assembly of its own, for no model is called for it, and neither are the queries that a memory makes of the
context. AutoGen leaves what was injected in the context: from the next assembly on it is part of what comes in. Where a
memory fails, no assembly follows, for the run fails with it: then it is the last step of one that sends nothing.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.autogen.calls import WITHIN
from otel_assembly.instrumentation.autogen.contexts import Within, stored_messages
from otel_assembly.instrumentation.autogen.conversation import Injection, begin, remember
from otel_assembly.instrumentation.wrapping import argument, bound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from otel_assembly.instrumentation.instrumentor import Instrumentation

MEMORY: Final = "memory"


def watched_memory(
    original: Callable[..., Awaitable[Any]], owner: type, instrumentation: Instrumentation
) -> Callable[..., Awaitable[Any]]:
    """``update_context`` of one class."""
    policy = MEMORY if owner.__module__.startswith(("autogen_core.", "autogen_ext.")) else owner.__name__

    @functools.wraps(original)
    async def update_context(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening() or WITHIN.get() is not None:
            return await original(self, *args, **kwargs)
        asked = _Asked(instrumentation, policy, argument(args, kwargs, 0, "model_context"))
        try:
            with bound(WITHIN, Within()):
                result = await original(self, *args, **kwargs)
        except BaseException as error:
            with instrumentation.contained():
                asked.failed(error)
            raise
        with instrumentation.contained():
            asked.answered()
        return result

    return update_context


class _Asked:
    """One memory, while it is asked to put what it has into a context."""

    def __init__(self, instrumentation: Instrumentation, policy: str, context: Any) -> None:
        self._instrumentation = instrumentation
        self._policy = policy
        self._context = context
        self._started_ns = time.time_ns()
        held = stored_messages(context)
        self._count = len(held) if held is not None else 0
        self._last = held[-1] if held else None

    def answered(self) -> None:
        """What it has put in is told by the next assembly."""
        added = self._added()
        if added:
            remember(self._context, Injection(self._policy, self._started_ns, self._count, added))

    def failed(self, error: BaseException) -> None:
        """It raised, perhaps when it had put in some of what it has."""
        held, added = stored_messages(self._context) or [], self._added()
        before = held[: len(held) - len(added)]
        assembly = begin(self._instrumentation, self._context, before, started_ns=self._started_ns)
        if assembly is None:
            return
        with assembly.step(self._policy, kind="injection", started_ns=self._started_ns) as step:
            if added:
                step.out([*before, *added])
        step.failed(error)
        assembly.end(error)

    def _added(self) -> list[Any]:
        held, count = stored_messages(self._context), self._count
        if held is None or len(held) <= count or (count and held[count - 1] is not self._last):
            return []
        return held[count:]
