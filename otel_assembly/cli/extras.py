"""What a command takes beyond what the package itself depends on: all that is missing is named at once."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation import instrumentor_of
from otel_assembly.instrumentation.otlp_endpoint import otlp_protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What commands import of other packages, and the extra that brings it.
_EXTRAS: Final = {
    "opentelemetry.distro": "otlp",
    "opentelemetry.exporter.otlp.json.file": "cli",
    "opentelemetry.exporter.otlp.proto.grpc": "otlp",
    "opentelemetry.exporter.otlp.proto.http": "otlp",
    "opentelemetry.sdk": "cli",
    "rich": "cli",
}
TABLES: Final = ("rich",)
SPAN_FILES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.json.file")


def over_otlp() -> tuple[str, ...]:
    """What sends spans over the protocol that the environment says."""
    wire = "grpc" if otlp_protocol() == "grpc" else "http"
    return "opentelemetry.sdk", f"opentelemetry.exporter.otlp.proto.{wire}"


def require(what: str, modules: Iterable[str], *, framework: str | None = None, otherwise: str = "") -> None:
    """Check that these can be imported, and that a framework is installed that we instrument; nothing is imported.

    Raises:
        ConfigurationError: Some cannot: their names, and one command that installs all of them.
    """
    brought_by = {module: _EXTRAS[module] for module in modules if not _importable(module)}
    if framework is not None and instrumentor_of(framework).version is None:
        brought_by = {framework: framework.replace("_", "-"), **brought_by}
    missing = [*brought_by]
    if not missing:
        return
    *first, last = missing
    named = f"{', '.join(first)} and {last}, which are" if first else f"{last}, which is"
    extras = ",".join(sorted({*brought_by.values()}))
    pronoun = "them" if first else "it"
    raise ConfigurationError(
        f"{what} needs {named} not installed; install {pronoun}: pip install 'otel-assembly[{extras}]'{otherwise}"
    )


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
