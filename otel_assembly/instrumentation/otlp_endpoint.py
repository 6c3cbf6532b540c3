"""Where OTLP goes, as the environment says; and a hint where nobody would take it."""

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

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
#: What has an agent's spans go to a file, and nothing anywhere else.
INTO_A_FILE: Final = "OTEL_TRACES_EXPORTER=otel_assembly_file OTEL_METRICS_EXPORTER=none OTEL_LOGS_EXPORTER=none"

logger = logging.getLogger("otel_assembly")


def otlp_protocol() -> str:
    """``grpc`` or ``http/protobuf``, as the environment says."""
    return os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL) or os.environ.get(OTEL_EXPORTER_OTLP_PROTOCOL) or "grpc"


def otlp_endpoint() -> str:
    """The endpoint that OTLP is sent to, as the environment says."""
    default = "http://localhost:4317" if otlp_protocol() == "grpc" else "http://localhost:4318"
    return os.environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or default


def reachable(endpoint: str, seconds: float = 2.0) -> str | None:
    """Whether somebody listens at an endpoint: None, or why not."""
    parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    try:
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 4317)
        with socket.create_connection((parts.hostname or "localhost", port), timeout=seconds):
            return None
    except (OSError, ValueError) as error:
        return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def hint_at_file() -> None:
    """Warn if spans are to go to a Collector on this machine and none is listening: exporters wait, then lose them.

    ``opentelemetry-instrument`` calls it once it has set everything up; it is the one entry point that runs then, so
    that it also installs the flush on SIGTERM if the environment asks for it. Another machine is not asked.
    """
    if os.environ.get(OTEL_ASSEMBLY_FLUSH_ON_SIGTERM):
        from otel_assembly.telemetry.flushing import flush_on_sigterm_if_set

        flush_on_sigterm_if_set()
    try:
        endpoint = otlp_endpoint()
        host = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").hostname
    except ValueError:
        return  # the exporter says what is wrong with it
    exporters = os.environ.get("OTEL_TRACES_EXPORTER", "").replace(" ", "").split(",")
    off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if off or "otlp" not in exporters or host not in _LOOPBACK:
        return
    why = reachable(endpoint)
    if why is not None:
        logger.warning(
            "otel-assembly: nobody answers at %s (%s): spans will be lost, and the program's end takes some seconds. "
            "Start a Collector there, or write the spans to a file: %s",
            endpoint,
            why,
            INTO_A_FILE,
        )
