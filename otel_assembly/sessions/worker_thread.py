"""A thread that runs blocking calls in order, so that no event loop waits for a disk or a lock."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from otel_assembly._internal.fork_safety import after_fork_in_child, new_lock
from otel_assembly.errors import LogUnavailableError, LogUnsureError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class WorkerThread:
    """A thread that runs blocking calls in order; before each call it acquires a lock, such as a lock file.

    A caller can keep the lock for several calls: between `hold` and `release`, the thread runs only the calls of that
    holder. A call that is canceled, or times out, before it begins never runs. A forked child starts its own thread.

    Args:
        name: The thread's name.
        take: Acquires the lock; blocks.
        give: Releases the lock.
    """

    def __init__(
        self, name: str, take: Callable[[], None] = lambda: None, give: Callable[[], None] = lambda: None
    ) -> None:
        self._name = name
        self._take = take
        self._give = give
        self._begin()
        after_fork_in_child(self._begin)

    def _begin(self) -> None:
        """Start with an empty queue and no thread; called again in a forked child, which has none of the threads."""
        # A fork of the process waits for this lock, because a running call may hold locks of a C library.
        self._running_lock = new_lock(awaited=True)
        self._state_lock = new_lock()
        self._queue: SimpleQueue[_Work] = SimpleQueue()
        self._holder: object | None = None
        self._thread: threading.Thread | None = None

    async def run(self, do: Callable[[], T], patience: float, holder: object | None = None) -> T:
        """Run `do` in the thread; return its result or raise its error.

        Args:
            do: The blocking call.
            patience: The seconds to wait until the call begins, and again until it ends.
            holder: The object given to `hold` if the call is one of that holder; else None.

        Raises:
            LogUnavailableError: The call did not begin in time and will never run.
            LogUnsureError: The call did not end in time and is still running.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        work = _Work(do, holder, future)
        self._enqueue(work)
        try:
            await asyncio.wait([future], timeout=patience)
            if not future.done():
                if self._abandon(work):
                    raise LogUnavailableError(f"other writers blocked the log for {patience} s; nothing was written")
                await asyncio.wait([future], timeout=patience)
            if not future.done():
                raise LogUnsureError(f"the disk has not answered for {patience} s")
            return future.result()
        except asyncio.CancelledError:
            if not self._abandon(work):
                # Wait for a call that has begun, so that the next read sees its result.
                await asyncio.wait([future], timeout=patience)
            raise
        finally:
            future.cancel()

    async def hold(self, holder: object, patience: float) -> None:
        """Acquire the lock and keep it for `holder` until `release`.

        Args:
            holder: The object that the holder's calls give to `run`.
            patience: The seconds to wait for the lock.

        Raises:
            LogUnavailableError: The lock was not free in time.
        """

        def set_holder() -> None:
            self._holder = holder

        try:
            await self.run(set_holder, patience)
        except BaseException:
            self.release(holder)
            raise

    def release(self, holder: object) -> None:
        """Release the lock after the pending calls of the holder."""

        def release() -> None:
            self._holder = None

        self._enqueue(_Work(release, holder))

    def stop(self, last: Callable[[], None] = lambda: None) -> None:
        """End the thread after its pending calls and `last`; a later call starts a new thread."""
        if self._thread is not None:
            self._enqueue(_Work(last, None))
            self._enqueue(_Work(None, None))

    def _enqueue(self, work: _Work) -> None:
        with self._state_lock:
            self._queue.put(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _abandon(self, work: _Work) -> bool:
        """Cancel a call unless it has begun; return True if it will never run."""
        with self._state_lock:
            work.abandoned = not work.begun
            return work.abandoned

    def _run(self) -> None:
        waiting: deque[_Work] = deque()
        while True:
            work = self._next(waiting)
            if work.do is None:
                with self._state_lock:
                    if self._queue.empty():
                        self._thread = None
                        return
                continue  # more calls were queued meanwhile; their caller stops the thread
            try:
                self._run_locked(work)
            except OSError as error:  # the lock cannot be acquired
                work.fail(error)
            # Without this, a log that the call refers to would not be collected while this thread waits for calls.
            del work

    def _next(self, waiting: deque[_Work]) -> _Work:
        """Return the oldest call; while a holder keeps the lock, the oldest call of that holder."""
        while True:
            for work in waiting:
                if self._holder is None or work.holder is self._holder:
                    waiting.remove(work)
                    return work
            waiting.append(self._queue.get())

    def _run_locked(self, work: _Work) -> None:
        """Run a call under the lock, unless it was abandoned; a lock that a holder keeps is not acquired again."""
        if self._holder is None:
            self._take()
        try:
            with self._state_lock:
                work.begun = not work.abandoned
            if work.begun:
                with self._running_lock:
                    work.run()
        finally:
            if self._holder is None:
                self._give()


class _Work:
    """A blocking call, and the asyncio future that gets its result; the call None ends the thread."""

    __slots__ = ("abandoned", "begun", "do", "future", "holder")

    def __init__(self, do: Callable[[], Any] | None, holder: object, future: asyncio.Future[Any] | None = None) -> None:
        self.do = do
        self.holder = holder
        self.future = future
        self.begun = False
        self.abandoned = False

    def run(self) -> None:
        if self.do is None:
            return
        try:
            result = self.do()
        except Exception as error:  # noqa: BLE001  # the caller gets it
            self.fail(error)
        else:
            self._settle(lambda future: future.set_result(result))

    def fail(self, error: Exception) -> None:
        self._settle(lambda future: future.set_exception(error))

    def _settle(self, settle: Callable[[asyncio.Future[Any]], None]) -> None:
        future = self.future
        if future is not None:
            with suppress(RuntimeError):  # the event loop is closed, so no caller is waiting
                future.get_loop().call_soon_threadsafe(lambda: None if future.done() else settle(future))
