"""Read span files: OTLP JSON lines, written by `SpanFileExporter` or the Collector's file exporter.

The module does not need the OpenTelemetry SDK.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from otel_assembly.errors import TranscriptError
from otel_assembly.telemetry.otlp_json import StatusName, StoredEvent, StoredLink, StoredSpan, read_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["SpanNode", "StatusName", "StoredEvent", "StoredLink", "StoredSpan", "read_spans", "span_tree"]


@dataclass(frozen=True, slots=True)
class SpanNode:
    """A span in a tree of spans.

    Attributes:
        span: The span.
        children: The nodes of the span's children, in the order of their start times.
    """

    span: StoredSpan
    children: list[SpanNode] = field(default_factory=list)


def read_spans(
    path: str | os.PathLike[str], *, on_problem: Callable[[int, str], None] | None = None
) -> Iterator[StoredSpan]:
    """Yield the spans of a span file and its rotated files, the oldest file first.

    Unreadable lines are skipped. Lines with logs or metrics, which the Collector may write to the same file, are
    ignored. A span that was exported twice is yielded twice; `span_tree` removes the duplicate.

    Args:
        path: The newest file.
        on_problem: Called for each skipped line, with its number in the file (from 1) and a description, which does not
            quote the line. None: skipped lines are ignored.

    Raises:
        TranscriptError: The file does not exist (raised immediately), cannot be opened, or has lines but no spans
            (raised at the end).
    """
    if not _files(path):
        raise TranscriptError(path, None, "no such file; expected OTLP JSON lines, written by a span file exporter")
    return _read(Path(path), on_problem or (lambda line, problem: None))


def span_tree(spans: Iterable[StoredSpan]) -> list[SpanNode]:
    """Arrange spans into trees, and return the roots, grouped by trace and sorted by start time.

    A span whose parent is missing is a root. Duplicates are removed, because OTLP may deliver a span more than once.
    """
    nodes: dict[tuple[str, str], SpanNode] = {}
    for span in sorted(spans, key=attrgetter("start_ns")):
        nodes.setdefault((span.trace_id, span.span_id), SpanNode(span))
    parents = {key: nodes.get((key[0], node.span.parent_id or "")) for key, node in nodes.items()}
    traces: dict[str, list[SpanNode]] = {}
    for (trace, _), node in nodes.items():
        # The order of the dict is that of each trace's earliest span.
        traces.setdefault(trace, [])
        parent = parents[trace, node.span.span_id]
        (traces[trace] if parent is None else parent.children).append(node)
    reached = set[int]()
    for roots in traces.values():
        _reach(roots, reached)
    for (trace, span_id), node in nodes.items():
        if id(node) not in reached:
            # Only a cycle of parent ids has no root; its earliest span becomes the root.
            parent = parents[trace, span_id]
            if parent is not None:
                parent.children[:] = [child for child in parent.children if child is not node]
            traces[trace].append(node)
            _reach([node], reached)
    return [root for roots in traces.values() for root in sorted(roots, key=lambda root: root.span.start_ns)]


def _reach(nodes: Iterable[SpanNode], reached: set[int]) -> None:
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if id(node) not in reached:
            reached.add(id(node))
            waiting += node.children


def _files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the file at this path and its rotated files that exist, the newest first."""
    newest = Path(path)
    rotated: dict[int, Path] = {}
    try:
        for file in newest.parent.iterdir():
            suffix = file.name.removeprefix(f"{newest.name}.")
            if suffix != file.name and re.fullmatch(r"[1-9][0-9]{0,5}", suffix):
                rotated[int(suffix)] = file
    except OSError:
        pass  # a file may be readable even if its folder cannot be listed
    return [newest] * os.path.exists(newest) + [rotated[number] for number in sorted(rotated)]


def _read(path: Path, on_problem: Callable[[int, str], None]) -> Iterator[StoredSpan]:
    first_problem: tuple[Path, int, str] | None = None
    has_spans = False
    with ExitStack() as stack:
        for file, stream in reversed(_open(path, stack)):
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                read = read_line(line)
                if read.problem:
                    on_problem(number, read.problem if file == path else f"{file.name}: {read.problem}")
                if read.problem or read.other_signal:
                    first_problem = first_problem or (file, number, read.problem or "a signal other than traces")
                has_spans = has_spans or bool(read.spans)
                yield from read.spans
    if first_problem and not has_spans:
        file, number, problem = first_problem
        raise TranscriptError(file, number, f"{problem}, and no other line contains spans; expected OTLP JSON lines")


def _open(path: Path, stack: ExitStack) -> list[tuple[Path, BinaryIO]]:
    """Open the file and its rotated files, the newest first, before any of them is read.

    If a file is rotated meanwhile, this order finds it twice instead of missing it. The duplicate is skipped.
    """
    opened: list[tuple[Path, BinaryIO]] = []
    seen = set[tuple[int, int]]()
    for file in _files(path):
        try:
            stream = stack.enter_context(file.open("rb"))
        except FileNotFoundError:
            continue  # rotated or removed since the folder was listed
        except OSError as error:
            raise TranscriptError(file, None, f"cannot be opened ({error.strerror})") from error
        status = os.fstat(stream.fileno())
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            opened.append((file, stream))
    return opened
