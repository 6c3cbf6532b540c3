"""How everything here is measured: in turn, in one process, and told as medians and ratios.

A machine that slows down slows all that runs in turn, so the ratio of what ran side by side is what to read.
"""

from __future__ import annotations

import inspect
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: How much is measured: all of it, enough to compare two states of the code, or enough to see that it works.
Size = Literal["full", "quick", "tiny"]


@dataclass(frozen=True)
class Timing:
    """How long something took, round after round.

    Attributes:
        taken: Seconds of each round.
        beside: Seconds of the floor in the same rounds; empty where there is none.
        of_means: Whether `ratio` compares the means of all rounds, as rounds of several kinds require.
    """

    taken: Sequence[float]
    beside: Sequence[float] = ()
    of_means: bool = False

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.taken)

    @property
    def mean(self) -> float:
        """Seconds, as a mean of all rounds."""
        return statistics.fmean(self.taken)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Between these lies the middle half of the rounds."""
        if len(self.taken) < 2:
            return self.taken[0], self.taken[0]
        low, _, high = statistics.quantiles(self.taken, n=4, method="inclusive")
        return low, high

    @property
    def ratio(self) -> float | None:
        """The median of the rounds' ratios to the floor; or the ratio of the means."""
        if not self.beside:
            return None
        if self.of_means:
            return sum(self.taken) / sum(self.beside)
        return statistics.median(item / other for item, other in zip(self.taken, self.beside, strict=True))

    def __str__(self) -> str:
        low, high = self.quartiles
        unit, factor = next(pair for pair in _UNITS if self.median < pair[2] * 0.95)[:2]
        digits = 0 if self.median * factor >= 100 else 1
        spread = f"{low * factor:,.{digits}f}–{high * factor:,.{digits}f}"
        ratio = "" if self.ratio is None else f" **{times(self.ratio)}**"
        return f"{self.median * factor:,.{digits}f} {unit} ({spread}){ratio}"

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        low, high = self.quartiles
        rounds = len(self.taken)
        return {
            "seconds": self.median,
            "mean": self.mean,
            "quartiles": [low, high],
            "ratio": self.ratio,
            "rounds": rounds,
            "shown": str(self),
        }


_UNITS = (("µs", 1e6, 1e-2), ("ms", 1e3, 10.0), ("s", 1.0, float("inf")))


def times(ratio: float) -> str:
    """A ratio as a reader takes it in."""
    return f"{ratio:,.{2 if ratio < 10 else 1 if ratio < 100 else 0}f} ×"


#: A timing (read back from JSON: a dict), a number, a text; None for what was not measured.
Cell = Timing | dict[str, Any] | float | str | None


@dataclass
class Table:
    """What one benchmark found.

    Attributes:
        name: Its name on the command line.
        title: What a cell is.
        columns: What the columns are; the first one is that of the rows' names.
        rows: The cells of each row, by its name.
        notes: What to know about it.
    """

    name: str
    title: str
    columns: list[str]
    rows: dict[str, list[Cell]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, row: str, cell: Cell) -> None:
        """Add a cell at the end of a row."""
        self.rows.setdefault(row, []).append(cell)

    def markdown(self) -> str:
        """The table as it is printed and written."""
        lines = [self.columns, *([name, *map(_shown, cells)] for name, cells in self.rows.items())]
        lines = [[*line, *[""] * (len(self.columns) - len(line))] for line in lines]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        drawn = [_line(lines[0], widths), _line(rule, widths), *(_line(line, widths) for line in lines[1:])]
        notes = ["", *(f"* {note}" for note in self.notes)] if self.notes else []
        return "\n".join([f"### {self.title}", "", *drawn, *notes])

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        rows = {
            name: [cell.plain() if isinstance(cell, Timing) else cell for cell in cells]
            for name, cells in self.rows.items()
        }
        return {"name": self.name, "title": self.title, "columns": self.columns, "rows": rows, "notes": self.notes}


def _shown(cell: Any) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, dict):
        return str(cell["shown"])
    if isinstance(cell, float):
        return f"{cell:,.2f}" if abs(cell) < 100 else f"{cell:,.0f}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return str(cell)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = [
        cell.ljust(width) if not at else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join([first, *others]) + " |"


async def race(
    runners: Mapping[str, Callable[[Any], Any]],
    rounds: int,
    *,
    floor: str | None = None,
    before: Callable[[str, int], Any] = lambda name, value: None,
    warm_up: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    patience: float = float("inf"),
) -> dict[str, Timing]:
    """Run all of them in turn, round after round.

    Args:
        runners: What is measured, async or not, by name.
        rounds: How often each runs, at most.
        floor: Whose times stand beside the others'.
        before: What a runner is given, by its name and the round; the time that it takes is not measured.
        warm_up: Rounds before those, which do not count.
        clock: Seconds that count.
        patience: Whoever takes longer than these seconds for a round has no times; whoever has taken twice as long in
            all runs no more, and has the times it has. The first round may take as long as it takes.

    Returns:
        The times of everybody who has any.
    """
    found: dict[str, list[float]] = {name: [] for name in runners}
    racing = dict(runners)
    spent = dict.fromkeys(runners, 0.0)
    for index in range(rounds + warm_up):
        for name, run in list(racing.items()):
            given = before(name, index)
            wall = time.perf_counter()
            if inspect.iscoroutinefunction(run):
                started = clock()
                await run(given)
                taken = clock() - started
            else:
                started = clock()
                run(given)
                taken = clock() - started
            found[name].append(taken)
            wall = time.perf_counter() - wall
            if index and wall > patience:
                del racing[name], found[name]
            elif index:
                spent[name] += wall
                if spent[name] > 2 * patience:
                    del racing[name]
    timings: dict[str, Timing] = {}
    for name, taken in found.items():
        counts = slice(warm_up if len(taken) > warm_up + 3 else min(1, len(taken) - 1, warm_up), len(taken))
        timings[name] = Timing(taken[counts], found[floor][counts] if floor in found else ())
    return timings


def dumped(tables: Sequence[Table]) -> str:
    """The tables as JSON."""
    return json.dumps([table.plain() for table in tables], ensure_ascii=False, indent=1)
