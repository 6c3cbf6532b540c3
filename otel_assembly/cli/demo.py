"""``demo``: an agent whose context overflows, that is warned and then halted; its spans in your terminal."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from otel_assembly.cli.demo_agent import BUDGET, Line, SupportAgent
from otel_assembly.cli.export import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    Export,
    file_exporter,
    otlp_endpoint,
    otlp_exporter,
)
from otel_assembly.telemetry import OpenTelemetryRecorder

if TYPE_CHECKING:
    import argparse

_LABELS = {"user": "32", "agent": "36", "tool": "2", "halted": "1;31"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="a support agent whose context overflows, offline, with its spans in your terminal",
        description="Run a support agent offline: a tool result overflows its context, a loop is warned about, and a "
        f"FATAL alert halts it. Its spans go to a file, and to {OTEL_EXPORTER_OTLP_ENDPOINT} where that is set; their "
        "tree is printed.",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where the spans go (default: a file in the temporary directory)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Play the demonstration; 0, or 1 where spans were lost."""
    from otel_assembly.cli.tree import render_tree
    from otel_assembly.telemetry.store_reader import read_spans, span_tree

    path = arguments.output or str(Path(tempfile.mkdtemp(prefix="otel-assembly-")) / "spans.jsonl")
    already = list(read_spans(path)) if Path(path).is_file() and Path(path).stat().st_size else []
    known = {(span.trace_id, span.span_id) for span in already}
    exporters = [file_exporter(path)]
    sent_to = ""
    if os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT):
        exporters.append(otlp_exporter())
        sent_to = otlp_endpoint()
    with Export(exporters, "otel-assembly-demo") as export:
        agent = SupportAgent(OpenTelemetryRecorder(tracer_provider=export.provider))
        asyncio.run(agent.run())
        export.flush()
        lost = export.lost
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    print(f"A support agent with a context of {BUDGET} tokens, offline:\n")
    for line in agent.lines:
        print(_spoken(line, width, color=color))
    print("\nIts spans:\n")
    spans = [span for span in read_spans(path) if (span.trace_id, span.span_id) not in known]
    print(render_tree(span_tree(spans), width=width, color=color, ascii=ascii_only), end="")
    print(f"\n{len(spans)} spans are in {path}" + (f" and were sent to {sent_to}" if sent_to else "") + ".")
    # As it was called, so that the line can be copied where the program is not on the path.
    program = sys.argv[0] if Path(sys.argv[0]).name == "otel-assembly" else "otel-assembly"
    print(f"Your own conversations: {program} replay YOUR.jsonl --budget 8000")
    return 1 if lost else 0


def _spoken(line: Line, width: int, *, color: bool) -> str:
    label = f"{line.who:>8}"
    if color:
        label = f"\x1b[{_LABELS[line.who]}m{label}\x1b[0m"
    first, *rest = line.text.splitlines() or [""]
    room = width - 12
    text = first if len(first) <= room else first[: room - 3] + "..."
    if rest:
        more = f" (+{len(rest)} lines)"
        text = text[: room - len(more)] + more
    return f"{label}  {text}"
