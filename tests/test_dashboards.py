"""The dashboards keep the rules of https://github.com/grafana/dashboard-linter and some of our own; `EXCLUDED` says
where not, and why. Their JSON is what the generator writes. `tests/stack/test_panels.py` shows that each has data."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from otel_assembly.telemetry import conventions_registry as registry

ROOT = Path(__file__).parents[1]
DASHBOARDS = {file.stem: json.loads(file.read_text()) for file in sorted((ROOT / "dashboards").glob("*.json"))}
UNITS = {"s", "locale", "percentunit", "none", "cps", "currencyUSD"}
#: Metrics that are not ours, and whose they are.
FOREIGN = {
    "gen_ai_client_operation_duration_seconds_count": "GenAI's client metrics of 2025",
    "gen_ai_client_token_usage_sum": "GenAI's client metrics of 2025",
    "gen_ai_client_inference_duration_seconds_count": "GenAI's client metrics that replace them",
    "gen_ai_client_inference_usage_input_tokens_total": "GenAI's client metrics that replace them",
}
#: Names of GenAI's conventions that were replaced, as Prometheus spells them, and what replaced each.
RENAMED = {
    "gen_ai_client_token_usage": r"gen_ai_client_inference_usage_\w+_tokens",
    "gen_ai_client_operation_duration": "gen_ai_client_inference_duration",
    "cache_creation_input_tokens": "cache_write_input_tokens",
    "cache_write_input_tokens": "cache_creation_input_tokens",
}
#: The Collector and Jaeger about themselves.
PIPELINE = "otelcol_"
#: Rule → what it does not hold for, and why.
EXCLUDED = {
    "template-instance": "all is `.*`, not `.+`: a service without service.instance.id has no label `instance`",
    "target-job": "the servers of the pipeline are scraped under a job of their own, whichever services are chosen",
    "target-instance": "the servers of the pipeline are all shown, whichever processes are chosen",
}

each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)


def _panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def _targets(dashboard):
    """Each query, with where it stands."""
    return [
        (f"{panel['title']} {target['refId']}", target) for panel in _panels(dashboard) for target in panel["targets"]
    ]


def _variables(dashboard):
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


def _selectors(expression):
    """Each metric, or the pattern of its name, with the text between its braces."""
    found = re.findall(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?\{([^{}]*)\}", expression)
    return [(name or re.match(r'__name__=~"([^"]*)"', matchers)[1], matchers) for name, matchers in found]


def _metrics(name):
    """The metric of ours that a series is of; none for another's."""
    return [
        metric
        for metric in registry.metrics()
        if re.fullmatch(rf"{metric.prometheus_name}(_bucket|_sum|_count)?", name)
    ]


def _names(target):
    return {name for name, _ in _selectors(target["expr"])}


def _run_generator(folder, *arguments):
    command = [sys.executable, "-m", "dashboards", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_committed_json_is_what_the_generator_writes():
    done = _run_generator(ROOT, "--check")
    assert done.returncode == 0, done.stderr
    assert {dashboard["uid"] for dashboard in DASHBOARDS.values()} == {"otel-assembly-overview", "otel-assembly-agent"}


@pytest.mark.parametrize(
    ("name", "word"),
    [
        pytest.param("assembly-agent.json", "Halts", marks=pytest.mark.slow),
        ("rules/recording.yaml", "budget_overflows"),
    ],
)
def test_a_file_that_was_edited_by_hand_is_found_and_written_anew(tmp_path, name, word):
    shutil.copytree(ROOT / "dashboards", tmp_path / "dashboards", ignore=shutil.ignore_patterns("__pycache__"))
    edited = tmp_path / "dashboards" / name
    committed = edited.read_text()
    edited.write_text(committed.replace(word, "edited"))
    found = _run_generator(tmp_path, "--check")
    assert (found.returncode, found.stderr.count(" differs from"), name in found.stderr) == (1, 1, True)
    assert "edited" in edited.read_text()
    assert _run_generator(tmp_path).returncode == 0
    assert edited.read_text() == committed


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2")  # which Grafana 11 cannot read
@each_dashboard
def test_grafanas_own_types_read_the_json_and_leave_nothing_out(dashboard):
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    read = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
    for link in (*read["links"], *read["annotations"]["list"]):
        assert link.pop("placement") == "inControlsMenu"  # what the SDK puts in by itself
    assert {"id": None, **read} == dashboard


@each_dashboard
def test_a_dashboard_can_be_provisioned_in_any_grafana(dashboard):
    assert dashboard["id"] is None
    assert re.fullmatch(r"[a-z-]{8,40}", dashboard["uid"])
    assert dashboard["editable"] is False
    assert dashboard["schemaVersion"] == 42
    assert dashboard["title"] and dashboard["description"].endswith(".")  # noqa: PT018
    assert "otel-assembly" in dashboard["tags"]
    assert (dashboard["refresh"], dashboard["time"]) == ("1m", {"from": "now-6h", "to": "now"})
    assert set(re.findall(r'"uid": "([^"]*)"', json.dumps(dashboard))) == {"${datasource}", dashboard["uid"]}


@each_dashboard
def test_template_datasource(dashboard):
    variable = _variables(dashboard)["datasource"]
    assert (variable["type"], variable["query"], variable["label"]) == ("datasource", "prometheus", "Data source")
    assert dashboard["templating"]["list"][0] is variable  # the others are asked of it


@each_dashboard
def test_template_job_and_template_instance(dashboard):
    variables = _variables(dashboard)
    for name in ("job", "instance"):
        variable = variables[name]
        assert variable["type"] == "query"
        assert variable["datasource"]["uid"] == "${datasource}"
        assert variable["multi"] is variable["includeAll"] is True
        assert variable["current"]["value"] == "$__all"
        assert variable["query"].endswith(f", {name})")
    assert variables["job"]["allValue"] == ".+"
    assert variables["instance"]["allValue"] == ".*", EXCLUDED["template-instance"]


@each_dashboard
def test_template_label_promql(dashboard):
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            matched = re.fullmatch(r"label_values\((\w+)(\{.*\})?, (\w+)\)", variable["query"])
            assert matched, variable
            assert matched[1] == "assembly_duration_seconds_count"  # every service that assembles has it


def test_agents_are_chosen_from_all_on_the_overview_and_one_in_detail():
    detail, overview = (_variables(dashboard)["agent"] for dashboard in DASHBOARDS.values())
    assert (overview["multi"], overview["includeAll"], overview["allValue"]) == (True, True, ".*")
    assert (detail["multi"], detail["includeAll"]) == (False, False)


@each_dashboard
def test_every_variable_is_used_and_every_one_that_is_used_is_there(dashboard):
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps([dashboard["panels"], dashboard["links"]])))
    assert used == set(_variables(dashboard))


@each_dashboard
def test_the_dashboards_lead_to_each_other_and_to_jaeger(dashboard):
    other, jaeger = dashboard["links"]
    uids = {dashboard["uid"] for dashboard in DASHBOARDS.values()} - {dashboard["uid"]}
    assert {other["url"].removeprefix("/d/")} == uids
    assert other["includeVars"] is other["keepTime"] is True
    assert jaeger["url"] == "${jaeger:raw}/search"
    for url in re.findall(r'"url": "([^"]*)"', json.dumps(dashboard["panels"])):
        assert url.startswith(("${jaeger:raw}/search?service=", "/d/otel-assembly-agent?"))


@each_dashboard
def test_panel_datasource(dashboard):
    for panel in _panels(dashboard):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"], panel["title"]


@each_dashboard
def test_panel_title_description(dashboard):
    titles = [panel["title"] for panel in _panels(dashboard)]
    assert len(set(titles)) == len(titles)
    for panel in _panels(dashboard):
        assert panel["title"][0].isupper(), panel["title"]
        sentences = re.split(r"(?<=[.]) (?=[A-Z0-9*`])", panel["description"])
        assert len(sentences) >= 2, panel["title"]
        for sentence in sentences:
            assert re.match(r"[A-Z0-9*`].*\.$", sentence), (panel["title"], sentence)
        assert re.search(r"\b[Ww]orry\b", panel["description"]), f"{panel['title']}: when to worry"
        assert "{" not in panel["description"], panel["title"]  # a placeholder that was not filled in


@each_dashboard
def test_panel_units(dashboard):
    for panel in _panels(dashboard):
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in UNITS, panel["title"]
        if panel["type"] == "heatmap":
            assert panel["options"]["yAxis"]["unit"] == defaults["unit"], panel["title"]
        elif "scaleDistribution" not in defaults.get("custom", {}):  # a logarithmic axis has no 0
            assert defaults["min"] == 0, panel["title"]
            assert "decimals" in defaults, panel["title"]


@each_dashboard
def test_a_panel_is_one_that_todays_grafana_draws_with_a_legend_that_can_be_read(dashboard):
    for panel in _panels(dashboard):
        assert panel["type"] in {"timeseries", "stat", "heatmap"}, panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) >= 1, panel["title"]
        assert all(target["legendFormat"] not in {"", "__auto"} for target in panel["targets"]), panel["title"]
        if panel["type"] == "timeseries":
            legend = panel["options"]["legend"]
            assert legend["showLegend"] and legend["calcs"], panel["title"]  # noqa: PT018


@each_dashboard
def test_target_promql_is_balanced(dashboard):
    """Prometheus itself parses each of them in `tests/stack`."""
    for where, target in _targets(dashboard):
        open_ones = []
        for character in re.sub(r'"[^"]*"', "", target["expr"]):
            if character in "([{":
                open_ones.append(character)
            elif character in ")]}":
                assert open_ones.pop() + character in {"()", "[]", "{}"}, where
        assert open_ones == [], where
        assert _selectors(target["expr"]), where


@each_dashboard
def test_target_rate_interval(dashboard):
    for where, target in _targets(dashboard):
        windows = re.findall(r"(\w+)\([^()\[]*\[([^\]]+)\]", target["expr"])
        assert len(windows) == target["expr"].count("["), where
        for function, window in windows:
            # Neither `increase` nor `irate`: the one shows no whole numbers, the other no short peaks.
            allowed = {"rate": {"$__rate_interval"}, "last_over_time": {"$__interval", "1h"}}
            assert window in allowed[function], where
        # A rate needs two samples in its window, and the SDK exports once a minute.
        assert target["interval"] == "1m", where


@each_dashboard
def test_target_job_and_target_instance(dashboard):
    for where, target in _targets(dashboard):
        for metric, matchers in _selectors(target["expr"]):
            if metric.startswith(PIPELINE):
                assert 'job="assembly-stack"' in matchers, (where, EXCLUDED["target-job"])
            else:
                assert 'job=~"$job", instance=~"$instance"' in matchers, where


@each_dashboard
def test_every_metric_is_in_the_registry_or_is_known_as_another_ones(dashboard):
    ours = set()
    for metric in registry.metrics():
        parts = ("_bucket", "_sum", "_count") if metric.instrument == "histogram" else ("",)
        ours |= {metric.prometheus_name + part for part in parts}
    for where, target in _targets(dashboard):
        unknown = {name for name in _names(target) if not name.startswith(PIPELINE)} - ours - set(FOREIGN)
        assert unknown == set(), where


@each_dashboard
def test_every_label_is_one_that_its_metric_has(dashboard):
    for where, target in _targets(dashboard):
        known = {"job", "instance", "le"} | set(re.findall(r'label_replace\(.*, "(\w+)", "\$1"', target["expr"]))
        if any(name.startswith(PIPELINE) for name in _names(target)):
            known |= {"component", "exporter", "data_type", "__name__"}
        for metric in registry.metrics():
            if any(name.startswith(metric.prometheus_name) for name in _names(target)):
                known |= {use.name.replace(".", "_") for use in metric.attributes}
        for labels in re.findall(r"(?:by|on) \(([^()]*)\)", target["expr"]):
            assert {label.strip() for label in labels.split(",")} <= known, where
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, where


def test_every_metric_of_the_registry_is_in_a_panel():
    shown = {name for dashboard in DASHBOARDS.values() for _, target in _targets(dashboard) for name in _names(target)}
    missing = [
        metric.name
        for metric in registry.metrics()
        if not any(name.startswith(metric.prometheus_name) for name in shown)
    ]
    assert missing == []


@each_dashboard
def test_a_graph_of_a_histogram_asks_for_exemplars_once(dashboard):
    for panel in _panels(dashboard):
        asked = [target["exemplar"] and "_bucket{" in target["expr"] for target in panel["targets"]]
        has_buckets = any("_bucket{" in target["expr"] for target in panel["targets"])
        assert sum(asked) == (has_buckets and panel["type"] != "stat"), panel["title"]
        assert sum(target["exemplar"] for target in panel["targets"]) == sum(asked), panel["title"]


@each_dashboard
def test_the_grid_is_filled_row_by_row_without_holes_or_overlaps(dashboard):
    taken = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken.get((x, y))}"
                taken[x, y] = panel["title"]
    height = max(y for _, y in taken) + 1
    assert set(taken) == {(x, y) for x in range(24) for y in range(height)}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert len(_panels(dashboard)) <= 31


@each_dashboard
def test_an_empty_panel_says_why_it_is_empty(dashboard):
    for panel in _panels(dashboard):
        said = panel["fieldConfig"]["defaults"]["noValue"]
        assert said == "no data" if panel["type"] == "stat" else len(said.split()) >= 6, panel["title"]
        if "cost" in panel["title"]:
            assert "otel-assembly[prices]" in said


@each_dashboard
def test_every_link_of_a_series_leads_into_the_service_of_that_series(dashboard):
    """Whichever services are chosen: the queries are split by job, which names the service to Jaeger and to Grafana."""
    for panel in _panels(dashboard):
        for link in panel["fieldConfig"]["defaults"].get("links", ()):
            label = "job" if link["url"].startswith("/d/") else "service"
            assert f"={'${__field.labels.'}{label}}}&" in link["url"], (panel["title"], link)
            for target in panel["targets"]:
                assert re.match(r"(label_replace\()+sum by \(job", target["expr"]), panel["title"]
    (overview,) = (dashboard for dashboard in DASHBOARDS.values() if dashboard["uid"].endswith("overview"))
    assert "service" not in _variables(overview)  # many services: none of them is the right one for all panels


@each_dashboard
def test_what_counts_losses_is_of_the_agents_that_are_chosen(dashboard):
    """The page of an agent that drops nothing shows no drops of its neighbours in the process."""
    for where, target in _targets(dashboard):
        for metric, matchers in _selectors(target["expr"]):
            if any(use.name == "gen_ai.agent.name" for span in _metrics(metric) for use in span.attributes):
                assert re.search(r'gen_ai_agent_name=~?"\$agent"', matchers), where


@each_dashboard
def test_firing_alerts_are_marked_on_every_graph(dashboard):
    (marks,) = dashboard["annotations"]["list"]
    assert (marks["enable"], marks["datasource"]) == (True, dashboard["panels"][1]["datasource"])
    ((metric, matchers),) = _selectors(marks["expr"].replace("${agent:regex}", "$agent"))
    assert metric == "ALERTS"
    assert 'alertstate="firing"' in matchers
    alerts = yaml.safe_load((ROOT / "dashboards" / "rules" / "alerts.yaml").read_text(encoding="utf-8"))
    named = {rule["alert"] for group in alerts["groups"] for rule in group["rules"]}
    pattern = re.search(r'alertname=~"([^"]*)"', matchers)[1]
    assert {name for name in named if not re.fullmatch(pattern, name)} == {"Watchdog"}  # which always fires


@pytest.mark.parametrize("name", ["assembly_budget_utilization", "assembly_output_tokens", "assembly_duration_seconds"])
@each_dashboard
def test_a_quantile_in_the_open_bucket_is_marked(name, dashboard):
    """Prometheus returns the last boundary for every value above it."""
    last = next(metric.buckets[-1] for metric in registry.metrics() if metric.prometheus_name == name)
    panels = [panel for panel in _panels(dashboard) if panel["type"] in {"timeseries", "stat"}]
    shown = [
        panel
        for panel in panels
        if any(re.search(rf"histogram_quantile.*{name}_bucket", target["expr"]) for target in panel["targets"])
    ]
    assert shown
    for panel in shown:
        (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
        assert (mapping["type"], mapping["options"]["from"], mapping["options"]["to"]) == ("range", last, None)
        text = mapping["options"]["result"]["text"]
        assert text.startswith("≥ ")
        assert f"`{text}`" in panel["description"]


def _queries():
    """Yield each query of the dashboards, the recording and alert rules, and the docs."""
    for dashboard in DASHBOARDS.values():
        yield from (target["expr"] for _, target in _targets(dashboard))
    for rules in ("alerts", "recording"):
        read = yaml.safe_load((ROOT / "dashboards" / "rules" / f"{rules}.yaml").read_text(encoding="utf-8"))
        yield from (rule["expr"] for group in read["groups"] for rule in group["rules"])
    for page in (ROOT / "docs").rglob("*.md"):
        for block in re.findall(
            r"^```(?:promql|text)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            yield from block.splitlines()


@pytest.mark.parametrize("name", RENAMED)
def test_a_query_that_reads_a_replaced_name_reads_the_new_one_too(name):
    """During a migration, some services send the old name and some the new one."""
    reading = [query for query in _queries() if re.search(rf"{name}(?![a-z])", query.replace(".", "_"))]
    assert [query for query in reading if not re.search(RENAMED[name], query.replace(".", "_"))] == []
    assert reading or name.startswith("cache_")  # no query reads the tokens of a cache
