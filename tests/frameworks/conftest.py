"""Running examples as a user does: in a process of their own, with nothing of OpenTelemetry in the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def clean_environment(folder, **more):
    """The environment of a fresh terminal, in which the programs beside this interpreter are found first."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    path = os.pathsep.join((str(Path(sys.executable).parent), env.get("PATH", "")))
    return env | {"PATH": path, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8", "COLUMNS": "100", **more}


@pytest.fixture
def run_program(tmp_path):
    """Run a program in an empty folder; its output, once it has ended well."""

    def run(*command, status=0, **environment):
        done = subprocess.run(
            [str(word) for word in command],
            cwd=tmp_path,
            env=clean_environment(tmp_path, **environment),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=110,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return run
