"""The OTLP endpoint and protocol from the environment variables, and a warning if no Collector is listening."""

from __future__ import annotations

import logging
import os
import socket
from typing import Final
from urllib.parse import urlsplit

OTEL_EXPORTER_OTLP_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
OTEL_EXPORTER_OTLP_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"

OTEL_ASSEMBLY_FLUSH_ON_SIGTERM: Final = "OTEL_ASSEMBLY_FLUSH_ON_SIGTERM"

#: The exporters whose name contains the protocol; the protocol of the exporter ``otlp`` is in the variables above.
_PROTOCOLS: Final = {"otlp_proto_grpc": "grpc", "otlp_proto_http": "http/protobuf"}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
#: The environment variables that export an agent's spans to a file, and no metrics or logs.
INTO_A_FILE: Final = "OTEL_TRACES_EXPORTER=otel_assembly_file OTEL_METRICS_EXPORTER=none OTEL_LOGS_EXPORTER=none"

logger = logging.getLogger("otel_assembly")


def _traces_exporters() -> list[str]:
    return os.environ.get("OTEL_TRACES_EXPORTER", "").replace(" ", "").split(",")


def otlp_protocol() -> str:
    """Return the OTLP protocol from the environment variables; by default ``grpc``.

    As in OpenTelemetry's SDK, the name of an exporter with a protocol has precedence.
    """
    for exporter in _traces_exporters():
        if exporter in _PROTOCOLS:
            return _PROTOCOLS[exporter]
    return os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL) or os.environ.get(OTEL_EXPORTER_OTLP_PROTOCOL) or "grpc"


def otlp_endpoint() -> str:
    """Return the OTLP endpoint from the environment variables; by default the Collector's port on this machine."""
    default = "http://localhost:4317" if otlp_protocol() == "grpc" else "http://localhost:4318"
    return os.environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or default


def reachable(endpoint: str, seconds: float = 2.0) -> str | None:
    """Try to connect to an endpoint, with or without a scheme; return None if that is possible, or else the error."""
    parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    try:
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 4317)
        with socket.create_connection((parts.hostname or "localhost", port), timeout=seconds):
            return None
    except (OSError, ValueError) as error:
        return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def hint_at_file() -> None:
    """Install the flush on SIGTERM if `OTEL_ASSEMBLY_FLUSH_ON_SIGTERM` is set, and warn if no Collector is listening.

    ``opentelemetry-instrument`` calls this entry point after its own setup.
    """
    if os.environ.get(OTEL_ASSEMBLY_FLUSH_ON_SIGTERM):
        from otel_assembly.telemetry.flushing import flush_on_sigterm_if_set  # only imported if needed

        flush_on_sigterm_if_set()
    _warn_if_no_collector()


def _warn_if_no_collector() -> None:
    """Log a warning if spans are exported to a Collector on this machine and no Collector is listening.

    Exporters retry for some seconds at the end of the program, and then lose the spans. Endpoints on other machines
    are not checked.
    """
    try:
        endpoint = otlp_endpoint()
        host = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").hostname
    except ValueError:
        return  # the endpoint is invalid; the exporter reports that
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_disabled or host not in _LOOPBACK or {"otlp", *_PROTOCOLS}.isdisjoint(_traces_exporters()):
        return
    error = reachable(endpoint)
    if error is not None:
        logger.warning(
            "otel-assembly: nothing is listening at %s (%s): spans will be lost, and the program's end takes some "
            "seconds. Start a Collector there, or write the spans to a file: %s",
            endpoint,
            error,
            INTO_A_FILE,
        )
