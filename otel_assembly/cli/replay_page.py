"""Write the HTML page of a replay. Its spans are buffered in a temporary file until the replay is complete."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from otel_assembly._internal.whole_files import is_written_into
from otel_assembly.cli.page_files import local_conversation, transcript_label
from otel_assembly.cli.terminal import safe_text
from otel_assembly.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    from otel_assembly.page import LocalConversation
    from otel_assembly.transcripts import Transcript

#: A file size that is never reached, so that the span file is not rotated.
NO_ROTATION = 1 << 62


class ReplayPage:
    """Collects the spans of a replay with its `exporter`, and writes the HTML page of them.

    Args:
        path: The page's file.
        with_text: Whether the page contains the texts of the items.

    Raises:
        ConfigurationError: A package for span files is missing, or `path` is not a file in an existing folder.
    """

    def __init__(self, path: str, *, with_text: bool = False) -> None:
        from otel_assembly.telemetry.store import SpanFileExporter

        # Fail before the replay, not after it.
        self._path = Path(path)
        if self._path.is_dir() or not self._path.parent.is_dir():
            raise ConfigurationError(
                f"{path}: the page cannot be written: it is a folder, or its folder is missing; name a file"
            )
        self._folder = TemporaryDirectory(prefix="otel-assembly-")
        self._spans = Path(self._folder.name) / "spans.jsonl"
        self._texts: list[LocalConversation] | None = [] if with_text else None
        self._labeling = LabelingExporter(SpanFileExporter(self._spans, max_bytes=NO_ROTATION))
        self.exporter: SpanExporter = self._labeling  # type: ignore[assignment]  # it has the methods of an exporter

    def begin(self, transcript: Transcript) -> None:
        """Label the spans that are exported next with this transcript's name; keep its texts if the page has texts."""
        self._labeling.label = transcript_label(transcript)
        if self._texts is not None:
            self._texts.append(local_conversation(transcript))

    def write(self, title: str) -> None:
        """Write the page of all spans exported so far, and print its path and size."""
        from otel_assembly.page import add_texts, page_model, save_page
        from otel_assembly.telemetry.store_reader import read_spans

        model = page_model(read_spans(self._spans), title=title, files=self._labeling.files)
        add_texts(model, self._texts or ())
        save_page(model, self._path)
        conversations = len(model["conversations"])
        noun = "conversation" if conversations == 1 else "conversations"
        size = "" if is_written_into(self._path) else f", {self._path.stat().st_size / 1e6:.1f} MB"
        print(f"otel-assembly: wrote {safe_text(self._path)}: {conversations:,} {noun}{size}", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._folder.cleanup()


class LabelingExporter:
    """An exporter that also records, by trace id, the label that was set when the spans of a trace were exported.

    Attributes:
        label: The label of the spans that are exported next.
        files: The label of each trace.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self.label = ""
        self.files: dict[str, str] = {}
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans, and record the label of their traces."""
        self.files.update((f"{span.context.trace_id:032x}", safe_text(self.label)) for span in spans if span.context)
        return self._exporter.export(spans)

    def shutdown(self) -> None:
        """Shut down the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export the queued spans."""
        return self._exporter.force_flush(timeout_millis)
