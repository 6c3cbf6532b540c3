"""The table that compares the policy chains of a replay: tokens, costs, dropped items and overflows."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_assembly.cli.tally import STEADY
from otel_assembly.decision import DecisionOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.table import Table
    from rich.text import Text

    from otel_assembly.cli.tally import Variant
    from otel_assembly.cli.terminal import Glyphs

#: The narrowest column, the longest line of a chain's name, and the longest name, in characters.
_NARROW = 7
_NAME = 24
_LONGEST = 200

#: The characters that rich adds around the text of a column.
_PADDING = 2


class _Row(NamedTuple):
    label: str
    cells: list[str]
    #: Whether a number other than 0 is a problem and is printed in red.
    alarming: bool = False
    #: Whether the row is a part of the row above and is indented.
    part: bool = False


def comparison(variants: Sequence[Variant], width: int, glyphs: Glyphs) -> Iterator[Table]:
    """Yield tables in which each policy chain has a column of totals.

    Chains that do not fit into a table of `width` characters get a further table.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = list(_rows(variants, glyphs))
    labels = max(len(row.label) + 2 * row.part for row in rows)
    names = [_name_lines(glyphs.printable(variant.name, _LONGEST)) for variant in variants]
    widths = [
        max(_NARROW, *map(len, name), *(len(row.cells[index]) for row in rows)) for index, name in enumerate(names)
    ]
    for group in _groups(widths, width - labels - _PADDING):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
        table.add_column("", no_wrap=True, min_width=labels)
        for index in group:
            table.add_column(
                Text("\n".join(names[index])), justify="right", vertical="bottom", no_wrap=True, min_width=widths[index]
            )
        for row in rows:
            style = "dim" if row.part else ""
            label = Text(f"  {row.label}" if row.part else row.label, style)
            table.add_row(label, *(_cell(row, row.cells[index], style) for index in group))
        yield table


def _cell(row: _Row, cell: str, style: str) -> Text:
    from rich.text import Text

    return Text(cell, "bold red" if row.alarming and cell != "0" else style)


def _groups(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yield the indexes of the columns of each table: as many as fit into `room` characters, but at least one."""
    group: list[int] = []
    remaining = room
    for index, columns in enumerate(widths):
        if group and remaining < columns + _PADDING:
            yield group
            group, remaining = [], room
        group.append(index)
        remaining -= columns + _PADDING
    yield group


def _name_lines(name: str) -> list[str]:
    """Split a chain's name into lines: after ``+`` and ``,``, and inside parts that are too long for a line."""
    lines = [""]
    for part in re.split(r"(?<=[+,])", name):
        for start in range(0, len(part), _NAME):
            piece = part[start : start + _NAME]
            if len(lines[-1]) + len(piece) > _NAME:
                lines.append("")
            lines[-1] += piece
    return lines


def _rows(variants: Sequence[Variant], glyphs: Glyphs) -> Iterator[_Row]:
    totals = [variant.total for variant in variants]

    def row(label: str, cells: Iterable[Any], *, alarming: bool = False, part: bool = False) -> _Row:
        return _Row(label, [_formatted(cell) for cell in cells], alarming, part)

    def parts(counters: list[Counter[str]], name: Callable[[str], str] = str) -> Iterator[_Row]:
        sums: Counter[str] = sum(counters, Counter())
        for key, _ in sums.most_common():
            yield row(name(key), (counter[key] for counter in counters), part=True)

    yield row("budget, tokens", (variant.budget or "none" for variant in variants))
    yield row("conversations", (total.conversations for total in totals))
    yield row("turns", (total.turns for total in totals))
    yield row("tokens in", (total.tokens_in for total in totals))
    yield row("tokens out", (total.tokens_out for total in totals))
    yield row("in the stable prefix", (total.prefix_tokens for total in totals), part=True)
    yield row("outside the stable prefix", (total.tokens_out - total.prefix_tokens for total in totals), part=True)
    if any(total.cost is not None for total in totals):
        yield row("input cost, estimated", (dollars(total.cost) for total in totals))
        yield row("avoided by dropping", (dollars(total.cost_avoided) for total in totals), part=True)
    yield row("largest prompt, tokens", (total.max_tokens_out for total in totals))
    if any(variant.budget for variant in variants):
        yield row("budget used, mean", (total.mean_utilization for total in totals))
        yield row("if the input exceeds it", (total.mean_utilization_of_exceeding for total in totals), part=True)
    yield row("items dropped", (total.dropped for total in totals))
    yield from parts([_dropped_by_kind(total.exits) for total in totals])
    if len({reason for total in totals for reason in total.reasons}) > 1:
        yield from parts([total.reasons for total in totals], lambda reason: f"by {reason}")
    yield row("tokens dropped", (total.exit_tokens[DecisionOutcome.DROPPED] for total in totals))
    if any(total.compacted for total in totals):
        yield row("items compacted", (total.compacted for total in totals))
        yield row("tokens", (total.exit_tokens[DecisionOutcome.COMPACTED] for total in totals), part=True)
    yield row("overflowed turns", (total.overflows for total in totals), alarming=True)
    yield row("broken tool pairs", (total.orphans for total in totals), alarming=True)
    yield row("prefix reuse, mean", (total.prefix_reuse for total in totals))
    yield row(f"turns that reuse {glyphs.at_least} {STEADY:.0%}", (total.steady_share for total in totals), part=True)
    yield row("prefix breaks", (total.breaks.total() for total in totals))
    yield from parts([total.breaks for total in totals])


def dollars(cost: float | None) -> str:
    """Return US dollars with two to six decimals; ``-`` for None."""
    if cost is None:
        return "-"
    decimals = 2 if cost >= 100 or not cost else 4 if cost >= 0.01 else 6
    return f"${cost:,.{decimals}f}"


def _dropped_by_kind(exits: Counter[tuple[DecisionOutcome, str]]) -> Counter[str]:
    return Counter({kind: count for (outcome, kind), count in exits.items() if outcome is DecisionOutcome.DROPPED})


def _formatted(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1%}"
    return value if isinstance(value, str) else f"{value:,}"
