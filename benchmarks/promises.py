"""Targets, the measured values from the tables, and the causes of missed targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Cell, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

SILENT = "TokenBudgetPolicy"
LISTED = "TokenBudgetPolicy, a list that the user appends to"
OVER_HAND = "(recording − silent) ÷ by hand"
COMPARED = "one comparison of two equal lists, in C"
CALLS_SILENT = "Python calls of a turn, TokenBudgetPolicy"
CALLS_RECORDED = "Python calls of a turn, TokenBudgetPolicy, SDK, recording, with metrics"
#: Reducers whose output is in many pieces, which are compared one by one.
SCATTERED = frozenset({"every other, then 50"})

#: The causes of missed targets, by the row of `turns`.
CAUSES = {
    SILENT: "beyond the decision, a turn reads the context, opens the ledger, states a verdict for each part that is "
    "left out, and keeps what the next turn is compared with; the floor keeps nothing",
    "BudgetPolicy": "as for TokenBudgetPolicy; it also looks for content to compact before it drops any",
    "ContextAssembler": "a question calls its sources, lays out seven kinds of blocks, shares the budget between them, "
    "and orders them; the floor has one kind. The turns that cannot fit cost nothing",
}


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
        limit = f"(at least) {promise.limit:,g}" if promise.at_least else f"{promise.limit:,g}"
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

    def at(self, table: str, row: str, column: str, key: str | None = None) -> list[Any]:
        """Return the cell of a column, or one of its values; an empty list if it was not measured."""
        cells = dict(zip(self.columns(table), self.cells(table, row), strict=False))
        cell = cells.get(column)
        value = cell.get(key) if key is not None and isinstance(cell, dict) else cell if key is None else None
        return [] if value is None else [value]

    def ratios(self, table: str, row: str) -> list[float]:
        return [cell["ratio"] for cell in self.cells(table, row) if isinstance(cell, dict)]

    def means(self, table: str, row: str) -> list[float]:
        """Return the means of a row, in seconds."""
        return [cell["mean"] for cell in self.cells(table, row) if isinstance(cell, dict)]

    def seconds(self, table: str, row: str) -> list[float]:
        return [cell["seconds"] for cell in self.cells(table, row) if isinstance(cell, dict)]


def _promises(found: _Found) -> list[Promise]:
    lengths = " · ".join(found.columns("turns"))
    flat = found.means("turns", SILENT)
    observed = [
        cell for row, cells in found.rows("observed").items() if row not in SCATTERED for cell in _numbers(cells)
    ]
    lists = zip(flat, found.means("turns", LISTED), found.means("turns", COMPARED), strict=False)
    stalls = [cell for cells in found.rows("stalls").values() for cell in _numbers(cells[:4])]
    rows = {name: cells for name, cells in found.rows("conversations").items() if "first" not in name}
    agents = [
        *zip(
            found.means("agent", "Agent.ask, SDK, recording, with metrics"),
            found.means("agent", "Agent.ask"),
            found.means("agent", "the same spans and points by hand"),
            strict=False,
        )
    ]
    fastest, who = _fastest(found)
    return [
        *(
            Promise(f"a silent turn ÷ the floor, {row}, at {lengths}", 2.2, found.ratios("turns", row), CAUSES[row])
            for row in (SILENT, "BudgetPolicy")
        ),
        *(
            Promise(
                f"a question to a ContextAssembler ÷ the floor, at {length}",
                limit,
                found.at("turns", "ContextAssembler", length, "ratio"),
                CAUSES["ContextAssembler"],
            )
            for length, limit in (("10,000", 8), ("100,000", 12))
        ),
        *(
            Promise(
                f"{row}, at {lengths}",
                limit,
                [cell for cell in found.cells("turns", row) if isinstance(cell, int)],
                "context, ledger, steps, verdicts, snapshot and recorder are functions of their own",
                form="{:.0f}",
            )
            for row, limit in ((CALLS_SILENT, 170), (CALLS_RECORDED, 450))
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
            f"a recorded turn of Agent ÷ a silent one, at {' · '.join(found.columns('agent'))}",
            1.8,
            [recorded / silent for recorded, silent, _ in agents],
            "a silent turn is short, and the SDK alone takes about as long for the spans and points of a turn: with "
            f"nothing else, the ratio is {' · '.join(f'{1 + by_hand / silent:.2f}' for _, silent, by_hand in agents)}",
        ),
        Promise(
            f"(recorded − silent) ÷ by hand, a turn of Agent, at {' · '.join(found.columns('agent'))}",
            1.6,
            [(recorded - silent) / by_hand for recorded, silent, by_hand in agents],
            "as for a turn of the engine alone",
        ),
        Promise(
            "observed reducers ÷ by hand, without scattered filters, the least and the most",
            2.0,
            [min(observed), max(observed)] if observed else [],
            "each list of the framework is compared with the previous one, message by message; the spans by hand have "
            "precomputed arguments; the maximum is a list of 100,000 messages",
        ),
        Promise(
            f"a plain list ÷ (a History + one comparison in C), at {lengths}",
            1.5,
            [listed / (silent + compared) for silent, listed, compared in lists],
            "to detect messages that were changed in place, the list is compared with copies: a deep comparison in C, "
            "while the reference compares identities",
        ),
        Promise(
            "bookkeeping of a history of 100,000 events, bytes per event",
            280,
            [cell for cell in found.at("memory", "every token counted", "100,000") if isinstance(cell, int | float)],
            "the cache of counts by text has as many entries for a short history as for a long one",
            form="{:.0f}",
        ),
        Promise(
            "lines of the engine's modules",
            7_000,
            [cell for cell in found.cells("lines", "all") if isinstance(cell, int)],
            "the table of lines says which folders have the most",
            form="{:,.0f}",
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
