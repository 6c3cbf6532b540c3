"""The embedded span store: a rotating file of OTLP JSON lines, for machines where no Collector listens.

The lines are written by OpenTelemetry's own OTLP JSON encoder, one export request a line.
`otel_assembly.telemetry.store_reader` reads them without an SDK, and the Collector reads the same files::

    receivers:
      otlp_json_file:  # `otlpjsonfile` in older releases
        include: [spans.jsonl, spans.jsonl.*]
        start_at: beginning
        fingerprint_size: 16kb

It tells files apart by their first bytes, 1,000 by default. Where a resource is longer than that, all files of one
process begin alike, and without the last line it skips most of them.
"""

from __future__ import annotations

import io
import logging
import os
from typing import TYPE_CHECKING, Generic, TypeVar

from otel_assembly._internal.forks import in_child, new_lock
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

# The Collector cuts a line at its `max_log_size`, 1 MiB by default, and then can read none of the pieces.
_LONGEST_LINE = 1_000_000

T = TypeVar("T")


class SpanFileExporter(SpanExporter):
    """Writes finished spans to a rotating file of OTLP JSON lines.

    A file that cannot be written never raises into the agent: the export is a failure, its spans are lost, and one
    warning is logged until a write succeeds again. A batch too long for one line that the Collector reads becomes
    several.

    Args:
        path: The newest file; see `RotatingFile`.
        max_bytes: Size at which it is put aside, in bytes.
        backups: How many files put aside are kept, so at most ``(backups + 1) * max_bytes`` are used.

    Raises:
        ConfigurationError: The official OTLP JSON exporter is not installed, or a limit cannot work.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = 64 * 1024 * 1024, backups: int = 4) -> None:
        self._writer = _BatchWriter("spans", _span_encoder, RotatingFile(path, max_bytes=max_bytes, backups=backups))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans; whatever goes wrong, the answer is ``FAILURE`` and no exception."""
        return SpanExportResult.SUCCESS if self._writer.write(spans) else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Close the file; later exports fail."""
        self._writer.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Always True: what was exported has been handed to the operating system."""
        return True


class NamedSpanFileExporter(SpanFileExporter):
    """``otel_assembly_file`` of ``OTEL_TRACES_EXPORTER``: writes the file that ``OTEL_ASSEMBLY_SPAN_FILE`` names.

    Raises:
        ConfigurationError: The official OTLP JSON exporter is not installed.
    """

    def __init__(self) -> None:
        super().__init__(os.environ.get(SPAN_FILE.name) or SPAN_FILE.default)


class LogFileExporter(LogRecordExporter):
    """Writes log records to a rotating file of OTLP JSON lines, as `SpanFileExporter` writes spans."""

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = 64 * 1024 * 1024, backups: int = 4) -> None:
        self._writer = _BatchWriter("logs", _log_encoder, RotatingFile(path, max_bytes=max_bytes, backups=backups))

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Write the records; whatever goes wrong, the answer is ``FAILURE`` and no exception."""
        return LogRecordExportResult.SUCCESS if self._writer.write(batch) else LogRecordExportResult.FAILURE

    def shutdown(self) -> None:
        """Close the file; later exports fail."""
        self._writer.shutdown()

    def force_flush(self, timeout_millis: int = 10_000) -> bool:
        """Always True: what was exported has been handed to the operating system."""
        return True


class _BatchWriter(Generic[T]):
    """Encodes batches into lines and keeps every failure to itself."""

    def __init__(self, signal: str, encoder: Callable[[], Callable[[Sequence[T]], bytes]], file: RotatingFile) -> None:
        self._signal = signal
        self._encoder = encoder
        self._encode = encoder()
        self._file = file
        self._lock = new_lock()
        self._failing = False
        self._closed = False
        in_child(self._begin)

    def write(self, batch: Sequence[T]) -> bool:
        if self._closed:
            return False
        try:
            with self._lock:
                self._write(batch)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into the agent
            # Outside the lock, for the warning itself may be exported through this very writer.
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
        # The text of an error that is not the operating system's could quote what was to be written.
        problem = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        _logger.warning(
            "%s cannot be written to %s (%s); they are lost until it can be written again",
            self._signal,
            self._file.path,
            problem,
        )

    def _begin(self) -> None:
        """Another thread may have been encoding a batch."""
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
    """What the official exporter wrote; it takes a text stream, and its lines are measured before they are kept."""
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
