"""The program in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def runner(folder):
    """What runs the program in a folder, with nothing of OpenTelemetry in its environment."""

    def run(*arguments, **environment):
        env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        env |= {"TMPDIR": str(folder), "COLUMNS": "100", "PYTHONIOENCODING": "utf-8", **environment}
        done = subprocess.run(
            [sys.executable, "-m", "otel_assembly.cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=100,
            cwd=folder,
            env=env,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    return run
