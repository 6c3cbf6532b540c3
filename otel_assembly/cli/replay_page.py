"""The page of a replay: its spans, kept aside until all have ended, and what its transcripts say."""

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

#: The spans of a replay may be many; none is thrown away for being old.
_NEVER_PUT_ASIDE = 1 << 62


class ReplayPage:
    """An exporter whose spans become a page.

    Args:
        path: Where the page is to be written.
        with_text: Whether the page shows what the items say.

    Raises:
        ConfigurationError: What it takes is not installed, or nothing can be written there.
    """

    def __init__(self, path: str, *, with_text: bool = False) -> None:
        from otel_assembly.telemetry.store import SpanFileExporter

        # Now and not after the work: whether there is a folder for the page.
        self._path = Path(path)
        if self._path.is_dir() or not self._path.parent.is_dir():
            raise ConfigurationError(f"{path}: the page cannot be written: no such folder, or a folder itself")
        self._folder = TemporaryDirectory(prefix="otel-assembly-")
        self._spans = Path(self._folder.name) / "spans.jsonl"
        self._told: list[LocalConversation] | None = [] if with_text else None
        self._labelled = _Labelled(SpanFileExporter(self._spans, max_bytes=_NEVER_PUT_ASIDE))
        self.exporter: SpanExporter = self._labelled  # type: ignore[assignment]  # an exporter by its shape

    def begin(self, transcript: Transcript) -> None:
        """The spans from here on are this transcript's."""
        self._labelled.label = transcript_label(transcript)
        if self._told is not None:
            self._told.append(local_conversation(transcript))

    def write(self, title: str) -> None:
        """Write the page of the spans so far."""
        from otel_assembly.page import add_texts, page_model, save_page
        from otel_assembly.telemetry.store_reader import read_spans

        model = page_model(read_spans(self._spans), title=title, files=self._labelled.files)
        add_texts(model, self._told or ())
        save_page(model, self._path)
        conversations = len(model["conversations"])
        noun = "conversation" if conversations == 1 else "conversations"
        size = "" if is_written_into(self._path) else f", {self._path.stat().st_size / 1e6:.1f} MB"
        print(f"otel-assembly: {safe_text(self._path)}: a page of {conversations:,} {noun}{size}", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._folder.cleanup()


class _Labelled:
    """An exporter that notes whose each trace is."""

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
