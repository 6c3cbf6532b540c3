"""A server as a process of ours: on loopback, bounded in time, stopped by the id that we started."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

LOOPBACK: Final = "127.0.0.1"
_PR_SET_PDEATHSIG: Final = 1
#: Below those that a system gives to outgoing connections: whoever is started late, or again, finds its port free.
_PORTS: Final = range(20_000, 32_768)
_given: set[int] = set()


def free_port(preferred: int = 0) -> int:
    """A loopback port that nobody listens on: the preferred one where it is free; never the same twice."""
    anywhere = random.sample(_PORTS, 100)
    for wanted in [preferred, *anywhere] if preferred else anywhere:
        with socket.socket() as probe:
            # Go's servers set it too: a port in TIME_WAIT is free to them.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, wanted))
            except OSError:
                continue
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port
    raise OSError("no free port on loopback")


def answers(url: str) -> bool:
    """Whether a GET of it says 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_until(
    condition: Callable[[], object], *, seconds: float, what: str | Callable[[], str], every: float = 0.1
) -> object:
    """Return the result of a condition as soon as it is true.

    Args:
        condition: Called again and again.
        seconds: The longest wait.
        what: The awaited state, for the error. A function is called when the time is over, so it can describe the
            state at that time.
        every: The seconds between two calls.

    Raises:
        TimeoutError: The condition was not true in time. The message has the last result of the condition.
    """
    end = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            awaited = what() if callable(what) else what
            raise TimeoutError(f"not within {seconds:g} seconds: {awaited}; the last result was {result!r}")
        time.sleep(every)


def _die_with_parent() -> None:
    # Where whoever started us is killed, nobody is left to stop the servers.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """One process: ``start`` waits until it is ready; ``stop`` asks, ``kill`` does not; ``start`` may follow both."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        folder: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        seconds: float = 60,
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.folder = folder
        self.log = folder / f"{name}.log"
        self._ready = ready
        self._environment = dict(environment or {})
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the running process."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def end(self) -> str:
        """How the process ended: its exit code, or the signal that killed it."""
        status = self._process.poll() if self._process is not None else None
        if status is None:
            return "has not ended"
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"

    def set(self, **environment: str) -> None:
        """Set environment variables for its next start."""
        self._environment |= environment

    def start(self) -> None:
        """Start it, and wait until it is ready; a second start appends to the log.

        Raises:
            RuntimeError: it ended, or was not ready in time; the message ends with its log.
        """
        if self.running:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        end = time.monotonic() + self._seconds
        while not self._ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} {self.end}: {self.said()}")
            if time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"{self.name} was not ready within {self._seconds:g} seconds: {self.said()}")
            time.sleep(0.1)

    def stop(self, seconds: float = 20) -> None:
        """Ask it to end, and wait; kill it where it does not."""
        self._signal(signal.SIGTERM, seconds)

    def kill(self) -> None:
        """End it as a crash would."""
        self._signal(signal.SIGKILL, 10)

    def said(self, lines: int = 20) -> str:
        """The end of its log."""
        if not self.log.exists():
            return "(it has said nothing)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: int, seconds: float) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
