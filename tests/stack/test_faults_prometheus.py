"""Prometheus is killed: what was counted meanwhile arrives with its times, so that no alert misses it."""

from __future__ import annotations

import itertools

import pytest
from driving import DrivenAgent
from local_stack import COLLECTORS, Collector, Prometheus, wait_until

SERVICE = "counted-meanwhile"
ASSEMBLIES = f'assembly_duration_seconds_count{{job="{SERVICE}"}}'


@pytest.fixture
def prometheus(programs, tmp_path):
    one = Prometheus(programs, tmp_path / "prometheus", evaluation_interval="1s")
    one.start()
    yield one
    one.stop()


@pytest.fixture
def collector(programs, stack, prometheus, tmp_path):
    settings = {"JAEGER_ENDPOINT": stack.jaeger.otlp, "PROMETHEUS_ENDPOINT": prometheus.otlp}
    one = Collector(programs, COLLECTORS / "local.yaml", tmp_path / "collector", settings)
    one.start()
    yield one
    one.stop()


def largest_gap(prometheus):
    """Seconds between two samples."""
    [series, *_] = prometheus.query(f"{ASSEMBLIES}[2m]")
    return max(later - earlier for (earlier, _), (later, _) in itertools.pairwise(series["values"]))


def test_an_overflow_while_prometheus_was_dead_is_alerted_on_when_it_is_back(collector, prometheus, tmp_path):
    with DrivenAgent(SERVICE, tmp_path, collector.otlp_grpc) as agent:
        agent.ask("turns", 50)
        wait_until(lambda: prometheus.value(f"sum({ASSEMBLIES})") == 50, seconds=30, what="50 assemblies counted")
        prometheus.kill()
        agent.ask("turns", 30)
        agent.ask("overflow")
        agent.ask("turns", 20, 10)
        held = collector.measured("otelcol_exporter_queue_size")
        assert held > 0
        prometheus.start()
        wait_until(lambda: prometheus.value(f"sum({ASSEMBLIES})") == 101, seconds=60, what="101 assemblies counted")
        assert prometheus.value(f'sum(assembly_budget_overflows_total{{job="{SERVICE}"}})') == 1
        wait_until(
            lambda: any(alert["labels"]["alertname"] == "AssemblyBudgetOverflow" for alert in prometheus.alerts()),
            seconds=30,
            what="the alert",
        )
        # The graph has no hole either, once every part has been tried again: the agent reports every 0.3 seconds.
        wait_until(lambda: largest_gap(prometheus) < 2, seconds=30, what="a graph without a hole")
        assert collector.measured("otelcol_exporter_send_failed_metric_points") == 0
        assert agent.end() == 0
