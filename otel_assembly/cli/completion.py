"""``completion``: the script with which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
from typing import Final

from otel_assembly.errors import ConfigurationError

#: Where each shell looks for it, once and for all.
_INSTALL: Final = {
    "bash": "otel-assembly completion bash > ~/.local/share/bash-completion/completions/otel-assembly",
    "zsh": 'otel-assembly completion zsh > "${fpath[1]}/_otel-assembly"',
    "fish": "otel-assembly completion fish > ~/.config/fish/completions/otel-assembly.fish",
}
_FILES: Final = {"FILE", "PATH", "FOLDER", "DIR", "LOG", "otlp|FILE"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "completion",
        help="print the script with which your shell completes commands, options and files",
        description="Print the script with which a shell completes otel-assembly's commands, options and files.",
        epilog="Once and for all:\n" + "\n".join(f"  {line}" for line in _INSTALL.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=sorted(_INSTALL), help="the shell that is to read it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the script; 0."""
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
    for action in parser._actions:  # noqa: SLF001  # nothing else lists them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for each in action.choices.values():
                _complete_files(each, files)
        elif action.metavar in _FILES:
            action.complete = files  # type: ignore[attr-defined]  # where shtab looks for it
