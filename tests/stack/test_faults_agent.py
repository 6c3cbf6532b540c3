"""The Collector is down, dies or hangs: the agent does the same, and what was lost is a number afterwards."""

from __future__ import annotations

import os
import signal
import urllib.parse

import pytest
from driving import SPANS_A_TURN, DrivenAgent, spans_in
from local_stack import COLLECTORS, Collector, wait_until

COUNTED = {"OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": "true"}
TRACES_TIMEOUT = "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"
LOST = "AssemblySpansLost"
MIB = 2**20


@pytest.fixture
def collector(programs, stack, tmp_path):
    """A Collector of the test's own, not started, in front of the Jaeger and the Prometheus of all tests."""
    settings = {"JAEGER_ENDPOINT": stack.jaeger.otlp, "PROMETHEUS_ENDPOINT": stack.prometheus.otlp}
    one = Collector(programs, COLLECTORS / "local.yaml", tmp_path / "collector", settings)
    yield one
    one.stop()


def counted(prometheus, service):
    """What the SDK says became of the agent's spans: taken, refused, not even queued, and all."""

    def spans(metric, error):
        return prometheus.value(f'sum(otel_sdk_{metric}_total{{job="{service}",error_type{error}}})') or 0

    return {
        "taken": spans("exporter_span_exported", '=""'),
        "failed": spans("exporter_span_exported", '!=""'),
        "queue full": spans("processor_span_processed", '!=""'),
        "started": prometheus.value(f'sum(otel_sdk_span_started_total{{job="{service}"}})') or 0,
    }


def assemblies(prometheus, service):
    return prometheus.value(f'sum(assembly_duration_seconds_count{{job="{service}"}})')


def all_accounted_for(prometheus, service, spans):
    numbers = counted(prometheus, service)
    known = numbers["taken"] + numbers["failed"] + numbers["queue full"]
    return numbers if numbers["started"] == known == spans else None


def overflowed(jaeger, service):
    """The traces of a service in which an assembly overflowed."""
    tags = urllib.parse.quote('{"assembly.overflowed":"true"}')
    return jaeger.get(f"/api/traces?service={service}&tags={tags}")["data"]


def firing(prometheus, service):
    """What alerts of a service fire, with their severities."""
    alerts = prometheus.query(f'ALERTS{{job="{service}",alertstate="firing"}}')
    return {(alert["metric"]["alertname"], alert["metric"]["severity"]) for alert in alerts}


def test_an_agent_assembles_the_same_bytes_while_its_collector_is_down(collector, tmp_path):
    with DrivenAgent("unwatched", tmp_path) as unwatched, DrivenAgent("down", tmp_path, collector.otlp_grpc) as down:
        assert down.ask("turns", 1_000)["sha256"] == unwatched.ask("turns", 1_000)["sha256"]
        assert (unwatched.end(), down.end()) == (0, 0)
        assert "Traceback" not in down.complaints()
        assert "Failed to export traces" in down.complaints()


def test_two_hundred_thousand_lost_spans_leave_the_agent_no_larger(collector, tmp_path):
    with DrivenAgent("bounded", tmp_path, collector.otlp_grpc) as agent:
        # More than the queue holds, so that what it holds is in the first number already.
        before = agent.ask("turns", 1_000)["rss"]
        agent.ask("turns", 2_000)
        after = agent.ask("spans", 200_000 - 3_000 * SPANS_A_TURN)["rss"]
        assert after - before < 24 * MIB
        # The SDK asks for each batch of its queue once more, for at most OTEL_EXPORTER_OTLP_TIMEOUT each.
        assert agent.end(60) == 0
        assert "Queue full, dropping Span." in agent.complaints()


def test_a_collector_that_hangs_does_not_hold_up_a_turn(collector, tmp_path):
    collector.start()
    patient = {"OTEL_EXPORTER_OTLP_TIMEOUT": "100"}
    with DrivenAgent("patient", tmp_path, collector.otlp_grpc, settings=patient) as agent:
        agent.ask("turns", 10)
        os.kill(collector.pid, signal.SIGSTOP)
        try:
            assert agent.ask("turns", 1_500)["turns"] == 1_510
            # All of them are done, and not a single export has ended: neither taken nor given up.
            assert "Queue full" in agent.complaints()
            assert "export traces" not in agent.complaints()
        finally:
            os.kill(collector.pid, signal.SIGCONT)
        assert agent.end() == 0


def test_what_was_lost_before_the_collector_came_is_a_number_in_prometheus(collector, stack, tmp_path):
    service, prometheus = "lost-at-first", stack.prometheus
    with DrivenAgent(service, tmp_path, collector.otlp_grpc, settings=COUNTED) as agent:
        agent.ask("turns", 1_200)
        collector.start()
        agent.ask("turns", 50)
        numbers = wait_until(
            lambda: all_accounted_for(prometheus, service, 1_250 * SPANS_A_TURN),
            seconds=60,
            what=f"every span accounted for: {counted(prometheus, service)}",
        )
        assert numbers["queue full"] > 0
        # Metrics are cumulative: of the assemblies none is missing, although most of their spans are.
        assert assemblies(prometheus, service) == 1_250
        arrived = wait_until(
            lambda: len(spans_in(stack.jaeger, service)) == numbers["taken"], seconds=30, what="the spans in Jaeger"
        )
        assert arrived
        assert agent.end() == 0


def test_what_was_lost_while_the_collector_was_away_is_a_number_in_prometheus(collector, stack, tmp_path):
    service, prometheus = "lost-meanwhile", stack.prometheus
    collector.start()
    with DrivenAgent(service, tmp_path, collector.otlp_grpc, settings=COUNTED) as agent:
        agent.ask("turns", 100)
        wait_until(lambda: len(spans_in(stack.jaeger, service)) >= 100, seconds=30, what="the first spans in Jaeger")
        collector.kill()
        agent.ask("turns", 1_200)
        collector.start()
        agent.ask("turns", 50)
        numbers = wait_until(
            lambda: all_accounted_for(prometheus, service, 1_350 * SPANS_A_TURN),
            seconds=60,
            what="every span accounted for",
        )
        assert numbers["queue full"] > 0
        assert assemblies(prometheus, service) == 1_350
        # What the Collector had taken when it was killed, but had not said so, is sent twice or counted as failed.
        wait_until(
            lambda: numbers["taken"] <= len(spans_in(stack.jaeger, service)) <= numbers["taken"] + numbers["failed"],
            seconds=30,
            what="the spans in Jaeger",
        )
        assert agent.end() == 0


def test_a_collector_that_is_away_for_twenty_seconds_costs_an_overflow_its_trace_and_that_pages_unless_exports_wait(
    collector, stack, tmp_path
):
    prometheus = stack.prometheus
    default, patient = "away-default", "away-patient"
    # By HTTP: gRPC waits before it connects anew, for longer and longer.
    how = COUNTED | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.otlp_http,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    collector.start()
    with (
        DrivenAgent(default, tmp_path, collector.otlp_grpc, settings=how | {TRACES_TIMEOUT: "10"}) as one,
        DrivenAgent(patient, tmp_path, collector.otlp_grpc, settings=how | {TRACES_TIMEOUT: "60"}) as other,
    ):
        for agent in (one, other):
            agent.ask("turns", 10)
        for service in (default, patient):
            wait_until(lambda name=service: spans_in(stack.jaeger, name), seconds=30, what="the first spans in Jaeger")
        collector.kill()
        for agent in (one, other):
            agent.ask("overflow")
            agent.tell("turns", 40, 2)
        for agent in (one, other):
            agent.hear()
        collector.start()
        wait_until(lambda: overflowed(stack.jaeger, patient), seconds=60, what="the overflow of the patient one")
        both = {(LOST, "critical"), (LOST, "warning")}
        wait_until(lambda: firing(prometheus, default) >= both, seconds=60, what="the alert on lost spans")
        assert counted(prometheus, default)["queue full"] == 0
        assert counted(prometheus, default)["failed"] > 0
        assert not overflowed(stack.jaeger, default)
        assert LOST not in {name for name, _ in firing(prometheus, patient)}
        assert "AssemblyBudgetOverflow" in {name for name, _ in firing(prometheus, patient)}
        assert (one.end(), other.end()) == (0, 0)
