"""The page of a replay: its spans, kept aside until all have ended."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from otel_assembly.cli.terminal import safe_text
from otel_assembly.errors import ConfigurationError

if TYPE_CHECKING:
    from types import TracebackType

    from opentelemetry.sdk.trace.export import SpanExporter

#: The spans of a replay may be many; none is thrown away for being old.
_NEVER_PUT_ASIDE = 1 << 62


class ReplayPage:
    """An exporter whose spans become a page.

    Args:
        path: Where the page is to be written.

    Raises:
        ConfigurationError: What it takes is not installed, or nothing can be written there.
    """

    def __init__(self, path: str) -> None:
        if importlib.util.find_spec("opentelemetry.sdk") is None:
            raise ConfigurationError(
                "the OpenTelemetry SDK is not installed; install it: pip install 'otel-assembly[cli]'"
            )
        from otel_assembly.page import page_model, render_page
        from otel_assembly.telemetry.store import SpanFileExporter

        # Now and not after the work: whether the charts' library is here, and whether there is a folder for the page.
        render_page(page_model((), title=path))
        self._path = Path(path)
        if self._path.is_dir() or not self._path.parent.is_dir():
            raise ConfigurationError(f"{path}: the page cannot be written: no such folder, or a folder itself")
        self._folder = TemporaryDirectory(prefix="otel-assembly-")
        self._spans = Path(self._folder.name) / "spans.jsonl"
        self.exporter: SpanExporter = SpanFileExporter(self._spans, max_bytes=_NEVER_PUT_ASIDE)

    def write(self, title: str) -> None:
        """Write the page of the spans so far."""
        from otel_assembly.page import write_page
        from otel_assembly.telemetry.store_reader import read_spans

        model = write_page(read_spans(self._spans), self._path, title=title)
        conversations = len(model["conversations"])
        noun = "conversation" if conversations == 1 else "conversations"
        size = self._path.stat().st_size / 1e6
        print(
            f"otel-assembly: {safe_text(self._path)}: a page of {conversations:,} {noun}, {size:.1f} MB",
            file=sys.stderr,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._folder.cleanup()
