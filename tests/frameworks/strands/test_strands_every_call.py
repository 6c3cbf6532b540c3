"""Whatever a program does: every call of its model has an assembly that says what the client received."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from strands.telemetry import tracer as strands_tracer
from strands_models import Stage, assert_told
from strands_programs import PROGRAMS

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


@every_program
async def test_every_call_has_its_assembly(told, program):
    stage = Stage()
    await program(stage)
    assert stage.received
    assert_told(told, stage.received)
    assert len({span.trace_id for span in told.spans}) == stage.runs
    assert sum(span.name.startswith("compact_block") for span in told.spans) == len(stage.summaries)


@every_program
async def test_beside_its_own_telemetry_every_model_call_span_names_its_assembly(told, program, monkeypatch):
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: told.tracer_provider)
    monkeypatch.setattr(strands_tracer, "_tracer_instance", None)
    stage = Stage()
    await program(stage)
    assemblies = assert_told(told, stage.received)
    ids = {assembly.attributes["assembly.id"] for assembly in assemblies}
    chats = told.spans_named("chat")
    assert sum(chat.attributes.get("assembly.id") not in ids for chat in chats) <= len(stage.summaries)
    assert chats or program.__name__ in {"direct", "structured_alone"}
    assert len({span.trace_id for span in told.spans}) == stage.runs


@every_program
async def test_a_program_says_and_sends_the_same_with_and_without_us(program, capsys):
    alone = Stage()
    answers = await program(alone)
    printed = capsys.readouterr()
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("strands")
        try:
            observed = Stage()
            assert await program(observed) == answers
        finally:
            uninstrument("strands")
    assert capsys.readouterr() == printed
    assert [request.said for request in observed.received] == [request.said for request in alone.received]
    assert [summary.said for summary in observed.summaries] == [summary.said for summary in alone.summaries]
    telemetry.shutdown()
