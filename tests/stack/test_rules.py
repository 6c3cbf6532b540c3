"""The rules, and the configurations of Prometheus and Alertmanager, by the tools of those servers."""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from local_stack import COLLECTORS, RULES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TESTS = sorted((RULES / "tests").glob("*.yaml"))
RUNBOOK = "https://github.com/otel-assembly/otel-assembly/blob/main/docs/runbook.md#"


def _rules(file, kind):
    groups = yaml.safe_load((RULES / file).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


RECORDED = _rules("recording.yaml", "record")
ALERTS = _rules("alerts.yaml", "alert")


def _run(*command, folder=ROOT, seconds=300):
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_promtool_finds_nothing_to_say_of_the_rules(programs):
    code, said = _run(programs["promtool"], "check", "rules", "--lint=all", "--lint-fatal", *RULES.glob("*.yaml"))
    assert code == 0, said


def test_promtool_takes_the_configuration_of_prometheus(programs):
    config = COLLECTORS / "prometheus" / "prometheus.yaml"
    code, said = _run(programs["promtool"], "check", "config", "--lint=all", "--lint-fatal", config)
    assert code == 0, said


def test_amtool_takes_the_configuration_of_alertmanager(programs):
    code, said = _run(programs["amtool"], "check-config", COLLECTORS / "alertmanager" / "alertmanager.yaml")
    assert code == 0, said


@pytest.fixture(scope="module")
def unit_tests(programs):
    with ThreadPoolExecutor(2) as pool:
        return dict(
            zip(TESTS, pool.map(lambda file: _run(programs["promtool"], "test", "rules", file), TESTS), strict=True)
        )


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
@pytest.mark.timeout(400)
def test_the_unit_tests_of_the_rules_pass(unit_tests, file):
    code, said = unit_tests[file]
    assert code == 0, said


def test_a_rule_by_increase_alone_would_not_pass_them(programs, tmp_path):
    """That the unit tests can fail: without the rest of the rule, the first overflow is missed."""
    recorded = (RULES / "recording.yaml").read_text()
    first = r"^ +max_over_time\(assembly_budget_overflows_total.*> 0\n +or\n.*> 0\n +or\n"
    weaker, count = re.subn(first, "", recorded, flags=re.MULTILINE)
    assert count == 1
    cases = yaml.safe_load((RULES / "tests" / "events.yaml").read_text())
    wanted = (
        "the first event of a process whose counter was 0",
        "a counter that first appears at 1",
        "a single sample of a process",
    )
    cases["tests"] = [case for case in cases["tests"] if case["name"].startswith(wanted)]
    assert len(cases["tests"]) == 3
    (tmp_path / "tests").mkdir()
    (tmp_path / "alerts.yaml").write_text((RULES / "alerts.yaml").read_text())
    (tmp_path / "tests" / "events.yaml").write_text(yaml.safe_dump(cases))
    for text, passes in ((recorded, True), (weaker, False)):
        (tmp_path / "recording.yaml").write_text(text)
        code, said = _run(programs["promtool"], "test", "rules", tmp_path / "tests" / "events.yaml")
        assert (code == 0) == passes, said


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("alertname=Watchdog severity=none", "watchdog"),
        *((f"alertname={rule['alert']} severity=critical job=desk", "pager") for rule in ALERTS[:3]),
        ("alertname=AssemblyDropSpike severity=warning job=desk", "chat"),
        ("alertname=OfSomebodyElse severity=page", "chat"),
    ],
)
def test_an_alert_goes_to_whom_it_concerns(programs, labels, receiver):
    config = COLLECTORS / "alertmanager" / "alertmanager.yaml"
    command = (programs["amtool"], "config", "routes", "test", f"--config.file={config}")
    assert _run(*command, *labels.split()) == (0, f"{receiver}\n")


def test_every_receiver_of_alertmanager_has_its_file_of_an_address():
    config = yaml.safe_load((COLLECTORS / "alertmanager" / "alertmanager.yaml").read_text())
    files = {web["url_file"] for receiver in config["receivers"] for web in receiver["webhook_configs"]}
    assert files == {file.name for file in (COLLECTORS / "alertmanager").glob("*.url")}


def test_inhibition_names_alerts_that_exist():
    config = yaml.safe_load((COLLECTORS / "alertmanager" / "alertmanager.yaml").read_text())
    matchers = [
        matcher for rule in config["inhibit_rules"] for matcher in rule["source_matchers"] + rule["target_matchers"]
    ]
    named = {name for matcher in matchers for name in re.findall(r"Assembly\w+", matcher)}
    assert named <= {rule["alert"] for rule in ALERTS}
    assert all("job" in rule["equal"] for rule in config["inhibit_rules"])


def _anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_an_alert_says_how_bad_it_is_what_it_is_and_what_to_do(rule):
    told = rule["annotations"]
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"critical", "warning", "none"}
    assert told["summary"]
    assert told["runbook_url"] == RUNBOOK + rule["alert"].lower()
    assert rule["alert"].lower() in _anchors(DOCS / "runbook.md")
    assert f"(runbook.md#{rule['alert'].lower()})" in (DOCS / "alerts.md").read_text()
    # That of an agent leads to its traces; a server of the stack has none.
    assert ("trace_search" in told) == ("assembly:" in rule["expr"])
    counts = not rule["expr"].startswith(("up{", "vector("))
    assert ("$value" in told["description"]) == counts


def test_every_alert_is_unit_tested_in_its_words():
    cases = yaml.safe_load((RULES / "tests" / "annotations.yaml").read_text())["tests"]
    fired = {
        (item["alertname"], alert["exp_labels"]["severity"])
        for case in cases
        for item in case["alert_rule_test"]
        for alert in item["exp_alerts"]
    }
    assert fired == {(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS}


@pytest.mark.parametrize(
    "rule", [rule for rule in RECORDED if ":new" in rule["record"]], ids=lambda rule: rule["record"]
)
def test_whatever_is_new_is_counted_in_the_same_way(rule):
    window = rule["record"].rpartition(":new")[2]
    for counter in set(re.findall(rf"increase\((.+)\[{window}\]\)", rule["expr"])):
        now, top = f"last_over_time({counter}[{window}])", f"max_over_time({counter}[{window}])"
        past = next(
            text
            for reach in ("1d", "2h")
            if (text := f"last_over_time({counter}[{reach}] offset {window})") in rule["expr"]
        )
        shape = f"{top} - ({past} or {top} * 0) > 0 or {now} < {past} > 0 or increase({counter}[{window}]) or {top} * 0"
        assert shape in " ".join(rule["expr"].split())


@pytest.mark.parametrize("rule", RECORDED, ids=lambda rule: rule["record"])
def test_no_recorded_series_is_of_a_process(rule):
    kept = {label for labels in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in labels.split(", ")}
    assert not kept & {"instance", "pod", "host", "host_name", "service_instance_id", "k8s_pod_name"}
    # A ratio of recorded series has no labels but theirs.
    assert kept or "assembly:" in rule["expr"]
