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
    """Does what a log does, and strikes once: at the append of the number, or the next one that comes to the point."""

    def __init__(self, log, strike):
        self._log = log
        self._strike = strike
        self._appends = 0
        self._done = False
        if strike.point in (WRITTEN, COMMITTED):
            _Connection.strike = self.strike
            _Connection.point = strike.point
            sqlite3.connect = partial(sqlite3.connect, factory=_Connection)

    def __getattr__(self, name):
        return getattr(self._log, name)

    def spare(self):
        """Strike no more."""
        self._done = True

    def strike(self):
        if not self._done:
            self._done = True
            self._strike.now()

    async def append(self, rows, on):
        self._appends += 1
        if self._done or self._appends < self._strike.nth:
            await self._log.append(rows, on)
            return
        point = self._strike.point
        if point == BEFORE:
            self.strike()
        timer = threading.Thread(target=self._later)
        if point == DURING:
            timer.start()
        _Connection.armed = True
        try:
            # Where somebody else was first nothing is committed, and no answer comes: then it strikes another time.
            await self._log.append(rows, on)
        finally:
            _Connection.armed = False
            if point == DURING:
                timer.join()
        if point == AFTER:
            self.strike()

    def _later(self):
        time.sleep(self._strike.delay)
        self.strike()


class _Connection(sqlite3.Connection):
    """Strikes right before a commit, or right after it, in the thread that commits."""

    armed = False
    point = ""
    strike = None

    def execute(self, statement, *arguments):
        due = _Connection.armed and statement == "COMMIT"
        if due and _Connection.point == WRITTEN:
            _Connection.strike()
        found = super().execute(statement, *arguments)
        if due and _Connection.point == COMMITTED:
            _Connection.strike()
        return found
