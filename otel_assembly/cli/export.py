"""Where a command's spans go, and whether they all got there."""

from __future__ import annotations

import importlib.util
import os
import socket
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from otel_assembly._internal.forks import new_lock
from otel_assembly._internal.whole_files import is_written_into
from otel_assembly._version import __version__
from otel_assembly.errors import AssemblyError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

OTEL_EXPORTER_OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
OTEL_EXPORTER_OTLP_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
OTEL_EXPORTER_OTLP_TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"

#: A batch of spans that are as large as our arrays may be stays under gRPC's limit of 4 MiB a message.
BATCH = 128
_QUEUE = 200_000
_FLUSH_MILLISECONDS = 30_000


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


def otlp_exporter() -> SpanExporter:
    """The OTLP exporter that the environment asks for.

    Raises:
        ConfigurationError: The extra that brings it is not installed.
        AssemblyError: Nobody listens at the endpoint.
    """
    wire = "grpc" if otlp_protocol() == "grpc" else "http"
    try:
        exporter = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{wire}.trace_exporter")
    except ImportError as error:
        raise ConfigurationError(
            "the OTLP exporter is not installed; install it: pip install 'otel-assembly[otlp]'"
        ) from error
    endpoint = otlp_endpoint()
    why = reachable(endpoint)
    if why is not None:
        raise AssemblyError(
            f"nobody answers at {endpoint} ({why}); start a collector there, or set {OTEL_EXPORTER_OTLP_ENDPOINT}"
        )
    made: SpanExporter = exporter.OTLPSpanExporter()
    return made


def file_exporter(path: str) -> SpanExporter:
    """An exporter into the embedded span store.

    Raises:
        ConfigurationError: The extra that brings it is not installed, or nothing can be written there.
    """
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        raise ConfigurationError("the OpenTelemetry SDK is not installed; install it: pip install 'otel-assembly[cli]'")
    try:
        with (
            nullcontext() if is_written_into(path) else open(path, "ab")
        ):  # only to find out now, and not after the work, that it cannot be
            pass
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {(error.strerror or 'failed').lower()}") from error
    from otel_assembly.telemetry.store import SpanFileExporter

    return SpanFileExporter(path)


class Export:
    """A tracer provider that counts what it was given and what got through.

    Args:
        exporters: Where spans go; each gets all of them.
        service_name: The resource's ``service.name``.
    """

    def __init__(self, exporters: Sequence[SpanExporter], service_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._lock = new_lock()
        self._counts = [0 for _ in exporters]
        self._ended = 0
        resource = Resource.create({"service.name": service_name, "service.version": __version__})
        self.provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.provider.add_span_processor(_Ends(self))  # type: ignore[arg-type]  # a processor by its shape
        for index, exporter in enumerate(exporters):
            self.provider.add_span_processor(
                BatchSpanProcessor(
                    _Counted(self, index, exporter),  # type: ignore[arg-type]  # an exporter by its shape
                    max_queue_size=_QUEUE,
                    max_export_batch_size=BATCH,
                )
            )

    def ended(self) -> None:
        """A span ended."""
        with self._lock:
            self._ended += 1

    def exported(self, index: int, count: int) -> None:
        """An exporter took spans."""
        with self._lock:
            self._counts[index] += count

    @property
    def spans(self) -> int:
        """How many spans there were."""
        return self._ended

    @property
    def lost(self) -> list[int]:
        """How many of them each exporter has not taken."""
        return [self._ended - count for count in self._counts]

    def flush(self) -> None:
        """Send what waits."""
        self.provider.force_flush(_FLUSH_MILLISECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.provider.shutdown()


class _Ends:
    def __init__(self, export: Export) -> None:
        self._export = export

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        pass

    def _on_ending(self, span: Any) -> None:
        pass

    def on_end(self, span: Any) -> None:
        self._export.ended()

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


class _Counted:
    def __init__(self, export: Export, index: int, exporter: SpanExporter) -> None:
        self._export = export
        self._index = index
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result.name == "SUCCESS":
            self._export.exported(self._index, len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
