"""Each Collector config in `collectors/`: it is valid, it starts as it is, and it holds what all of them promise."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml
from fleet import for_tls, make_certificates
from local_stack import COLLECTORS, Collector, wait_until
from spans import sending, with_certificate, with_token

#: Whatever has pipelines or a part of them, so that no new file is forgotten; the compose file has neither.
CONFIGS = {
    file.name: yaml.safe_load(file.read_text())
    for file in sorted(COLLECTORS.glob("*.yaml"))
    if {"receivers", "exporters", "service"} & yaml.safe_load(file.read_text()).keys()
}
#: Those that are laid over another one are started where there is a Kafka.
WHOLE = [name for name, config in CONFIGS.items() if {"receivers", "exporters", "service"} <= config.keys()]
WHOLE = [name for name in WHOLE if "kafka" not in name]
SIGNALS = {"traces", "metrics", "logs"}
REDACTION = ["transform/before_redaction", "redaction", "transform/after_redaction"]


def command_of(name):
    """The files that the header says to start it with."""
    (command,) = re.findall(r"^# .*\botelcol( --config .*)$", (COLLECTORS / name).read_text(), re.MULTILINE)
    return command.split()


def header_of(name):
    return " ".join(re.match(r"(?:#.*\n)+", (COLLECTORS / name).read_text())[0].replace("#", " ").split())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls") / "tls")


def test_there_are_configs_for_one_machine_a_node_and_a_fleet():
    assert {"local.yaml", "agent.yaml", "gateway-balancer.yaml", "gateway-sampler.yaml"} <= set(WHOLE)


@pytest.mark.parametrize("name", CONFIGS)
def test_it_passes_validate_by_the_command_in_its_header(programs, certificates, tmp_path, name):
    arguments = [COLLECTORS / part if part.endswith(".yaml") else part for part in command_of(name)]
    assert COLLECTORS / name in arguments
    environment = {"PATH": "", "DATA_DIR": str(tmp_path)} | for_tls(certificates)
    done = subprocess.run(
        [programs["otelcol"], "validate", *arguments], capture_output=True, text=True, env=environment, timeout=120
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("name", WHOLE)
def test_it_starts_unchanged_and_complains_of_nothing(programs, stack, certificates, tmp_path, name):
    settings = for_tls(certificates) | {
        "JAEGER_ENDPOINT": stack.jaeger.otlp,
        "PROMETHEUS_ENDPOINT": stack.prometheus.otlp,
        "GATEWAY_ENDPOINT": stack.collector.otlp_grpc,
        "SAMPLERS": stack.collector.otlp_grpc,
    }
    collector = Collector(programs, COLLECTORS / name, tmp_path, settings)
    collector.start()
    try:
        wait_until(lambda: "Everything is ready" in collector.log.read_text(), seconds=30, what="its readiness")
        assert collector.measured("otelcol_process_uptime") > 0
        log = collector.log.read_text()
    finally:
        collector.stop()
    assert "deprecated" not in log.lower()
    levels = {line.split("\t")[1] for line in log.splitlines() if line.count("\t") > 1}
    # The stack's own Collector speaks no TLS; that the agent and the balancer say so is what they should.
    expected = {"info", "warn"} if name in {"agent.yaml", "gateway-balancer.yaml"} else {"info"}
    assert levels <= expected, log


@pytest.mark.parametrize("name", ["agent.yaml", "gateway-balancer.yaml"])
def test_it_does_not_start_without_a_token(programs, certificates, name):
    environment = for_tls(certificates) | {"GATEWAY_TOKEN": ""}
    command = [programs["otelcol"], "--config", COLLECTORS / name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode != 0
    assert "no bearer token provided" in done.stderr


@pytest.mark.parametrize("name", CONFIGS)
def test_its_header_names_each_variable_with_its_default(name):
    # A file that is laid over another one says that the other's variables hold as well.
    header = " ".join(header_of(file) for file in command_of(name) if file.endswith(".yaml"))
    found = re.findall(r"\$\{env:(\w+)(?::-([^}]*))?\}", (COLLECTORS / name).read_text())
    assert found
    for variable, default in found:
        # Where there is no default, the header says what is without it.
        assert f"{variable} {default}".rstrip() in header, variable


@pytest.mark.parametrize("name", WHOLE)
def test_traces_metrics_and_logs_pass_the_memory_limiter_first(name):
    service = CONFIGS[name]["service"]
    assert {pipeline.split("/")[0] for pipeline in service["pipelines"]} == SIGNALS
    entered = {name: value for name, value in service["pipelines"].items() if "otlp" in value["receivers"]}
    assert {pipeline.split("/")[0] for pipeline in entered} == SIGNALS
    for pipeline, item in entered.items():
        redaction = [] if pipeline == "metrics" else REDACTION
        assert item["processors"][:4] == ["memory_limiter", *redaction], pipeline
    assert "health_check" in service["extensions"]


@pytest.mark.parametrize("name", WHOLE)
def test_what_it_sends_waits_on_disk_for_as_long_as_it_takes(name):
    config = CONFIGS[name]
    assert "file_storage" in config["service"]["extensions"]
    for exporter, settings in config["exporters"].items():
        if exporter.split("/")[0] != "file":
            assert settings["sending_queue"]["storage"] == "file_storage", exporter
            assert settings["retry_on_failure"]["max_elapsed_time"] == "0s", exporter


@pytest.mark.parametrize("name", WHOLE)
def test_it_listens_on_loopback_and_takes_large_messages(name):
    config = CONFIGS[name]
    protocols = config["receivers"]["otlp"]["protocols"]
    for settings in [*protocols.values(), config["extensions"]["health_check"]]:
        assert settings["endpoint"].startswith("${env:LISTEN_HOST:-127.0.0.1}:")
    reader = config["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"]
    assert reader["host"] == "${env:LISTEN_HOST:-127.0.0.1}"
    assert protocols["grpc"]["max_recv_msg_size_mib"] == 16


def test_redaction_is_the_same_in_all():
    def redaction(name):
        processors = yaml.safe_dump([CONFIGS[name]["processors"][processor] for processor in REDACTION])
        return re.sub(r"KEEP_CONTENT:-(true|false)", "KEEP_CONTENT", processors)

    assert {redaction(name) for name in WHOLE} == {redaction("local.yaml")}


def test_how_late_a_sender_is_is_measured_alike_by_those_that_hand_to_prometheus():
    parts = ("filter/sender_delay", "transform/sender_delay")
    measured = [
        [CONFIGS[name]["processors"][part] for part in parts] for name in ("local.yaml", "gateway-balancer.yaml")
    ]
    assert measured[0] == measured[1]


@pytest.mark.parametrize("name", WHOLE)
def test_it_takes_a_message_of_more_than_4_mib(programs, stack, certificates, tmp_path, name):
    settings = for_tls(certificates) | {
        "JAEGER_ENDPOINT": stack.jaeger.otlp,
        "PROMETHEUS_ENDPOINT": stack.prometheus.otlp,
    }
    how = {
        "gateway-balancer.yaml": with_token(settings["GATEWAY_TOKEN"], certificates / "ca.crt"),
        "gateway-sampler.yaml": with_certificate(certificates),
    }
    collector = Collector(programs, COLLECTORS / name, tmp_path, settings)
    collector.start()
    try:
        with sending(collector.otlp_grpc, f"large-{name}", **how.get(name, {})) as sender:
            sender.span("large", assembly__policy__config="x" * 5_000_000)
            sender.flush()
            wait_until(lambda: collector.measured("otelcol_receiver_accepted_spans") == 1, seconds=60, what="the span")
    finally:
        collector.stop()
