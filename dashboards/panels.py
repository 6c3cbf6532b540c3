"""Build panels by their shape: a number, stacked bars, lines, a heatmap. Their layout is in `frame`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import heatmap as heatmap_builders
from grafana_foundation_sdk.builders import prometheus as prometheus_builders
from grafana_foundation_sdk.builders import stat as stat_builders
from grafana_foundation_sdk.builders import timeseries as timeseries_builders
from grafana_foundation_sdk.models import common, dashboard, heatmap, prometheus

from otel_assembly.telemetry.instruments import INSTRUMENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

DATASOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
#: The SDK exports once a minute. With a shorter step, a window would often contain a single sample.
STEP: Final = "1m"

SECONDS, TOKENS, RATIO, COUNT, A_SECOND, DOLLARS = "s", "locale", "percentunit", "locale", "cps", "currencyUSD"
GREEN, YELLOW, RED = "green", "yellow", "red"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression with its legend; `exemplars` requests the data points that link to traces."""

    expression: str
    legend: str
    exemplars: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A link of a panel, or of each series in a panel."""

    title: str
    url: str


#: The text of an empty panel that has no text of its own.
NOTHING: Final = "No data: no turns in this time range, or telemetry does not arrive"


def jaeger_search(title: str, tags: str, service: str = "${service:percentencode}") -> Link:
    """Return a link to a Jaeger search for traces whose spans have these tags.

    Args:
        title: The text of the link.
        tags: The tags as JSON, which can contain Grafana's variables.
        service: The service to search in, by default the one that is selected at the top.
    """
    encoded = "".join(part if part.startswith("${") else quote(part, safe="") for part in _parts(tags))
    query = f"service={service}&lookback=custom&start=${{__from}}000&end=${{__to}}000&tags={encoded}"
    return Link(title, f"${{jaeger:raw}}/search?{query}")


def of_series(title: str, tags: str) -> Link:
    """Return a link as `jaeger_search` does, but in the clicked series' service; its query must use `by_service`."""
    return jaeger_search(title, tags, "${__field.labels.service}")


def _parts(text: str) -> list[str]:
    """Split the text before and after each ``${variable}``."""
    parts = []
    while "${" in text:
        before, _, rest = text.partition("${")
        name, _, text = rest.partition("}")
        parts += [before, f"${{{name}}}"]
    return [*parts, text]


def steps(*colors: tuple[float | None, str]) -> dashboard_builders.ThresholdsConfig:
    """Return thresholds: pairs of the lowest value and its color; the first pair has the value None."""
    thresholds = [dashboard.Threshold(value=value, color=color) for value, color in colors]
    return dashboard_builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(thresholds)


def stat(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str = COUNT,
    thresholds: dashboard_builders.ThresholdsConfig | None = None,
    reduce: str = "sum",
    decimals: int = 0,
    links: Sequence[Link] = (),
) -> Any:
    """Return a panel with one number for the time range, by default the sum over its intervals."""
    panel = stat_builders.Panel().graph_mode(common.BigValueGraphMode.AREA).color_mode(common.BigValueColorMode.VALUE)
    panel.reduce_options(common_builders.ReduceDataOptions().calcs([reduce]).values(False).fields(""))
    panel.text_mode(common.BigValueTextMode.VALUE).color_scheme(_by_thresholds())
    panel.thresholds(thresholds or steps((None, GREEN))).min(0)
    return _described(panel, title, description, [query], unit, decimals, links, "no data")


def bars(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str = COUNT,
    decimals: int = 0,
    links: Sequence[Link] = (),
    series_links: Sequence[Link] = (),
    empty: str = NOTHING,
) -> Any:
    """Return a panel with stacked bars of counts per interval; its legend has the sums over the time range."""
    panel = _timeseries(["sum"]).draw_style(common.GraphDrawStyle.BARS).fill_opacity(70).line_width(0)
    panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A")).min(0)
    panel.bar_alignment(common.BarAlignment.BEFORE)
    panel.data_links([_link(link) for link in series_links])
    return _described(panel, title, description, queries, unit, decimals, links, empty)


def lines(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    decimals: int | None = None,
    soft_max: float | None = None,
    minimum: float | None = 0,
    maximum: float | None = None,
    thresholds: dashboard_builders.ThresholdsConfig | None = None,
    links: Sequence[Link] = (),
    logarithmic: bool = False,
    empty: str = NOTHING,
) -> Any:
    """Return a panel with lines of values over time; its legend has the last, lowest and highest values."""
    panel = _timeseries(["lastNotNull", "min", "max"]).draw_style(common.GraphDrawStyle.LINE).line_width(1)
    panel.fill_opacity(0)
    if logarithmic:
        scale = common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
        panel.scale_distribution(scale)
    elif minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    if soft_max is not None:
        panel.axis_soft_max(soft_max)
    if thresholds is not None:
        panel.thresholds(thresholds)
        style = common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        panel.thresholds_style(style)
    return _described(panel, title, description, queries, unit, decimals, links, empty)


def cells(title: str, description: str, query: Query, *, unit: str, links: Sequence[Link] = ()) -> Any:
    """Return a heatmap of a histogram: a cell for the count of each bucket in each interval."""
    panel = heatmap_builders.Panel().calculate(False).cell_gap(1)
    panel.y_axis(heatmap_builders.YAxisConfig().axis_placement(common.AxisPlacement.LEFT).unit(unit).min(0))
    color = heatmap_builders.HeatmapColorOptions().mode(heatmap.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64)
    panel.color(color.reverse(False).fill("dark-orange").exponent(0.5))
    panel.filter_values(heatmap_builders.FilterValueRange().le(1e-9)).show_legend()
    panel.tooltip(heatmap_builders.HeatmapTooltip().mode(common.TooltipDisplayMode.SINGLE).y_histogram(True))
    return _described(panel, title, description, [query], unit, None, links, shape=prometheus.PromQueryFormat.HEATMAP)


def _timeseries(legend: list[str]) -> timeseries_builders.Panel:
    panel = timeseries_builders.Panel().show_points(common.VisibilityMode.AUTO).span_nulls(False)
    table = common_builders.VizLegendOptions().display_mode(common.LegendDisplayMode.TABLE)
    panel.legend(table.placement(common.LegendPlacement.BOTTOM).show_legend(True).calcs(legend))
    tooltip = common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    return panel.tooltip(tooltip.sort(common.SortOrder.DESCENDING))


def _described(
    panel: Any,
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    decimals: int | None,
    links: Sequence[Link],
    empty: str = NOTHING,
    shape: prometheus.PromQueryFormat = prometheus.PromQueryFormat.TIME_SERIES,
) -> Any:
    if shape is not prometheus.PromQueryFormat.HEATMAP:
        description += _mark_open_bucket(panel, queries, unit)
    panel.title(title).description(description).datasource(DATASOURCE).unit(unit).no_value(empty)
    if decimals is not None:
        panel.decimals(decimals)
    if links:
        panel.links([_link(link) for link in links])
    for number, query in enumerate(queries):
        target = prometheus_builders.Dataquery().datasource(DATASOURCE).ref_id(chr(ord("A") + number))
        target.expr(query.expression).legend_format(query.legend).range().format(shape).interval(STEP)
        target.editor_mode(prometheus.QueryEditorMode.CODE)
        panel.with_target(target.exemplar(query.exemplars))
    return panel


#: A quantile of one of this library's histograms. Prefix reuse never exceeds its last boundary.
_QUANTILE: Final = re.compile(
    r"histogram_quantile\(.*?\b(?!assembly_prefix_reuse_)(assembly_\w+?)(?:_seconds)?_bucket\b"
)
#: The factor and the suffix with which values of a unit are displayed.
_SCALES: Final = {RATIO: (100, " %"), SECONDS: (1, " s")}


def _mark_open_bucket(panel: Any, queries: Sequence[Query], unit: str) -> str:
    """Show the highest value of a quantile panel as ``≥ value``, because it can stand for any larger value.

    A histogram's last bucket has no upper boundary. For a quantile in it, Prometheus returns the lower boundary.

    Returns:
        A sentence about this for the panel's description; empty if the panel shows no quantile.
    """
    names = [name for query in queries for name in _QUANTILE.findall(query.expression)]
    tops = [bounds[-1] for name, _, _, _, bounds in INSTRUMENTS if bounds and name.replace(".", "_") in names]
    if not tops:
        return ""
    scale, suffix = _SCALES.get(unit, (1, ""))
    text = f"≥ {scale * max(tops):,.12g}{suffix}"
    options = dashboard.DashboardRangeMapOptions(max(tops), None, dashboard.ValueMappingResult(text=text))
    panel.mappings([dashboard.RangeMap(options)])
    return f" `{text}` is the open bucket: the value can be any larger one."


def _link(link: Link) -> Any:
    return dashboard_builders.DashboardLink(link.title).url(link.url).target_blank(True)


def _by_thresholds() -> dashboard_builders.FieldColor:
    return dashboard_builders.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS)
