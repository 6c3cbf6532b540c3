"""Hooks that track a run: one call of a function, from its start to the end of its answer.

The function can be plain, a coroutine function, a generator, an async generator or an ``asynccontextmanager``. What it
executes runs inside the run's context. Between two steps of a generator nothing is attached, so that the reader of the
stream does not run in that context.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly._internal.tracked_runs import TrackedRun  # noqa: TC001  # exported from here
from otel_assembly.instrumentation.context_variables import STEPPING_STREAM
from otel_assembly.instrumentation.instrumented import on_exit, signature_accepts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation


def run_hook(
    run_of: Callable[..., TrackedRun | None], attach_to_stream: Callable[[Any, Any], bool] | None = None
) -> Wrap:
    """Return a wrapper that tracks each call of a function as one run.

    The run ends with the answer: a coroutine when it was awaited, a generator when it is exhausted, closed or fails, a
    stream of the framework's own type when `attach_to_stream` ends it, an ``asynccontextmanager`` when it is exited,
    and any other answer when the function returns.

    Args:
        run_of: Makes the run from the `Instrumentation` and the function's arguments; None if this call is not a run.
        attach_to_stream: A function that is called with the run and the answer, and that may change the answer. If it
            is a stream type of the framework, the function makes the stream enter and end the run, and returns True.
            For any other answer it does nothing and returns False; the run then ends here.
    """

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        is_generator = inspect.isasyncgenfunction(original) or inspect.isgeneratorfunction(original)

        @wraps(original)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            run = _start_run(run_of, original, instrumentation, args, kwargs)
            if run is None:
                return await original(*args, **kwargs)
            return await _await_answer(run, original(*args, **kwargs), attach_to_stream, instrumentation)

        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            run = _start_run(run_of, original, instrumentation, args, kwargs)
            if run is None:
                return original(*args, **kwargs)
            if is_generator:  # its body runs with its first step
                return track_stream(run, original(*args, **kwargs))
            try:
                with run.current():
                    answer = original(*args, **kwargs)
            except BaseException as error:
                run.end(error)
                raise
            if inspect.iscoroutine(answer):
                return _await_answer(run, answer, attach_to_stream, instrumentation)
            if isinstance(answer, AsyncGenerator | Generator):
                return track_stream(run, answer)
            if isinstance(answer, _ASYNC_CONTEXT_MANAGER | TrackedContextManager):
                return TrackedContextManager(run, answer)
            return _end_unless_stream(run, answer, attach_to_stream, instrumentation)

        return async_wrapper if inspect.iscoroutinefunction(original) else wrapper

    return wrap


def _start_run(
    run_of: Callable[..., TrackedRun | None],
    original: Callable[..., Any],
    instrumentation: Instrumentation,
    args: Any,
    kwargs: Any,
) -> TrackedRun | None:
    if not instrumentation.is_enabled():
        return None
    try:
        return run_of(instrumentation, *args, **kwargs)
    except Exception as error:  # noqa: BLE001  # a failed hook must not affect the agent
        # If the function does not accept the arguments, it will raise an error itself.
        if not isinstance(error, TypeError) or signature_accepts(original, args, kwargs):
            instrumentation.observed.failed(error)
        return None


def run_argument_hook(run_of: Callable[..., TrackedRun | None], name: str) -> Wrap:
    """Return the hook of a coroutine function that receives the function to run as the keyword argument `name`.

    Only that argument is tracked. So what the hooked function opens before it calls the argument, such as the
    framework's own span, is current when the run begins.
    """

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        @wraps(original)
        async def called(*args: Any, **kwargs: Any) -> Any:
            if not instrumentation.is_enabled():
                return await original(*args, **kwargs)
            inside = run_hook(lambda _, *__, **___: run_of(instrumentation, *args, **kwargs))
            return await original(*args, **{**kwargs, name: inside(kwargs[name], instrumentation)})

        return called

    return wrap


async def _await_answer(
    run: TrackedRun,
    work: Awaitable[Any],
    attach_to_stream: Callable[[Any, Any], bool] | None,
    instrumentation: Instrumentation,
) -> Any:
    """Await a coroutine's answer inside a run, which ends with the answer, or later if the answer is a stream."""
    try:
        with run.current():
            answer = await work
    except BaseException as error:
        run.end(error)
        raise
    if inspect.isasyncgen(answer):  # the framework may check this type, so return an async generator again
        return _as_async_generator(track_stream(run, answer))
    return _end_unless_stream(run, answer, attach_to_stream, instrumentation)


def _end_unless_stream(
    run: TrackedRun,
    answer: Any,
    attach_to_stream: Callable[[Any, Any], bool] | None,
    instrumentation: Instrumentation,
) -> Any:
    """Return an answer that is no generator; end the run, unless `attach_to_stream` made the answer end it."""
    attached = False
    if attach_to_stream is not None:
        with instrumentation.suppress_errors():
            attached = attach_to_stream(run, answer)
    if attached:
        with instrumentation.suppress_errors():
            run.on_stream()
        return answer
    with instrumentation.suppress_errors():
        run.on_result(answer)
    run.end()
    return answer


def track_stream(run: TrackedRun, stream: Any) -> Any:
    """Return a stream whose steps run inside the run, and whose end ends the run.

    The type is checked at run time, because another decorator may have changed what a framework's function returns.
    """
    run.on_stream()
    if isinstance(stream, AsyncIterable):
        return TrackedStream(run, stream)
    if isinstance(stream, Iterable):
        return track_generator(run, stream)
    if isinstance(stream, Awaitable):
        return awaited(run, stream)
    run.end()
    return stream


async def _as_async_generator(stream: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    """Return an async generator that passes on values and exceptions, as ``yield from`` does in a generator."""
    step: Awaitable[Any] = stream.asend(None)
    try:
        while True:
            item = await step
            try:
                step = stream.asend((yield item))
            except Exception as error:  # noqa: BLE001
                step = stream.athrow(error)
    except StopAsyncIteration:
        return
    finally:
        await stream.aclose()


@asynccontextmanager
async def _manager() -> AsyncGenerator[None, None]:
    yield


#: The type that an ``asynccontextmanager`` function returns. Other context managers are not tracked.
_ASYNC_CONTEXT_MANAGER: Any = type(_manager())


class TrackedContextManager(AbstractAsyncContextManager[Any]):
    """A context manager that is entered and exited inside a run; the block between runs outside it."""

    def __init__(self, run: TrackedRun, manager: AbstractAsyncContextManager[Any]) -> None:
        self._run = run
        self._manager = manager
        run.on_stream()

    async def __aenter__(self) -> Any:
        try:
            with self._run.current():
                return await self._manager.__aenter__()
        except BaseException as error:
            self._run.end(error)
            raise

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> Any:
        try:
            with self._run.current():
                is_handled = await self._manager.__aexit__(kind, error, trace)
        except BaseException as raised:
            self._run.end(raised)
            raise
        self._run.end(None if is_handled else error)
        return is_handled


async def awaited(run: TrackedRun, work: Awaitable[Any]) -> Any:
    """Await `work` inside a run, and end the run."""
    with on_exit(run.end), run.current():
        return await work


class TrackedStream(AsyncGenerator[Any, Any]):
    """A stream each of whose steps runs inside a run.

    If the wrapped generator has attached an OpenTelemetry context at a ``yield``, such as that of a span of its own,
    the context is detached for the reader and attached again for the next step.

    This is a class and not an async generator function, because an event loop that shuts down closes all async
    generators at the same time: of two nested ones, the outer one would then find the inner one running.
    """

    def __init__(self, run: TrackedRun, items: AsyncIterable[Any]) -> None:
        self._ended = False
        self._run = run
        self._attached_context: Any = None
        self._wrapped = items
        self._items = items if isinstance(items, AsyncGenerator) else (item async for item in items)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_wrapped"], name)

    async def __anext__(self) -> Any:
        """Take a step. The inherited method would add a frame, which shifts the ``stacklevel`` of warnings."""
        return await self.asend(None)

    async def asend(self, value: Any) -> Any:
        return await self._step(self._items.asend(value))

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        return await self._step(self._items.athrow(val if val is not None else typ))

    async def aclose(self) -> None:
        """Close the stream before its end; the run ends without an error."""
        with on_exit(self._end), self._inside():
            await self._items.aclose()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Enter the run's context, and in it the context that the generator left attached at its last ``yield``."""
        outside = otel_context.get_current()
        with self._run.current():
            entered = otel_context.get_current()
            if entered is outside:  # the run attached nothing that would have to be detached
                yield
                return
            step_token, token = STEPPING_STREAM.set(self), otel_context.attach(self._attached_context or entered)
            try:
                yield
            finally:
                left = otel_context.get_current()
                self._attached_context = None if left is entered else left
                with suppress(ValueError):  # the stream was closed in another context: nothing to reset there
                    STEPPING_STREAM.reset(step_token)
                    otel_context.detach(token)

    async def _step(self, step: Awaitable[Any]) -> Any:
        try:
            with self._inside():
                item = await step
        except StopAsyncIteration:
            self._end()
            raise
        except BaseException as error:
            self._end(error)
            raise
        self._run.on_chunk(item)
        return item

    def _end(self, error: BaseException | None = None) -> None:
        if not self._ended:
            self._ended = True
            self._run.end(error)

    def __del__(self) -> None:  # a stream that is dropped unfinished ends its run
        self._end()


def _each(items: Iterable[Any]) -> Generator[Any, Any, Any]:
    return (yield from items)


def track_generator(run: TrackedRun, items: Iterable[Any]) -> Generator[Any, Any, Any]:
    """Return a generator each of whose steps runs inside a run, like `TrackedStream`.

    It passes on values and exceptions as ``yield from`` does. That would leave the run attached between two steps.
    """
    error: BaseException | None = None
    items = items if isinstance(items, Generator) else _each(items)
    try:
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            with run.current():
                try:
                    item = items.throw(thrown) if thrown is not None else items.send(sent)
                except StopIteration as ended:
                    return ended.value
            sent = thrown = None
            run.on_chunk(item)
            try:
                sent = yield item
            except GeneratorExit:
                with run.current():
                    items.close()
                raise
            except BaseException as given:  # noqa: BLE001
                thrown = given
    except GeneratorExit:
        raise
    except BaseException as raised:
        error = raised
        raise
    finally:
        run.end(error)


hide_frames(globals())
