"""Targets, the measured values from the tables, and the causes of missed targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Cell, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

SILENT_ROWS = ("TokenBudgetPolicy", "BudgetPolicy", "ContextAssembler")
LISTED = "TokenBudgetPolicy, a list that the user appends to"
OVER_HAND = "(recording − silent) ÷ by hand"
COMPARED = "one comparison of two equal lists, in C"

PYTHON = (
    "a turn makes about two hundred short calls in Python, each less than a tenth of its time: ids, tokens, tool "
    "pairs, the cut, and the record for spans and `explain`; the floor is one call of the tokenizer and one sum"
)
ASSEMBLER = (
    "each question ranks all turns of the conversation and lays out the kept ones again; each turn is read only once"
)


@dataclass(frozen=True)
class Promise:
    """One target.

    Attributes:
        says: The description of the target.
        limit: The limit for all measured values.
        measured: The measured values.
        why: The cause, if the target is missed.
        form: The format of a value.
        at_least: True if the limit is a minimum.
        who: The package that was measured.
    """

    says: str
    limit: float
    measured: Sequence[float]
    why: str
    form: str = "{:.2f}"
    at_least: bool = False
    who: str = ""

    @property
    def kept(self) -> bool:
        """True if all values meet the limit."""
        return all(item >= self.limit if self.at_least else item <= self.limit for item in self.measured)


def promises(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the table of targets, with the causes of missed targets as notes."""
    table = Table("promises", "targets and measurements", ["target", "at most", "measured"])
    for promise in _promises(_Found(tables)):
        shown = " · ".join(promise.form.format(item) for item in promise.measured)
        limit = f"(at least) {promise.limit:g}" if promise.at_least else f"{promise.limit:g}"
        table.rows[promise.says] = [limit, f"{shown}{promise.who}" if shown else None]
        if not promise.kept:
            what = promise.says.partition(", at ")[0]
            table.notes.append(f"Missed: {what}. {promise.why[0].upper()}{promise.why[1:]}.")
    return table.plain()


class _Found:
    """The cells of the measured tables."""

    def __init__(self, tables: list[dict[str, Any]]) -> None:
        self._tables = {table["name"]: Table(**table) for table in tables}

    def _of(self, table: str) -> Table:
        return self._tables.get(table) or Table(table, "", [])

    def cells(self, table: str, row: str) -> list[Cell]:
        return self._of(table).rows.get(row, [])

    def columns(self, table: str) -> list[str]:
        return self._of(table).columns[1:]

    def rows(self, table: str) -> dict[str, list[Cell]]:
        return self._of(table).rows

    def ratios(self, table: str, row: str) -> list[float]:
        return [cell["ratio"] for cell in self.cells(table, row) if isinstance(cell, dict)]

    def seconds(self, table: str, row: str) -> list[float]:
        return [cell["seconds"] for cell in self.cells(table, row) if isinstance(cell, dict)]


def _promises(found: _Found) -> list[Promise]:
    lengths = " · ".join(found.columns("turns"))
    flat = found.seconds("turns", SILENT_ROWS[0])
    observed = [cell for cells in found.rows("observed").values() for cell in _numbers(cells)]
    lists = zip(flat, found.seconds("turns", LISTED), found.seconds("turns", COMPARED), strict=False)
    stalls = [cell for cells in found.rows("stalls").values() for cell in _numbers(cells[:4])]
    rows = {name: cells for name, cells in found.rows("conversations").items() if "first" not in name}
    fastest, who = _fastest(found)
    return [
        *(
            Promise(
                f"a silent turn ÷ the floor, {row}, at {lengths}",
                2,
                found.ratios("turns", row),
                ASSEMBLER if row == SILENT_ROWS[2] else PYTHON,
            )
            for row in SILENT_ROWS
        ),
        Promise(
            "the longest conversation's turn ÷ the shortest one's",
            1.1,
            [flat[-1] / flat[0]] if flat else [],
            "a long conversation does not fit the processor's caches",
        ),
        Promise(
            f"(recorded − silent) ÷ by hand, at {lengths}",
            1.6,
            _numbers(found.cells("turns", OVER_HAND)),
            "by hand, the arguments are precomputed; a recorded turn computes its input and the dropped items, with "
            "step and reason",
        ),
        Promise(
            "observed reducers ÷ by hand, the least and the most",
            1.8,
            [min(observed), max(observed)] if observed else [],
            "each list of the framework is compared with the previous one, message by message; the spans by hand have "
            "precomputed arguments; the maximum is a list of 100,000 messages",
        ),
        Promise(
            f"a plain list ÷ (a History + one comparison in C), at {lengths}",
            1.2,
            [listed / (silent + compared) for silent, listed, compared in lists],
            "to detect messages that were changed in place, the list is compared with copies: a deep comparison in C, "
            "while the reference compares identities",
        ),
        Promise(
            "an event loop's longest stall, ms",
            5,
            [max(stalls)] if stalls else [],
            "a first turn of 4 MiB sums its columns, and writes the arrays of its span, without yielding",
            form="{:.1f}",
        ),
        Promise(
            "a turn among 500 conversations ÷ one's, with the collector as it is · frozen",
            1.2,
            [cells[0]["ratio"] for cells in rows.values() if cells[0]["ratio"]],
            "each turn works on a conversation that is no longer in the processor's caches",
        ),
        Promise(
            "an agent's turn with one async tool, besides model, history and assembly, µs",
            100,
            [1e6 * item for item in found.seconds("agent", "Agent.ask − model − assembly − history")],
            "argument validation, a timeout, a guard check before each call, and events for subscribers",
            form="{:.0f}",
        ),
        *_of_sessions(found),
        Promise(
            "import otel_assembly ÷ its core dependencies",
            1.3,
            found.ratios("imports", "import otel_assembly"),
            "modules that are imported eagerly",
        ),
        Promise(
            "the fastest exact peer that keeps the history ÷ ours, at 10,000",
            20,
            [fastest] if fastest is not None else [],
            "its user added a cache of counts, which otel-assembly has built in; what remains is a walk over the "
            "conversation",
            form="{:.1f}",
            at_least=True,
            who=who,
        ),
    ]


def _of_sessions(found: _Found) -> list[Promise]:
    stores = " · ".join(found.columns("sessions"))
    views = [found.ratios("sessions-views", view)[-1:] for view in ("windowed_summary", "budgeted_view")]
    return [
        Promise(
            f"a session's last thousand posts of 10,000 ÷ its first, processor time of hub and log, {stores}",
            1.2,
            found.ratios("sessions", "processor time of a post, last tenth, ratio to the first"),
            "the processor's caches; tests count what a post reads, folds and writes",
        ),
        Promise(
            f"hydrating from a snapshot and the longest tail ÷ a fold from the start, {stores}",
            0.1,
            found.ratios("sessions", "hydrating from a snapshot and the longest tail"),
            "the time to find the session and its snapshot",
        ),
        Promise(
            "a view's turn in a session of 10,000 ÷ of 1,000, a window · a budget",
            1.2,
            [ratio for ratios in views for ratio in ratios],
            "a long session does not fit the processor's caches",
        ),
    ]


def _fastest(found: _Found) -> tuple[float | None, str]:
    columns = found.columns("peers")
    if "÷ ours, 10,000" not in columns:
        return None, ""
    at = columns.index("÷ ours, 10,000")
    peers = {
        name: cells[at]
        for name, cells in found.rows("peers").items()
        if cells[:2] == ["exact", "kept"] and len(cells) > at and cells[at] is not None
    }
    if not peers:
        return None, ""
    name = min(peers, key=peers.__getitem__)
    return peers[name], f" ({name})"


def _numbers(cells: Sequence[Any]) -> list[float]:
    """Return the bold ratios, else the first numbers, of text cells."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    return [float(text.split("**")[-2 if "**" in text else 0].split()[0].replace(",", "")) for text in texts]
