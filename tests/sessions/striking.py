"""A log that kills its own process, or the server behind it, with SIGKILL at a named point of an append."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from dataclasses import dataclass
from functools import partial

from postgres_server import kill_with_children

BEFORE, WRITTEN, DURING, COMMITTED, AFTER = POINTS = (
    "before the append",
    "before the commit",
    "during the append",
    "after the commit",
    "after the answer",
)
#: Of an append that is one statement, nobody outside the server knows when its commit begins and ends.
POINTS_OF_A_STATEMENT = (BEFORE, DURING, AFTER)


@dataclass(frozen=True)
class Strike:
    """When somebody is killed, and who.

    Attributes:
        point: One of `POINTS`.
        nth: At which append of the process, from 1.
        delay: Seconds after the beginning of the append, for the point "during".
        server_data: The folder of the server that is killed; None to kill the process itself.
    """

    point: str
    nth: int
    delay: float = 0.0
    server_data: str | None = None

    def now(self) -> None:
        if self.server_data is None:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # not a step further, should another thread be told first
        else:
            with open(f"{self.server_data}/postmaster.pid", encoding="utf-8") as file:
                kill_with_children(int(file.readline()))


class StrikingLog:
    """Does what a log does, and strikes at one of its appends."""

    def __init__(self, log, strike):
        self._log = log
        self._strike = strike
        self._appends = 0
        if strike.point in (WRITTEN, COMMITTED):
            _Connection.struck_by = strike
            sqlite3.connect = partial(sqlite3.connect, factory=_Connection)

    def __getattr__(self, name):
        return getattr(self._log, name)

    def spare(self):
        """Strike no more."""
        self._appends = self._strike.nth

    async def append(self, rows, on):
        self._appends += 1
        if self._appends == self._strike.nth:
            await self._struck(rows, on)
        else:
            await self._log.append(rows, on)

    async def _struck(self, rows, on):
        point = self._strike.point
        if point == BEFORE:
            self._strike.now()
        _Connection.armed = True
        timer = threading.Thread(target=self._later)
        if point == DURING:
            timer.start()
        try:
            await self._log.append(rows, on)
        finally:
            _Connection.armed = False
            if point == DURING:
                timer.join()
        if point == AFTER:
            self._strike.now()

    def _later(self):
        time.sleep(self._strike.delay)
        self._strike.now()


class _Connection(sqlite3.Connection):
    """Strikes right before a commit, or right after it, in the thread that commits."""

    struck_by: Strike | None = None
    armed = False

    def execute(self, statement, *arguments):
        strike = _Connection.struck_by if _Connection.armed and statement == "COMMIT" else None
        if strike is not None and strike.point == WRITTEN:
            strike.now()
        found = super().execute(statement, *arguments)
        if strike is not None and strike.point == COMMITTED:
            strike.now()
        return found
