"""Whatever a program does: every call of its model has an assembly that says what the client received."""

from __future__ import annotations

import pytest
from openai_agents_models import Stage, assert_told
from openai_agents_programs import PROGRAMS

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
    assert all(span.parent is not None for span in told.spans if not span.name.startswith("invoke_agent"))


@every_program
async def test_a_program_says_and_sends_the_same_with_and_without_us(program, capsys):
    alone = Stage()
    answers = await program(alone)
    printed = capsys.readouterr()
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("openai_agents")
        try:
            observed = Stage()
            assert await program(observed) == answers
        finally:
            uninstrument("openai_agents")
    assert capsys.readouterr() == printed
    assert [request.said for request in observed.received] == [request.said for request in alone.received]
    assert [summary.said for summary in observed.summaries] == [summary.said for summary in alone.summaries]
    telemetry.shutdown()
