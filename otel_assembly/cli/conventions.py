"""``conventions``: where the registry of what is exported lies, for OpenTelemetry's Weaver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.errors import AssemblyError
from otel_assembly.telemetry.conventions_registry import FOLDER

if TYPE_CHECKING:
    import argparse


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "conventions",
        help="print where the registry of every exported name lies, for OpenTelemetry's Weaver",
        description="Print the folder that holds the registry of every span, event, metric and attribute that is "
        "exported, in OpenTelemetry's definition language. Weaver checks it, documents it, and compares with it what "
        "an agent exports: weaver registry live-check -r $(otel-assembly conventions)",
    )
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print the folder."""
    if not (FOLDER / "manifest.yaml").is_file():
        raise AssemblyError("the registry is not where the package was installed; install otel-assembly again")
    print(FOLDER)
    return 0
