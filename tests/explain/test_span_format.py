"""Spans in a format of another version are refused, and the others are read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from otel_assembly import Assembler, Context, SlidingWindowPolicy
from otel_assembly.cli import main
from otel_assembly.errors import SpanFormatError
from otel_assembly.telemetry import OpenTelemetryRecorder, SpanFileExporter, read_ledgers

VERSION = "assembly.format.version"


async def assembled(telemetry, conversation):
    assembler = Assembler([SlidingWindowPolicy(2)], recorder=telemetry.recorder)
    context = Context(conversation_id=conversation, model="gpt-4o")
    await assembler.assemble([], [{"role": "user", "content": "hello"}], context)


def with_version(spans, version):
    return [
        replace(span, attributes={**span.attributes, VERSION: version}) if VERSION in span.attributes else span
        for span in spans
    ]


def without_version(spans):
    return [
        replace(span, attributes={name: value for name, value in span.attributes.items() if name != VERSION})
        for span in spans
    ]


async def test_an_assembly_span_has_the_version_of_its_format(assembly_telemetry):
    await assembled(assembly_telemetry, "c")

    assert assembly_telemetry.span("assemble_context").attributes[VERSION] == 1


@pytest.mark.parametrize(
    ("changed", "found"), [(without_version, "no format version"), (lambda spans: with_version(spans, 2), "version 2")]
)
async def test_spans_of_another_format_are_refused_with_one_sentence(assembly_telemetry, changed, found):
    await assembled(assembly_telemetry, "c")

    with pytest.raises(SpanFormatError, match=f"{found}.*reads version 1.*record them again"):
        read_ledgers(changed(assembly_telemetry.spans))


async def test_next_to_spans_that_can_be_read_others_are_a_problem(assembly_telemetry):
    await assembled(assembly_telemetry, "old")
    old = without_version(assembly_telemetry.spans)
    problems = []
    await assembled(assembly_telemetry, "new")
    spans = [*old, *assembly_telemetry.spans[len(old) :]]

    (ledger,) = read_ledgers(spans, on_problem=problems.append).values()

    assert ledger.turns[0].attributes["gen_ai.conversation.id"] == "new"
    assert len(problems) == 1
    assert "no format version" in problems[0]


@pytest.mark.parametrize("command", ["explain", "view"])
async def test_the_command_line_refuses_a_file_of_another_format(tmp_path, capsys, command):
    spans = tmp_path / "spans.jsonl"
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(SpanFileExporter(spans)))
    assembler = Assembler([SlidingWindowPolicy(2)], recorder=OpenTelemetryRecorder(tracer_provider=provider))
    await assembler.assemble([], [{"role": "user", "content": "hello"}], Context(model="gpt-4o"))
    provider.shutdown()
    spans.write_text(spans.read_text().replace(VERSION, "assembly.of.another"))

    arguments = ["explain", "--traces", spans, "--overflowed"] if command == "explain" else ["view", spans, "--output"]
    status = main([*map(str, arguments), *([str(tmp_path / "page.html")] if command == "view" else [])])

    errors = capsys.readouterr().err
    assert status != 0
    assert errors.count("\n") == 1
    assert "this version of otel-assembly reads version 1" in errors
