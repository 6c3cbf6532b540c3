"""The exporters of ``replay`` and ``demo``, and a count of the spans that they exported."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly._internal.whole_files import is_written_into
from otel_assembly._version import __version__
from otel_assembly.cli.extras import SPAN_FILES, otlp_modules, require
from otel_assembly.errors import AssemblyError, ConfigurationError
from otel_assembly.instrumentation.otlp_endpoint import OTEL_EXPORTER_OTLP_ENDPOINT as OTEL_EXPORTER_OTLP_ENDPOINT
from otel_assembly.instrumentation.otlp_endpoint import (
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT as OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
)
from otel_assembly.instrumentation.otlp_endpoint import otlp_endpoint as otlp_endpoint
from otel_assembly.instrumentation.otlp_endpoint import otlp_protocol as otlp_protocol
from otel_assembly.instrumentation.otlp_endpoint import reachable as reachable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

#: Spans per batch. A batch of the largest spans of this package stays below gRPC's limit of 4 MiB per message.
BATCH = 128
#: The most ended spans that wait for their export, and the longest flush.
_QUEUE = 200_000
_FLUSH_MILLISECONDS = 30_000


def otlp_exporter() -> SpanExporter:
    """Return the OTLP exporter that the environment variables configure.

    Raises:
        ConfigurationError: The extra ``otlp`` is not installed.
        AssemblyError: The endpoint does not answer.
    """
    modules = otlp_modules()
    require("sending spans over OTLP", modules)
    exporter = importlib.import_module(f"{modules[-1]}.trace_exporter")
    endpoint = otlp_endpoint()
    reason = reachable(endpoint)
    if reason is not None:
        raise AssemblyError(
            f"{endpoint} does not answer ({reason}); start a Collector there, set {OTEL_EXPORTER_OTLP_ENDPOINT}, or "
            "write the spans to a file"
        )
    span_exporter: SpanExporter = exporter.OTLPSpanExporter()
    return span_exporter


def file_exporter(path: str) -> SpanExporter:
    """Return an exporter that appends spans to a file, as OTLP JSON lines.

    Raises:
        ConfigurationError: The extra ``cli`` is not installed, or the file cannot be written.
    """
    require("writing spans to a file", SPAN_FILES)
    try:
        with nullcontext() if is_written_into(path) else open(path, "ab"):  # fail before the command has done its work
            pass
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {(error.strerror or 'failed').lower()}") from error
    from otel_assembly.telemetry.store import SpanFileExporter

    return SpanFileExporter(path)


class Export:
    """A tracer provider for a command, which counts the ended spans, and the spans that each exporter accepted.

    Args:
        exporters: The exporters; each gets all spans.
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
        self.provider.add_span_processor(_EndCounter(self))  # type: ignore[arg-type]  # it has the methods of a span processor
        for index, exporter in enumerate(exporters):
            self.provider.add_span_processor(
                BatchSpanProcessor(
                    _CountingExporter(self, index, exporter),  # type: ignore[arg-type]  # it has the methods of an exporter
                    max_queue_size=_QUEUE,
                    max_export_batch_size=BATCH,
                )
            )

    def count_ended(self) -> None:
        """Count one span that has ended."""
        with self._lock:
            self._ended += 1

    def count_exported(self, index: int, count: int) -> None:
        """Count spans that the exporter at this index has exported."""
        with self._lock:
            self._counts[index] += count

    @property
    def spans(self) -> int:
        """The number of spans that have ended."""
        return self._ended

    @property
    def lost(self) -> list[int]:
        """For each exporter, the number of ended spans that it has not exported."""
        return [self._ended - count for count in self._counts]

    def flush(self) -> None:
        """Export the queued spans, and wait for at most 30 seconds until they are exported."""
        self.provider.force_flush(_FLUSH_MILLISECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.provider.shutdown()


class _EndCounter:
    def __init__(self, export: Export) -> None:
        self._export = export

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        pass

    def _on_ending(self, span: Any) -> None:
        pass

    def on_end(self, span: Any) -> None:
        self._export.count_ended()

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


class _CountingExporter:
    def __init__(self, export: Export, index: int, exporter: SpanExporter) -> None:
        self._export = export
        self._index = index
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result.name == "SUCCESS":
            self._export.count_exported(self._index, len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
