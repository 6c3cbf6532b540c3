"""Reads a store of spans: OTLP JSON lines, as `SpanFileExporter` or the Collector's file exporter writes them.

Nothing here needs the OpenTelemetry SDK.
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
    """A span with those that it is the parent of, by start time."""

    span: StoredSpan
    children: list[SpanNode] = field(default_factory=list)


def read_spans(
    path: str | os.PathLike[str], *, on_problem: Callable[[int, str], None] | None = None
) -> Iterator[StoredSpan]:
    """Read the spans of a store, one at a time: files put aside first, the oldest first, then ``path`` itself.

    A line that cannot be read is skipped. Lines of other signals, which the Collector mixes in, are no spans and no
    problem. A span that was delivered twice comes twice; `span_tree` drops the second.

    Args:
        path: The newest file of the store.
        on_problem: Called with the number of a skipped line in its file, from 1, and with what is wrong there; never
            with what stands there.

    Raises:
        TranscriptError: There is no such file (raised at once); it cannot be opened; or it has lines and not one could
            be read as spans (raised at the end).
    """
    if not _files(path):
        raise TranscriptError(path, None, "no such file; expected OTLP JSON lines, as a span file exporter writes them")
    return _read(Path(path), on_problem or (lambda line, problem: None))


def span_tree(spans: Iterable[StoredSpan]) -> list[SpanNode]:
    """Arrange spans into trees: the roots, trace by trace, everything by start time.

    A span whose parent is not among them is a root. A second span with the same ids is dropped, for delivery is at
    least once.
    """
    nodes: dict[tuple[str, str], SpanNode] = {}
    for span in sorted(spans, key=attrgetter("start_ns")):
        nodes.setdefault((span.trace_id, span.span_id), SpanNode(span))
    parents = {key: nodes.get((key[0], node.span.parent_id or "")) for key, node in nodes.items()}
    traces: dict[str, list[SpanNode]] = {}
    for (trace, _), node in nodes.items():
        # A dict keeps its order: a trace stands where its earliest span does.
        traces.setdefault(trace, [])
        parent = parents[trace, node.span.span_id]
        (traces[trace] if parent is None else parent.children).append(node)
    reached = set[int]()
    for roots in traces.values():
        _reach(roots, reached)
    for (trace, span_id), node in nodes.items():
        if id(node) not in reached:
            # Only a false circle of parents has no root: it is cut at its earliest span.
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
    """The store's files that exist, the newest first."""
    newest = Path(path)
    aside: dict[int, Path] = {}
    try:
        for file in newest.parent.iterdir():
            suffix = file.name.removeprefix(f"{newest.name}.")
            if suffix != file.name and re.fullmatch(r"[1-9][0-9]{0,5}", suffix):
                aside[int(suffix)] = file
    except OSError:
        pass  # a folder that may not be listed can still hold a file that may be read
    return [newest] * os.path.exists(newest) + [aside[number] for number in sorted(aside)]


def _read(path: Path, on_problem: Callable[[int, str], None]) -> Iterator[StoredSpan]:
    first_problem: tuple[Path, int, str] | None = None
    found = False
    with ExitStack() as stack:
        for file, stream in reversed(_open(path, stack)):
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                read = read_line(line)
                if read.problem:
                    on_problem(number, read.problem if file == path else f"{file.name}: {read.problem}")
                if read.problem or read.other_signal:
                    first_problem = first_problem or (file, number, read.problem or "another signal than traces")
                found = found or bool(read.spans)
                yield from read.spans
    if first_problem and not found:
        file, number, problem = first_problem
        raise TranscriptError(file, number, f"{problem}, and no other line holds spans; expected OTLP JSON lines")


def _open(path: Path, stack: ExitStack) -> list[tuple[Path, BinaryIO]]:
    """Every file opened before the first is read, the newest first: one that is put aside meanwhile is met again."""
    opened: list[tuple[Path, BinaryIO]] = []
    seen = set[tuple[int, int]]()
    for file in _files(path):
        try:
            stream = stack.enter_context(file.open("rb"))
        except FileNotFoundError:
            continue  # put aside or removed a moment ago
        except OSError as error:
            raise TranscriptError(file, None, f"cannot be opened ({error.strerror})") from error
        status = os.fstat(stream.fileno())
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            opened.append((file, stream))
    return opened
