"""`otel-assembly doctor` on a stack that runs: it sends a probe and finds it, or says where it got lost."""

from __future__ import annotations

import re
import sys

import jaeger_api
import pytest
from jaeger_api import Trace, search, tags
from local_stack import LOOPBACK, Jaeger, Server, answers, free_port

SERVICE = "otel-assembly-doctor"


@pytest.fixture
def doctor(tmp_path):
    """The command without a look at the frameworks, which would all be imported; the lines about the stack."""

    def look(*arguments, status=0, **environment):
        command = (sys.executable, "-m", "otel_assembly.cli", "doctor", *arguments)
        ran = jaeger_api.run(
            tmp_path, *command, status=status, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="*", **environment
        )
        assert ran.stderr == ""
        return dict(re.findall(r"^  (. .{38}) (.*)$", ran.stdout.split("\nStack", 1)[1], re.MULTILINE))

    def told(*arguments, **environment):
        return {what.strip(): said for what, said in look(*arguments, **environment).items()}

    return told


@pytest.fixture(params=["grpc", "http/protobuf"])
def exporting(stack, request):
    """The environment of an agent that exports to the stack."""
    endpoint = f"http://{stack.collector.otlp_grpc}" if request.param == "grpc" else stack.collector.otlp_http
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": request.param}


def test_the_probes_of_a_stack_that_works_are_found_by_either_protocol(stack, doctor, exporting):
    told = doctor(
        *("--jaeger", f"{stack.jaeger.url}/", "--prometheus", stack.prometheus.url),
        *("--alertmanager", f"http://{stack.alertmanager.address}"),
        **exporting,
    )
    assert set(told) == {f"✓ {w}" for w in ("probe trace", "probe metric", "alert rules", KNOWS, "alerts arrive")}
    protocol = exporting["OTEL_EXPORTER_OTLP_PROTOCOL"]
    assert re.match(rf"sent over {protocol}, in Jaeger (immediately|after \d+\.\d s): ", told["✓ probe trace"])
    assert re.match(rf"sent over {protocol}, in Prometheus (immediately|after \d+\.\d s)$", told["✓ probe metric"])
    assert "including AssemblyBudgetOverflow; Watchdog fires" in told["✓ alert rules"]
    assert told[f"✓ {KNOWS}"] == f"http://{stack.alertmanager.address}"


KNOWS = "Alertmanager of Prometheus"


def test_the_probe_is_of_a_service_of_its_own_whatever_the_environment_samples_and_is_called(stack, doctor, exporting):
    told = doctor("--jaeger", stack.jaeger.url, OTEL_SERVICE_NAME="mine", OTEL_TRACES_SAMPLER="always_off", **exporting)
    (trace_id,) = re.findall(rf"{stack.jaeger.url}/trace/([0-9a-f]{{32}})$", told["✓ probe trace"])
    trace = Trace(stack.jaeger.get(f"/api/traces/{trace_id}")["data"][0])
    assert trace.tree() == [("doctor_probe", [])]
    assert trace_id in {found["traceID"] for found in search(stack.jaeger, SERVICE)}


def test_the_probes_are_no_assembly_and_move_no_panel_and_no_alert(stack, doctor, exporting):
    told = doctor("--jaeger", stack.jaeger.url, "--prometheus", stack.prometheus.url, **exporting)
    assert "✓ probe metric" in told
    for found in search(stack.jaeger, SERVICE):
        for span in Trace(found).spans:
            assert tags(span)["otel.scope.name"] == ("string", "otel_assembly.doctor")
            assert not [name for name in tags(span) if name.startswith(("assembly.", "gen_ai.", "error"))]
    theirs = f'{{job="{SERVICE}",__name__!~"otel_assembly_doctor_probe_seconds|target_info|traces_span_metrics_.*"}}'
    assert stack.prometheus.query(theirs) == []
    assert [alert for alert in stack.prometheus.alerts() if SERVICE in str(alert["labels"])] == []


# What is broken is named


def test_a_span_that_was_taken_and_is_not_in_this_jaeger_is_said_to_be_with_the_collector(
    stack, doctor, programs, tmp_path
):
    elsewhere = Jaeger(programs, tmp_path / "elsewhere")
    elsewhere.start()
    try:
        endpoint = f"http://{stack.collector.otlp_grpc}"
        told = doctor("--jaeger", elsewhere.url, "--wait", "2", status=1, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    finally:
        elsewhere.stop()
    said = told["✖ probe trace"]
    assert said.startswith(f"{endpoint} accepted the span, but {elsewhere.url} does not have it after 2 s: check")
    assert "otlp_grpc/jaeger" in said
    assert f"a tail sampler must keep service.name={SERVICE}" in said


@pytest.mark.parametrize(
    ("protocol", "form"), [("grpc", "{http}"), ("grpc", "https://{grpc}"), ("http/protobuf", "http://{grpc}")]
)
def test_an_endpoint_that_is_spoken_to_in_the_wrong_way_is_told_by_its_port_and_its_scheme(
    stack, doctor, protocol, form
):
    endpoint = form.format(http=stack.collector.otlp_http, grpc=stack.collector.otlp_grpc)
    told = doctor(
        *("--jaeger", stack.jaeger.url),
        status=1,
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
    )
    said = told["✖ probe trace"]
    assert said.startswith(f"{endpoint} did not accept the export over {protocol}: ")
    assert "port 4317 is for grpc, 4318 for http/protobuf" in said


def test_what_keeps_a_probe_from_being_sent_is_told(stack, doctor):
    jaeger, endpoint = ("--jaeger", stack.jaeger.url), f"http://{stack.collector.otlp_grpc}"
    told = doctor(*jaeger, status=1, OTEL_SDK_DISABLED="true")
    assert told["✖ probe trace"] == "OTEL_SDK_DISABLED is true, so nothing is sent"
    told = doctor(*jaeger, status=1, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert told["✖ probe trace"].startswith("http://127.0.0.1:9 does not answer (connection refused)")
    assert told["✖ probe trace"].endswith("or set OTEL_EXPORTER_OTLP_ENDPOINT")
    told = doctor(*jaeger, status=1, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_COMPRESSION="brotli")
    assert told["✖ probe trace"].startswith(f"cannot export to {endpoint} over grpc: ")
    assert "brotli" in told["✖ probe trace"]


def test_a_prometheus_without_our_rules_without_an_alertmanager_and_without_the_metric_is_told_each_mend(
    stack, doctor, programs, tmp_path
):
    (tmp_path / "bare.yaml").write_text("global: {scrape_interval: 15s}\n")
    address = f"{LOOPBACK}:{free_port()}"
    bare = Server(
        "bare-prometheus",
        [
            programs["prometheus"],
            f"--config.file={tmp_path / 'bare.yaml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={address}",
        ],
        folder=tmp_path,
        ready=lambda: answers(f"http://{address}/-/ready"),
    )
    bare.start()
    try:
        endpoint = f"http://{stack.collector.otlp_grpc}"
        arguments = ("--prometheus", f"http://{address}", "--wait", "1")
        told = doctor(*arguments, status=1, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    finally:
        bare.stop()
    assert f"accepted the metric, but http://{address} does not have it after 1 s" in told["✖ probe metric"]
    assert told["✖ alert rules"].startswith("AssemblyBudgetOverflow and Watchdog not loaded")
    assert "add dashboards/rules/*.yaml to rule_files" in told["✖ alert rules"]
    assert "has no Alertmanager, so alerts are not delivered" in told[f"✖ {KNOWS}"]


def test_addresses_that_are_mixed_up_are_told(stack, doctor):
    endpoint = f"http://{stack.collector.otlp_grpc}"
    told = doctor(
        *("--jaeger", stack.prometheus.url, "--prometheus", stack.jaeger.url, "--alertmanager", stack.jaeger.url),
        *("--wait", "1"),
        status=1,
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
    )
    assert f"{stack.prometheus.url} is not Jaeger" in told["✖ probe trace"]
    for what in ("probe metric", "alert rules", KNOWS, "alerts arrive"):
        assert re.search(rf"{stack.jaeger.url}/\S+ did not return JSON; check the address", told[f"✖ {what}"])
