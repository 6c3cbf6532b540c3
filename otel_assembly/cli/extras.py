"""Check that the optional packages of a command are installed."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation import instrumentor_of
from otel_assembly.instrumentation.otlp_endpoint import otlp_protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The optional modules that commands import, and the extra that installs each.
_EXTRAS: Final = {
    "opentelemetry.distro": "otlp",
    "opentelemetry.exporter.otlp.json.file": "cli",
    "opentelemetry.exporter.otlp.proto.grpc": "otlp",
    "opentelemetry.exporter.otlp.proto.http": "otlp",
    "opentelemetry.sdk": "cli",
    "opentelemetry.proto": "watch",
    "rich": "cli",
    "sse_starlette": "watch",
    "starlette": "watch",
    "uvicorn": "watch",
    "watchfiles": "watch",
}
#: The modules that print tables, serve a live page, follow a log, and write span files.
TABLES: Final = ("rich",)
LIVE_PAGE: Final = ("starlette", "uvicorn", "sse_starlette", "opentelemetry.proto")
FOLLOWED_LOG: Final = ("watchfiles", "opentelemetry.sdk")
SPAN_FILES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.json.file")


def otlp_modules() -> tuple[str, ...]:
    """Return the modules that an OTLP export needs, for the protocol that the environment variables set."""
    wire = "grpc" if otlp_protocol() == "grpc" else "http"
    return "opentelemetry.sdk", f"opentelemetry.exporter.otlp.proto.{wire}"


def require(what: str, modules: Iterable[str], *, framework: str | None = None, otherwise: str = "") -> None:
    """Check that optional modules can be imported, without importing them.

    Args:
        what: The feature that needs the modules, as the subject of the message.
        modules: The modules, each in `_EXTRAS`.
        framework: A framework that also has to be installed.
        otherwise: The end of the message: what works without the modules.

    Raises:
        ConfigurationError: Modules are missing; the message names all of them and the command that installs them.
    """
    extra_of = {module: _EXTRAS[module] for module in modules if not _importable(module)}
    if framework is not None and instrumentor_of(framework).version is None:
        extra_of = {framework: framework.replace("_", "-"), **extra_of}
    missing = [*extra_of]
    if not missing:
        return
    *first, last = missing
    names = f"{', '.join(first)} and {last}, which are" if first else f"{last}, which is"
    extras = ",".join(sorted({*extra_of.values()}))
    pronoun = "them" if first else "it"
    raise ConfigurationError(
        f"{what} needs {names} not installed; install {pronoun}: pip install 'otel-assembly[{extras}]'{otherwise}"
    )


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
