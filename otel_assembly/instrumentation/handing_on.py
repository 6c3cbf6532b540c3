"""Middleware around a model call: each stands around the next one, down to the model's client, and hands on to it."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.halts import assembled
from otel_assembly.instrumentation.hooks import instead
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.reductions import Reduction, reducing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.known_reducers import KnownReducer
    from otel_assembly.instrumentation.model_call import ModelCall


@contextmanager
def handling(
    instrumentation: Instrumentation,
    begin: Callable[[], ModelCall],
    messages: Sequence[Any],
    *,
    prompts: Sequence[str] | None = None,
    conversation: Any = None,
) -> Iterator[ModelCall | None]:
    """A middleware of a model call runs in this block, and what it stands around: the call that it prepares is bound.

    What it does holds until its end. None where it works for no call, as in what a reducer runs.

    Args:
        instrumentation: Where it is reported.
        begin: Begins a call, where none is prepared yet.
        messages: What the middleware is handed.
        prompts: The system prompts with them.
        conversation: What a halt that comes after it may halt, as `report_halt` is told.
    """
    call = None
    if reducing() is None:
        with instrumentation.contained():
            call = CALL.get() or begin()
    if call is None:
        yield None
        return
    with call.onwards(), call.current():
        with instrumentation.contained():
            call.arrives(messages, prompts=prompts)
        try:
            yield call
        finally:
            with instrumentation.contained():
                assembled(conversation, call)


def reduces_and_hands_on(known: KnownReducer, handled: Callable[..., AbstractContextManager[ModelCall | None]]) -> Wrap:
    """In the place of a middleware's coroutine function that is handed the next one, and calls it with fewer messages.

    Args:
        known: What is known of it.
        handled: Binds the call that it prepares, from the `Instrumentation`, the next one, and what it is handed.
    """

    @instead
    async def reduces(instrumentation: Instrumentation, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        reducer, call_next, messages, *rest = inspect.signature(original).bind(*args, **kwargs).args
        with handled(instrumentation, call_next, messages, *rest) as call:
            reduction = None
            if call is not None:
                with instrumentation.contained():
                    reduction = Reduction(instrumentation, known.policy, messages, config=known.config(reducer))

            async def handed_on(kept: Any, *rest: Any) -> Any:
                if reduction is not None:
                    with instrumentation.contained():
                        known.done(reduction, reducer, kept)
                return await call_next(kept, *rest)

            return await original(reducer, handed_on, messages, *rest)

    return reduces
