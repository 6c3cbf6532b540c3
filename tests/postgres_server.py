"""A real PostgreSQL on this machine alone: on a socket in a folder of its own, stopped by its process id."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Debian puts the programs beside the path.
BIN = next(
    (
        folder
        for folder in (
            *(Path(found).parent for found in [shutil.which("initdb")] if found),
            *sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda span: -int(span.parent.name)),
        )
        if (folder / "initdb").exists()
    ),
    None,
)
MISSING = "PostgreSQL is not installed: apt-get install postgresql"


def account() -> dict[str, Any]:
    """Whom the server runs as: it refuses root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    return {}


def kill_with_children(pid: int) -> None:
    """Kill a process and those that it started, at once."""
    with suppress(FileNotFoundError, ProcessLookupError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for item in [pid, *map(int, children)]:
            with suppress(ProcessLookupError):
                os.kill(item, signal.SIGKILL)


class PostgresServer:
    """A server that a test may kill and start again."""

    def __init__(self, *settings: str) -> None:
        # Short, for a socket's path is; and not beneath a folder that only its owner may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self.data = self.folder / "data"
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None
        self.account = account()
        if self.account:
            os.chown(self.folder, self.account["user"], self.account["group"])
        command = [BIN / "initdb", "-D", self.data, "-U", "tests", "-A", "trust", "-E", "UTF8", "--locale", "C", "-N"]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self.account)

    def dsn(self, schema: str = "public") -> str:
        return f"host={self.folder} user=tests dbname=postgres options='-c search_path={schema}'"

    @property
    def socket(self) -> str:
        return str(self.folder / ".s.PGSQL.5432")

    def new_schema(self) -> str:
        schema = f"t{uuid.uuid4().hex}"
        with self.connected() as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        return schema

    def connected(self, schema: str = "public"):
        import psycopg

        return psycopg.connect(self.dsn(schema), autocommit=True)

    def start(self) -> None:
        command = [BIN / "postgres", "-D", self.data, "-k", self.folder, "-c", "listen_addresses="]
        command += [part for setting in self.settings for part in ("-c", setting)]
        deadline = time.monotonic() + 500
        while True:
            with (self.folder / "log").open("ab") as log:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self.account)
            while self.process.poll() is None and time.monotonic() < deadline:
                if self._answers():
                    return
                time.sleep(0.02)
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError((self.folder / "log").read_text(errors="replace"))
            time.sleep(0.1)  # after a kill, the last process of the server before is still leaving

    def _answers(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError), self.connected() as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
        return False

    def kill(self) -> None:
        """Kill it with all of its processes, as if its machine had failed."""
        if self.process is None:
            return
        kill_with_children(self.process.pid)
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait()
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
