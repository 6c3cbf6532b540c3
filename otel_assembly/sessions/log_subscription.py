"""`LogSubscription`: a hub's only subscription to the changes of its log, shared by all readers in the hub."""

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

#: The delay before the subscription to a log is renewed, in seconds.
_RETRY_DELAY: Final = 0.5


class _PendingChanges:
    """The ids of changed sessions that one reader has not received yet, each id once.

    The id None means that any session may have changed. A new reader starts with it.
    """

    def __init__(self) -> None:
        self.sessions: dict[str | None, None] = {None: None}
        self.available = asyncio.Event()
        self.available.set()

    def add(self, session_id: str | None) -> None:
        self.sessions[session_id] = None
        self.available.set()


class LogSubscription:
    """Subscribes once to a log's changes and passes them to all readers.

    The subscription starts with the first call of `changes` and ends with `aclose`. After an error of the log, it is
    renewed.
    """

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._readers: set[_PendingChanges] = set()
        self._closed = False

    async def changes(self) -> AsyncGenerator[str | None, None]:
        """Yield the ids of changed sessions until `aclose`; None means that any session may have changed."""
        pending = _PendingChanges()
        self._readers.add(pending)
        try:
            if self._task is None and not self._closed:
                self._task = asyncio.create_task(self._read_changes())
            while not self._closed:
                await pending.available.wait()
                pending.available.clear()
                session_ids, pending.sessions = pending.sessions, {}
                for session_id in session_ids:
                    yield session_id
        finally:
            self._readers.discard(pending)

    async def _read_changes(self) -> None:
        """Pass the log's changes to the readers; after an interruption, report that any session may have changed."""
        while True:
            try:
                async for session_id in self._log.changes():
                    self._notify(session_id)
            except NetworkError as error:
                _log.warning("cannot read the changes of the session log: %s; retrying in %s s", error, _RETRY_DELAY)
            await asyncio.sleep(_RETRY_DELAY)
            self._notify(None)

    def _notify(self, session_id: str | None) -> None:
        for pending in self._readers:
            pending.add(session_id)

    async def aclose(self) -> None:
        """End the subscription and all iterators of `changes`."""
        self._closed = True
        for pending in self._readers:
            pending.available.set()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
