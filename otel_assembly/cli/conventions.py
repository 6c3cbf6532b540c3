"""``conventions``: print the path of the Weaver registry that defines all exported spans, metrics and attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.errors import AssemblyError
from otel_assembly.telemetry.conventions_registry import FOLDER

if TYPE_CHECKING:
    import argparse


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``conventions`` and its options to the command line."""
    parser = commands.add_parser(
        "conventions",
        help="print the folder of the registry of exported names, for OpenTelemetry's Weaver",
        description="Print the folder of the registry of all exported spans, events, metrics and attributes, in the "
        "format of OpenTelemetry's Weaver. Weaver checks and documents the registry, and compares the telemetry of an "
        "agent with it: weaver registry live-check -r $(otel-assembly conventions)",
    )
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print the path of the registry's folder; return 0.

    Raises:
        AssemblyError: The registry is missing from the installed package.
    """
    if not (FOLDER / "manifest.yaml").is_file():
        raise AssemblyError("the registry is missing from the installed package; reinstall otel-assembly")
    print(FOLDER)
    return 0
