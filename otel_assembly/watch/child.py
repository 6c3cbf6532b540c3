"""Run a command as a child process, a Python program under ``opentelemetry-instrument``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The modules that the instrumentation of a program needs.
_MODULES: Final = (
    "otel_assembly",
    "opentelemetry.distro",
    "opentelemetry.sdk",
    "opentelemetry.instrumentation.auto_instrumentation",
    "opentelemetry.exporter.otlp.proto.http",
)
_CHECK: Final = """
import sys
sys.path = [path for path in sys.path if path]
import importlib.util, json
def is_missing(name):
    try:
        return importlib.util.find_spec(name) is None
    except ImportError:
        return True
print(json.dumps([name for name in sys.argv[1:] if is_missing(name)]))
"""
#: What the script ``opentelemetry-instrument`` does. Files of the working directory must not replace its modules.
_LAUNCH: Final = (
    "import sys; sys.path = [path for path in sys.path if path]; "
    "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
)
_PYTHON: Final = re.compile(r"(?:python|pypy)(?:\d(?:\.\d+)?t?)?(?:\.exe)?")
#: The second line of a script whose interpreter has a path that is too long for the first line.
_LONG_PATH: Final = re.compile(rb"'''exec' \"?([^\"\n]+?)\"? \"\$0\" \"\$@\"")
_SECONDS: Final = 30

#: Signals that this process sends on to the command.
_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: Signals that a terminal sends to the command, too. A second SIGINT would end many programs harder.
_OF_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)


class ChildError(Exception):
    """A command that cannot be started.

    Attributes:
        status: The exit status with which a shell reports this: 127 if the command is missing, otherwise 126.
    """

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class PythonProgram(NamedTuple):
    """A command that runs a Python program.

    Attributes:
        interpreter: The path of the interpreter.
        missing: The modules that the instrumentation needs and the interpreter does not have.
        command: The command under ``opentelemetry-instrument``; the command itself if a module is missing.
    """

    interpreter: str
    missing: Sequence[str]
    command: Sequence[str]


def python_program(command: Sequence[str], environment: Mapping[str, str]) -> PythonProgram | None:
    """Return how to run a command under ``opentelemetry-instrument``.

    Example::

        program = python_program(["python", "agent.py"], os.environ)
        command = program.command if program is not None else ["python", "agent.py"]

    Returns:
        None if the command is not a Python interpreter or a script for one, or if it is ``opentelemetry-instrument``.
    """
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None or Path(program).name.startswith("opentelemetry-instrument"):
        return None
    interpreter = program if _PYTHON.fullmatch(Path(program).name) else _interpreter_of(program, environment)
    if interpreter is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603  # the interpreter of the user's command
            [interpreter, "-c", _CHECK, *_MODULES],
            env=dict(environment),
            capture_output=True,
            timeout=_SECONDS,
            check=True,
        )
        missing = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        missing = [*_MODULES]
    launcher = command if missing else [interpreter, "-c", _LAUNCH, program, *command[1:]]
    return PythonProgram(interpreter, missing, launcher)


def _interpreter_of(program: str, environment: Mapping[str, str]) -> str | None:
    """Return the Python interpreter in the first line of a script; None if there is none."""
    try:
        with open(program, "rb") as file:
            head = file.read(4096)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    long_path = _LONG_PATH.search(head)
    try:
        words = [long_path[1].decode()] if long_path else shlex.split(head[2:].partition(b"\n")[0].decode())
    except ValueError:
        return None
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return None
    return shutil.which(words[0], path=environment.get("PATH"))


class Child:
    """A command that shares the terminal with this process, and gets the signals of this process.

    Signals that the terminal sends to the command anyway are not sent twice.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._early: list[int] = []
        loop = asyncio.get_running_loop()
        for number in _FORWARDED:
            loop.add_signal_handler(number, self._send, number)
        for number in _OF_TERMINAL:
            loop.add_signal_handler(number, _ignore if _has_terminal() else self._send, number)

    async def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a command; return its exit status, or the negative number of the signal that ended it.

        Raises:
            ChildError: The command cannot be started.
        """
        try:
            self._process = await asyncio.create_subprocess_exec(*command, env=dict(environment))
        except FileNotFoundError as error:
            raise ChildError(f"{command[0]}: not found; name a program that is on the PATH", 127) from error
        except (OSError, ValueError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise ChildError(f"{command[0]}: cannot be started: {reason}", 126) from error
        for number in self._early:
            self._send(number)
        return await self._process.wait()

    def _send(self, number: int) -> None:
        if self._process is None:
            self._early.append(number)
        elif self._process.returncode is None:
            self._process.send_signal(number)


def _ignore(number: int) -> None:
    """Ignore a signal."""


def _has_terminal() -> bool:
    """Return whether this process is in the foreground of a terminal, which sends Ctrl-C to the command too."""
    for descriptor in (0, 1, 2):
        try:
            if os.tcgetpgrp(descriptor) == os.getpgrp():
                return True
        except OSError:
            continue
    return False


def end_like(status: int) -> int:
    """Return the exit status of a command; if a signal ended the command, end this process by the same signal."""
    if status >= 0:
        return status
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    return 128 - status
