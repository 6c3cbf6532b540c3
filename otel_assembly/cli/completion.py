"""``completion``: print a script with which a shell completes commands, options and file names."""

from __future__ import annotations

import argparse
from typing import Final

from otel_assembly.errors import ConfigurationError

#: The command that installs the script for each shell.
_INSTALL: Final = {
    "bash": "otel-assembly completion bash > ~/.local/share/bash-completion/completions/otel-assembly",
    "zsh": 'otel-assembly completion zsh > "${fpath[1]}/_otel-assembly"',
    "fish": "otel-assembly completion fish > ~/.config/fish/completions/otel-assembly.fish",
}
#: The metavars of arguments that are paths.
_FILES: Final = {"FILE", "PATH", "FOLDER", "DIR", "LOG", "otlp|FILE"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``completion`` and its options to the command line."""
    parser = commands.add_parser(
        "completion",
        help="print a script for shell completion",
        description="Print a script with which a shell completes otel-assembly's commands, options and files.",
        epilog="To install it:\n" + "\n".join(f"  {line}" for line in _INSTALL.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=sorted(_INSTALL), help="the shell")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the completion script of a shell; return 0.

    Raises:
        ConfigurationError: shtab is not installed.
    """
    try:
        from shtab import FILE, complete
    except ImportError as missing:
        raise ConfigurationError("shtab is not installed; install it: pip install 'otel-assembly[cli]'") from missing
    from otel_assembly.cli import parser

    root = parser()
    _complete_files(root, FILE)
    print(complete(root, shell=arguments.shell))
    return 0


def _complete_files(parser: argparse.ArgumentParser, files: object) -> None:
    for action in parser._actions:  # noqa: SLF001  # argparse has no public list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                _complete_files(command, files)
        elif action.metavar in _FILES:
            action.complete = files  # type: ignore[attr-defined]  # the attribute that shtab reads
