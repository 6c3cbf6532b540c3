"""``otel-assembly demo`` and ``otel-assembly doctor``."""

from __future__ import annotations

import pytest

from otel_assembly.telemetry.store_reader import read_spans


def test_the_demo_shows_an_overflow_a_warning_and_a_halt(otel_assembly, tmp_path):
    ran = otel_assembly("demo", "--output", "spans.jsonl")
    assert ran.status == 0, ran.err
    spans = list(read_spans(tmp_path / "spans.jsonl"))
    events = {event.name: event.attributes for span in spans for event in span.events}
    assert events["assembly.overflow"]["assembly.overflow.cause"] == "newest_atom"
    severities = {
        event.attributes["assembly.alert.severity"]
        for span in spans
        for event in span.events
        if event.name == "assembly.alert"
    }
    assert {"warning", "critical"} <= severities
    assert "FATAL" in events["assembly.halt"]["assembly.halt.reason"]
    halted = [span for span in spans if any(event.name == "assembly.halt" for event in span.events)]
    assert [span.name for span in halted] == ["invoke_agent support"]
    assert all(span.status == "ERROR" for span in halted)
    for shown in (
        "OVERFLOW",
        "WARNING",
        "HALT",
        "assemble_context",
        "apply_policy budget",
        "allocate_budget",
        "allocate_block query",
    ):
        assert shown in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100


def test_the_demo_also_sends_its_spans_where_the_environment_says(otel_assembly, receiver):
    endpoint = f"http://127.0.0.1:{receiver.port}"
    ran = otel_assembly("demo", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert ran.status == 0, ran.err
    assert f"sent to {endpoint}" in ran.out
    sent = [span.name for span in receiver.spans()]
    assert sent.count("assemble_context") == ran.out.count("assemble_context") > 0


def test_doctor_finds_an_endpoint_that_answers(otel_assembly, receiver):
    ran = otel_assembly("doctor", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}")
    assert ran.status == 0
    assert "answers" in ran.out


def test_nothing_starts_after_the_halt(otel_assembly):
    spoken = otel_assembly("demo").out.split("Its spans:")[0].strip().splitlines()
    assert spoken[-1].split()[0] == "halted"
    assert spoken[-2].split()[0] == "agent", "the tool call that was asked for last must not have been made"


def test_a_second_demo_shows_its_own_spans_only(otel_assembly):
    first = otel_assembly("demo", "--output", "spans.jsonl").out
    second = otel_assembly("demo", "--output", "spans.jsonl").out
    assert first.count("assemble_context") == second.count("assemble_context")


def test_the_demo_fits_an_ascii_terminal(otel_assembly):
    ran = otel_assembly("demo", PYTHONIOENCODING="ascii")
    assert ran.status == 0, ran.err
    assert ran.out.isascii()


def test_the_demo_says_where_it_cannot_write(otel_assembly):
    ran = otel_assembly("demo", "--output", "missing/folder/spans.jsonl")
    assert ran.status == 2
    assert "missing/folder/spans.jsonl" in ran.err


def test_doctor_finds_the_tokenizers_and_no_endpoint(otel_assembly):
    ran = otel_assembly("doctor")
    assert ran.status == 0
    assert "o200k_base" in ran.out
    assert "cl100k_base" in ran.out
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is not set" in ran.out
    assert "not captured" in ran.out


def test_doctor_fails_for_an_endpoint_that_nobody_answers(otel_assembly):
    ran = otel_assembly("doctor", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert ran.status == 1
    assert "nobody answers" in ran.out


@pytest.mark.parametrize(
    ("model", "said"), [("gpt-4o", "exactly, by o200k_base"), ("claude-sonnet-4-5", "estimated by o200k_base")]
)
def test_doctor_says_what_counts_for_a_model(otel_assembly, model, said):
    ran = otel_assembly("doctor", "--model", model)
    assert said in ran.out


def test_doctor_says_that_content_is_captured(otel_assembly):
    ran = otel_assembly("doctor", OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="SPAN_ONLY")
    assert "captured (SPAN_ONLY)" in ran.out


@pytest.mark.parametrize("command", ["demo", "replay", "doctor"])
def test_every_command_has_help(otel_assembly, command):
    ran = otel_assembly(command, "--help")
    assert ran.status == 0
    assert command in ran.out


def test_no_command_is_wrong_usage(otel_assembly):
    assert otel_assembly().status == 2
