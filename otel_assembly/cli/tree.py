"""``tree``: draw span trees for a terminal of 80 to 120 columns.

Each assembly shows its tokens by kind, and its dropped items with the reasons. All texts come from spans and are not
trusted: control characters and escape sequences are removed, and markup is not interpreted.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from otel_assembly.cli.bars import fill_bar, legend
from otel_assembly.cli.extras import TABLES, require
from otel_assembly.cli.problems import Problems
from otel_assembly.cli.terminal import ASCII, UNICODE, Glyphs, safe_text
from otel_assembly.cli.tree_facts import CONTENT, event_line, kind_tokens, span_facts
from otel_assembly.errors import AssemblyError
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.span_values import as_list, integer
from otel_assembly.telemetry.store_reader import SpanNode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from otel_assembly.telemetry.store_reader import StoredEvent, StoredSpan

__all__ = ["LiveTree", "print_tree", "render_tree"]

_NARROWEST = 40
_BAR_WIDTH = 60
_DEEPEST_INDENT = 0.4
_LONGEST_TEXT = 400
#: The assemblies that `LiveTree` does not print again.
_PRINTED = 10_000


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``tree`` and its options to the command line."""
    parser = commands.add_parser(
        "tree",
        help="print the spans of a file as a tree",
        description="Print the spans of a file as a tree. Each assembly shows its tokens, what filled its budget, what "
        "it dropped and why.",
    )
    parser.add_argument("path", metavar="FILE", help="a span file (OTLP JSON lines)")
    parser.add_argument("--content", action="store_true", help="show captured content")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the tree; return 0.

    Raises:
        AssemblyError: The file contains no spans.
        TranscriptError: The file cannot be read.
    """
    from otel_assembly.telemetry.store_reader import read_spans

    require("a tree", TABLES)
    path = arguments.path
    problems = Problems()
    spans = list(read_spans(path, on_problem=lambda line, problem: problems.add(f"{path}:{line}: {problem}")))
    problems.print()
    if not spans:
        raise AssemblyError(f"{safe_text(path)} contains no spans")
    print_tree(spans, content=arguments.content)
    return 0


def print_tree(spans: Sequence[StoredSpan], *, content: bool = False) -> None:
    """Print spans as a tree, with the width, the colors and the encoding of standard output."""
    from otel_assembly.telemetry.store_reader import span_tree

    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    print(render_tree(span_tree(spans), width=width, color=color, content=content, ascii=ascii_only), end="")


def render_tree(
    nodes: Sequence[SpanNode],
    *,
    width: int,
    color: bool,
    content: bool = False,
    ascii: bool = False,  # noqa: A002 - the natural word, and keyword-only
) -> str:
    """Draw span trees as text, trace by trace, with a legend of the bars at the end.

    Args:
        nodes: The roots, as `span_tree` returns them.
        width: Columns of the terminal; at least 40.
        color: Whether to add ANSI colors. No information is in the colors alone.
        content: Whether to show captured content.
        ascii: Whether to print ASCII only; other characters become ``?``.

    Returns:
        Lines of at most ``width`` columns, each ending with a newline; an empty string if there are no nodes.
    """
    stream = io.StringIO()
    drawing = _Drawing(_console(stream, width, color=color), ASCII if ascii else UNICODE, content)
    drawing.print(drawing.lines(nodes))
    return stream.getvalue()


def _console(stream: TextIO, width: int, *, color: bool) -> Console:
    from rich.console import Console

    return Console(
        file=stream,
        width=max(width, _NARROWEST),
        height=1,  # without a height, rich ignores the width if TERM is "dumb"
        force_terminal=color,
        color_system="256" if color else None,
        no_color=not color,
        force_jupyter=False,
        legacy_windows=False,
    )


class LiveTree:
    """Prints each assembly once, when its spans have arrived.

    Policies that changed nothing are left out. The agent and the conversation are printed when they differ from those
    of the assembly before, and the legend explains the kinds that are new.

    Args:
        stream: The terminal, or a file.
    """

    def __init__(self, stream: TextIO) -> None:
        color = stream.isatty() and "NO_COLOR" not in os.environ
        ascii_only = "utf" not in (stream.encoding or "").lower()
        width = min(shutil.get_terminal_size((100, 24)).columns, 120)
        self._drawing = _Drawing(_console(stream, width, color=color), ASCII if ascii_only else UNICODE, content=False)
        self._stream = stream
        self._known: set[str] = set()
        self._heading = ""
        self._printed: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __call__(self, spans: Sequence[StoredSpan]) -> None:
        """Print an assembly, the first of the spans, with the spans below it; wait if the span of a step is missing."""
        from otel_assembly.telemetry.store_reader import span_tree

        assembly = spans[0]
        key = assembly.trace_id, assembly.span_id
        steps = sum(span.name.startswith(names.SPAN_APPLY_POLICY) for span in spans[1:])
        if key in self._printed or steps < (integer(assembly.attributes.get(names.STEPS)) or 0):
            return
        self._printed[key] = None
        while len(self._printed) > _PRINTED:
            self._printed.popitem(last=False)
        drawing, attributes = self._drawing, assembly.attributes
        agent, conversation = (attributes.get(name) for name in (names.GEN_AI_AGENT_NAME, names.GEN_AI_CONVERSATION_ID))
        heads = [("agent", agent), ("conversation", conversation)]
        heading = "  ".join(f"{name} {value}" for name, value in heads if value)
        lines = [*drawing.block([drawing.text(heading, "dim")], "", "")] if heading != self._heading else []
        self._heading = heading
        for node in span_tree(spans):
            node.children[:] = [child for child in node.children if _has_effect(child.span)]
            lines += drawing.tree(node)
        if drawing.kinds - self._known:
            *entries, free = legend(drawing.kinds - self._known, drawing.glyphs)
            lines += drawing.block(entries if self._known else [*entries, free], "", "")
            self._known |= drawing.kinds
        with suppress(OSError):  # the reader of the output has exited
            drawing.print([*lines, drawing.text("")])
            self._stream.flush()


def _has_effect(span: StoredSpan) -> bool:
    """Return whether a span below an assembly is an allocation, or a policy that changed or reported something."""
    if span.name == names.SPAN_LIST_ITEMS:
        return False
    counts = (names.DROPPED_COUNT, names.COMPACTED_COUNT, names.EVENTS_INJECTED)
    return (
        not span.name.startswith(names.SPAN_APPLY_POLICY)
        or span.status == "ERROR"
        or bool(span.events)
        or any(integer(span.attributes.get(name)) for name in counts)
        or span.attributes.get(names.TOKENS_IN) != span.attributes.get(names.TOKENS_OUT)
    )


@dataclass(slots=True)
class _Drawing:
    """The drawing of span trees on one console.

    Attributes:
        console: The console, whose width is that of the drawing.
        glyphs: The characters that may be used.
        content: Whether to show captured content.
        kinds: The kinds of content in all bars so far, for the legend.
    """

    console: Console
    glyphs: Glyphs
    content: bool
    kinds: set[str] = field(default_factory=set)

    def print(self, lines: Iterable[Text]) -> None:
        """Print lines, which are cut to the width already."""
        for line in lines:
            line.rstrip()
            self.console.print(
                line, markup=False, highlight=False, emoji=False, no_wrap=True, overflow="ignore", crop=False
            )

    def lines(self, nodes: Sequence[SpanNode]) -> Iterator[Text]:
        trace = None
        for node in nodes:
            if node.span.trace_id != trace:
                if trace is not None:
                    yield self.text("")
                trace = node.span.trace_id
                yield self.text(f"trace {trace}", "dim")
            yield from self.tree(node)
        if self.kinds:
            yield self.text("")
            yield from self.block(legend(self.kinds, self.glyphs), "", "")

    def tree(self, root: SpanNode) -> Iterator[Text]:
        """Yield the lines of a tree, depth first. No recursion: a trace can be deeper than Python's stack."""
        pending: list[tuple[SpanNode | Text, str, str, str]] = [(root, "", "", "")]
        while pending:
            entry, above, first, rest = pending.pop()
            below = above + rest
            if not isinstance(entry, SpanNode):
                yield from self.block([entry], above + first, below + "  ")
                continue
            entries: list[SpanNode | Text] = [self.event(entry.span, event) for event in entry.span.events]
            entries += entry.children
            yield from self.head(entry, above + first, below + (self.glyphs.down if entries else "   "))
            for child in reversed(entries):
                end = child is entries[-1]
                guides = (self.glyphs.last, "   ") if end else (self.glyphs.branch, self.glyphs.down)
                pending.append((child, below, *guides))

    def head(self, node: SpanNode, first: str, rest: str) -> Iterator[Text]:
        """Yield the lines of one span: name, facts and duration, then the bar, then the content."""
        span = node.span
        failed = span.status == "ERROR"
        pieces = [self.text(span.name or "(no name)", "bold red" if failed else "bold")]
        pieces += [self.text(*fact) for fact in span_facts(node, self.glyphs)]
        if failed:
            pieces.append(self.text(f"ERROR {span.attributes.get(names.ERROR_TYPE, '')}".rstrip(), "red"))
        yield from self.block(pieces, first, rest, right=self.text(self.duration(span), "dim"))
        bar = self.bar(span, self.console.width - self.indent(rest))
        if bar is not None:
            yield from self.block([bar], rest, rest)
        for key in CONTENT if self.content else ():
            value = span.attributes.get(key)
            for text in as_list(value) if key == names.ARRIVED_CONTENTS or value is None else [value]:
                line = self.text(f"{key}  ", "dim").append_text(self.text(text))
                yield from self.block([line], rest, rest + "  ")

    def event(self, span: StoredSpan, event: StoredEvent) -> Text:
        mark, detail = event_line(span, event, self.glyphs)
        line = self.text("").append_text(self.text(*mark))
        return line.append("  ").append_text(self.text(detail)) if detail else line

    def bar(self, span: StoredSpan, room: int) -> Text | None:
        """Return the bar of tokens by kind, as `fill_bar` draws it; None if the span records no kinds."""
        tokens = kind_tokens(span.attributes)
        total = tokens.total()
        if not total:
            return None
        budget, counted = (integer(span.attributes.get(name)) for name in (names.BUDGET_LIMIT, names.BUDGET_USED))
        budget, used = max(0, budget or 0), total if counted is None else counted
        after = f" {100 * used / budget:.1f}%" if budget else ""
        ceiling = budget and budget + max(0, total - used)  # add the tokens that a limit on messages does not count
        cells = max(8, min(_BAR_WIDTH, room - len(after) - 2))
        self.kinds.update(tokens)
        bar = fill_bar(tokens, ceiling, cells, self.glyphs)
        return self.text("[").append_text(bar).append("]").append(after, "red" if 0 < budget < used else "")

    def duration(self, span: StoredSpan) -> str:
        seconds = span.duration_s
        if not seconds:  # a decision that is recorded as a span without a duration
            return ""
        if seconds >= 60:
            return f"{int(seconds // 60)}m{int(seconds % 60):02}s"
        if seconds >= 1:
            return f"{seconds:.2f}s"
        return f"{seconds * 1e3:.1f}ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f}{self.glyphs.micro}"

    def text(self, value: Any, style: str = "") -> Text:
        """Return a value as text that is safe to print, truncated to a few lines."""
        from rich.text import Text

        return Text(self.glyphs.printable(value, _LONGEST_TEXT), style)

    def indent(self, guide: str) -> int:
        """Return the width of an indent: that of its guide lines, limited so that deep spans keep room for text."""
        return min(len(guide), int(self.console.width * _DEEPEST_INDENT))

    def block(self, pieces: Sequence[Text], first: str, rest: str, right: Text | None = None) -> Iterator[Text]:
        """Yield lines of pieces side by side, wrapped between pieces, or inside a piece that is longer than a line.

        `first` is the indent of the first line, `rest` of the others. `right` is put at the end of the first line.
        """
        edge = right.cell_len + 2 if right is not None else 0
        row, has_piece = self.row(first), False
        for piece in pieces:
            room = self.console.width - edge - self.indent(rest)
            for part in piece.wrap(self.console, room) if piece.cell_len > room else (piece,):
                part.rstrip()
                if has_piece and row.cell_len + 2 + part.cell_len > self.console.width - edge:
                    yield self.with_right_text(row, right)
                    right, edge = None, 0
                    row, has_piece = self.row(rest), False
                row.append("  " if has_piece else "").append_text(part)
                has_piece = True
        yield self.with_right_text(row, right)

    def with_right_text(self, row: Text, right: Text | None) -> Text:
        if right is not None:
            row.append(" " * max(1, self.console.width - row.cell_len - right.cell_len)).append_text(right)
        return row

    def row(self, guide: str) -> Text:
        return self.text("").append(guide[len(guide) - self.indent(guide) :], "dim")
