"""The spans of transcripts, for commands that read spans: each turn is assembled as it was recorded."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO

from otel_assembly.cli.extras import SPAN_FILES, require
from otel_assembly.errors import TranscriptError

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.telemetry.store_reader import StoredSpan

__all__ = ["is_span_file", "spans_of_transcripts"]

#: The beginning of a line with spans, as exporters write it.
_SPANS = b'{"resourceSpans"'

#: The lines at the beginning of a file that are searched for spans.
_SEARCHED = 32

#: The longest line that is searched for spans, in bytes.
_LONGEST = 64 * 1024 * 1024


def is_span_file(path: str) -> bool:
    """Return whether one of the first lines of a file contains spans, or the file cannot be opened."""
    from otel_assembly.telemetry.otlp_json import read_line

    def lines(stream: BinaryIO) -> list[bytes]:
        return list(islice(iter(lambda: stream.readline(_LONGEST), b""), _SEARCHED))

    try:
        with open(path, "rb") as stream:
            first = [line for line in lines(stream) if line.strip()]
    except (OSError, ValueError):
        return True
    return any(line.startswith(_SPANS) or not read_line(line).problem for line in first)


def spans_of_transcripts(
    path: str, add_label: Callable[[str, str], object], on_problem: Callable[[object], None]
) -> list[StoredSpan] | None:
    """Return the spans of the turns of a transcript file, each assembled as it was recorded; None for other files.

    Args:
        path: The file.
        add_label: Called with the id of each trace and the label of its transcript.
        on_problem: Called for each conversation that cannot be read, and for content that was not understood.
    """
    from otel_assembly.cli.export import Export
    from otel_assembly.cli.page_files import transcript_label
    from otel_assembly.cli.replay_page import NO_ROTATION, LabelingExporter
    from otel_assembly.cli.replay_turns import ReplayAssembler
    from otel_assembly.cli.tally import Gaps, Variant
    from otel_assembly.cli.transcript_replay import replay_transcript
    from otel_assembly.policies import ConversationPolicy
    from otel_assembly.telemetry import OpenTelemetryRecorder
    from otel_assembly.telemetry.store import SpanFileExporter
    from otel_assembly.telemetry.store_reader import read_spans
    from otel_assembly.tokens import counter_for
    from otel_assembly.transcripts import read_transcripts

    require("showing a transcript", SPAN_FILES)
    problems: list[TranscriptError] = []
    gaps, count = Gaps(), 0
    with TemporaryDirectory(prefix="otel-assembly-") as folder:
        spans = Path(folder) / "spans.jsonl"
        labeling = LabelingExporter(SpanFileExporter(spans, max_bytes=NO_ROTATION))
        with Export([labeling], "otel-assembly-replay") as export:  # type: ignore[list-item]  # as in `ReplayPage`
            recorder = OpenTelemetryRecorder(tracer_provider=export.provider)
            assembler = ReplayAssembler([ConversationPolicy()], recorder=recorder, on_halt="return")
            variant = Variant("conversation", lambda: assembler, None, counter_for(), keeps_logged_prompts=True)
            variant.assembler = assembler
            for transcript in read_transcripts([path]):
                if isinstance(transcript, TranscriptError):
                    problems.append(transcript)
                    continue
                labeling.label = transcript_label(transcript)
                replay_transcript(transcript, variant, recorder)
                export.flush()
                gaps.add(transcript)
                count += 1
        if not count and all(problem.recognized_as is None for problem in problems):
            return None
        for problem in (*problems, *(f"not understood: {text}" for text in gaps.problems)):
            on_problem(problem)
        for trace, label in labeling.files.items():
            add_label(trace, label)
        return list(read_spans(spans)) if spans.exists() else []
