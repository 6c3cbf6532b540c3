"""How an assembly is shown: one line for a terminal, a small table for a notebook. Numbers and names, no content."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from otel_assembly.ledger.record import tokens_by_kind, totals_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_assembly.ledger.record import Record


def line_of(record: Record) -> str:
    """An assembly in one line of ASCII, which any terminal and any log can show; it never raises."""
    return f"Assembly(turn {record.turn}: {', '.join(_parts(record, '->'))})"


def _parts(record: Record, arrow: str) -> Iterator[str]:
    try:
        yield from _numbers(record, arrow)
    except Exception as error:  # noqa: BLE001  # a counter of the caller's may raise anything, and this is but shown
        yield f"tokens unknown ({type(error).__name__})"
        yield f"{len(record.ledger_input.view):,} {arrow} {len(record.view_out):,} events"
    if record.error is not None:
        yield f"nothing is sent ({type(record.error).__name__})"
    if record.halt is not None:
        yield f"halted by {_one_line(record.halt.source)}"


def _numbers(record: Record, arrow: str) -> Iterator[str]:
    totals = totals_of(record)
    limit = totals.budget if totals.budget is not None else totals.window
    of = f" of {limit:,}" if limit is not None else ""
    how = "" if totals.method == "exact" else f" ({totals.method})"
    yield f"{totals.tokens_in:,} {arrow} {totals.tokens_out:,}{of} tokens{how}"
    yield f"{totals.events_in:,} {arrow} {totals.events_out:,} events"
    for count, what in (
        (totals.dropped, "dropped"),
        (totals.compacted, "compacted"),
        (totals.events_injected, "injected"),
    ):
        if count:
            yield f"{count:,} {what}"
    if totals.overflow is not None:
        yield f"over by {totals.overflow.excess:,} {totals.overflow.unit} ({totals.overflow.cause})"


def _one_line(name: str) -> str:
    return name if name.isascii() and name.isprintable() else ascii(name)


#: Colours are the page's own, so that it is read on a light one and on a dark one.
_RIGHT: Final = ' style="text-align: right; padding: 2px 8px"'
_LEFT: Final = ' style="text-align: left; padding: 2px 8px"'


def html_of(record: Record) -> str:
    """An assembly as a notebook shows it: what fills the prompt, and what left by which policy's rule."""
    head = " · ".join(escape(part) for part in _parts(record, "→"))
    tables = [_table(("in the prompt", "tokens", "share"), _filled(record)), _table(_LEAVING, _left(record))]
    return f"<div><div><strong>Assembly, turn {record.turn:,}</strong>: {head}</div>{''.join(tables)}</div>"


_LEAVING: Final = ("left by", "rule", "items", "tokens")


def _filled(record: Record) -> Iterator[tuple[str, ...]]:
    try:
        kinds = tokens_by_kind(record)
    except Exception:  # noqa: BLE001  # the headline names it
        return
    whole = sum(kinds.values())
    for kind, tokens in sorted(kinds.items(), key=lambda one: -one[1]):
        yield kind, f"{tokens:,}", f"{tokens / whole:.0%}"


def _left(record: Record) -> Iterator[tuple[str, ...]]:
    if record.error is not None:
        return
    sums: dict[tuple[str, str], list[int]] = {}
    for step in record.steps:
        for group in step.exits:
            held = sums.setdefault((step.policy, group.reason), [0, 0])
            held[0] += len(group.view)
            held[1] += record.items_tokens(group.view)
    for (policy, reason), (items, tokens) in sums.items():
        yield policy, reason, f"{items:,}", f"{tokens:,}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table whose numbers stand at the right; nothing where it would be empty."""
    names = len(head) - 2
    body = "".join(f"<tr>{_cells('td', row, names)}</tr>" for row in rows)
    if not body:
        return ""
    names_row = _cells("th", head, names)
    return f'<table style="margin: 6px 0"><thead><tr>{names_row}</tr></thead><tbody>{body}</tbody></table>'


def _cells(tag: str, row: tuple[str, ...], names: int) -> str:
    return "".join(f"<{tag}{_LEFT if at < names else _RIGHT}>{escape(cell)}</{tag}>" for at, cell in enumerate(row))
