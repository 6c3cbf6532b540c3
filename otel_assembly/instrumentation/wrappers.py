"""What a hook wraps an original in: an observation that runs around it, or a function that runs in its place.

While no provider is configured, either does what the original does and nothing else. What fails in an observation is a
warning and a count: the original runs all the same, once, and what it returns or raises goes through.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from otel_assembly.instrumentation.hooks import Instrumentation

    #: It yields once, where the original runs, and is sent what that returned or thrown what it raised; or it returns
    #: before that, where there is nothing to observe.
    Observation: TypeAlias = Generator[None, Any, None]
    #: Makes the replacement of an original, as `Hook.wrap` does.
    Wrap: TypeAlias = Callable[[Callable[..., Any], Instrumentation], Callable[..., Any]]


def around(observe: Callable[..., Observation]) -> Wrap:
    """The hook of a function around which `observe` runs, called with the instrumentation and the arguments."""

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if not instrumentation.listening():
                return original(*args, **kwargs)
            with _Observed(observe, instrumentation, args, kwargs) as returned:
                return returned(original(*args, **kwargs))

        return observed

    return wrap


def around_awaited(observe: Callable[..., Observation]) -> Wrap:
    """The hook of a coroutine function, likewise."""

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        @functools.wraps(original)
        async def observed(*args: Any, **kwargs: Any) -> Any:
            if not instrumentation.listening():
                return await original(*args, **kwargs)
            with _Observed(observe, instrumentation, args, kwargs) as returned:
                return returned(await original(*args, **kwargs))

        return observed

    return wrap


def instead(work: Callable[..., Any]) -> Wrap:
    """The hook of a function in whose place `work` runs, called with the instrumentation, the original, the arguments.

    Where `work` is a coroutine function, so is the original.
    """

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        @functools.wraps(original)
        def done(*args: Any, **kwargs: Any) -> Any:
            if not instrumentation.listening():
                return original(*args, **kwargs)
            return work(instrumentation, original, *args, **kwargs)

        @functools.wraps(original)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await done(*args, **kwargs)

        return awaited if inspect.iscoroutinefunction(work) else done

    return wrap


@contextmanager
def ending(end: Callable[[BaseException | None], None]) -> Iterator[None]:
    """A block at whose end `end` is called, with what was raised in it."""
    try:
        yield
    except BaseException as error:
        end(error)
        raise
    end(None)


class _Observed:
    """One call of an original, while an observation runs around it."""

    __slots__ = ("_instrumentation", "_observation")

    def __init__(
        self, observe: Callable[..., Observation], instrumentation: Instrumentation, args: Any, kwargs: Any
    ) -> None:
        self._instrumentation = instrumentation
        self._observation = _all_of(observe, instrumentation, args, kwargs)

    def __enter__(self) -> Callable[[Any], Any]:
        with self._instrumentation.contained():
            next(self._observation, None)
        return self._returned

    def _returned(self, result: Any) -> Any:
        with self._instrumentation.contained(), suppress(StopIteration):
            self._observation.send(result)
        return result

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        with self._instrumentation.contained():
            try:
                self._observation.throw(error)
            except BaseException as raised:
                if raised is not error and raised.__cause__ is not error:  # a `StopIteration` comes out as a cause
                    raise
            finally:
                error.__traceback__ = trace


def _all_of(
    observe: Callable[..., Observation], instrumentation: Instrumentation, args: Any, kwargs: Any
) -> Observation:
    """An observation whose call is a part of it, so that it is contained as the rest is."""
    yield from observe(instrumentation, *args, **kwargs)
