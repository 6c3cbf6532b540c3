"""A thread that runs what blocks, one piece of work after another, so that no event loop waits for a disk or a lock."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from otel_assembly._internal.forks import in_child, new_lock
from otel_assembly.errors import LogUnavailableError, LogUnsureError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class OwnThread:
    """Works off what it is given, in order; each piece in a turn that it takes before and gives back after.

    Somebody may hold the turn (`hold`, `let_go`): until then only work of that holder is done. Work whose caller was
    cancelled, or lost its patience, before it began is not done. A forked child begins with a thread of its own.

    Args:
        name: The thread's name.
        take: Waits for the turn.
        give: Gives it back.
    """

    def __init__(
        self, name: str, take: Callable[[], None] = lambda: None, give: Callable[[], None] = lambda: None
    ) -> None:
        self._name = name
        self._take = take
        self._give = give
        self._begin()
        in_child(self._begin)

    def _begin(self) -> None:
        # The lock is under no other one, and a fork waits for it: what works may be inside a library with locks.
        self._working = new_lock(awaited=True)
        self._deciding = new_lock()
        self._given: SimpleQueue[_Work] = SimpleQueue()
        self._holder: object | None = None
        self._thread: threading.Thread | None = None

    async def run(self, do: Callable[[], T], patience: float, holder: object | None = None) -> T:
        """What `do` returns or raises, in the thread.

        Args:
            do: The work.
            patience: Seconds that it may take until it begins, and then until it ends.
            holder: Whoever holds the turn; None where this is nobody's.

        Raises:
            LogUnavailableError: It did not begin in time, and never will.
            LogUnsureError: It began, and has not ended in time; it goes on.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        work = _Work(do, holder, done)
        self._give_to_thread(work)
        try:
            await asyncio.wait([done], timeout=patience)
            if not done.done():
                if self._abandon(work):
                    raise LogUnavailableError(f"others have kept the log busy for {patience} s; nothing was done")
                await asyncio.wait([done], timeout=patience)
            if not done.done():
                raise LogUnsureError(f"the disk has not answered for {patience} s")
            return done.result()
        except asyncio.CancelledError:
            if not self._abandon(work):
                # What has begun ends first, so that whoever looks next finds what came of it.
                await asyncio.wait([done], timeout=patience)
            raise
        finally:
            done.cancel()

    async def hold(self, holder: object, patience: float) -> None:
        """Take the turn, and keep it for `holder` until it is let go.

        Raises:
            LogUnavailableError: Others did not let go of it in time.
        """

        def keep() -> None:
            self._holder = holder

        try:
            await self.run(keep, patience)
        except BaseException:
            self.let_go(holder)
            raise

    def let_go(self, holder: object) -> None:
        """Give the turn back, once what the holder has asked for is done."""

        def release() -> None:
            self._holder = None

        self._give_to_thread(_Work(release, holder))

    def stop(self, last: Callable[[], None] = lambda: None) -> None:
        """End the thread, once what it was given is done, and `last`; more work starts another one."""
        if self._thread is not None:
            self._give_to_thread(_Work(last, None))
            self._give_to_thread(_Work(None, None))

    def _give_to_thread(self, work: _Work) -> None:
        with self._deciding:
            self._given.put(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _abandon(self, work: _Work) -> bool:
        """Whether the work has not begun; then it never will."""
        with self._deciding:
            work.abandoned = not work.begun
            return work.abandoned

    def _run(self) -> None:
        waiting: deque[_Work] = deque()
        while True:
            work = self._next(waiting)
            if work.do is None:
                with self._deciding:
                    if self._given.empty():
                        self._thread = None
                        return
                continue  # more was given meanwhile; whoever gave it ends the thread in time
            try:
                self._in_turn(work)
            except OSError as error:  # the lock cannot be had
                work.fail(error)
            # What the work was of, such as a log, would not be collected while this thread waits for more.
            del work

    def _next(self, waiting: deque[_Work]) -> _Work:
        """The oldest work; while somebody holds the turn, of that one."""
        while True:
            for work in waiting:
                if self._holder is None or work.holder is self._holder:
                    waiting.remove(work)
                    return work
            waiting.append(self._given.get())

    def _in_turn(self, work: _Work) -> None:
        if self._holder is None:
            self._take()
        try:
            with self._deciding:
                work.begun = not work.abandoned
            if work.begun:
                with self._working:
                    work.run()
        finally:
            if self._holder is None:
                self._give()


class _Work:
    """One piece of work, and whom its end is told to."""

    __slots__ = ("abandoned", "begun", "do", "done", "holder")

    def __init__(self, do: Callable[[], Any] | None, holder: object, done: asyncio.Future[Any] | None = None) -> None:
        self.do = do
        self.holder = holder
        self.done = done
        self.begun = False
        self.abandoned = False

    def run(self) -> None:
        if self.do is None:
            return
        try:
            found = self.do()
        except Exception as error:  # noqa: BLE001  # whoever asked for it gets it
            self.fail(error)
        else:
            self._tell(lambda done: done.set_result(found))

    def fail(self, error: Exception) -> None:
        self._tell(lambda done: done.set_exception(error))

    def _tell(self, settle: Callable[[asyncio.Future[Any]], None]) -> None:
        done = self.done
        if done is not None:
            with suppress(RuntimeError):  # its event loop is closed: nobody waits any more
                done.get_loop().call_soon_threadsafe(lambda: None if done.done() else settle(done))
