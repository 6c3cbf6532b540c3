"""What was promised, what these tables say of it, and why, where it is not so."""

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
    "a turn is some two hundred short calls in Python, none of which takes a tenth of it: ids, tokens, pairs, the cut, "
    "and the record that spans and `explain` are read from; the floor is one call of the tokeniser and one sum"
)
ASSEMBLER = (
    "each question ranks all that is remembered of the conversation, and lays out anew what it keeps; what a turn of "
    "the conversation is, was read once"
)


@dataclass(frozen=True)
class Promise:
    """One of them.

    Attributes:
        says: What is promised.
        limit: The number that none of the measured ones may pass.
        measured: What was measured.
        why: The cause, where it is not kept.
        form: How a number is shown.
        at_least: Whether the limit is the least, and not the most.
        who: Of whom the number is.
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
        """Whether no number passes the limit."""
        return all(one >= self.limit if self.at_least else one <= self.limit for one in self.measured)


def promises(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """The table of promises; below it, the cause of each that is not kept."""
    table = Table("promises", "promised and measured", ["promise", "at most", "measured"])
    for promise in _promises(_Found(tables)):
        shown = " · ".join(promise.form.format(one) for one in promise.measured)
        limit = f"(at least) {promise.limit:g}" if promise.at_least else f"{promise.limit:g}"
        table.rows[promise.says] = [limit, f"{shown}{promise.who}" if shown else None]
        if not promise.kept:
            what = promise.says.partition(", at ")[0]
            table.notes.append(f"Not kept: {what}. {promise.why[0].upper()}{promise.why[1:]}.")
    return table.plain()


class _Found:
    """Cells of the tables that were measured."""

    def __init__(self, tables: list[dict[str, Any]]) -> None:
        self._tables = {one["name"]: Table(**one) for one in tables}

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
            "what a processor's caches no longer hold of a long conversation",
        ),
        Promise(
            f"(recorded − silent) ÷ by hand, at {lengths}",
            1.6,
            _numbers(found.cells("turns", OVER_HAND)),
            "by hand, the arguments are ready; ours works out of the turn what came in, what is out, by which step, "
            "and why",
        ),
        Promise(
            "observed reducers ÷ by hand, the least and the most",
            1.8,
            [min(observed), max(observed)] if observed else [],
            "a framework hands over lists, and takes lists back: each is compared with the one before, message by "
            "message, where the hand-made spans know what they say; the most is that of a list of 100,000",
        ),
        Promise(
            f"a plain list ÷ (a History + one comparison in C), at {lengths}",
            1.2,
            [listed / (silent + compared) for silent, listed, compared in lists],
            "lists of the very same objects are compared with copies of what they said, so that a message that was "
            "changed in place is seen: a deep comparison in C, where the one beside it is of identities",
        ),
        Promise(
            "an event loop's longest stall, ms",
            5,
            [max(stalls)] if stalls else [],
            "a first turn of 4 MiB sums up its columns, and writes the arrays of its span, in one piece each",
            form="{:.1f}",
        ),
        Promise(
            "a turn among 500 conversations ÷ one's, with the collector as it is · frozen",
            1.2,
            [cells[0]["ratio"] for cells in rows.values() if cells[0]["ratio"]],
            "each turn comes to a conversation that the processor's caches have forgotten",
        ),
        Promise(
            "an agent's turn with one async tool, besides model, history and assembly, µs",
            100,
            [1e6 * one for one in found.seconds("agent", "Agent.ask − model − assembly − history")],
            "checked arguments, a time-out, a guard that is asked before each call, and events for whoever reads them",
            form="{:.0f}",
        ),
        *_of_sessions(found),
        Promise(
            "import otel_assembly ÷ its core dependencies",
            1.3,
            found.ratios("imports", "import otel_assembly"),
            "what is imported at once",
        ),
        Promise(
            "the fastest exact peer that keeps the history ÷ ours, at 10,000",
            20,
            [fastest] if fastest is not None else [],
            "its user wrote the memory of counts that ours has within; what is left to it is a walk over the "
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
            "what a processor's caches no longer hold; what a post reads, folds and writes is counted in the tests",
        ),
        Promise(
            f"hydrating from a snapshot and the longest tail ÷ a fold from the start, {stores}",
            0.1,
            found.ratios("sessions", "hydrating from a snapshot and the longest tail"),
            "what of it is no fold, as to find the session and its snapshot",
        ),
        Promise(
            "a view's turn in a session of 10,000 ÷ of 1,000, a window · a budget",
            1.2,
            [one for ratios in views for one in ratios],
            "what a processor's caches no longer hold of a long session",
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
    """The ratios that stand in bold, or else the first numbers, of cells that are texts."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    return [float(text.split("**")[-2 if "**" in text else 0].split()[0].replace(",", "")) for text in texts]
