"""Middleware that hands a model call's messages on, changed or not, to what stands behind it, once or several times.

Each time is a step of the call, recorded as the messages are passed on (`MiddlewareCall`); or, if the call is not known
before its client is called, when that has come to be known (`MiddlewareInput`).
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.clients import called
from otel_assembly.instrumentation.halts import assembled
from otel_assembly.instrumentation.hooks import replace_hook
from otel_assembly.instrumentation.message_alignment import locate
from otel_assembly.instrumentation.model_call import CALL, ClientRequest, ModelCall
from otel_assembly.instrumentation.reductions import REDUCTION, Reduction, reducing
from otel_assembly.instrumentation.runs import run_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.known_reducers import ReducerSpec


class MiddlewareReduction(Reduction):
    """What a middleware does to messages, which need be no reducer at all.

    Args:
        instrumentation: Where it is reported.
        policy: Its name, of low cardinality.
        before: What it takes in.
        summarises: Whether a model that it calls is its own, such as a summariser's; else that is a call of its own.
        kind: ``reduction`` where it is known to reduce: that it found nothing to do, or failed, is then worth telling.
        said: What else `Reduction` takes.
    """

    __slots__ = ("_summarises",)

    def __init__(
        self,
        instrumentation: Instrumentation,
        policy: str,
        before: Sequence[Any],
        *,
        summarises: bool = False,
        kind: str | None = None,
        **said: Any,
    ) -> None:
        super().__init__(instrumentation, policy, before, kind=kind, **said)
        self._summarises = summarises

    @contextmanager
    def running(self) -> Iterator[None]:
        """It runs in this block."""
        with super().running() if self._summarises else nullcontext():
            yield

    def failed(self, error: BaseException) -> None:
        """It raised; of what is not known to be a reducer that says nothing, unless it reduced."""
        if self._kind is not None or self.step is not None:
            super().failed(error)

    def hands_on(
        self, prompts: Sequence[str] | None, after: ClientRequest, done: Callable[..., None] = Reduction.done
    ) -> None:
        """It was handed these prompts beside the messages, and hands these on.

        Args:
            prompts: The system prompts.
            after: What it hands on.
            done: Says of it what it let out, in the place of `Reduction.done`.
        """
        call = self.resolve_model_call() if prompts != after.prompts else None
        if call is not None:
            call.observe_messages(call.out if call.messages is not None else self.before, prompts=prompts)
        done(self, list(after.messages), prompts=after.prompts if prompts != after.prompts else None)


class MiddlewareCall:
    """One call of a middleware, as a `Run`: it goes on with a request, perhaps another one, and perhaps several times.

    Args:
        instrumentation: Where it is reported.
        reduces: Makes what is reported of it, from the messages that it takes in.
        reads: The messages of a request, and the system prompts with them.
        request: What it is called with.
        inside: What context variables are in it.
        behind: What they are behind it.
        done: As `MiddlewareReduction.hands_on` takes it.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        reduces: Callable[[Sequence[Any]], MiddlewareReduction],
        reads: Callable[[Any], ClientRequest],
        request: Any,
        inside: Mapping[ContextVar[Any], Any] = {},  # never written to
        behind: Mapping[ContextVar[Any], Any] = {},  # likewise
        done: Callable[..., None] = Reduction.done,
    ) -> None:
        self._instrumentation = instrumentation
        self._reduces = reduces
        self._reads = reads
        self._inside = ContextBoundRun(instrumentation, None, inside)
        self._behind = {**behind, REDUCTION: None}
        self._done = done
        given = reads(request)
        self._prompts = given.prompts  # a middleware may change the very request
        self._reduction = reduces(given.messages)
        self._went_on = False
        call = self._reduction.call
        self._put_back = call.checkpoint() if call is not None else None

    @contextmanager
    def current(self) -> Iterator[None]:
        """The middleware runs in this block."""
        with self._inside.current(), self._reduction.running():
            yield

    def end(self, error: BaseException | None = None) -> None:
        """It has answered, or raised."""
        if error is not None and not self._went_on:
            with self._instrumentation.suppress_errors():
                self._reduction.failed(error)

    def call_next(self, _: Instrumentation, request: Any, *__: Any) -> ContextBoundRun:
        """It asks for what is behind it with this request; it is told for each time that it does."""
        reduction, self._went_on = self._reduction, True
        reduction.hands_on(self._prompts, self._reads(request), self._done)
        self._reduction = self._reduces(reduction.before)
        return ContextBoundRun(self._instrumentation, None, self._behind, ends=self._came_back)

    def _came_back(self) -> None:
        """What is behind it has answered or raised: if it goes on once more, that begins where it began itself."""
        if self._put_back is not None:
            self._put_back()
            self._reduction = self._reduces(self._reduction.before)


def wrap_middleware(
    original: Callable[..., Any], instrumentation: Instrumentation, begun: Callable[[Any], MiddlewareCall]
) -> Callable[..., Any]:
    """In the place of a middleware's function, awaited or not, which is called with a request and what is behind it.

    Args:
        original: The function.
        instrumentation: Whom it serves.
        begun: One call of it, by its request.
    """

    @wraps(original)
    def watched(request: Any, behind: Callable[..., Any], *beside: Any) -> Any:
        run: MiddlewareCall | None = None
        if instrumentation.is_enabled():
            with instrumentation.suppress_errors():
                run = begun(request)
        if run is None:
            return original(request, behind, *beside)
        call_next = run_hook(run.call_next)(behind, instrumentation)
        return run_hook(lambda *_: run)(original, instrumentation)(request, call_next, *beside)

    return watched


@contextmanager
def middleware_scope(
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
    known: ReducerSpec, handled: Callable[..., AbstractContextManager[ModelCall | None]]
) -> Wrap:
    """In the place of a middleware's coroutine function that is handed the next one, and calls it with fewer messages.

    Args:
        known: What is known of it.
        handled: Binds the call that it prepares, from the `Instrumentation`, the next one, and what it is handed.
    """

    @replace_hook
    async def reduces(instrumentation: Instrumentation, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        reducer, call_next, messages, *beside = inspect.signature(original).bind(*args, **kwargs).args

        def reduction(before: Sequence[Any]) -> MiddlewareReduction:
            config = known.config(reducer)
            return MiddlewareReduction(instrumentation, known.policy, before, kind="reduction", config=config)

        def done(reduction: Reduction, after: Sequence[Any], **said: Any) -> None:
            known.done(reduction, reducer, after, **said)

        def limits(messages: Any, behind: Any, *beside: Any) -> Any:
            return original(reducer, behind, messages, *beside)

        begun = partial(MiddlewareCall, instrumentation, reduction, ClientRequest, done=done)
        with handled(instrumentation, call_next, messages, *beside) as call:
            watched = limits if call is None else wrap_middleware(limits, instrumentation, begun)
            return await watched(messages, call_next, *beside)

    return reduces


@dataclass(slots=True)
class MiddlewareInput:
    """What is handed to the middleware around a client, until that is called.

    Attributes:
        client: Who hands it over.
        messages: The messages.
        prompts: The system prompts.
        plugin: What a plug-in of ours has made an assembly of, what came out of it, and the prompts with it.
    """

    client: Any
    messages: Sequence[Any]
    prompts: Sequence[str]
    plugin: tuple[Sequence[Any], Sequence[Any], Sequence[str]] | None = None

    def record_forwarded(self, call: ModelCall, messages: Sequence[Any], prompts: Sequence[str], policy: str) -> None:
        """What middleware hands on in the end: what it edited, in front of a plug-in of ours or behind, is a step.

        Args:
            call: The call that comes of it.
            messages: The messages.
            prompts: The system prompts.
            policy: The name of the step.
        """
        before, prompts_before = self.messages, self.prompts
        call.set_input(before, prompts=prompts_before)
        if self.plugin is not None:
            seen, out, prompts_out = self.plugin
            _edited(call, policy, ClientRequest(before), ClientRequest(seen))
            call.replaced_by_plugin(out, prompts=prompts_out)
            before, prompts_before = out, prompts_out
        _edited(call, policy, ClientRequest(before, prompts_before), ClientRequest(messages, prompts))


def _edited(call: ModelCall, policy: str, before: ClientRequest, after: ClientRequest) -> None:
    kind = "reduction" if locate(after.messages, before.messages) is None else "injection"
    MiddlewareReduction(call.instrumentation, policy, before.messages, kind=kind, call=call).hands_on(
        before.prompts, after
    )


#: What the client whose middleware runs here has handed to it.
MIDDLEWARE_INPUT: Final[ContextVar[MiddlewareInput | None]] = ContextVar("otel_assembly_handed", default=None)


def middleware_entry_hook(
    reads: Callable[..., ClientRequest], attach_to_stream: Callable[[Any, Any], bool] | None = None
) -> Wrap:
    """The hook of a client's method that hands what it is called with to the middleware around the client.

    Args:
        reads: What that is, from the method's arguments.
        attach_to_stream: As for `run_hook`.
    """

    def handed(instrumentation: Instrumentation, client: Any, /, *args: Any, **kwargs: Any) -> ContextBoundRun:
        sent = reads(client, *args, **kwargs)
        return ContextBoundRun(
            instrumentation, None, {MIDDLEWARE_INPUT: MiddlewareInput(client, sent.messages, sent.prompts or ())}
        )

    return run_hook(handed, attach_to_stream)


def middleware_exit_hook(
    reads: Callable[..., ClientRequest],
    begins: Callable[[Sequence[Any]], ModelCall | None],
    policy: str,
    attach_to_stream: Callable[[Any, Any], bool] | None = None,
) -> Wrap:
    """The hook of the method behind that middleware: a model is to be called, by no other client, and for no reducer.

    Args:
        reads: What middleware hands on to it, from the method's arguments, and the window of the model.
        begins: The call that is prepared for the messages that the client was called with; None where none is.
        policy: The name of the step in which middleware has edited them.
        attach_to_stream: As for `run_hook`.
    """

    def begun(instrumentation: Instrumentation, client: Any, /, *args: Any, **kwargs: Any) -> ModelCall | None:
        if called() or reducing() is not None:
            return None
        sent = reads(client, *args, **kwargs)
        prompts, handed = sent.prompts or (), MIDDLEWARE_INPUT.get()
        if handed is None or handed.client is not client:
            handed = MiddlewareInput(client, sent.messages, prompts)  # there is no middleware
        call = begins(handed.messages) or ModelCall(instrumentation)
        call.set_model_info(window=sent.window)
        handed.record_forwarded(call, sent.messages, prompts, policy)
        return call

    return run_hook(begun, attach_to_stream)


hide_frames(globals())
