"""Running the program: in this process what only reads and writes files, else in a process of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from otel_assembly.cli import main

#: Commands that leave nothing behind in the process that runs them; starting Python takes longer than they do.
HERE = {"replay", "tree", "view", "explain", "session", "conventions", "completion", "stack"}
#: Variables that a command reads when it runs, not when its modules are imported.
READ_EACH_TIME = {"COLUMNS", "TMPDIR", "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"}
NO_FRAMEWORKS = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def runner(folder, *, here=None):
    """Return a function that runs the program in a folder, without OpenTelemetry's environment variables.

    With `here`, each command runs in this process. Use it for commands that end before they start anything.
    """

    def run(*arguments, **environment):
        arguments = [*map(str, arguments)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        env |= {"TMPDIR": str(folder), "COLUMNS": "100", "PYTHONIOENCODING": "utf-8", **environment}
        in_process = _leaves_nothing(arguments, environment) if here is None else here
        done = (_here if in_process else _apart)(arguments, folder, env)
        assert "Traceback" not in done.err, done.err
        return done

    return run


def _leaves_nothing(arguments, environment):
    """Whether this is as good as in a process of its own: the SDK is not set up, and no framework is imported."""
    if arguments[:1] == ["doctor"]:
        return environment.items() >= NO_FRAMEWORKS.items()
    return bool(arguments) and arguments[0] in HERE and environment.keys() <= READ_EACH_TIME


def _here(arguments, folder, env):
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        patch.dict(os.environ, env, clear=True),
        patch.object(tempfile, "tempdir", None),
        chdir(folder),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = ended.code or 0
    return Ran(status, *(item.buffer.getvalue().decode("utf-8") for item in (out, err)))


def _apart(arguments, folder, env):
    done = subprocess.run(
        [sys.executable, "-m", "otel_assembly.cli", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=folder,
        env=env,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
