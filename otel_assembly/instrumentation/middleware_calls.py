"""Hooks for middleware, which passes the messages of a model call to the next layer, perhaps changed or repeatedly.

Each time that middleware passes messages on is a step of the model call. `MiddlewareCall` records the step immediately.
If the model call is not known before its client is called, `MiddlewareInput` keeps the messages until then.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly._internal.tracked_runs import TrackedRun
from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.clients import in_client_call
from otel_assembly.instrumentation.context_variables import CALL, MIDDLEWARE_INPUT, REDUCTION
from otel_assembly.instrumentation.halts import assembled
from otel_assembly.instrumentation.hooks import replace_hook
from otel_assembly.instrumentation.message_alignment import locate
from otel_assembly.instrumentation.model_call import ClientRequest, ModelCall
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from contextvars import ContextVar

    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.known_reducers import ReducerSpec


class MiddlewareReduction(Reduction):
    """The changes that a middleware makes to messages. It need not be a reducer.

    The kind in the report is ``reduction`` if the middleware is known to be a reducer. It is then also recorded if it
    changed nothing or failed.
    """

    __slots__ = ()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the middleware in this block; a model that it calls is not its summarizer, but has a separate call."""
        yield

    def failed(self, error: BaseException) -> None:
        """Record an error, if the middleware is known to be a reducer or its step is open.

        An error of other middleware need not concern its messages, so it is not recorded.
        """
        if self.report.kind is not None or self.step is not None:
            super().failed(error)

    def record_output(
        self, prompts: Sequence[str] | None, after: ClientRequest, known: tuple[ReducerSpec, Any] | None = None
    ) -> None:
        """Record the messages and system prompts that the middleware passes on.

        Args:
            prompts: The system prompts that the middleware received.
            after: The messages and system prompts that it passes on.
            known: The specification of the reducer, and the reducer; None for other middleware.
        """
        call = self.resolve_model_call() if prompts != after.prompts else None
        if call is not None:  # the call gets the earlier prompts first, so that the step contains only the change
            call.observe_messages(call.out if call.messages is not None else self.before, prompts=prompts)
        changed_prompts = after.prompts if prompts != after.prompts else None
        if known is not None:
            spec, reducer = known
            spec.done(self, reducer, list(after.messages), prompts=changed_prompts)
        else:
            self.report = replace(self.report, prompts=changed_prompts)
            self.done(list(after.messages))


class MiddlewareCall(TrackedRun):
    """One call of a middleware, which may call the next layer with any request, also repeatedly.

    Each time that the middleware calls the next layer, `wrap_middleware` calls `begin_next_layer`, which records the
    middleware's changes until then as a step.

    Args:
        instrumentation: The instrumentation that records the call.
        begin_reduction: Makes the reduction to record from the messages that the middleware receives.
        reads: Returns the messages and system prompts of a request.
        request: The request that the middleware is called with.
        middleware_context: The values of context variables within the middleware.
        next_layer_context: The values of context variables within the next layer.
        known: The specification of the reducer, and the reducer; None for other middleware.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        begin_reduction: Callable[[Sequence[Any]], MiddlewareReduction],
        reads: Callable[[Any], ClientRequest],
        request: Any,
        middleware_context: Mapping[ContextVar[Any], Any] = {},  # never written to
        next_layer_context: Mapping[ContextVar[Any], Any] = {},  # likewise
        known: tuple[ReducerSpec, Any] | None = None,
    ) -> None:
        self._instrumentation = instrumentation
        self._begin_reduction = begin_reduction
        self._read = reads
        self._middleware_context = ContextBoundRun(instrumentation, None, middleware_context)
        self._next_layer_context = {**next_layer_context, REDUCTION: None}
        self._known = known
        original_request = reads(request)
        self._prompts = original_request.prompts  # read now, because a middleware may change the request in place
        self._reduction = begin_reduction(original_request.messages)
        self._called_next = False
        call = self._reduction.call
        self._rollback = call.checkpoint() if call is not None else None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Run the middleware in this block."""
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
        reduction.record_output(self._prompts, self._read(request), self._known)
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

    Each call of the middleware has two kinds of runs, because the next layer runs inside the middleware, but with other
    context variables. One run is the call of the middleware itself (`MiddlewareCall`). Each time that the middleware
    calls the next layer, another run begins (`MiddlewareCall.begin_next_layer`): in it, no reduction is current, so
    that a model which the next layer calls is not taken for the middleware's summarizer.

    Args:
        original: The function.
        instrumentation: The instrumentation that records its calls.
        begin_call: Makes the `MiddlewareCall` from the request.
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

    The block yields the model call that is being prepared, which is current in the block. Changes of its messages
    apply only until the end of the block. The block yields None inside a reducer, because the middleware then prepares
    no model call of the agent.

    Args:
        instrumentation: The instrumentation that records the call.
        begin: Begins a model call, if none is being prepared yet.
        messages: The messages that the middleware receives.
        prompts: The system prompts that the middleware receives.
        conversation: The conversation that a later halt refers to, as passed to `report_halt`.
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


def reducing_middleware_hook(
    known: ReducerSpec, scope: Callable[..., AbstractContextManager[ModelCall | None]]
) -> Wrap:
    """Return a wrapper for a reducing middleware's coroutine function, called with the next layer and the messages.

    Args:
        known: The specification of the reducer.
        scope: Returns the context manager in which the middleware runs, such as `middleware_scope`, from the
            `Instrumentation`, the next layer, the messages and any further arguments. It yields the model call; if it
            yields None, the middleware runs unobserved.
    """

    @replace_hook
    async def middleware(instrumentation: Instrumentation, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        # The original is `async def (reducer, call_next, messages, *rest)`; its caller may name the arguments.
        reducer, call_next, messages, *rest = inspect.signature(original).bind(*args, **kwargs).args

        def begin_reduction(before: Sequence[Any]) -> MiddlewareReduction:
            return MiddlewareReduction(instrumentation, StepReport(known.policy, before, config=known.config(reducer)))

        def messages_first(request: Any, next_layer: Any, *others: Any) -> Any:
            """Call the original with its arguments in the order of `wrap_middleware`."""
            return original(reducer, next_layer, request, *others)

        with scope(instrumentation, call_next, messages, *rest) as call:
            if call is None:
                return await original(reducer, call_next, messages, *rest)
            # The request is the list of messages, so `ClientRequest` reads it.
            begin = partial(MiddlewareCall, instrumentation, begin_reduction, ClientRequest, known=(known, reducer))
            return await wrap_middleware(messages_first, instrumentation, begin)(messages, call_next, *rest)

    return middleware


@dataclass(slots=True)
class MiddlewareInput:
    """The messages that a client passes to its middleware, kept until the model is called.

    Attributes:
        client: The client.
        messages: The messages.
        prompts: The system prompts.
        plugin: If a plug-in of this library ran in the middleware: its input messages, its output messages, and its
            output system prompts.
    """

    client: Any
    messages: Sequence[Any]
    prompts: Sequence[str]
    plugin: tuple[Sequence[Any], Sequence[Any], Sequence[str]] | None = None

    def record_forwarded(self, call: ModelCall, messages: Sequence[Any], prompts: Sequence[str], policy: str) -> None:
        """Record the messages and system prompts that the last middleware passes on.

        The edits of the middleware are a step, whose name is `policy`. If a plug-in of this library ran, they are one
        step before and one after it.
        """
        before, prompts_before = self.messages, self.prompts
        call.set_input(before, prompts=prompts_before)
        if self.plugin is not None:
            plugin_input, plugin_output, plugin_prompts = self.plugin
            _record_edit(call, policy, ClientRequest(before), ClientRequest(plugin_input))
            call.replaced_by_plugin(plugin_output, prompts=plugin_prompts)
            before, prompts_before = plugin_output, plugin_prompts
        _record_edit(call, policy, ClientRequest(before, prompts_before), ClientRequest(messages, prompts))


def _record_edit(call: ModelCall, policy: str, before: ClientRequest, after: ClientRequest) -> None:
    # If all earlier messages are still there, messages can only have been added.
    kind = "reduction" if locate(after.messages, before.messages) is None else "injection"
    reduction = MiddlewareReduction(call.instrumentation, StepReport(policy, before.messages, kind=kind), call=call)
    reduction.record_output(before.prompts, after)


def middleware_entry_hook(
    reads: Callable[..., ClientRequest], attach_to_stream: Callable[[Any, Any], bool] | None = None
) -> Wrap:
    """Return a wrapper for a client's method that calls the client's middleware.

    It keeps the messages as `MiddlewareInput`, until the last middleware calls the method of `middleware_exit_hook`.

    Args:
        reads: Returns the messages and system prompts from the method's arguments.
        attach_to_stream: Attaches the run to an answer that is a stream; see `run_hook`.
    """

    def begin_run(instrumentation: Instrumentation, client: Any, /, *args: Any, **kwargs: Any) -> ContextBoundRun:
        request = reads(client, *args, **kwargs)
        middleware_input = MiddlewareInput(client, request.messages, request.prompts or ())
        return ContextBoundRun(instrumentation, None, {MIDDLEWARE_INPUT: middleware_input})

    return run_hook(begin_run, attach_to_stream)


def middleware_exit_hook(
    reads: Callable[..., ClientRequest],
    begins: Callable[[Sequence[Any]], ModelCall | None],
    policy: str,
    attach_to_stream: Callable[[Any, Any], bool] | None = None,
) -> Wrap:
    """Return a wrapper for the client's method that the last middleware calls, and that sends the model request.

    It begins the model call with the input that `middleware_entry_hook` has kept, and records the middleware's edits
    as a step. The method is not recorded inside another client's call or inside a reducer.

    Args:
        reads: Returns the messages and system prompts from the method's arguments, and the window of the model.
        begins: Returns the model call that is prepared for the messages that the client received; None if none is.
        policy: The name of the step that records the middleware's edits.
        attach_to_stream: Attaches the run to an answer that is a stream; see `run_hook`.
    """

    def begin_call(instrumentation: Instrumentation, client: Any, /, *args: Any, **kwargs: Any) -> ModelCall | None:
        if in_client_call() or reducing() is not None:
            return None
        request = reads(client, *args, **kwargs)
        prompts, middleware_input = request.prompts or (), MIDDLEWARE_INPUT.get()
        if middleware_input is None or middleware_input.client is not client:  # the client has no middleware
            middleware_input = MiddlewareInput(client, request.messages, prompts)
        call = begins(middleware_input.messages) or ModelCall(instrumentation)
        call.window = call.window or request.window
        middleware_input.record_forwarded(call, request.messages, prompts, policy)
        return call

    return run_hook(begin_call, attach_to_stream)


hide_frames(globals())
