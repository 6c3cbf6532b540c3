"""Agents' asks, followed as one run each: around a function, a coroutine, or each step of a generator."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator
    from contextlib import AbstractContextManager


class AskedRun(Protocol):
    """One ask that is followed; `OpenRun` is one."""

    def current(self) -> AbstractContextManager[None]:
        """What runs in this block belongs to the run."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """The ask came to its end."""
        ...


async def awaited(run: AskedRun, work: Awaitable[Any]) -> Any:
    """Await something inside a run, which ends with it."""
    try:
        with run.current():
            result = await work
    except BaseException as error:
        run.end(error)
        raise
    run.end()
    return result


class Steps(AsyncGenerator[Any, Any]):
    """An async generator whose every step runs inside a run; nothing is attached while its reader has control.

    It is no generator itself: an event loop that shuts down closes all async generators at once, and of two that stand
    in one another the second would find the first one running.
    """

    def __init__(self, run: AskedRun, items: AsyncGenerator[Any, Any]) -> None:
        self._run = run
        self._items = items
        self._ended = False

    async def asend(self, value: Any) -> Any:
        """Take a step."""
        return await self._step(self._items.asend(value))

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        """Take a step that begins with an exception."""
        return await self._step(self._items.athrow(val if val is not None else typ))

    async def aclose(self) -> None:
        """The reader has had enough, which is no error."""
        try:
            with self._run.current():
                await self._items.aclose()
        except BaseException as error:
            self._end(error)
            raise
        self._end()

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


def stepping(run: AskedRun, items: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """A generator whose every step runs inside a run; nothing is attached while its reader has control."""
    error: BaseException | None = None
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
