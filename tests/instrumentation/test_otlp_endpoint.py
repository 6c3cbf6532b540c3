"""Where nobody takes what is exported on this machine, a warning names the file exporter; no other machine is asked."""

from __future__ import annotations

import logging
import socket

import pytest

from otel_assembly.instrumentation import hint_at_file


@pytest.fixture
def port():
    """A port of this machine on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def hint(monkeypatch, caplog):
    def hint(**environment):
        for name, value in {"OTEL_TRACES_EXPORTER": "otlp", **environment}.items():
            monkeypatch.setenv(name, value)
        with caplog.at_level(logging.WARNING, "otel_assembly"):
            hint_at_file()
        return caplog.messages

    return hint


@pytest.mark.parametrize("form", ["http://127.0.0.1:{}", "127.0.0.1:{}", "http://localhost:{}/"])
@pytest.mark.parametrize("exporters", ["otlp", "console, otlp", "otlp_proto_grpc", "otlp_proto_http"])
def test_nobody_at_an_endpoint_of_this_machine_is_told_with_the_way_to_a_file(hint, port, form, exporters):
    (said,) = hint(OTEL_EXPORTER_OTLP_ENDPOINT=form.format(port), OTEL_TRACES_EXPORTER=exporters)
    assert form.format(port) in said
    assert "OTEL_TRACES_EXPORTER=otel_assembly_file" in said


@pytest.mark.parametrize(("exporter", "port"), [("otlp_proto_grpc", 4317), ("otlp_proto_http", 4318)])
def test_the_default_endpoint_is_that_of_the_exporters_protocol(hint, monkeypatch, exporter, port):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf" if port == 4317 else "grpc")
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: (_ for _ in ()).throw(ConnectionRefusedError))
    (warning,) = hint(OTEL_TRACES_EXPORTER=exporter)
    assert f"http://localhost:{port}" in warning


def test_a_collector_that_answers_is_not_told_of(hint, receiver):
    assert hint(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}") == []


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_TRACES_EXPORTER": "otel_assembly_file"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_EXPORTER": "otlp_json_file"},
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.example:4317"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[:4317"},
    ],
)
def test_nobody_is_asked_where_nothing_would_go_or_on_another_machine(hint, port, monkeypatch, environment):
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("somebody is asked"))
    assert hint(**{"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", **environment}) == []
