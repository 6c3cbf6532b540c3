"""A dashboard as somebody looks at it: each query of each panel, as Grafana would send it, on a real Prometheus."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
OVERVIEW, AGENT = (
    json.loads((ROOT / "dashboards" / f"assembly-{name}.json").read_text(encoding="utf-8"))
    for name in ("overview", "agent")
)
STEP = 60
#: What Grafana puts in for a step of one minute: the rate's window is four times that.
BUILT_IN = {"__interval": "1m", "__rate_interval": "4m"}


class Seen:
    """A dashboard with its variables chosen, on the Prometheus of the stack."""

    def __init__(self, prometheus, dashboard, **chosen):
        self._prometheus = prometheus
        self._chosen = {**BUILT_IN, **chosen}
        self.panels = {panel["title"]: panel for panel in dashboard["panels"] if panel["type"] != "row"}

    def expression(self, target):
        # `$1` is no variable of Grafana's: it stays, for Prometheus to put in what a pattern found.
        return re.sub(r"\$([a-z_]\w*)", lambda found: self._chosen[found[1]], target["expr"])

    def data(self, target):
        """Labels → the points of a series, over the last twenty minutes, as Grafana aligns them."""
        end = math.ceil(time.time() / STEP) * STEP
        window = {"query": self.expression(target), "start": end - 20 * STEP, "end": end, "step": STEP}
        found = self._prometheus._api("query_range", {name: str(value) for name, value in window.items()})
        series = {
            tuple(sorted(series["metric"].items())): [float(value) for _, value in series["values"]]
            for series in found["result"]
        }
        return {labels: [value for value in points if not math.isnan(value)] for labels, points in series.items()}

    def total(self, title, ref="A", **labels):
        """What the legend's sum, or a number panel, says of the series with these labels."""
        target = next(target for target in self.panels[title]["targets"] if target["refId"] == ref)
        return sum(sum(points) for key, points in self.data(target).items() if labels.items() <= dict(key).items())

    def newest(self, title, ref="A"):
        target = next(target for target in self.panels[title]["targets"] if target["refId"] == ref)
        return {labels: points[-1] for labels, points in self.data(target).items()}
