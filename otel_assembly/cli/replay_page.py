"""The HTML page of a replay: its spans, buffered in a temporary file, and optionally the texts of its transcripts."""

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

    from otel_assembly.cli.transcripts import Transcript
    from otel_assembly.page import LocalConversation

#: A file size that is never reached, so that the span file is not rotated.
_NO_ROTATION = 1 << 62


class ReplayPage:
    """An exporter that collects spans for a page.

    Args:
        path: The page's file.
        with_text: Whether the page contains the texts of the items.

    Raises:
        ConfigurationError: A package is missing, or the page cannot be written there.
    """

    def __init__(self, path: str, *, with_text: bool = False) -> None:
        from otel_assembly.telemetry.store import SpanFileExporter

        # Fail now, and not after the work.
        self._path = Path(path)
        if self._path.is_dir() or not self._path.parent.is_dir():
            raise ConfigurationError(f"{path}: the page cannot be written: no such folder, or a folder itself")
        self._folder = TemporaryDirectory(prefix="otel-assembly-")
        self._spans = Path(self._folder.name) / "spans.jsonl"
        self._texts: list[LocalConversation] | None = [] if with_text else None
        self._labelled = _Labelled(SpanFileExporter(self._spans, max_bytes=_NO_ROTATION))
        self.exporter: SpanExporter = self._labelled  # type: ignore[assignment]  # an exporter by its shape

    def begin(self, transcript: Transcript) -> None:
        """Label the next spans with this transcript."""
        self._labelled.label = transcript_label(transcript)
        if self._texts is not None:
            self._texts.append(local_conversation(transcript))

    def write(self, title: str) -> None:
        """Write the page of all spans so far."""
        from otel_assembly.page import add_texts, page_model, save_page
        from otel_assembly.telemetry.store_reader import read_spans

        model = page_model(read_spans(self._spans), title=title, files=self._labelled.files)
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


class _Labelled:
    """An exporter that records the label of each trace."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.label = ""
        self.files: dict[str, str] = {}
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.files.update((f"{span.context.trace_id:032x}", safe_text(self.label)) for span in spans if span.context)
        return self._exporter.export(spans)

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
