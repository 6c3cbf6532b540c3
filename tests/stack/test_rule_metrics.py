"""Every metric that a rule reads is ours, or was seen to come from the servers and the SDK."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from local_stack import RULES, Collector, wait_until

from otel_assembly.telemetry import conventions_registry as registry

SECONDS = 60
#: Of the next generation of GenAI's conventions: no released instrumentation emits it yet.
NOT_EMITTED_YET = {"gen_ai_client_inference_duration_seconds_count"}
WORDS = {"and", "or", "unless", "by", "on", "group_left", "offset", "sum", "max", "min", "vector"}


def _metrics(expression):
    """The names of metrics in an expression, those in a matcher of names written out."""
    found = set()
    for pattern in re.findall(r'\{__name__=~"([^"]*)"\}', expression):
        found |= _written_out(pattern)
    bare = re.sub(r"#.*", "", expression)
    bare = re.sub(r'"[^"]*"', "", bare)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|(?:by|on|group_left) \([^)]*\)|offset \w+", " ", bare)
    return found | (set(re.findall(r"\b[a-zA-Z_:][\w:]*\b(?!\()", bare)) - WORDS)


def _written_out(pattern):
    choice = re.search(r"\(([^()]*)\)(\??)", pattern)
    if choice is None:
        return {pattern}
    ways = [*choice[1].split("|"), *([""] if choice[2] else [])]
    return {name for way in ways for name in _written_out(pattern[: choice.start()] + way + pattern[choice.end() :])}


def _used():
    files = [yaml.safe_load((RULES / file).read_text()) for file in ("recording.yaml", "alerts.yaml")]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    names = {name for rule in rules for name in _metrics(rule["expr"])}
    return names - {rule.get("record") for rule in rules}


def test_the_names_of_metrics_are_found_in_an_expression():
    used = _used()
    assert "assembly_budget_fixed_utilization_bucket" in used
    assert "otelcol_exporter_send_failed_log_records_total" in used
    assert _metrics('sum by (job) (a_total{b="c"} or increase(d[5m]) * 0) > 3 and on (job) up{job="x"}') == {
        "a_total",
        "d",
        "up",
    }


def _ours():
    ends = {"counter": ("",), "histogram": ("_bucket", "_count", "_sum")}
    return {metric.prometheus_name + end for metric in registry.metrics() for end in ends[metric.instrument]}


LOSSES = {name for name in _used() if re.match(r"otelcol_(exporter_(send|enqueue)_failed|receiver_refused)_", name)}


def test_every_metric_of_a_rule_is_ours_or_emitted_by_the_servers_and_the_sdk(stack):
    foreign = _used() - _ours() - LOSSES - NOT_EMITTED_YET
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")} | {
        "OTEL_SERVICE_NAME": "names",
        "OTEL_EXPORTER_OTLP_ENDPOINT": stack.collector.otlp_http,
        "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": "true",
    }
    agent = [sys.executable, Path(__file__).with_name("brief_agent.py"), "turn", "call:1"]
    subprocess.run(agent, env=environment, check=True, timeout=SECONDS, capture_output=True)

    def missing() -> set[str]:
        return {name for name in foreign if not stack.prometheus.query(name)}

    wait_until(lambda: not missing(), seconds=SECONDS, what=lambda: f"{missing()} in Prometheus")
    assert foreign >= {"up", "otelcol_exporter_queue_size", "otel_sdk_processor_span_processed_total"}


#: One exporter that gives up at once, and one whose queue has no room for anything.
LOSING = """
receivers:
  otlp:
    protocols: {http: {endpoint: "127.0.0.1:${env:OTLP_HTTP_PORT}"}}
exporters:
  otlp_http/refused:
    endpoint: http://127.0.0.1:9
    retry_on_failure: {enabled: false}
    sending_queue: {enabled: false}
  otlp_http/full:
    endpoint: http://127.0.0.1:9
    sending_queue: {queue_size: 1, sizer: bytes}
extensions:
  health_check: {endpoint: "127.0.0.1:${env:HEALTH_PORT}"}
service:
  extensions: [health_check]
  telemetry:
    metrics:
      readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: "${env:SELF_METRICS_PORT}"}}}}]
  pipelines:
    traces: {receivers: [otlp], exporters: [EXPORTER]}
    metrics: {receivers: [otlp], exporters: [EXPORTER]}
    logs: {receivers: [otlp], exporters: [EXPORTER]}
"""
BODIES = {
    "traces": """{"resourceSpans": [{"scopeSpans": [{"spans": [
        {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": "a", "kind": 1}]}]}]}""",
    "metrics": """{"resourceMetrics": [{"scopeMetrics": [{"metrics": [
        {"name": "a", "gauge": {"dataPoints": [{"asInt": "1"}]}}]}]}]}""",
    "logs": """{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "a"}}]}]}]}""",
}


def test_the_collector_counts_what_it_loses_under_the_names_of_the_rules(programs, tmp_path):
    counted = set()
    for exporter in ("otlp_http/refused", "otlp_http/full"):
        config = tmp_path / f"{exporter.rpartition('/')[2]}.yaml"
        config.write_text(LOSING.replace("EXPORTER", exporter))
        collector = Collector(programs, config, tmp_path / config.stem)
        collector.start()
        try:
            for path, body in BODIES.items():
                request = urllib.request.Request(
                    f"{collector.otlp_http}/v1/{path}", body.encode(), {"Content-Type": "application/json"}
                )
                with pytest.raises(urllib.error.HTTPError, match="50"):
                    urllib.request.urlopen(request, timeout=10)
            counted |= {name for name in LOSSES if collector.measured(name)}
        finally:
            collector.stop()
    # They end in _total, or do not, as its telemetry is configured; here they do not.
    assert counted == {name for name in LOSSES if not name.endswith("_total")}
