"""Every query of every panel, as Grafana would send it, on what real processes told the real Prometheus."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
import urllib.parse
import uuid
from pathlib import Path

import pytest
from dashboard_workload import Constant, Process, constant, long_lived, short_lived
from local_stack import wait_until
from panels_seen import AGENT, BUILT_IN, OVERVIEW, Seen

from otel_assembly.telemetry import conventions_registry as registry

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def processes(stack):
    """A process that lives, and one that is gone after its only export."""
    import asyncio

    run = uuid.uuid4().hex[:8]
    lives, gone = (Process(stack.collector, f"{name}-{run}", "shop") for name in ("desk", "courier"))
    asyncio.run(long_lived(lives))
    asyncio.run(short_lived(gone))

    def arrived(process, turns):
        said = f'sum(assembly_duration_seconds_count{{job="{process.job}"}})'
        return stack.prometheus.value(said) == turns

    for process in (lives, gone):
        wait_until(lambda p=process: arrived(p, p.turns), seconds=60, what=f"the turns of {process.job}")
    yield lives, gone
    lives.shutdown()


@pytest.fixture(scope="module")
def constants(stack):
    """A process all of whose prompts are alike, and what they were."""
    import asyncio

    process = Process(stack.collector, f"constant-{uuid.uuid4().hex[:8]}", "shop")
    made = asyncio.run(constant(process))
    said = f'sum(assembly_duration_seconds_count{{job="{process.job}"}})'
    wait_until(lambda: stack.prometheus.value(said) == process.turns, seconds=60, what=f"the turns of {process.job}")
    yield process, made
    process.shutdown()


@pytest.fixture(scope="module")
def overview(stack, processes):
    jobs = "|".join(process.job for process in processes)
    return Seen(stack.prometheus, OVERVIEW, job=f"({jobs})", instance=".*", agent=".*")


@pytest.fixture(scope="module")
def detail(stack, processes):
    """*Agent detail* for the agent of one process, with every service chosen."""
    jobs = "|".join(process.job for process in processes)
    return Seen(stack.prometheus, AGENT, job=f"({jobs})", instance=".*", agent="desk")


@pytest.fixture(scope="module")
def everything(stack, processes):
    """The overview as it opens: all services, ours and those of other tests."""
    return Seen(stack.prometheus, OVERVIEW, job=".+", instance=".*", agent=".*")


@pytest.mark.parametrize("name", ["overview", "detail", "everything"])
def test_every_query_of_every_panel_gives_data(name, request):
    seen = request.getfixturevalue(name)
    empty = [(title, target) for title, panel in seen.panels.items() for target in panel["targets"]]

    def all_have_data():
        empty[:] = [(title, target) for title, target in empty if not any(seen.data(target).values())]
        return not empty

    try:
        # The servers of the pipeline are scraped every 15 seconds, and a rate needs two of those.
        wait_until(all_have_data, seconds=90, every=2, what="every panel has data")
    except TimeoutError:
        pytest.fail("\n".join(f"{title}: {seen.expression(target)}" for title, target in empty))


def test_what_is_counted_is_what_happened_the_first_of_a_process_included(overview, processes):
    lives, gone = processes
    assert overview.total("Turns") == overview.total("Turns by agent") == lives.turns + gone.turns
    assert overview.total("Overflows") == overview.total("Overflows by agent") == 8
    assert overview.total("Overflows by agent", gen_ai_agent_name="desk") == 6
    assert overview.total("Overflows by agent", gen_ai_agent_name="courier") == 1  # its process lived for a second
    assert overview.total("Halts") == overview.total("Halts by agent", gen_ai_agent_name="desk") == 1
    assert overview.total("Items dropped", gen_ai_agent_name="desk") > 0
    severities = {"warning": 2, "fatal": 1}
    for severity, times in severities.items():
        assert overview.total("Alerts shown to models", assembly_alert_severity=severity) == times
    failed = {"assembly_policy_name": "broken", "error_type": "LookupError"}
    assert overview.total("Errors of policies and telemetry", **failed) == 1
    telemetry = overview.total("Errors of policies and telemetry", "B", assembly_component="redaction")
    assert telemetry >= 3  # no message of an alert was redacted
    assert overview.total("Errors") == overview.total("Errors of policies and telemetry") + telemetry
    assert overview.total("Declined reductions", assembly_policy_name="summarization") == 1
    services = {dict(labels)["service"] for labels in overview.newest("Overflows by agent")}
    assert services == {lives.service, gone.service}


def test_each_interval_shows_whole_numbers(overview):
    for title, panel in overview.panels.items():
        if panel["fieldConfig"]["defaults"]["unit"] == "currencyUSD":
            continue
        if panel["type"] == "timeseries" and panel["fieldConfig"]["defaults"]["custom"]["drawStyle"] == "bars":
            for target in panel["targets"]:
                values = [value for points in overview.data(target).values() for value in points]
                assert all(value >= 0 and value == int(value) for value in values), title


def test_model_calls_of_both_generations_stand_beside_the_turns(overview, detail, processes):
    lives, gone = processes
    assert overview.total("Turns and model calls", "B") == lives.model_calls + gone.model_calls == 9
    assert overview.total("Input, output and billed tokens", "C") == 900
    assert detail.total("Turns and model calls", "B") == lives.model_calls


def test_an_agents_detail_holds_its_own_numbers_and_the_policies_of_its_process_alone(detail, overview, processes):
    lives, _ = processes
    assert detail.total("Turns") == lives.turns - 1
    assert detail.total("Overflows") == detail.total("Overflows by process", job=lives.job) == 6
    assert detail.total("Halts") == 1
    everywhere, here = overview.total("Items dropped"), detail.total("Items dropped")
    assert 0 < here < everywhere
    sizes = detail.total("Prompts by size", le="+Inf")
    assert 0 < sizes <= lives.turns


def test_distributions_show_values_that_can_be(overview, detail):
    for seen in (overview, detail):
        assert all(0 < value <= 1 for value in seen.newest("Prefix reuse", "C").values())
        assert all(1 <= value <= 2 for value in seen.newest("Fixed share of the budget", "C").values())  # it overflowed
        assert all(0.9 <= value <= 1.1 for value in seen.newest("Counted ÷ billed tokens").values())
        assert all(0 < value < 30 for value in seen.newest("Duration of assembly", "C").values())
    given, sent = (detail.newest("Input and output tokens per turn", ref) for ref in "AB")
    assert given[()] > sent[()] > 0


@pytest.mark.parametrize(("dashboard", "agent"), [(OVERVIEW, ".*"), (AGENT, "constant")], ids=["overview", "agent"])
def test_what_is_the_same_in_every_turn_is_shown_as_what_it_is(dashboard, agent, stack, constants):
    process, made = constants
    seen = Seen(stack.prometheus, dashboard, job=process.job, instance=".*", agent=agent)
    reuse = {item.prefix.reuse for item in made[1:]}
    assert len(reuse) == 1
    told = {
        "assembly_input_tokens": Constant.tokens,
        "assembly_output_tokens": Constant.tokens,
        "assembly_budget_utilization": Constant.tokens / Constant.budget,
        "assembly_budget_fixed_utilization": Constant.fixed / Constant.budget,
        "assembly_prefix_reuse": reuse.pop(),
        "assembly_tokens_calibration": Constant.calibration,
    }
    wrong, read = {}, set()
    for title, panel in seen.panels.items():
        for target in panel["targets"]:
            metric = re.search(r"(assembly_[a-z_]+?)_(bucket|sum)\{", target["expr"])
            if metric is None or metric[1] not in told or "rate(" not in target["expr"]:
                continue  # counted and not read off a bucket; or a duration, which is never the same
            (value,) = seen.newest(title, target["refId"]).values()
            exact = target["expr"].startswith("sum(rate(")
            if not (value == pytest.approx(told[metric[1]]) if exact else 1 / 1.2 <= value / told[metric[1]] <= 1.2):
                wrong[title, target["legendFormat"]] = value, told[metric[1]]
            read.add(title)
    assert wrong == {}
    assert {"Prompt size", "Utilization of the budget", "Fixed share of the budget", "Prefix reuse"} <= read
    assert seen.total("Turns") == Constant.prompts


def test_a_heatmap_has_all_prompts_of_one_size_in_one_narrow_band(stack, constants):
    process, _ = constants
    seen = Seen(stack.prometheus, AGENT, job=process.job, instance=".*", agent="constant")
    (target,) = seen.panels["Prompts by size"]["targets"]
    held = {float(dict(labels)["le"]): sum(points) for labels, points in seen.data(target).items()}
    assert {count for bound, count in held.items() if bound < Constant.tokens} == {0}
    assert {count for bound, count in held.items() if bound > Constant.tokens} == {Constant.prompts}
    assert any(Constant.tokens < bound <= Constant.tokens * 1.2 for bound in held)


def test_what_prompts_cost_adds_up(stack, constants):
    process, made = constants
    seen = Seen(stack.prometheus, OVERVIEW, job=process.job, instance=".*", agent=".*")
    reusable = sum(item.prefix.tokens for item in made)
    assert reusable > 0
    # The list price of gpt-4o, in dollars a million tokens, and half of it for what is cached.
    cached, fresh = reusable * 1.25e-6, (sum(assembly.totals.tokens_out for assembly in made) - reusable) * 2.5e-6
    assert seen.total("Input cost", assembly_cost_part="reusable") == pytest.approx(cached)
    assert seen.total("Input cost", assembly_cost_part="uncached") == pytest.approx(fresh)
    assert seen.total("Input cost avoided") == 0


def test_the_page_of_an_agent_that_drops_nothing_shows_no_drops_of_its_neighbour(stack, processes):
    """Both run in one process."""
    lives, _ = processes
    for agent, lost in (("desk", True), ("calm", False)):
        seen = Seen(stack.prometheus, AGENT, job=lives.job, instance=".*", agent=agent)
        assert seen.total("Turns") > 0
        for title in (
            "Items dropped",
            "Tokens dropped",
            "Errors of policies",
            "Prefix breaks",
            "Alerts shown to models",
            "Input cost avoided",
        ):
            assert (seen.total(title) > 0) is lost, (agent, title)


def test_an_alert_that_fires_is_marked_on_the_graphs_of_its_agent_and_of_no_other(stack, processes):
    lives, _ = processes

    def marked(agent):
        (marks,) = AGENT["annotations"]["list"]
        chosen = {"$job": re.escape(lives.job), "${agent:regex}": re.escape(agent)}
        written = re.sub("|".join(map(re.escape, chosen)), lambda found: chosen[found[0]], marks["expr"])
        found = stack.prometheus.query(written.replace("\\", "\\\\"))
        return {series["metric"]["alertname"] for series in found if series["metric"]["job"] == lives.job}

    wait_until(lambda: "AssemblyBudgetOverflow" in marked("desk"), seconds=60, what="the alert on the overflows")
    assert "AssemblyBudgetOverflow" not in marked("calm")


@pytest.mark.parametrize("metric", registry.metrics(), ids=lambda metric: metric.name)
def test_every_metric_is_in_prometheus_under_its_documented_name_with_its_labels(metric, stack, processes):
    conventions = (ROOT / "docs" / "semantic-conventions.md").read_text(encoding="utf-8")
    row = next(line for line in conventions.splitlines() if line.startswith(f"| `{metric.name}` | {metric.instrument}"))
    attributes, name = (re.findall(r"`([^`]+)`", cell) for cell in row.split(" | ")[3:5])
    mine = f'{{job="{processes[0].job}"}}'
    for part in ("_bucket", "_sum", "_count") if metric.instrument == "histogram" else ("",):
        labels = {label for series in stack.prometheus.query(f"{name[0]}{part}{mine}") for label in series["metric"]}
        assert {"job", "instance"} | {attribute.replace(".", "_") for attribute in attributes} <= labels
    if metric.instrument == "histogram":
        bounds = {float(series["metric"]["le"]) for series in stack.prometheus.query(f"{name[0]}_bucket{mine}")}
        assert bounds == {*metric.buckets, math.inf}


def test_a_mark_on_a_graph_leads_to_a_trace_that_jaeger_has(stack, overview, detail, processes):
    lives, gone = processes
    for seen in (overview, detail):
        for title, panel in seen.panels.items():
            for target in panel["targets"]:
                if not target["exemplar"]:
                    continue
                found = stack.prometheus.exemplars(seen.expression(target), seconds=1200)
                marks = [mark for series in found for mark in series["exemplars"]]
                assert marks, title
                trace = stack.jaeger.get(f"/api/traces/{marks[0]['labels']['trace_id']}")["data"][0]
                services = {process["serviceName"] for process in trace["processes"].values()}
                assert services <= {lives.service, gone.service}


def test_the_links_to_jaeger_find_what_they_promise(stack, overview, detail, processes):
    lives, _ = processes
    now = int(time.time() * 1000)
    chosen = {
        "jaeger:raw": stack.jaeger.url,
        "service:percentencode": lives.service,
        "agent:raw": "desk",
        "__from": str(now - 1_200_000),
        "__to": str(now + 60_000),
        "__field.labels.gen_ai_agent_name": "desk",
        "__field.labels.service": lives.service,
        "__field.labels.assembly_alert_severity": "fatal",
        "__field.labels.assembly_post_outcome": "refused",
    }
    # Six turns overflowed and each is a trace of its own; one halted, and its alert was fatal.
    promised = {
        "Its traces that overflowed": 6,
        "Traces that were halted": 1,
        "Its traces that were halted": 1,
        "Traces with such an alert": 1,
        "Traces with a violation": 1,
        "Traces with such a post": 1,
        "Its traces": lives.traces - 1,  # the other is of the other agent
    }
    met = set()
    for seen in (overview, detail):
        for panel in seen.panels.values():
            for link in [*panel.get("links", ()), *panel["fieldConfig"]["defaults"].get("links", ())]:
                if "jaeger" not in link["url"]:
                    continue
                url = re.sub(r"\$\{([^}]+)\}", lambda found: chosen[found[1]], link["url"])
                address = urllib.parse.urlsplit(url)
                assert address.path == "/search"
                found = stack.jaeger.get(f"/api/traces?{address.query}&limit=200")["data"]
                assert len(found) == promised[link["title"]], (link["title"], url)
                met.add(link["title"])
    assert met == set(promised)


COUNTERS = {
    "one that begins at 0": ("0 0 1 1", 1),
    "one that is first seen at 1": ("_ _ 1 1 1", 1),
    "a process that exports once": ("_ 1", 1),
    "several in one interval": ("0 2 5 5", 5),
    "one that stands still": ("0 0 0 0", 0),
    "a restart under the same name": ("0 3 3 1 1", 4),
    "twenty minutes without a sample": ("0 2 _x20 2 3", 3),
    "a process that ends": ("0 1 2 stale", 2),
}


@pytest.mark.parametrize(("samples", "happened"), COUNTERS.values(), ids=COUNTERS)
def test_a_count_over_the_time_range_is_exact(samples, happened, programs, tmp_path):
    """Where `increase` says 0, 2.2 or 3.5; each value is what the panel's bars add up to."""
    target = next(panel for panel in OVERVIEW["panels"] if panel["title"] == "Overflows")["targets"][0]
    chosen = {"job": "shop", "instance": ".*", "agent": ".*", **BUILT_IN}
    bars = re.sub(r"\$(\w+)", lambda found: chosen[found[1]], target["expr"])
    series = {"series": 'assembly_budget_overflows_total{job="shop", instance="1"}', "values": samples}
    expected = {"expr": f"sum_over_time(({bars})[41m:1m])", "eval_time": "40m"}
    expected["exp_samples"] = [{"labels": "{}", "value": happened}]
    case = {"interval": "1m", "input_series": [series], "promql_expr_test": [expected]}
    (tmp_path / "case.yaml").write_text(json.dumps({"rule_files": [], "tests": [case]}))
    command = [programs["promtool"], "test", "rules", tmp_path / "case.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dashboard", [OVERVIEW, AGENT], ids=["overview", "agent"])
def test_every_variable_finds_what_was_at_work(dashboard, stack, processes):
    lives, gone = processes
    jobs = f"({lives.job}|{gone.job})"
    expected = {
        "job": {lives.job, gone.job},
        "instance": None,  # random
        "agent": {"desk", "courier"},
        "service": {lives.service},  # the one in which the chosen agent runs
    }
    chosen = {"job": jobs, "instance": ".*", "agent": "desk"}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()
        selector = re.sub(r"\$(\w+)", lambda found: chosen[found[1]], selector)
        found = {series["metric"].get(label) for series in stack.prometheus.query(selector)} - {None}
        if "regex" in variable:
            found = {re.fullmatch(variable["regex"].strip("/").replace("\\/", "/"), value)[1] for value in found}
        wanted = expected[variable["name"]]
        assert len(found) >= 2 if wanted is None else wanted <= found
