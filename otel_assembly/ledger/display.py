"""Show an assembly as one line for a terminal, or as tables for a notebook: numbers and names, no content."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from otel_assembly.ledger.record import tokens_by_kind, totals_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_assembly.ledger.record import Record


def line_of(record: Record) -> str:
    """Return an assembly as one line of ASCII, which every terminal and log can show; it never raises."""
    return f"Assembly(turn {record.turn}: {', '.join(_parts(record, '->'))})"


def _parts(record: Record, arrow: str) -> Iterator[str]:
    try:
        yield from _numbers(record, arrow)
    except Exception as error:  # noqa: BLE001  # a user's counter can raise any exception, which a representation must not
        yield f"tokens unknown ({type(error).__name__})"
        yield f"{len(record.ledger_input.view):,} {arrow} {len(record.sent.view):,} events"
    if record.error is not None:
        yield f"nothing is sent ({type(record.error).__name__})"
    if record.halt is not None:
        yield f"halted by {_one_line(record.halt.source)}"


def _numbers(record: Record, arrow: str) -> Iterator[str]:
    totals = totals_of(record)
    limit = totals.budget if totals.budget is not None else totals.window
    of_limit = f" of {limit:,}" if limit is not None else ""
    method = "" if totals.method == "exact" else f" ({totals.method})"
    yield f"{totals.tokens_in:,} {arrow} {totals.tokens_out:,}{of_limit} tokens{method}"
    yield f"{totals.events_in:,} {arrow} {totals.events_out:,} events"
    for count, outcome in (
        (totals.dropped, "dropped"),
        (totals.compacted, "compacted"),
        (totals.events_injected, "injected"),
    ):
        if count:
            yield f"{count:,} {outcome}"
    if totals.overflow is not None:
        yield f"over by {totals.overflow.excess:,} {totals.overflow.unit} ({totals.overflow.cause})"


def _one_line(name: str) -> str:
    return name if name.isascii() and name.isprintable() else ascii(name)


#: No colors are set, so that the text is readable on light and on dark pages.
_RIGHT: Final = ' style="text-align: right; padding: 2px 8px"'
_LEFT: Final = ' style="text-align: left; padding: 2px 8px"'


def html_of(record: Record) -> str:
    """Return an assembly as HTML for a notebook: the prompt's tokens by kind, and the items that policies removed."""
    head = " · ".join(escape(part) for part in _parts(record, "→"))
    tables = [_table(("in the prompt", "tokens", "share"), _kind_rows(record)), _table(_EXIT_HEAD, _exit_rows(record))]
    return f"<div><div><strong>Assembly, turn {record.turn:,}</strong>: {head}</div>{''.join(tables)}</div>"


_EXIT_HEAD: Final = ("left by", "rule", "items", "tokens")


def _kind_rows(record: Record) -> Iterator[tuple[str, ...]]:
    try:
        kinds = tokens_by_kind(record)
    except Exception:  # noqa: BLE001  # the headline names the error
        return
    total = sum(kinds.values())
    for kind, tokens in sorted(kinds.items(), key=lambda item: -item[1]):
        yield kind, f"{tokens:,}", f"{tokens / total:.0%}"


def _exit_rows(record: Record) -> Iterator[tuple[str, ...]]:
    if record.error is not None:
        return
    sums: dict[tuple[str, str], list[int]] = {}
    for step in record.steps:
        for group in step.exits:
            row = sums.setdefault((step.policy, group.reason), [0, 0])
            row[0] += len(group.view)
            row[1] += record.items_tokens(group.view)
    for (policy, reason), (items, tokens) in sums.items():
        yield policy, reason, f"{items:,}", f"{tokens:,}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return an HTML table whose last two columns are numbers, aligned right; an empty string if it has no rows."""
    texts = len(head) - 2
    body = "".join(f"<tr>{_cells('td', row, texts)}</tr>" for row in rows)
    if not body:
        return ""
    head_cells = _cells("th", head, texts)
    return f'<table style="margin: 6px 0"><thead><tr>{head_cells}</tr></thead><tbody>{body}</tbody></table>'


def _cells(tag: str, row: tuple[str, ...], texts: int) -> str:
    return "".join(f"<{tag}{_LEFT if at < texts else _RIGHT}>{escape(cell)}</{tag}>" for at, cell in enumerate(row))
