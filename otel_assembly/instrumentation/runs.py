"""Runs of agents: a function, a coroutine, or each step of a generator, inside of the run that it belongs to."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, Protocol

from opentelemetry import context as otel_context

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.instrumentation.instrumented import call_if_accepted, on_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation


class Run(Protocol):
    """One run that is followed; `OpenRun` is one."""

    def current(self) -> AbstractContextManager[None]:
        """What runs in this block belongs to the run."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """End the run."""
        ...


def tracked(run: Run, answers: Any) -> Any:
    """What gives a run's answers, inside of it: one by one, or all at once.

    A framework's function that another one has wrapped may give them as anything that can be iterated or awaited.
    """
    if isinstance(answers, AsyncIterable):
        return TrackedStream(run, answers)
    if isinstance(answers, Iterable):
        return track_generator(run, answers)
    if isinstance(answers, Awaitable):
        return awaited(run, answers)
    run.end()
    return answers


def run_hook(run_of: Callable[..., Run | None], attach_to_stream: Callable[[Run, Any], bool] | None = None) -> Wrap:
    """The hook of a function that is a run: a coroutine function, a generator, an ``asynccontextmanager``, or neither.

    A run that has an attribute ``streams`` is told whether the answers come step by step, one that has a method
    ``returned`` is given an answer that comes all at once, and one that has a method ``gave`` each that an async
    generator gives.

    Args:
        run_of: Makes the run, from the `Instrumentation` and the function's arguments; None where there is none.
        attach_to_stream: Attaches the run to an answer of a type of the framework, such as its stream; False for
            any other answer.
    """

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        def begun(args: Any, kwargs: Any) -> Run | None:
            run = None
            if instrumentation.is_enabled():
                with instrumentation.suppress_errors():
                    run = call_if_accepted(original, partial(run_of, instrumentation), args, kwargs)
            return run

        @wraps(original)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            run = begun(args, kwargs)
            if run is None:
                return await original(*args, **kwargs)
            return await _awaiting(run, original(*args, **kwargs), attach_to_stream, instrumentation)

        @wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:
            run = begun(args, kwargs)
            if run is None:
                return original(*args, **kwargs)
            if steps:
                return _streaming(run, original(*args, **kwargs))
            try:
                with run.current():
                    answer = original(*args, **kwargs)
            except BaseException as error:
                run.end(error)
                raise
            if inspect.iscoroutine(answer):
                return _awaiting(run, answer, attach_to_stream, instrumentation)
            if isinstance(answer, AsyncGenerator | Generator):
                return _streaming(run, answer)
            if isinstance(answer, _MANAGER | TrackedContextManager):
                return TrackedContextManager(run, answer)
            if attach_to_stream is not None and _carried(run, answer, attach_to_stream, instrumentation):
                return answer
            _returned(run, answer, instrumentation)
            run.end()
            return answer

        steps = inspect.isasyncgenfunction(original) or inspect.isgeneratorfunction(original)
        return awaited if inspect.iscoroutinefunction(original) else called

    return wrap


def run_argument_hook(run_of: Callable[..., Run | None], name: str) -> Wrap:
    """The hook of a coroutine function that is given the run as an argument, by this name, to call it.

    What the function puts around the run, such as the framework's own span, is there when the run begins.
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


def _carried(
    run: Run, answer: Any, attach_to_stream: Callable[[Run, Any], bool], instrumentation: Instrumentation
) -> bool:
    if hasattr(run, "streams"):
        run.streams = True
    with instrumentation.suppress_errors():
        return attach_to_stream(run, answer)
    return False


async def _awaiting(
    run: Run,
    work: Awaitable[Any],
    attach_to_stream: Callable[[Run, Any], bool] | None,
    instrumentation: Instrumentation,
) -> Any:
    try:
        with run.current():
            answer = await work
    except BaseException as error:
        run.end(error)
        raise
    if inspect.isasyncgen(answer):  # a stream that had to be waited for; a framework may ask whether it is one
        return _generated(_streaming(run, answer))
    if attach_to_stream is not None and _carried(run, answer, attach_to_stream, instrumentation):
        return answer
    _returned(run, answer, instrumentation)
    run.end()
    return answer


async def _generated(steps: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, None]:
    try:
        async for item in steps:
            yield item
    finally:
        await steps.aclose()


def _returned(run: Run, answer: Any, instrumentation: Instrumentation) -> Any:
    if hasattr(run, "returned"):
        with instrumentation.suppress_errors():
            run.returned(answer)
    return answer


def _streaming(run: Run, answers: Any) -> Any:
    if hasattr(run, "streams"):
        run.streams = True
    return tracked(run, answers)


@asynccontextmanager
async def _manager() -> AsyncGenerator[None, None]:
    yield


#: What a function returns that is an ``asynccontextmanager``; other things that can be entered are left as they are.
_MANAGER: Any = type(_manager())


class TrackedContextManager(AbstractAsyncContextManager[Any]):
    """What is entered and left inside a run, which begins and ends with that; nothing is attached in between."""

    def __init__(self, run: Run, manager: AbstractAsyncContextManager[Any]) -> None:
        self._run = run
        self._manager = manager
        if hasattr(run, "streams"):
            run.streams = True

    async def __aenter__(self) -> Any:
        try:
            with self._run.current():
                return await self._manager.__aenter__()
        except BaseException as error:
            self._run.end(error)
            raise

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> Any:
        raised = error
        try:
            with self._run.current():
                handled = await self._manager.__aexit__(kind, error, trace)
        except BaseException as another:
            raised = another
            raise
        else:
            raised = None if handled else error
            return handled
        finally:
            self._run.end(raised)


async def awaited(run: Run, work: Awaitable[Any]) -> Any:
    """Await something inside a run, which ends with it."""
    with on_exit(run.end), run.current():
        return await work


#: The step that is taken here.
_STEP: Final[ContextVar[Any]] = ContextVar("otel_assembly_step", default=None)


class TrackedStream(AsyncGenerator[Any, Any]):
    """An async generator whose every step runs inside a run; nothing is attached while its reader has control.

    What the generator leaves attached at a yield, such as a span of its own, is there again at its next step.
    It is no generator itself: an event loop that shuts down closes all async generators at once, and of two that stand
    in one another the second would find the first one running.
    """

    def __init__(self, run: Run, items: AsyncIterable[Any]) -> None:
        self._ended = False
        self._run = run
        self._gave = getattr(run, "gave", None)
        self._left: Any = None
        self._given = items
        self._items = items if isinstance(items, AsyncGenerator) else _one_by_one(items)

    def __getattr__(self, name: str) -> Any:
        """What else there is of what is followed."""
        return getattr(vars(self)["_given"], name)

    async def __anext__(self) -> Any:
        """Take a step; the inherited method would add a frame that warnings count."""
        return await self.asend(None)

    async def asend(self, value: Any) -> Any:
        """Take a step."""
        return await self._step(self._items.asend(value))

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        """Take a step that begins with an exception."""
        return await self._step(self._items.athrow(val if val is not None else typ))

    async def aclose(self) -> None:
        """The reader has had enough, which is no error."""
        with on_exit(self._end), self._inside():
            await self._items.aclose()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """One step: in the run's context, and on top of that in what the generator has left attached."""
        outside = otel_context.get_current()
        with self._run.current():
            entered = otel_context.get_current()
            if entered is outside:  # nothing is taken away from it
                yield
                return
            mark, token = _STEP.set(self), otel_context.attach(self._left or entered)
            try:
                yield
            finally:
                left = otel_context.get_current()
                self._left = None if left is entered else left
                with suppress(ValueError):  # it is closed in another context, where there is nothing to take back
                    _STEP.reset(mark)
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
        if self._gave is not None:
            self._gave(item)
        return item

    def _end(self, error: BaseException | None = None) -> None:
        if not self._ended:
            self._ended = True
            self._run.end(error)

    def __del__(self) -> None:
        self._end()


async def _one_by_one(items: AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    async for item in items:
        yield item


def _each(items: Iterable[Any]) -> Generator[Any, Any, Any]:
    return (yield from items)


def track_generator(run: Run, items: Iterable[Any]) -> Generator[Any, Any, Any]:
    """A generator whose every step runs inside a run; nothing is attached while its reader has control."""
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
