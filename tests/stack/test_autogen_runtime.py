"""What AutoGen's runtime writes of the messages of a team: as it leaves the agent, and as it is behind a Collector."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from local_stack import COLLECTORS, Collector, wait_until
from spans import tags_of, traces_in

TEAM = Path(__file__).with_name("autogen_team.py")
SWITCH = "AUTOGEN_DISABLE_RUNTIME_TRACING"


def run(endpoint, **settings):
    """Run the team by our one command; the name of its service."""
    service = f"team-{uuid4().hex[:8]}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "AUTOGEN_"))}
    environment |= {
        "OTEL_SERVICE_NAME": service,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{endpoint}",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }
    command = [Path(sys.executable).with_name("opentelemetry-instrument"), sys.executable, TEAM]
    done = subprocess.run(command, env=environment | settings, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return service


def spans_of(jaeger, service):
    def team_ended():
        found = [span for spans in traces_in(jaeger, service).values() for span in spans]
        return found if any(span["operationName"].startswith("invoke_agent RoundRobin") for span in found) else None

    return wait_until(team_ended, seconds=60, what="the team's run in Jaeger")


def runtime_spans(spans):
    return [span for span in spans if span["operationName"].startswith("autogen ")]


def test_without_a_collector_the_runtime_s_spans_hold_what_is_said_and_the_switch_leaves_them_out(stack):
    told = spans_of(stack.jaeger, run(stack.jaeger.otlp))
    assert [span for span in told if "canary" in tags_of(span).get("message", "")]
    assert "canary" not in str([span for span in told if span not in runtime_spans(told)])
    silent = spans_of(stack.jaeger, run(stack.jaeger.otlp, **{SWITCH: "true"}))
    assert runtime_spans(silent) == []
    assert {span["operationName"] for span in told} >= {span["operationName"] for span in silent}
    assert "canary" not in str(silent)


@pytest.mark.parametrize("settings", [{}, {"KEEP_CONTENT": "false"}], ids=["as shipped", "KEEP_CONTENT=false"])
def test_a_collector_drops_what_is_said_and_leaves_the_spans(programs, stack, tmp_path, settings):
    settings = settings | {"JAEGER_ENDPOINT": stack.jaeger.otlp, "PROMETHEUS_ENDPOINT": stack.prometheus.otlp}
    collector = Collector(programs, COLLECTORS / "local.yaml", tmp_path, settings)
    collector.start()
    try:
        spans = spans_of(stack.jaeger, run(collector.otlp_grpc))
    finally:
        collector.stop()
    assert "canary" not in str(spans)
    processed = [tags_of(span) for span in runtime_spans(spans) if " process " in span["operationName"]]
    assert processed
    assert all("message" not in tags and "recipient_agent_class" in tags for tags in processed)
