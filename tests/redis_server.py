"""A real Redis on this machine alone: a free port of the loopback, nothing on disk, stopped by its process id."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

REDIS = shutil.which("redis-server")


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@dataclass
class RedisServer:
    """A server that a test may stop and start again; the test is skipped if Redis is not installed."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        if REDIS is None:
            pytest.skip("Redis is not installed: apt-get install redis-server")
        pytest.importorskip("redis", reason="not installed: python -m pip install -e '.[redis]'")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [REDIS, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 500
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError((self.folder / "log").read_text(errors="replace"))
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill the process that was started, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as one:
            one.sendall(b"PING\r\n")
            return one.recv(7) == b"+PONG\r\n"
        return False
