"""A sender whose clock is wrong: what becomes of its overflow, and who says so; on the real servers."""

from __future__ import annotations

import json
import time
import urllib.request
from uuid import uuid4

import pytest
from fleet import Fleet
from local_stack import wait_until

SECONDS = 60
SKEW, OVERFLOW = "AssemblyClockSkew", "AssemblyBudgetOverflow"
#: By how many seconds a clock is before the right time.
CLOCKS = {"right": 0, "10 min slow": -600, "20 min slow": -1_200, "2 h slow": -7_200, "20 min fast": 1_200}


def overflow(collector, service, ahead):
    """Send what an agent's first overflow is: its counter at 0, then at 1."""

    def text(value):
        return {"stringValue": value}

    def at(seconds):
        return str(int((time.time() + ahead + seconds) * 1e9))

    for count in (0, 1):
        point = {
            "attributes": [{"key": "gen_ai.agent.name", "value": text("desk")}],
            "startTimeUnixNano": at(-5),
            "timeUnixNano": at(0),
            "asInt": str(count),
        }
        counted = {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": [point]}
        metric = {"name": "assembly.budget.overflows", "unit": "{assembly}", "sum": counted}
        identity = {"service.name": service, "service.instance.id": "only"}
        resource = {"attributes": [{"key": key, "value": text(value)} for key, value in identity.items()]}
        body = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [metric]}]}]}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{collector.otlp_http}/v1/metrics", json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=30).close()
        time.sleep(0.1)


def alerts(prometheus, service):
    return {each["metric"]["alertname"] for each in prometheus.query(f'ALERTS{{job="{service}",alertstate="firing"}}')}


@pytest.fixture(scope="module")
def lived(stack):
    """The service of each clock, after its overflow."""
    services = {clock: f"clock-{uuid4().hex[:8]}" for clock in CLOCKS}
    for clock, service in services.items():
        overflow(stack.collector, service, CLOCKS[clock])
    return services


@pytest.mark.parametrize(
    ("clock", "told"),
    [
        ("right", {OVERFLOW}),
        ("10 min slow", {OVERFLOW, SKEW}),
        # Their overflow wakes nobody; that this is so is said.
        ("20 min slow", {SKEW}),
        ("2 h slow", {SKEW}),
        ("20 min fast", {SKEW}),
    ],
)
def test_a_clock_that_is_wrong_is_told_of_whether_or_not_its_overflow_is(stack, lived, clock, told):
    service, prometheus = lived[clock], stack.prometheus
    wait_until(lambda: alerts(prometheus, service) == told, seconds=SECONDS, what=f"{told} of a clock that is {clock}")
    delay = prometheus.value(f'max(max_over_time(collector_sender_delay_seconds{{job="{service}"}}[15m]))')
    assert delay == pytest.approx(-CLOCKS[clock], abs=5)


def test_behind_a_gateway_it_is_measured_once_by_the_tier_that_hands_to_prometheus(programs, stack, tmp_path):
    service, prometheus = f"clock-{uuid4().hex[:8]}", stack.prometheus
    with Fleet(programs, tmp_path, stack.jaeger, prometheus) as fleet:
        overflow(fleet.agent, service, CLOCKS["20 min slow"])
        wait_until(lambda: alerts(prometheus, service) == {SKEW}, seconds=SECONDS, what="the alert")
    assert prometheus.value(f'count(last_over_time(collector_sender_delay_seconds{{job="{service}"}}[15m]))') == 1
