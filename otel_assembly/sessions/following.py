"""`Follower`: one look at a log's changes for everybody in a hub who waits for them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from otel_assembly.errors import NetworkError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from otel_assembly.sessions.log import SessionLog

_log = logging.getLogger(__name__)

#: A log that does not answer is asked again after this many seconds.
_ASK_AGAIN: Final = 0.5


class _Waiting:
    """What one reader has not been told yet: each session once, however often it changed."""

    def __init__(self) -> None:
        self.sessions: dict[str | None, None] = {None: None}
        self.some = asyncio.Event()
        self.some.set()

    def tell(self, session_id: str | None) -> None:
        self.sessions[session_id] = None
        self.some.set()


class Follower:
    """Follows a log from when the first reader asks until it is closed."""

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._readers: set[_Waiting] = set()
        self._closed = False

    async def changes(self) -> AsyncGenerator[str | None, None]:
        """The ids of sessions that somebody appended to; None where all are to be looked at. Ends when it is closed."""
        waiting = _Waiting()
        self._readers.add(waiting)
        try:
            if self._task is None and not self._closed:
                self._task = asyncio.create_task(self._follow())
            while not self._closed:
                await waiting.some.wait()
                waiting.some.clear()
                told, waiting.sessions = waiting.sessions, {}
                for session_id in told:
                    yield session_id
        finally:
            self._readers.discard(waiting)

    async def _follow(self) -> None:
        while True:
            try:
                async for session_id in self._log.changes():
                    self._tell(session_id)
            except NetworkError as error:
                _log.warning("the log of sessions cannot be followed: %s; asking again", error)
            await asyncio.sleep(_ASK_AGAIN)
            self._tell(None)

    def _tell(self, session_id: str | None) -> None:
        for waiting in self._readers:
            waiting.tell(session_id)

    async def aclose(self) -> None:
        """Stop; whoever waits for changes is let go."""
        self._closed = True
        for waiting in self._readers:
            waiting.some.set()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
