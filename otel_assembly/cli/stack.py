"""``stack init``: write the configurations of Collector, Jaeger, Prometheus, Alertmanager and Grafana."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from otel_assembly._internal.whole_files import write_whole
from otel_assembly.cli.terminal import safe_text
from otel_assembly.errors import AssemblyError, ConfigurationError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

#: The shipped files, as patterns in the source tree; a wheel has them under ``stack_files``.
_SHIPPED: Final = (
    "collectors/**/*",
    "dashboards/*.json",
    "dashboards/rules/**/*",
    "examples/alert_receiver.py",
)
_INSTALLED: Final = Path(__file__).parents[1] / "stack_files"
_SOURCES: Final = Path(__file__).parents[2]

#: The most conflicting files that an error names.
_NAMED: Final = 5


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``stack`` and its options to the command line."""
    parser = commands.add_parser(
        "stack",
        help="write the configurations of Collector, Jaeger, Prometheus, Alertmanager and Grafana",
        description="Set up servers for traces, metrics, dashboards and alerts.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    init = actions.add_parser(
        "init",
        help="write the files into a folder",
        description="Write collectors/ (Collector configurations for one machine, a node and a fleet, Jaeger, "
        "Prometheus, Alertmanager, Grafana, a compose file, Kubernetes manifests) and dashboards/ (dashboards, rules "
        "for recording and alerting, with their tests) into a folder. If a file exists there with other content, "
        "nothing is written, unless --force is set.",
    )
    init.add_argument("directory", metavar="DIR", help="the folder; created if it does not exist")
    init.add_argument("--force", action="store_true", help="overwrite files that differ")
    init.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Copy this package's configuration files for telemetry servers into the folder DIR; return 0.

    If a file exists in DIR with other content, nothing is written, unless ``--force`` is set: then it is overwritten.

    Raises:
        AssemblyError: DIR has files with other content and ``--force`` is not set, or DIR cannot be written.
        ConfigurationError: DIR is a file.
    """
    target = Path(arguments.directory)
    if target.exists() and not target.is_dir():
        raise ConfigurationError(f"{target} is a file; name a folder")
    files = dict(shipped_files())
    if not files:
        raise AssemblyError("the files are missing from the installed package; reinstall otel-assembly")
    contents = {path: source.read_bytes() for path, source in files.items()}
    differing = [path for path in contents if (target / path).exists() and _differs(target / path, contents[path])]
    if differing and not arguments.force:
        first_paths = ", ".join(str(path) for path in differing[:_NAMED])
        more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
        raise AssemblyError(
            f"{target} has files with other content: {first_paths}{more}; nothing was written. Name another folder, or "
            "overwrite them with --force"
        )
    missing = [path for path in contents if not (target / path).exists()]
    try:
        write_whole({target / path: contents[path] for path in (*missing, *differing)}, make_folders=True)
    except OSError as error:
        raise AssemblyError(
            f"{error.filename}: {(error.strerror or 'failed').lower()}; nothing was written. Name a writable folder "
            "with enough space"
        ) from error
    print(_result(target, len(missing), len(differing), len(contents)))
    return 0


def shipped_files() -> Iterator[tuple[PurePosixPath, Path]]:
    """Yield for each configuration file its path relative to DIR, and the file in this package that is copied there."""
    root = _INSTALLED if _INSTALLED.is_dir() else _SOURCES
    for pattern in _SHIPPED:
        for file in sorted(root.glob(pattern)):
            if file.is_file():
                yield PurePosixPath(file.relative_to(root).as_posix()), file


def _differs(file: Path, content: bytes) -> bool:
    return not file.is_file() or file.read_bytes() != content


def _result(target: Path, missing: int, differing: int, total: int) -> str:
    path = safe_text(str(target))
    if not missing and not differing:
        return f"{path} already contains all {total} files"
    overwritten = f" ({differing} overwritten)" if differing else ""
    return f"""wrote {missing + differing} files to {path}{overwritten}

With Docker:     docker compose -f {path}/collectors/compose.yaml up
Without Docker:  otelcol --config {path}/collectors/local.yaml       (the other servers: {path}/collectors/README.md)
Send spans:      OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 opentelemetry-instrument python YOUR_AGENT.py
Check:           otel-assembly doctor --jaeger http://localhost:16686 --prometheus http://localhost:9090"""
