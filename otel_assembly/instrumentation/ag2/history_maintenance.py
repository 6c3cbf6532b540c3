"""Creates the hooks for work on a history between model calls, such as compaction after a turn."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.hooks import observe_hook
from otel_assembly.instrumentation.instrumented import context_value, on_exit
from otel_assembly.instrumentation.reductions import observe_reducer, reducing

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ModelCall
    from otel_assembly.instrumentation.reductions import ReducerObservation


def maintenance_hook(
    observe: Callable[..., ReducerObservation],
    call_of: Callable[..., AbstractContextManager[ModelCall]],
    *,
    always: bool = False,
) -> Wrap:
    """Return the hook of a function that works on a history; each call is recorded as an assembly.

    The function can be sync or async. The assembly has one step and is not followed by a model call. If the function
    raises, the assembly's output is the unchanged history. A call that is made by a reducer is not recorded: it is part
    of that reducer's step.

    Args:
        observe: Observes the function, as for `reducer`.
        call_of: Returns a context manager for the assembly, from the `Instrumentation` and the function's arguments.
            The function runs in its block.
        always: True to record a step even if the function changed nothing; otherwise only a metric counts that.
    """
    observation = observe_reducer(observe, always=always)

    def observe_maintenance(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        if reducing() is not None:
            return
        with (
            call_of(instrumentation, *args, **kwargs) as call,
            context_value(CALL, call),
            on_exit(partial(call.end, stays=True)),
        ):
            yield from observation(instrumentation, *args, **kwargs)

    return observe_hook(observe_maintenance)
