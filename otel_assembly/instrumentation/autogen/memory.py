"""Memories: what ``update_context`` puts into a context is an injection of the assembly that follows.

It is no assembly of its own, for no model is called for it, and neither are the queries that a memory makes of the
context. AutoGen leaves what was injected in the context: from the next assembly on it is part of what comes in.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.autogen.calls import WITHIN
from otel_assembly.instrumentation.autogen.contexts import Within, is_same, stored_messages
from otel_assembly.instrumentation.wrapping import ByIdentity, argument, bound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from otel_assembly.instrumentation.instrumentor import Instrumentation

MEMORY: Final = "memory"


@dataclass(frozen=True, slots=True)
class _Injection:
    policy: str
    started_ns: int
    at: int
    messages: list[Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """One memory's injection, between two states of a context.

    Attributes:
        policy: The name of its step.
        started_ns: When the memory was asked.
        before: The messages without it, and without those that came after it.
        after: The messages with it.
    """

    policy: str
    started_ns: int
    before: Sequence[Any]
    after: Sequence[Any]


_PENDING: Final[ByIdentity[list[_Injection]]] = ByIdentity()


def watched_memory(
    original: Callable[..., Awaitable[Any]], owner: type, instrumentation: Instrumentation
) -> Callable[..., Awaitable[Any]]:
    """``update_context`` of one class."""
    policy = MEMORY if owner.__module__.startswith(("autogen_core.", "autogen_ext.")) else owner.__name__

    @functools.wraps(original)
    async def update_context(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening() or WITHIN.get() is not None:
            return await original(self, *args, **kwargs)
        context = argument(args, kwargs, 0, "model_context")
        started_ns = time.time_ns()
        stored = stored_messages(context)
        before = len(stored) if stored is not None else 0
        last = stored[-1] if stored else None
        with bound(WITHIN, Within()):
            result = await original(self, *args, **kwargs)
        with instrumentation.contained():
            held = stored_messages(context)
            if held is not None and len(held) > before and (not before or held[before - 1] is last):
                _remember(context, _Injection(policy, started_ns, before, held[before:]))
        return result

    return update_context


def _remember(context: Any, injection: _Injection) -> None:
    held = _PENDING.get(context)
    if held is None:
        held = _PENDING.put(context, [])
    held.append(injection)


def injections_of(context: Any, events: Sequence[Any]) -> list[Stage]:
    """What memories put into a context since its last assembly, as far as it still stands where they put it."""
    found = [one for one in _PENDING.pop(context) or () if _stands(one, events)]
    stages: list[Stage] = []
    after = list(events)
    for one in reversed(found):
        before = [*after[: one.at], *after[one.at + len(one.messages) :]]
        stages.append(Stage(one.policy, one.started_ns, before, after))
        after = before
    return stages[::-1]


def _stands(injection: _Injection, events: Sequence[Any]) -> bool:
    there = events[injection.at : injection.at + len(injection.messages)]
    return is_same(there, injection.messages)
