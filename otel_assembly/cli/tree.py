"""Span trees for a terminal of 80 to 120 columns: what each turn cost, what filled its budget, what left and why.

Every text on the page comes from spans, that is from outside: control characters and escape sequences are taken out,
and nothing is read as markup.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_assembly.cli.bars import fill_bar, legend
from otel_assembly.cli.terminal import ASCII, UNICODE, Glyphs
from otel_assembly.cli.tree_facts import CONTENT, event_line, kind_tokens, span_facts
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.span_values import as_list, integer
from otel_assembly.telemetry.store_reader import SpanNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from otel_assembly.telemetry.store_reader import StoredEvent, StoredSpan

__all__ = ["render_tree"]

_NARROWEST = 40
_BAR_WIDTH = 60
_DEEPEST_INDENT = 0.4
_LONGEST_TEXT = 400


def render_tree(
    nodes: Sequence[SpanNode],
    *,
    width: int,
    color: bool,
    content: bool = False,
    ascii: bool = False,  # noqa: A002 - the natural word, and keyword-only
) -> str:
    """Draw span trees as text, one trace after the other, and once at the end what the letters of the bars mean.

    Args:
        nodes: The roots, as `span_tree` gives them.
        width: Columns of the terminal; under 40, 40 are taken.
        color: Whether to add colours (ANSI sequences); nothing is told by colour alone.
        content: Whether to show what the model read and wrote, where it was captured.
        ascii: Whether to keep to ASCII, for an encoding that has nothing else; other characters become ``?``.

    Returns:
        Lines of at most ``width`` columns, each ending with a newline; an empty text for no nodes.
    """
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream,
        width=max(width, _NARROWEST),
        height=1,  # without it, a TERM of "dumb" has 80 columns whatever the width is
        force_terminal=color,
        color_system="256" if color else None,
        no_color=not color,
        force_jupyter=False,
        legacy_windows=False,
    )
    for line in _Page(console, ASCII if ascii else UNICODE, content).lines(nodes):
        line.rstrip()
        console.print(line, markup=False, highlight=False, emoji=False, no_wrap=True, overflow="ignore", crop=False)
    return stream.getvalue()


@dataclass(slots=True)
class _Page:
    """One drawing: where it goes, how, and which kinds its bars have shown so far."""

    console: Console
    glyphs: Glyphs
    content: bool
    kinds: set[str] = field(default_factory=set)

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
        """Depth first, without recursion: a trace can be deeper than Python's stack."""
        waiting: list[tuple[SpanNode | Text, str, str, str]] = [(root, "", "", "")]
        while waiting:
            entry, above, first, rest = waiting.pop()
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
                waiting.append((child, below, *guides))

    def head(self, node: SpanNode, first: str, rest: str) -> Iterator[Text]:
        """The span's own lines: name and facts, the duration at the right; then its bar, then its content."""
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
                said = self.text(f"{key}  ", "dim").append_text(self.text(text))
                yield from self.block([said], rest, rest + "  ")

    def event(self, span: StoredSpan, event: StoredEvent) -> Text:
        mark, said = event_line(span, event, self.glyphs)
        line = self.text("").append_text(self.text(*mark))
        return line.append("  ").append_text(self.text(said)) if said else line

    def bar(self, span: StoredSpan, room: int) -> Text | None:
        """What fills the budget, by kind; an empty end is budget left, a mark within is where the budget ends."""
        tokens = kind_tokens(span.attributes)
        total = tokens.total()
        if not total:
            return None
        budget, counted = (integer(span.attributes.get(name)) for name in (names.BUDGET_LIMIT, names.BUDGET_USED))
        budget, used = max(0, budget or 0), total if counted is None else counted
        after = f" {100 * used / budget:.1f}%" if budget else ""
        most = budget and budget + max(0, total - used)  # what stands beside the messages takes nothing of their limit
        cells = max(8, min(_BAR_WIDTH, room - len(after) - 2))
        self.kinds.update(tokens)
        bar = fill_bar(tokens, most, cells, self.glyphs)
        return self.text("[").append_text(bar).append("]").append(after, "red" if 0 < budget < used else "")

    def duration(self, span: StoredSpan) -> str:
        seconds = span.duration_s
        if not seconds:  # a note of what was decided, which takes no time of its own
            return ""
        if seconds >= 60:
            return f"{int(seconds // 60)}m{int(seconds % 60):02}s"
        if seconds >= 1:
            return f"{seconds:.2f}s"
        return f"{seconds * 1e3:.1f}ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f}{self.glyphs.micro}"

    def text(self, value: Any, style: str = "") -> Text:
        """Text that is safe to print, cut where it would fill the screen."""
        from rich.text import Text

        return Text(self.glyphs.printable(value, _LONGEST_TEXT), style)

    def indent(self, guide: str) -> int:
        """Columns that a guide takes: a deep tree stops moving right, so that there is room for what it says."""
        return min(len(guide), int(self.console.width * _DEEPEST_INDENT))

    def block(self, pieces: Sequence[Text], first: str, rest: str, right: Text | None = None) -> Iterator[Text]:
        """Pieces side by side where they fit, else on further lines; one that is longer than a line is folded."""
        edge = right.cell_len + 2 if right is not None else 0
        row, begun = self.row(first), False
        for piece in pieces:
            room = self.console.width - edge - self.indent(rest)
            for part in piece.wrap(self.console, room) if piece.cell_len > room else (piece,):
                part.rstrip()
                if begun and row.cell_len + 2 + part.cell_len > self.console.width - edge:
                    yield self.ended(row, right)
                    right, edge = None, 0
                    row, begun = self.row(rest), False
                row.append("  " if begun else "").append_text(part)
                begun = True
        yield self.ended(row, right)

    def ended(self, row: Text, right: Text | None) -> Text:
        if right is not None:
            row.append(" " * max(1, self.console.width - row.cell_len - right.cell_len)).append_text(right)
        return row

    def row(self, guide: str) -> Text:
        return self.text("").append(guide[len(guide) - self.indent(guide) :], "dim")
