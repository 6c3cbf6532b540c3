"""The plot of the README: what a turn takes over how long the conversation is, ours and peers.

``python -m benchmarks.plot results.json results.svg``. Colours and lines are of a middle lightness, on no ground of
their own, so that they can be read in light and dark.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

GREY = "#7d8590"
OURS = "#2f81f7"
FLOOR = "floor: a minimal engine without a record"
#: Colours of peers, none of them close to ours.
PEERS = ("#d29922", "#db6d28", "#a371f7", "#3fb950", "#e5534b", "#c96198", "#6e40c9", "#8d6e63", "#00a3a3", "#b0a000")


def _points(table: dict[str, Any], cells: list[Any]) -> tuple[list[int], list[float]]:
    """Lengths and microseconds of a row."""
    lengths, micros = [], []
    for column, cell in zip(table["columns"][1:], cells, strict=False):
        if isinstance(cell, dict) and column.replace(",", "").isdigit():
            lengths.append(int(column.replace(",", "")))
            micros.append(cell["seconds"] * 1e6)
    return lengths, micros


def _peers(table: dict[str, Any]) -> dict[str, list[Any]]:
    """A row for each package: of those that it has the fastest that counts exactly, else the fastest."""
    best: dict[str, tuple[bool, float, str]] = {}
    for name, cells in table["rows"].items():
        _, micros = _points(table, cells)
        if micros:
            package = name.split("(")[-1].split()[0]
            rank = (cells[0] != "exact", micros[-1], name)
            best[package] = min(best.get(package, rank), rank)
    return {name: table["rows"][name] for _, _, name in sorted(best.values(), key=lambda value: value[2])}


def draw(results: dict[str, Any], file: Path) -> None:
    """Draw it."""
    tables = {table["name"]: table for table in results["tables"]}
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "otel-assembly", "font.size": 10, "text.color": GREY})
    figure, axes = plt.subplots(figsize=(8.6, 4.8), layout="constrained")
    lines: list[tuple[str, list[int], list[float], dict[str, Any]]] = []
    if "peers" in tables:
        for colour, (name, cells) in zip(PEERS * 2, _peers(tables["peers"]).items(), strict=False):
            label = name.split(" (")[0] + (", loses what it cuts" if cells[1] == "replaced" else "")
            lines.append((label, *_points(tables["peers"], cells), {"color": colour, "linewidth": 1.1, "marker": "."}))
    if "turns" in tables:
        turns = tables["turns"]
        for row, label, style in (
            (FLOOR, FLOOR, {"color": GREY, "linestyle": ":"}),
            ("TokenBudgetPolicy", "otel-assembly", {"color": OURS, "linewidth": 2.6, "marker": "o"}),
            (
                "TokenBudgetPolicy, SDK, recording, with metrics",
                "otel-assembly, recording spans and metrics",
                {"color": OURS, "linestyle": "--", "marker": "o", "markersize": 4},
            ),
        ):
            if row in turns["rows"]:
                lines.append((label, *_points(turns, turns["rows"][row]), style))
    for label, lengths, micros, style in lines:
        axes.plot(lengths, micros, label=label, **style)
    axes.set(xscale="log", yscale="log", xlabel="messages in the conversation", ylabel="µs for a turn of two more")
    axes.xaxis.label.set_color(GREY)
    axes.yaxis.label.set_color(GREY)
    axes.tick_params(which="both", colors=GREY)
    axes.grid(visible=True, which="major", color=GREY, alpha=0.25, linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_color(GREY)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    figure.savefig(file, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
