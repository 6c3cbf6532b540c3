"""Whatever a program does: every call of its model has an assembly that says what the client received."""

from __future__ import annotations

import sys

import pytest
from google_adk_models import Stage, assert_told
from google_adk_programs import PROGRAMS
from opentelemetry import trace

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


@every_program
async def test_every_call_has_its_assembly(told, program):
    stage = Stage()
    await program(stage)
    assert stage.received
    assert_told(told, stage.received, stage.unsent)
    assert len({span.trace_id for span in told.spans}) == stage.runs


@pytest.fixture
def adk_traces(told, monkeypatch):
    """ADK's own spans are recorded, where ours are."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", told.tracer_provider)
    own = told.tracer_provider.get_tracer("gcp.vertex.agent")
    for name, module in list(sys.modules.items()):
        if name.startswith("google.adk.") and "tracer" in vars(module):
            monkeypatch.setattr(module, "tracer", own)
    return told


@every_program
async def test_beside_its_own_telemetry_every_model_call_span_names_its_assembly(adk_traces, program):
    stage = Stage()
    await program(stage)
    assemblies = assert_told(adk_traces, stage.received, stage.unsent)
    ids = {assembly.attributes["assembly.id"] for assembly in assemblies}
    calls = [span for span in adk_traces.spans if span.name.startswith("generate_content")]
    assert calls
    assert {span.attributes.get("assembly.id") for span in calls} <= ids
    assert len({span.attributes["assembly.id"] for span in calls}) == len(calls) or program.__name__ == "falls_back"
    ours = [span for span in adk_traces.spans if span.scope == "otel_assembly"]
    assert not [span for span in ours if span.name.startswith("invoke_agent")]
    assert all(span.parent is not None for span in ours)
    assert len({span.trace_id for span in adk_traces.spans}) == stage.runs


@every_program
async def test_a_program_says_and_sends_the_same_with_and_without_us(program, capsys):
    alone = Stage()
    answers = await program(alone)
    printed = capsys.readouterr()
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("google_adk")
        try:
            observed = Stage()
            assert await program(observed) == answers
        finally:
            uninstrument("google_adk")
    assert capsys.readouterr().out == printed.out
    assert [request.said for request in observed.received] == [request.said for request in alone.received]
    assert [summary.said for summary in observed.summaries] == [summary.said for summary in alone.summaries]
    telemetry.shutdown()
