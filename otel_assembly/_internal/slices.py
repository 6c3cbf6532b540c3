"""Work on what is large, done in slices: an event loop has its turn between two of them, where that can be awaited."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

T = TypeVar("T")

#: Work that yields after each slice and returns its result.
Slices: TypeAlias = Generator[None, None, T]
#: The number of events per slice when reading: about two milliseconds.
SLICE: Final = 64
#: The number of events per slice when listing for telemetry: about two milliseconds.
LISTED: Final = 256

#: The seconds between checks whether another piece of work is done.
_PAUSE: Final = 0.001


class _Piece:
    """A piece of work, of which a synchronous caller may do the rest in place of the task that waits for it."""

    __slots__ = ("_context", "_error", "_result", "_work", "done")

    def __init__(self, work: Slices[Any]) -> None:
        self._work = work
        # A copy of the task's context: its current span is exported as the parent, also if another caller finishes.
        self._context = contextvars.copy_context()
        self._result: Any = None
        self._error: BaseException | None = None
        self.done = False

    def step(self) -> None:
        """Do the next slice."""
        try:
            next(self._work)
        except StopIteration as stop:
            self._result, self.done = stop.value, True
        except BaseException as error:
            self._error, self.done = error, True  # for the task that waits
            if not isinstance(error, Exception):
                raise  # an interrupt is also for whoever does the slice

    def finish(self) -> None:
        """Do all slices that are left, in the context of the task."""
        while not self.done:
            self._context.run(self.step)

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class SerialSlices:
    """Work in slices, each under a lock; several pieces of work are done one after the other, in order.

    Args:
        lock: The lock.

    Attributes:
        queue: The current piece of work, followed by those that wait.
    """

    __slots__ = ("_lock", "queue")

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self.queue: deque[_Piece] = deque()

    async def do(self, work: Slices[T], *, whole: bool = False) -> T:
        """Do a piece of work after those in the queue.

        Args:
            work: The work.
            whole: Whether the work is completed without pauses if the waiting task is cancelled.
        """
        with self._lock:
            if not self.queue:  # the usual case: no other work waits, and this work has a single slice
                try:
                    next(work)
                except StopIteration as stop:
                    return cast("T", stop.value)
            piece = _Piece(work)
            self.queue.append(piece)
        try:
            while self.queue[0] is not piece:  # noqa: ASYNC110  # the other task may belong to another event loop
                await asyncio.sleep(_PAUSE)
            while not piece.done:
                await asyncio.sleep(0)
                with self._lock:
                    if not piece.done:
                        piece.step()
            return cast("T", piece.result())
        finally:
            if whole:
                with self._lock:
                    piece.finish()
            work.close()
            self.queue.remove(piece)

    def finish(self) -> None:
        """Do the rest of all pieces in the queue, for a caller that holds the lock.

        A synchronous caller cannot wait for them: it may block the event loop of the task that does them.
        """
        for piece in [*self.queue]:
            piece.finish()
