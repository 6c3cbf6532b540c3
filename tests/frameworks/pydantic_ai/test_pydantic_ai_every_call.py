"""Whatever a program does: every call of its model has an assembly that says what the client received."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai_models import Stage, assert_told
from pydantic_ai_programs import PROGRAMS

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


@every_program
async def test_beside_its_own_telemetry_every_model_call_span_names_its_assembly(told, program):
    stage = Stage()
    Agent.instrument_all(InstrumentationSettings(tracer_provider=told.tracer_provider))
    try:
        await program(stage)
    finally:
        Agent.instrument_all(False)
    assemblies = assert_told(told, stage.received)
    for assembly in assemblies:
        if assembly.parent is not None and assembly.parent.name.startswith("chat "):
            ids = [child.attributes["assembly.id"] for child in assembly.parent.children if child.name == assembly.name]
            assert assembly.parent.attributes["assembly.id"] in ids
    assert all(span.parent is not None for span in told.spans if span.scope == "otel_assembly")
    assert len({span.trace_id for span in assemblies}) == stage.runs


@every_program
async def test_a_program_says_and_sends_the_same_with_and_without_us(program, capsys):
    alone = Stage()
    answers = await program(alone)
    printed = capsys.readouterr()
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("pydantic_ai")
        try:
            observed = Stage()
            assert await program(observed) == answers
        finally:
            uninstrument("pydantic_ai")
    assert capsys.readouterr() == printed
    assert [request.said for request in observed.received] == [request.said for request in alone.received]
    assert [summary.said for summary in observed.summaries] == [summary.said for summary in alone.summaries]
    telemetry.shutdown()
