"""The command line.

``otel-assembly demo | replay | explain | view | session | doctor | stack | conventions | completion``
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from otel_assembly._version import __version__
from otel_assembly.cli import completion as completion
from otel_assembly.cli import conventions as conventions
from otel_assembly.cli import demo as demo
from otel_assembly.cli import doctor as doctor
from otel_assembly.cli import explain as explain
from otel_assembly.cli import replay as replay
from otel_assembly.cli import session as session
from otel_assembly.cli import stack as stack
from otel_assembly.cli import view as view
from otel_assembly.cli.export import file_exporter
from otel_assembly.cli.terminal import discard_output, safe_text
from otel_assembly.cli.transcripts import Transcript, read_transcripts
from otel_assembly.cli.tree import render_tree
from otel_assembly.errors import AssemblyError, ConfigurationError, TranscriptError

if TYPE_CHECKING:
    from collections.abc import Sequence

SUCCESS, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage: that is what ``--help`` is for."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {safe_text(message)}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    root = _Parser(
        prog="otel-assembly",
        description="See, bound and explain what an agent's model gets to see.",
        epilog="Exit status: 0 success, 1 the answer is no or something failed, 2 wrong usage or bad input.",
    )
    root.add_argument("--version", action="version", version=f"otel-assembly {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (demo, replay, explain, view, session, doctor, stack, conventions, completion):
        module.add_parser(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is returned."""
    # Where a stream is closed, Python has none, and whoever writes to it would fail.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # it is open until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    status = SUCCESS
    try:
        try:
            status = _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has seen enough
        discard_output()
    except OSError as error:
        discard_output()
        where = f"{error.filename}:" if error.filename else "the output cannot be written:"
        status = _say(f"{where} {(error.strerror or 'failed').lower()}", FAILURE)
    except KeyboardInterrupt:
        status = _say("interrupted", INTERRUPTED)
    return status


def _run(argv: Sequence[str] | None) -> int:
    arguments = parser().parse_args(argv)
    if "" not in sys.path:
        sys.path.append("")  # so that a policy in a file of the working folder is found, behind all else
    try:
        return int(arguments.run(arguments))
    except (ConfigurationError, TranscriptError) as error:
        return _say(error, USAGE)
    except AssemblyError as error:
        return _say(error, FAILURE)


def _say(error: Exception | str, status: int) -> int:
    print(f"otel-assembly: {safe_text(error)}", file=sys.stderr)
    return status


__all__ = [
    "FAILURE",
    "SUCCESS",
    "USAGE",
    "Transcript",
    "file_exporter",
    "main",
    "parser",
    "read_transcripts",
    "render_tree",
    "safe_text",
]
