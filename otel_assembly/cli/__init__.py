"""The command line ``otel-assembly``: its parser, its commands, and its exit status."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from otel_assembly._version import __version__
from otel_assembly.cli import completion as completion
from otel_assembly.cli import conventions as conventions
from otel_assembly.cli import demo as demo
from otel_assembly.cli import doctor as doctor
from otel_assembly.cli import explain as explain
from otel_assembly.cli import replay as replay
from otel_assembly.cli import session as session
from otel_assembly.cli import stack as stack
from otel_assembly.cli import tree as tree
from otel_assembly.cli import view as view
from otel_assembly.cli import watch as watch
from otel_assembly.cli.export import file_exporter
from otel_assembly.cli.terminal import discard_output, safe_text
from otel_assembly.cli.tree import render_tree
from otel_assembly.errors import AssemblyError, ConfigurationError, TranscriptError, UnknownNameError
from otel_assembly.transcripts import Transcript, read_transcripts

if TYPE_CHECKING:
    from collections.abc import Sequence

SUCCESS, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    """An argument parser that prints an error as one line, without argparse's usage text."""

    def error(self, message: str) -> NoReturn:
        """Print the message and a hint to ``--help``, and exit with the status `USAGE`."""
        separator = " " if message.endswith("?") else "; "
        self.exit(USAGE, f"{self.prog}: {safe_text(message)}{separator}see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:  # noqa: SLF001
            self.error(str(UnknownNameError(str(action.metavar).lower(), value, action.choices)))
        super()._check_value(action, value)


def parser() -> argparse.ArgumentParser:
    """Return the ``argparse`` parser of ``otel-assembly``, with all its commands."""
    root = _Parser(
        prog="otel-assembly",
        description="Record, bound and explain the context of an agent's model calls.",
        epilog="Exit status: 0 success, 1 negative answer or failure, 2 wrong usage or unreadable input.",
    )
    root.add_argument("--version", action="version", version=f"otel-assembly {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (demo, watch, replay, tree, explain, view, session, doctor, stack, conventions, completion):
        module.add_parser(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv`, or in the arguments of the process, and return the exit status."""
    # Python sets a standard stream to None if it is closed; writing to it would raise.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # it is open until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    status = SUCCESS
    try:
        try:
            status = _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as head, has exited
        discard_output()
    except OSError as error:
        discard_output()
        problem = f"{error.filename}:" if error.filename else "the output cannot be written:"
        status = _fail(f"{problem} {(error.strerror or 'failed').lower()}", FAILURE)
    except KeyboardInterrupt:
        status = _fail("interrupted", INTERRUPTED)
    return status


def _run(argv: Sequence[str] | None) -> int:
    arguments = parser().parse_args(argv)
    if "" not in sys.path:
        sys.path.append("")  # so that a policy in a file of the working directory can be imported
    try:
        return int(arguments.run(arguments))
    except (ConfigurationError, TranscriptError) as error:
        return _fail(error, USAGE)
    except AssemblyError as error:
        return _fail(error, FAILURE)


def _fail(error: Exception | str, status: int) -> int:
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
