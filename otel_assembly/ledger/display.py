"""Show an assembly as one line for a terminal, or as tables for a notebook: numbers and names, no content."""

from __future__ import annotations

from collections import Counter
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
        source = record.halt.source
        yield f"halted by {source if source.isascii() and source.isprintable() else ascii(source)}"


def _numbers(record: Record, arrow: str) -> Iterator[str]:
    totals = totals_of(record)
    limit = totals.budget if totals.budget is not None else totals.window
    of_limit = f" of {limit:,}" if limit is not None else ""
    method = "" if totals.method == "exact" else f" ({totals.method})"
    yield f"{totals.tokens_in:,} {arrow} {totals.tokens_out:,}{of_limit} tokens{method}"
    yield f"{totals.events_in:,} {arrow} {totals.events_out:,} events"
    counts = {"dropped": totals.dropped, "compacted": totals.compacted, "injected": totals.events_injected}
    yield from (f"{count:,} {outcome}" for outcome, count in counts.items() if count)
    if totals.overflow is not None:
        yield f"over by {totals.overflow.excess:,} {totals.overflow.unit} ({totals.overflow.cause})"


#: No colors are set, so that the text is readable on light and on dark pages.
_RIGHT: Final = ' style="text-align: right; padding: 2px 8px"'
_LEFT: Final = ' style="text-align: left; padding: 2px 8px"'


def html_of(record: Record) -> str:
    """Return an assembly as HTML for a notebook: the prompt's tokens by kind, and the items that policies removed."""
    head = " · ".join(escape(part) for part in _parts(record, "→"))
    tables = (
        _table(("in the prompt", "tokens", "share"), _kind_rows(record)),
        _table(("left by", "rule", "items", "tokens"), _exit_rows(record)),
    )
    return f"<div><div><strong>Assembly, turn {record.turn:,}</strong>: {head}</div>{''.join(tables)}</div>"


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
    items, tokens = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for step in record.steps:
        for group in step.exits:
            items[step.policy, group.reason] += group.view.length
            tokens[step.policy, group.reason] += record.items_tokens(group.view)
    for rule, count in items.items():
        yield *rule, f"{count:,}", f"{tokens[rule]:,}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return an HTML table whose last two columns are numbers, aligned right; an empty string if it has no rows."""
    styles = [_LEFT] * (len(head) - 2) + [_RIGHT] * 2

    def cells(tag: str, row: tuple[str, ...]) -> str:
        return "".join(f"<{tag}{style}>{escape(cell)}</{tag}>" for style, cell in zip(styles, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head_row = f"<thead><tr>{cells('th', head)}</tr></thead>"
    return f'<table style="margin: 6px 0">{head_row}<tbody>{body}</tbody></table>' if body else ""
