"""An agent overflows or halts, and whoever is on call is told, with a link to the trace: on the real servers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from local_stack import Prometheus, wait_until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = 60
OVERFLOW, HALT = "AssemblyBudgetOverflow", "AssemblyHalted"
#: Service → the lives of its processes, one after the other; `same` share one service.instance.id.
LIVES = {
    "desk-long": ["turn sleep:12 turn overflow sleep:2"],
    "desk-brief": ["turn sleep:2 overflow"],
    "desk-sub-second": ["overflow"],
    "desk-runs-same": ["turn sleep:1 overflow"] * 3,
    "desk-runs-own": ["turn sleep:1 overflow"] * 3,
    "desk-halted": ["turn sleep:1 halt"],
    "desk-calm": ["turn sleep:2 turn"],
    "shop/desk-of-a-namespace": ["overflow"],
}
OVERFLOWING = [service for service, lives in LIVES.items() if "overflow" in lives[0]]


def _live(stack, service, life):
    namespace, _, name = service.rpartition("/")
    resource = {"service.name": name, "deployment.environment.name": "test"}
    resource |= {"service.namespace": namespace} if namespace else {}
    resource |= {"service.instance.id": "same"} if service.endswith("same") else {}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    environment |= {
        "OTEL_RESOURCE_ATTRIBUTES": ",".join(f"{key}={value}" for key, value in resource.items()),
        "OTEL_EXPORTER_OTLP_ENDPOINT": stack.collector.otlp_http,
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": "true",
    }
    command = [sys.executable, HERE / "brief_agent.py", *life.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def lived(stack):
    """Each service's runs: the trace of each step, by the step's name."""

    def live_all(service):
        return [_live(stack, service, life) for life in LIVES[service]]

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(LIVES, pool.map(live_all, LIVES), strict=True))


def _told(webhook, name, service):
    """The alert as the pager was sent it."""

    def sent():
        return next((alert for alert in webhook.alerts(name, "pager") if alert["labels"].get("job") == service), None)

    return wait_until(sent, seconds=SECONDS, what=f"{name} of {service} at the pager")


def _found(stack, link):
    """The traces that Jaeger has for what the link's page asks it."""
    address = urlsplit(link)
    assert f"{address.scheme}://{address.netloc}" == stack.jaeger.url
    assert address.path == "/search"
    answer = stack.jaeger.get(f"/api/traces?{address.query}")
    assert not answer.get("errors")
    return {trace["traceID"] for trace in answer["data"]}


@pytest.mark.parametrize("service", OVERFLOWING)
def test_the_first_overflow_of_a_process_reaches_the_pager_with_a_link_to_its_trace(stack, webhook, lived, service):
    alert = _told(webhook, OVERFLOW, service)
    assert alert["labels"] == {
        "alertname": OVERFLOW,
        "severity": "critical",
        "job": service,
        "deployment_environment_name": "test",
        "gen_ai_agent_name": "desk",
    }
    assert alert["annotations"]["summary"] == f"the context budget of agent desk of {service} overflowed"
    traces = {run["overflow"] for run in lived[service]}
    link = alert["annotations"]["trace_search"]
    # A link names its own hour: what overflowed later than the notification is not behind it.
    assert wait_until(lambda: _found(stack, link), seconds=SECONDS, what="the trace in Jaeger") <= traces


def test_runs_that_are_instances_of_their_own_are_counted_each(stack, webhook, lived):
    _told(webhook, OVERFLOW, "desk-runs-own")
    count = 'assembly:budget_overflows:new15m{job="desk-runs-own"}'
    wait_until(lambda: stack.prometheus.value(count) == 3, seconds=SECONDS, what="three overflows")


def test_each_of_several_runs_under_one_instance_id_is_a_rise(stack, webhook, lived):
    _told(webhook, OVERFLOW, "desk-runs-same")
    # A zero at the start of each: without it, three runs that end at 1 look like one process.
    series = '{job="desk-runs-same"}[10m]'
    assert stack.prometheus.value(f"resets(assembly_budget_overflows_total{series})") == 2
    assert stack.prometheus.value(f"increase(assembly_budget_overflows_total{series})") >= 2.5


def test_a_halt_reaches_the_pager_with_a_link_to_its_trace(stack, webhook, lived):
    alert = _told(webhook, HALT, "desk-halted")
    (run,) = lived["desk-halted"]
    link = alert["annotations"]["trace_search"]
    assert wait_until(lambda: _found(stack, link), seconds=SECONDS, what="the trace in Jaeger") == {run["halt"]}


def test_an_agent_that_does_not_overflow_wakes_nobody(stack, webhook, lived):
    count = '(assembly:budget_overflows:new15m{job="desk-calm"} + on (job) assembly:halts:new15m{job="desk-calm"})'
    counted = wait_until(lambda: stack.prometheus.query(count), seconds=SECONDS, what="the counters of desk-calm")
    assert [item["value"][1] for item in counted] == ["0"]
    # It was evaluated since: what came after it has been told of.
    _told(webhook, OVERFLOW, "desk-brief")
    assert not stack.prometheus.query('ALERTS{job="desk-calm"}')
    assert not [
        name for name in (OVERFLOW, HALT) for alert in webhook.alerts(name) if alert["labels"]["job"] == "desk-calm"
    ]


def test_the_watchdog_reaches_its_own_receiver_and_no_other(stack, webhook):
    wait_until(lambda: webhook.alerts("Watchdog", "watchdog"), seconds=SECONDS, what="the Watchdog")
    assert not webhook.alerts("Watchdog", "pager")
    assert not webhook.alerts("Watchdog", "chat")


def test_the_address_of_jaeger_is_only_in_the_links(stack, webhook, lived):
    assert "jaeger_url" not in _told(webhook, OVERFLOW, "desk-brief")["labels"]


def _post(stack, alerts):
    body = json.dumps([{"labels": labels, "annotations": {}} for labels in alerts]).encode()
    request = urllib.request.Request(
        f"http://{stack.alertmanager.address}/api/v2/alerts", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def _inhibited(stack, job):
    """Which of a job's alerts are held back, by name and severity, once all have been looked at."""
    with urllib.request.urlopen(f"http://{stack.alertmanager.address}/api/v2/alerts", timeout=10) as answer:
        alerts = [alert for alert in json.load(answer) if alert["labels"].get("job") == job]
    if not alerts or any(alert["status"]["state"] == "unprocessed" for alert in alerts):
        return None
    return {
        (alert["labels"]["alertname"], alert["labels"]["gen_ai_agent_name"])
        for alert in alerts
        if alert["status"]["inhibitedBy"]
    }


def test_an_overflow_silences_the_warning_before_it_for_that_agent_alone(stack):
    job = f"inhibited-{time.time_ns()}"
    near = "AssemblyFixedContentNearCeiling"
    _post(
        stack,
        [
            {"alertname": OVERFLOW, "severity": "critical", "job": job, "gen_ai_agent_name": "desk"},
            {"alertname": HALT, "severity": "critical", "job": job, "gen_ai_agent_name": "desk"},
            {"alertname": near, "severity": "warning", "job": job, "gen_ai_agent_name": "desk"},
            {"alertname": near, "severity": "warning", "job": job, "gen_ai_agent_name": "other"},
            {"alertname": "AssemblyPrefixChurn", "severity": "warning", "job": job, "gen_ai_agent_name": "desk"},
        ],
    )
    held = wait_until(lambda: _inhibited(stack, job), seconds=SECONDS, what="the inhibition")
    assert held == {(near, "desk")}


def test_the_example_receiver_prints_what_alertmanager_sends(stack, webhook, lived):
    _told(webhook, OVERFLOW, "desk-brief")
    wait_until(lambda: webhook.alerts("Watchdog", "watchdog"), seconds=SECONDS, what="the Watchdog")
    sent = [
        (path, notification)
        for path, notification in webhook.notifications
        if any(alert["labels"].get("job") == "desk-brief" or path == "/watchdog" for alert in notification["alerts"])
    ]
    command = [sys.executable, ROOT / "examples" / "alert_receiver.py", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        try:
            url = re.search(r"http://\S+", receiver.stdout.readline())[0]
            for path, notification in sent:
                for end in (
                    notification,
                    notification | {"alerts": [resolved(alert) for alert in notification["alerts"]]},
                ):
                    body = json.dumps(end).encode()
                    with urllib.request.urlopen(urllib.request.Request(url + path, body), timeout=10) as answer:
                        assert answer.status == 200
        finally:
            receiver.terminate()
        printed = receiver.stdout.read()
    assert "CRITICAL  the context budget of agent desk of desk-brief overflowed" in printed
    assert re.search(rf"^  traces +{re.escape(stack.jaeger.url)}/search\?service=desk-brief&", printed, re.MULTILINE)
    assert re.search(r"^  runbook +https://\S+/docs/runbook\.md#assemblybudgetoverflow$", printed, re.MULTILINE)
    assert "resolved  the context budget of agent desk of desk-brief overflowed" in printed
    assert printed.count("the Watchdog alert has arrived") == 1
    assert "alerting works" not in printed


def resolved(alert):
    return alert | {"status": "resolved"}


def test_without_the_address_of_jaeger_prometheus_still_starts_and_has_its_rules(programs, tmp_path):
    prometheus = Prometheus(programs, tmp_path, jaeger_url="", evaluation_interval="1s")
    prometheus.start()
    try:
        watchdog = lambda: prometheus.query('ALERTS{alertname="Watchdog"}')  # noqa: E731
        (alert,) = wait_until(watchdog, seconds=SECONDS, what="the Watchdog")
        assert "jaeger_url" not in alert["metric"]
    finally:
        prometheus.stop()
