"""``stack init``: the files of Collector, Jaeger, Prometheus, Alertmanager and Grafana, written from the package."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from otel_assembly._internal.whole_files import write_whole
from otel_assembly.cli.terminal import safe_text
from otel_assembly.errors import AssemblyError, ConfigurationError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

#: What is shipped, as it lies in the sources; a wheel has it under ``stack_files``.
_SHIPPED: Final = (
    "collectors/**/*",
    "dashboards/*.json",
    "dashboards/rules/**/*",
    "examples/alert_receiver.py",
)
_INSTALLED: Final = Path(__file__).parents[1] / "stack_files"
_SOURCES: Final = Path(__file__).parents[2]

#: Past so many, the files that stand in the way are counted and not named.
_NAMED: Final = 5


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "stack",
        help="write the configurations of Collector, Jaeger, Prometheus, Alertmanager and Grafana, ready to run",
        description="The servers that assembly telemetry is looked at with, and what wakes people.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    init = actions.add_parser(
        "init",
        help="write the files into a folder",
        description="Write collectors/ (Collector configurations for one machine, a node and a fleet, Jaeger, "
        "Prometheus, Alertmanager, Grafana, a compose file, Kubernetes manifests) and dashboards/ (dashboards, rules "
        "for recording and alerting, with their tests) into a folder. A file that is there and differs is left "
        "alone, and nothing is written then, unless --force.",
    )
    init.add_argument("directory", metavar="DIR", help="the folder; made where it is missing")
    init.add_argument("--force", action="store_true", help="overwrite files that differ")
    init.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the files; 0, or 1 where files of other content stand in the way."""
    target = Path(arguments.directory)
    if target.exists() and not target.is_dir():
        raise ConfigurationError(f"{target} is a file; name a folder")
    files = dict(shipped_files())
    if not files:
        raise AssemblyError("the files are not where the package was installed; install otel-assembly again")
    new = {path: source.read_bytes() for path, source in files.items()}
    differing = [path for path in new if (target / path).exists() and _differs(target / path, new[path])]
    if differing and not arguments.force:
        named = ", ".join(str(path) for path in differing[:_NAMED])
        more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
        raise AssemblyError(
            f"{target} has files of other content: {named}{more}; nothing was written. Name another folder, or "
            "overwrite them with --force"
        )
    missing = [path for path in new if not (target / path).exists()]
    try:
        write_whole({target / path: new[path] for path in (*missing, *differing)}, make_folders=True)
    except OSError as error:
        raise AssemblyError(
            f"{error.filename}: {(error.strerror or 'failed').lower()}; nothing was written. Choose a folder that can "
            "be written, with room for the files"
        ) from error
    print(_said(target, len(missing), len(differing), len(new)))
    return 0


def shipped_files() -> Iterator[tuple[PurePosixPath, Path]]:
    """Each file by the place that it has in DIR, and where it is read from: beside the sources, else in the package."""
    root = _INSTALLED if _INSTALLED.is_dir() else _SOURCES
    for pattern in _SHIPPED:
        for file in sorted(root.glob(pattern)):
            if file.is_file():
                yield PurePosixPath(file.relative_to(root).as_posix()), file


def _differs(file: Path, content: bytes) -> bool:
    return not file.is_file() or file.read_bytes() != content


def _said(target: Path, missing: int, differing: int, of: int) -> str:
    if not missing and not differing:
        return f"{safe_text(str(target))} has all {of} files already."
    overwritten = f", {differing} of them overwritten" if differing else ""
    where = safe_text(str(target))
    return f"""{missing + differing} files written to {where}{overwritten}.

With Docker:     docker compose -f {where}/collectors/compose.yaml up
Without:         otelcol --config {where}/collectors/local.yaml       (and so on: {where}/collectors/README.md)
Send to it:      OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 opentelemetry-instrument python YOUR_AGENT.py
Does it work?    otel-assembly doctor --jaeger http://localhost:16686 --prometheus http://localhost:9090"""
