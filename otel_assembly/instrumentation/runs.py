"""Runs of agents: a function, a coroutine, or each step of a generator, inside of the run that it belongs to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from otel_assembly.instrumentation.instrumented import ending

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Run(Protocol):
    """One run that is followed; `OpenRun` is one."""

    def current(self) -> AbstractContextManager[None]:
        """What runs in this block belongs to the run."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """End the run."""
        ...


def followed(run: Run, answers: Any) -> Any:
    """What gives a run's answers, inside of it: one by one, or all at once.

    A framework's function that another one has wrapped may give them as anything that can be iterated or awaited.
    """
    if isinstance(answers, AsyncIterable):
        return Steps(run, answers)
    if isinstance(answers, Iterable):
        return stepping(run, answers)
    if isinstance(answers, Awaitable):
        return awaited(run, answers)
    run.end()
    return answers


async def awaited(run: Run, work: Awaitable[Any]) -> Any:
    """Await something inside a run, which ends with it."""
    with ending(run.end), run.current():
        return await work


class Steps(AsyncGenerator[Any, Any]):
    """An async generator whose every step runs inside a run; nothing is attached while its reader has control.

    It is no generator itself: an event loop that shuts down closes all async generators at once, and of two that stand
    in one another the second would find the first one running.
    """

    def __init__(self, run: Run, items: AsyncIterable[Any]) -> None:
        self._ended = False
        self._run = run
        self._given = items
        self._items = items if isinstance(items, AsyncGenerator) else _one_by_one(items)

    def __getattr__(self, name: str) -> Any:
        """What else there is of what is followed."""
        return getattr(vars(self)["_given"], name)

    async def asend(self, value: Any) -> Any:
        """Take a step."""
        return await self._step(self._items.asend(value))

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        """Take a step that begins with an exception."""
        return await self._step(self._items.athrow(val if val is not None else typ))

    async def aclose(self) -> None:
        """The reader has had enough, which is no error."""
        with ending(self._end), self._run.current():
            await self._items.aclose()

    async def _step(self, step: Awaitable[Any]) -> Any:
        try:
            with self._run.current():
                return await step
        except StopAsyncIteration:
            self._end()
            raise
        except BaseException as error:
            self._end(error)
            raise

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


def stepping(run: Run, items: Iterable[Any]) -> Generator[Any, Any, Any]:
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
