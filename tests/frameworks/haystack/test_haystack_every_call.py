"""Whatever a program does: every call of its model has an assembly that says what the client received."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from haystack import tracing
from haystack_models import OwnTracer, Received, Stage, assert_told
from haystack_programs import PROGRAMS

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


async def ran(program: Any, stage: Stage) -> Any:
    came_to = program(stage)
    return await came_to if inspect.isawaitable(came_to) else came_to


def said(received: list[Received]) -> list[Any]:
    """What the models were given, one conversation behind the other: threads settle which of several asks first."""
    return [
        request.said for request in sorted(received, key=lambda message: [event.texts for event in message.events[:1]])
    ]


@every_program
async def test_every_call_has_its_assembly(told, program):
    stage = Stage()
    await ran(program, stage)
    assert stage.received
    assert_told(told, stage.received)
    assert len({span.trace_id for span in told.spans}) == stage.runs


@every_program
async def test_beside_its_own_telemetry_ours_stands_in_it(told, program):
    stage = Stage()
    tracing.enable_tracing(OwnTracer(told))
    try:
        await ran(program, stage)
    finally:
        tracing.disable_tracing()
    assemblies = assert_told(told, stage.received)
    assert not told.spans_named("invoke_agent Agent")
    assert len({span.trace_id for span in assemblies}) == stage.runs


@every_program
async def test_a_program_says_and_sends_the_same_with_and_without_us(program, capsys):
    alone = Stage()
    answers = await ran(program, alone)
    printed = capsys.readouterr()
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("haystack")
        try:
            observed = Stage()
            assert await ran(program, observed) == answers
        finally:
            uninstrument("haystack")
    assert capsys.readouterr() == printed
    assert said(observed.received) == said(alone.received)
    assert said(observed.summaries) == said(alone.summaries)
    telemetry.shutdown()
