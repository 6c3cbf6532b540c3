"""Hooks for AG2's middleware, which runs in an `llm_call_scope` together with the layers that it calls."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.instrumentation.ag2.halts import assembled
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.hooks import replace_hook
from otel_assembly.instrumentation.middleware_calls import MiddlewareCall, MiddlewareReduction, wrap_middleware
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ModelCall
    from otel_assembly.instrumentation.reducers import ReducerSpec


@contextmanager
def middleware_scope(
    instrumentation: Instrumentation,
    begin: Callable[[], ModelCall],
    messages: Sequence[Any],
    *,
    prompts: Sequence[str] | None = None,
    conversation: Any = None,
) -> Iterator[ModelCall | None]:
    """Run a middleware of a model call in this block, together with the layers that it calls.

    The block yields the model call that is being prepared, which is current in the block; `begin` begins it if there is
    none. Changes of its messages apply only until the end of the block. The block yields None inside a reducer, because
    the middleware then prepares no model call of the agent. `conversation` is the object that a later halt refers to,
    as passed to `report_halt`.
    """
    call = None
    if reducing() is None:
        with instrumentation.suppress_errors():
            call = CALL.get() or begin()
    if call is None:
        yield None
        return
    with call.scoped(), call.current():
        with instrumentation.suppress_errors():
            call.observe_messages(messages, prompts=prompts)
        try:
            yield call
        finally:
            with instrumentation.suppress_errors():
                assembled(conversation, call)


class _ReducerCall(MiddlewareReduction):
    """One call of a reducing middleware, whose output is recorded as its specification describes."""

    def __init__(
        self, spec: ReducerSpec, reducer: Any, instrumentation: Instrumentation, before: Sequence[Any]
    ) -> None:
        super().__init__(instrumentation, StepReport(spec.policy, before, config=spec.config(reducer)))
        self._spec = spec
        self._reducer = reducer

    def record_output(self, prompts: Sequence[str] | None, after: ClientRequest) -> None:
        """Record the messages that the middleware passes on; it gets and changes no system prompts."""
        self._spec.done(self, self._reducer, list(after.messages))


def reducing_middleware_hook(spec: ReducerSpec, scope: Callable[..., AbstractContextManager[ModelCall | None]]) -> Wrap:
    """Return a wrapper for a reducing middleware's coroutine function, called with the next layer and the messages.

    `scope` returns the context manager in which the middleware runs, such as `middleware_scope`, from the
    `Instrumentation`, the next layer, the messages and any further arguments. It yields the model call; if it yields
    None, the middleware runs unobserved.
    """

    @replace_hook
    async def middleware(instrumentation: Instrumentation, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        # The original is `async def (reducer, call_next, messages, *rest)`; its caller may name the arguments.
        reducer, call_next, messages, *rest = inspect.signature(original).bind(*args, **kwargs).args

        def messages_first(request: Any, next_layer: Any, *others: Any) -> Any:
            return original(reducer, next_layer, request, *others)

        with scope(instrumentation, call_next, messages, *rest) as call:
            if call is None:
                return await original(reducer, call_next, messages, *rest)
            begin_reduction = partial(_ReducerCall, spec, reducer, instrumentation)
            # The request is the list of messages, so `ClientRequest` reads it.
            begin = partial(MiddlewareCall, instrumentation, begin_reduction, ClientRequest)
            return await wrap_middleware(messages_first, instrumentation, begin)(messages, call_next, *rest)

    return middleware


hide_frames(globals())
