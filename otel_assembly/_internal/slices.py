"""Work on what is large, done in slices: an event loop has its turn between two of them, where that can be awaited."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

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
        self.queue: deque[object] = deque()

    async def do(self, work: Slices[T], *, whole: bool = False) -> T:
        """Do a piece of work after those in the queue.

        Args:
            work: The work.
            whole: Whether the work is completed without pauses if the waiting task is cancelled.
        """
        self.queue.append(work)
        try:
            while self.queue[0] is not work:  # noqa: ASYNC110  # the other task may belong to another event loop
                await asyncio.sleep(_PAUSE)
            while True:
                with self._lock:
                    try:
                        next(work)
                    except StopIteration as done:
                        result: T = done.value
                        return result
                await asyncio.sleep(0)
        finally:
            if whole:
                with self._lock:
                    for _ in work:
                        pass
            work.close()
            self.queue.remove(work)
