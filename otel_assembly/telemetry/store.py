"""Export spans and log records to a rotating file of OTLP JSON lines, for machines without a Collector.

Each line is one export request, written by OpenTelemetry's OTLP JSON encoder.
`otel_assembly.telemetry.store_reader` reads the files without an SDK. The Collector can read them too::

    receivers:
      otlp_json_file:  # `otlpjsonfile` in older releases
        include: [spans.jsonl, spans.jsonl.*]
        start_at: beginning
        fingerprint_size: 16kb

The Collector identifies files by their first 1,000 bytes by default. If the resource is longer than that, all files of
a process start with the same bytes, and the Collector skips most of them. A larger ``fingerprint_size`` avoids this.
"""

from __future__ import annotations

import io
import logging
import os
from typing import TYPE_CHECKING, Generic, TypeVar

from otel_assembly._internal.fork_safety import after_fork_in_child, new_lock
from otel_assembly.errors import ConfigurationError
from otel_assembly.telemetry.conventions_environment import SPAN_FILE
from otel_assembly.telemetry.rotating_file import RotatingFile

try:
    from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
except ImportError as missing:  # pragma: no cover - every development environment has the SDK
    raise ConfigurationError(
        "writing telemetry to a file needs the OpenTelemetry SDK; install it: pip install 'otel-assembly[cli]'"
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["LogFileExporter", "NamedSpanFileExporter", "SpanFileExporter"]

_logger = logging.getLogger(__name__)

# The Collector splits a line at `max_log_size`, 1 MiB by default, and cannot read the parts.
_LONGEST_LINE = 1_000_000

T = TypeVar("T")


class SpanFileExporter(SpanExporter):
    """Writes finished spans to a rotating file of OTLP JSON lines.

    If the file cannot be written, the exporter returns a failure, the spans are lost, and no exception reaches the
    agent. One warning is logged until a write succeeds again. A batch that is too long for the Collector's line limit
    is split into several lines.

    Args:
        path: The file that is written; when it is full, it is renamed as `RotatingFile` describes.
        max_bytes: The size at which the file is rotated, in bytes.
        backups: The number of rotated files to keep; about ``(backups + 1) * max_bytes`` are used on disk.

    Raises:
        ConfigurationError: ``opentelemetry-exporter-otlp-json-file`` is not installed, or a limit is too small.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = 64 * 1024 * 1024, backups: int = 4) -> None:
        self._writer = _BatchWriter("spans", _span_encoder, RotatingFile(path, max_bytes=max_bytes, backups=backups))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans; return ``FAILURE`` if that fails, and never raise."""
        return SpanExportResult.SUCCESS if self._writer.write(spans) else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Close the file; later exports fail."""
        self._writer.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return True, because `export` writes immediately."""
        return True


class NamedSpanFileExporter(SpanFileExporter):
    """The exporter for ``OTEL_TRACES_EXPORTER=otel_assembly_file``; it writes to ``OTEL_ASSEMBLY_SPAN_FILE``.

    Raises:
        ConfigurationError: ``opentelemetry-exporter-otlp-json-file`` is not installed.
    """

    def __init__(self) -> None:
        super().__init__(os.environ.get(SPAN_FILE.name) or SPAN_FILE.default)


class LogFileExporter(LogRecordExporter):
    """Writes log records to a rotating file of OTLP JSON lines.

    Args:
        path: The file that is written; when it is full, it is renamed as `RotatingFile` describes.
        max_bytes: The size at which the file is rotated, in bytes.
        backups: The number of rotated files to keep.

    Raises:
        ConfigurationError: ``opentelemetry-exporter-otlp-json-file`` is not installed, or a limit is too small.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = 64 * 1024 * 1024, backups: int = 4) -> None:
        self._writer = _BatchWriter("logs", _log_encoder, RotatingFile(path, max_bytes=max_bytes, backups=backups))

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Write the records; return ``FAILURE`` if that fails, and never raise."""
        return LogRecordExportResult.SUCCESS if self._writer.write(batch) else LogRecordExportResult.FAILURE

    def shutdown(self) -> None:
        """Close the file; later exports fail."""
        self._writer.shutdown()

    def force_flush(self, timeout_millis: int = 10_000) -> bool:
        """Return True, because `export` writes immediately."""
        return True


class _BatchWriter(Generic[T]):
    """Encodes each batch as lines of OTLP JSON and writes them to a file; never raises."""

    def __init__(self, signal: str, encoder: Callable[[], Callable[[Sequence[T]], bytes]], file: RotatingFile) -> None:
        self._signal = signal
        self._encoder = encoder
        self._encode = encoder()
        self._file = file
        self._lock = new_lock()
        self._failing = False
        self._closed = False
        after_fork_in_child(self._renew_encoder)

    def write(self, batch: Sequence[T]) -> bool:
        if self._closed:
            return False
        try:
            with self._lock:
                self._write(batch)
        except Exception as error:  # noqa: BLE001  # telemetry must not fail the agent
            # Without the lock, because the warning itself may be exported through this writer.
            self._warn(error)
            return False
        self._failing = False
        return True

    def shutdown(self) -> None:
        self._closed = True
        with self._lock:
            self._file.close()

    def _write(self, batch: Sequence[T]) -> None:
        line = self._encode(batch)
        if len(line) > _LONGEST_LINE and len(batch) > 1:
            middle = len(batch) // 2
            self._write(batch[:middle])
            self._write(batch[middle:])
        elif line:
            self._file.append(line)

    def _warn(self, error: Exception) -> None:
        if self._failing:
            return
        self._failing = True
        # Only messages of the operating system are logged; others may quote exported content.
        problem = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        _logger.warning(
            "cannot write %s to %s (%s); they are lost until a write succeeds",
            self._signal,
            self._file.path,
            problem,
        )

    def _renew_encoder(self) -> None:
        """Replace the encoder after a fork: in the parent, another thread may have been using its buffer."""
        self._encode = self._encoder()


def _span_encoder() -> Callable[[Sequence[ReadableSpan]], bytes]:
    try:
        from opentelemetry.exporter.otlp.json.file import FileSpanExporter
    except ImportError as missing:
        raise _no_exporter() from missing
    stream = io.StringIO()
    exporter = FileSpanExporter(stream=stream)
    return lambda spans: _line(stream, exporter.export(spans) is SpanExportResult.SUCCESS)


def _log_encoder() -> Callable[[Sequence[ReadableLogRecord]], bytes]:
    try:
        from opentelemetry.exporter.otlp.json.file._log_exporter import FileLogExporter
    except ImportError as missing:
        raise _no_exporter() from missing
    stream = io.StringIO()
    exporter = FileLogExporter(stream=stream)
    return lambda records: _line(stream, exporter.export(records) is LogRecordExportResult.SUCCESS)


def _line(stream: io.StringIO, encoded: bool) -> bytes:
    """Return the line that the exporter wrote to the stream, and clear the stream; raise if the encoding failed."""
    line = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    if not encoded:
        raise ValueError
    return line.encode()


def _no_exporter() -> ConfigurationError:
    return ConfigurationError(
        "writing telemetry to a file needs opentelemetry-exporter-otlp-json-file; "
        "install it: pip install 'otel-assembly[cli]'"
    )
