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
#: With this time-out, the SDK attempts an export six times, and the last attempt is 25 to 37 seconds after the first.
SIX_ATTEMPTS = {TRACES_TIMEOUT: "60"}
#: The spans of 64 turns, so that a short burst of turns fills the queue.
SMALL_QUEUE = {"OTEL_BSP_MAX_QUEUE_SIZE": str(64 * SPANS_A_TURN), "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "64"}
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


def all_accounted_for(prometheus, service, turns):
    """Wait until Prometheus has every span of these turns once, and return the numbers."""

    def found():
        numbers = counted(prometheus, service)
        known = numbers["taken"] + numbers["failed"] + numbers["queue full"]
        return numbers if numbers["started"] == known == turns * SPANS_A_TURN else None

    return wait_until(
        found, seconds=120, what=lambda: f"{turns * SPANS_A_TURN} spans in {counted(prometheus, service)}"
    )


def losing_settings(collector):
    """Return the settings for `lose_spans`.

    Metrics are sent by HTTP: the connections of gRPC exporters to one address share a wait before they reconnect, which
    grows to two minutes. And a log filter of the gRPC exporters hides the failures of one behind those of the other.
    """
    return {
        **COUNTED,
        **SIX_ATTEMPTS,
        **SMALL_QUEUE,
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{collector.otlp_http}/v1/metrics",
    }


def lose_spans(agent):
    """Make 100 turns without a Collector, more than the queue holds, during the attempts of a single export.

    The SDK counts a span as lost that it keeps, if an export empties a full queue at that moment (SDK 1.45,
    `BatchProcessor.emit`). In one of 120 runs, the sum was larger than the number of spans. So no export may
    begin while the queue is full.
    """
    agent.ask("turns", 1)
    wait_until(lambda: "exporting traces" in agent.complaints(), seconds=30, what="the first failed attempt")
    agent.ask("turns", 99)
    assert "Failed to export traces" not in agent.complaints(), "the turns took longer than the attempts of an export"


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
    with DrivenAgent(service, tmp_path, collector.otlp_grpc, settings=losing_settings(collector)) as agent:
        lose_spans(agent)
        collector.start()
        # The queue is empty then, so that it has room for the spans of further turns.
        all_accounted_for(prometheus, service, 100)
        agent.ask("turns", 50)
        numbers = all_accounted_for(prometheus, service, 150)
        assert numbers["queue full"] > 0
        # Metrics are cumulative: every assembly is counted, although many spans are lost.
        assert assemblies(prometheus, service) == 150
        wait_until(
            lambda: len(spans_in(stack.jaeger, service)) == numbers["taken"],
            seconds=60,
            what=lambda: f"{len(spans_in(stack.jaeger, service))} spans in Jaeger, {numbers}",
        )
        assert agent.end() == 0


def test_what_was_lost_while_the_collector_was_away_is_a_number_in_prometheus(collector, stack, tmp_path):
    service, prometheus = "lost-meanwhile", stack.prometheus
    collector.start()
    with DrivenAgent(service, tmp_path, collector.otlp_grpc, settings=losing_settings(collector)) as agent:
        agent.ask("turns", 50)
        wait_until(lambda: len(spans_in(stack.jaeger, service)) >= 50, seconds=60, what="the first spans in Jaeger")
        collector.kill()
        lose_spans(agent)
        collector.start()
        all_accounted_for(prometheus, service, 150)
        agent.ask("turns", 50)
        numbers = all_accounted_for(prometheus, service, 200)
        assert numbers["queue full"] > 0
        assert assemblies(prometheus, service) == 200
        # A batch that the killed Collector accepted, but did not acknowledge, is sent twice or counted as failed.
        wait_until(
            lambda: numbers["taken"] <= len(spans_in(stack.jaeger, service)) <= numbers["taken"] + numbers["failed"],
            seconds=60,
            what=lambda: f"{len(spans_in(stack.jaeger, service))} spans in Jaeger, {numbers}",
        )
        assert agent.end() == 0


def test_a_collector_that_is_away_for_twelve_seconds_costs_an_overflow_its_trace_and_that_pages_unless_exports_wait(
    collector, stack, tmp_path
):
    prometheus = stack.prometheus
    default, patient = "away-default", "away-patient"
    # By HTTP: gRPC waits before it reconnects, for longer and longer.
    how = COUNTED | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.otlp_http,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    collector.start()
    with (
        DrivenAgent(default, tmp_path, collector.otlp_grpc, settings=how | {TRACES_TIMEOUT: "10"}) as one,
        DrivenAgent(patient, tmp_path, collector.otlp_grpc, settings=how | SIX_ATTEMPTS) as other,
    ):
        for agent in (one, other):
            agent.ask("turns", 10)
        for service in (default, patient):
            wait_until(lambda name=service: spans_in(stack.jaeger, name), seconds=30, what="the first spans in Jaeger")
        collector.kill()
        for agent in (one, other):
            agent.ask("overflow")
            agent.tell("turns", 24, 2)
        for agent in (one, other):
            agent.hear()
        # The attempts of one have ended, after 8.4 seconds at most. Those of the other end after 25 seconds at least.
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
