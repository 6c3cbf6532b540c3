"""Where a command's spans go, and whether they all got there."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

from otel_assembly._internal.forks import new_lock
from otel_assembly._internal.whole_files import is_written_into
from otel_assembly._version import __version__
from otel_assembly.cli.extras import SPAN_FILES, over_otlp, require
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

#: A batch of spans that are as large as our arrays may be stays under gRPC's limit of 4 MiB a message.
BATCH = 128
_QUEUE = 200_000
_FLUSH_MILLISECONDS = 30_000


def otlp_exporter() -> SpanExporter:
    """The OTLP exporter that the environment asks for.

    Raises:
        ConfigurationError: The extra that brings it is not installed.
        AssemblyError: Nobody listens at the endpoint.
    """
    modules = over_otlp()
    require("sending spans over OTLP", modules)
    exporter = importlib.import_module(f"{modules[-1]}.trace_exporter")
    endpoint = otlp_endpoint()
    why = reachable(endpoint)
    if why is not None:
        raise AssemblyError(
            f"nobody answers at {endpoint} ({why}); start a Collector there, set {OTEL_EXPORTER_OTLP_ENDPOINT}, or "
            "write the spans to a file"
        )
    made: SpanExporter = exporter.OTLPSpanExporter()
    return made


def file_exporter(path: str) -> SpanExporter:
    """An exporter into the embedded span store.

    Raises:
        ConfigurationError: The extra that brings it is not installed, or nothing can be written there.
    """
    require("writing spans to a file", SPAN_FILES)
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
