"""Hooks for middleware, which passes the messages of a model call to the next layer, perhaps changed or repeatedly.

Each time that middleware passes messages on is a step of the model call.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly._internal.tracked_runs import TrackedRun
from otel_assembly.instrumentation.context_variables import REDUCTION
from otel_assembly.instrumentation.reductions import Reduction
from otel_assembly.instrumentation.run_types import ContextBoundRun
from otel_assembly.instrumentation.runs import run_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from contextvars import ContextVar

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ClientRequest


class MiddlewareReduction(Reduction):
    """The changes that a middleware makes to messages. It need not be a reducer.

    The kind in the report is ``reduction`` if the middleware is known to be a reducer. It is then also recorded if it
    changed nothing or failed.
    """

    def running(self) -> AbstractContextManager[None]:
        """Run the middleware in this block; a model that it calls is not its summarizer, but has a separate call."""
        return nullcontext()

    def failed(self, error: BaseException) -> None:
        """Record an error, if the middleware is known to be a reducer or its step is open.

        An error of other middleware need not concern its messages, so it is not recorded.
        """
        if self.report.kind is not None or self.step is not None:
            super().failed(error)

    def record_output(self, prompts: Sequence[str] | None, after: ClientRequest) -> None:
        """Record the request that the middleware passes on; `prompts` are the system prompts that it received."""
        is_changed = [*(prompts or ())] != [*(after.prompts or ())]
        call = self.resolve_model_call() if is_changed else None
        if call is not None:  # the call gets the earlier prompts first, so that the step contains only the change
            call.observe_messages(call.out if call.messages is not None else self.before, prompts=prompts)
        self.report = replace(self.report, prompts=after.prompts if is_changed else None)
        self.done(list(after.messages))


class MiddlewareCall(TrackedRun):
    """One call of a middleware, which may call the next layer with any request, also repeatedly.

    Each time that the middleware calls the next layer, `wrap_middleware` calls `begin_next_layer`, which records the
    middleware's changes until then as a step.

    Args:
        begin_reduction: Makes the reduction to record from the messages that the middleware receives.
        read_request: Returns the messages and system prompts of a request.
        middleware_context: The values of context variables within the middleware.
        next_layer_context: The values of context variables within the next layer.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        begin_reduction: Callable[[Sequence[Any]], MiddlewareReduction],
        read_request: Callable[[Any], ClientRequest],
        request: Any,
        middleware_context: Mapping[ContextVar[Any], Any] = {},  # never written to
        next_layer_context: Mapping[ContextVar[Any], Any] = {},  # likewise
    ) -> None:
        self._instrumentation = instrumentation
        self._begin_reduction = begin_reduction
        self._read = read_request
        self._middleware_context = ContextBoundRun(instrumentation, None, middleware_context)
        self._next_layer_context = {**next_layer_context, REDUCTION: None}
        original_request = read_request(request)
        self._prompts = original_request.prompts  # read now, because a middleware may change the request in place
        self._reduction = begin_reduction(original_request.messages)
        self._called_next = False
        call = self._reduction.call
        self._rollback = call.checkpoint() if call is not None else None

    @contextmanager
    def current(self) -> Iterator[None]:
        with self._middleware_context.current(), self._reduction.running():
            yield

    def end(self, error: BaseException | None = None) -> None:
        """End the call; an error is recorded only if the next layer was not called."""
        if error is not None and not self._called_next:
            with self._instrumentation.suppress_errors():
                self._reduction.failed(error)

    def begin_next_layer(self, _: Instrumentation, request: Any, *__: Any) -> ContextBoundRun:
        """Record the request with which the middleware calls the next layer as a step; return the run of that layer.

        The caller then calls the layer in that run.
        """
        self._called_next = True
        reduction = self._reduction
        reduction.record_output(self._prompts, self._read(request))
        self._reduction = self._begin_reduction(reduction.before)  # for another call of the next layer
        return ContextBoundRun(self._instrumentation, None, self._next_layer_context, on_end=self._next_layer_ended)

    def _next_layer_ended(self) -> None:
        """Restore the state before the middleware, so that calling the next layer again starts from there."""
        if self._rollback is not None:
            self._rollback()
            self._reduction = self._begin_reduction(self._reduction.before)


def wrap_middleware(
    original: Callable[..., Any], instrumentation: Instrumentation, begin_call: Callable[[Any], MiddlewareCall]
) -> Callable[..., Any]:
    """Return a wrapper for a middleware's function, sync or async, that is called with a request and the next layer.

    `begin_call` makes the `MiddlewareCall` from the request. Each call of the middleware has two kinds of runs, because
    the next layer runs inside the middleware, but with other context variables. One run is the call of the middleware
    itself. Each time that the middleware calls the next layer, another run begins (`MiddlewareCall.begin_next_layer`):
    in it, no reduction is current, so that a model which the next layer calls is not taken for the middleware's
    summarizer.
    """

    @wraps(original)
    def middleware(request: Any, next_layer: Callable[..., Any], *rest: Any) -> Any:
        call: MiddlewareCall | None = None
        if instrumentation.is_enabled():
            with instrumentation.suppress_errors():
                call = begin_call(request)
        if call is None:
            return original(request, next_layer, *rest)
        observed_next_layer = run_hook(call.begin_next_layer)(next_layer, instrumentation)
        observed_original = run_hook(lambda *_: call)(original, instrumentation)
        return observed_original(request, observed_next_layer, *rest)

    return middleware


hide_frames(globals())
