"""Running examples as a user does: in a process of their own, with nothing of OpenTelemetry in the environment."""

from __future__ import annotations

import importlib.util
import subprocess

import pytest
from programs import AGENTS, clean_environment
from telemetry.turn_checks import adds_up, turns_of

#: `make test-matrix` runs it in an environment of its own.
collect_ignore = [] if importlib.util.find_spec("openinference") else ["beside"]
#: It does not go with what the others need, and has an environment of its own there.
collect_ignore += [] if "semantic_kernel" in AGENTS else ["semantic_kernel"]


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


@pytest.fixture(autouse=True)
def every_turn_adds_up(request):
    """Whatever a framework does: what is told of each turn adds up, for a reader of that turn alone."""
    telemetry = request.getfixturevalue("assembly_telemetry") if "assembly_telemetry" in request.fixturenames else None
    yield
    for turn in turns_of(telemetry) if telemetry is not None else ():
        adds_up(turn)
