"""Run blocking work in threads of this package: never in asyncio's default executor, and bounded by purpose.

asyncio's default executor is shared by the whole process, also by ``loop.getaddrinfo``: a few calls that hang there
stop every new connection by name. ``anyio.to_thread.run_sync`` does not fit either (anyio 4.16): its workers are no
daemons, so one that hangs keeps the interpreter from exiting, and it frees the limiter's token when the waiting task is
cancelled, while the thread still runs. Its `CapacityLimiter` is used here with threads that are daemons and that keep
their token until the work has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from otel_assembly._internal.fork_safety import after_fork_in_child, new_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio import CapacityLimiter

T = TypeVar("T")


class NoFreeThreadError(Exception):
    """No thread became free in time: each one runs a function that has not returned."""

    def __init__(self, total: int, seconds: float) -> None:
        super().__init__(f"none of {total} threads became free within {seconds:g} s: their calls have not returned")


class ThreadLimit:
    """Runs functions in daemon threads, at most `total` at the same time in one event loop.

    If a waiting task is cancelled, its thread continues. The thread keeps its slot until the function
    returns, so that functions which never return cannot fill the process with threads.

    Args:
        purpose: What the threads are for; part of their names.
        total: The maximum number of threads per event loop.
    """

    __slots__ = ("__weakref__", "_limiters", "_lock", "_name", "total")

    def __init__(self, purpose: str, total: int) -> None:
        self._name = f"otel-assembly-{purpose}"
        self.total = total
        self._lock = new_lock()
        # A limiter belongs to one event loop: its waiters are asyncio events.
        self._limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter] = WeakKeyDictionary()
        after_fork_in_child(self._forget)

    def _forget(self) -> None:
        """Forget the limiters in a forked child: the threads that hold their slots do not exist there."""
        self._limiters = WeakKeyDictionary()

    def _limiter(self, loop: asyncio.AbstractEventLoop) -> CapacityLimiter:
        from anyio import CapacityLimiter  # not at the top: most programs never run anything in a thread

        with self._lock:
            limiter = self._limiters.get(loop)
            if limiter is None:
                limiter = self._limiters[loop] = CapacityLimiter(self.total)
        return limiter

    async def _take_slot(self, limiter: CapacityLimiter, slot: object, patience: float | None) -> None:
        from anyio import WouldBlock

        try:
            limiter.acquire_on_behalf_of_nowait(slot)
        except WouldBlock:
            try:
                async with asyncio.timeout(patience) as deadline:
                    await limiter.acquire_on_behalf_of(slot)
            except TimeoutError:
                if not deadline.expired():
                    raise
                raise NoFreeThreadError(self.total, patience or 0.0) from None

    async def run(
        self,
        work: Callable[[], T],
        *,
        patience: float | None = None,
        on_late: Callable[[BaseException | None], None] | None = None,
    ) -> T:
        """Run `work` in a thread as soon as a slot is free; return its result or raise its exception.

        Args:
            work: Runs in a copy of the caller's context variables.
            patience: Seconds to wait for a free slot; None to wait without a limit.
            on_late: Called in the event loop if the function ends after the caller was cancelled, with the exception
                that the function raised; not called if the function never started, or if the loop is closed.

        Raises:
            NoFreeThreadError: No slot became free in time; `work` was not called.
        """
        loop = asyncio.get_running_loop()
        limiter = self._limiter(loop)
        slot = object()
        await self._take_slot(limiter, slot, patience)
        # The outcome is a pair: a future cannot be given a StopIteration as its exception.
        ended: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
        context = contextvars.copy_context()

        def finish(result: T | None, error: BaseException | None, *, started: bool) -> None:
            limiter.release_on_behalf_of(slot)
            if not ended.cancelled():
                ended.set_result((result, error))
            elif started and on_late is not None:
                on_late(error)

        def run_in_thread() -> None:
            result, error = None, None
            started = not ended.cancelled()
            if started:
                try:
                    result = context.run(work)
                except BaseException as raised:  # noqa: BLE001  # raised again in the caller's task
                    error = raised
            with suppress(RuntimeError):  # the loop was closed, so no task waits
                loop.call_soon_threadsafe(lambda: finish(result, error, started=started), context=context)

        try:
            threading.Thread(target=run_in_thread, name=self._name, daemon=True).start()
        except BaseException:
            limiter.release_on_behalf_of(slot)
            raise
        try:
            result, error = await ended
        except asyncio.CancelledError:
            if not ended.cancelled() and on_late is not None:  # it ended just before the task was cancelled
                on_late(ended.result()[1])
            raise
        if error is not None:
            try:
                raise error
            finally:
                del error  # the traceback would keep this frame, and the frame the error
        return result  # type: ignore[return-value]  # without an error it is what `work` returned
