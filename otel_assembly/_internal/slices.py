"""Work on what is large, done in slices: an event loop has its turn between two of them, where that can be awaited."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

T = TypeVar("T")

#: Work that yields after each slice, and returns what it comes to.
Slices: TypeAlias = Generator[None, None, T]
#: So many events are read at once: some two milliseconds.
SLICE: Final = 64
#: So many are listed for telemetry: some two milliseconds, too.
LISTED: Final = 256

#: Seconds after which it is looked again whether another piece of work is done.
_PAUSE: Final = 0.001


class InTurn:
    """Work in slices, each under a lock: of several pieces of work one is done after the other, as they were asked for.

    Args:
        lock: The lock.

    Attributes:
        asked: What is being done, and behind it what waits for that.
    """

    __slots__ = ("_lock", "asked")

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self.asked: deque[object] = deque()

    async def do(self, work: Slices[T], *, whole: bool = False) -> T:
        """Do a piece of work, once those are done that were asked for before.

        Args:
            work: The work.
            whole: Whether it is done to its end, and at once, where whoever waits for it is cancelled.
        """
        self.asked.append(work)
        try:
            while self.asked[0] is not work:  # noqa: ASYNC110  # who does the other may be of another event loop
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
            self.asked.remove(work)
