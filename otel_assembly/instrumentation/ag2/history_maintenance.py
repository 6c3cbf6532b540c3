"""The one hook for the care of a history: what is done to it between model calls, such as compaction after a turn."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.hooks import observe_any_hook
from otel_assembly.instrumentation.instrumented import context_value, on_exit
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.reductions import reduces, reducing

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ModelCall
    from otel_assembly.instrumentation.reductions import Reducer


def maintenance_hook(reads: Reducer, call_of: Callable[..., AbstractContextManager[ModelCall]]) -> Wrap:
    """The hook of a function that cares for a history, awaited or not: an assembly that no model is called with.

    Where it fails, the history stays as it was. What a reducer or another such function calls is a part of that.

    Args:
        reads: How what it does is read.
        call_of: Makes the assembly, which has a name, from the `Instrumentation` and the function's arguments; all
            that is done runs where its block does.
    """
    observe = reduces(reads)

    def cared_for(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        if reducing() is not None:
            return
        with (
            call_of(instrumentation, *args, **kwargs) as call,
            context_value(CALL, call),
            on_exit(partial(call.end, stays=True)),
        ):
            yield from observe(instrumentation, *args, **kwargs)

    return observe_any_hook(cared_for)
