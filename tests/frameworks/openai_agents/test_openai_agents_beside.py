"""Beside what brings the SDK's own traces to OpenTelemetry: ours stand in its spans, and its model calls name them."""

from __future__ import annotations

from importlib import import_module

import pytest
from agents import set_trace_processors, set_tracing_disabled
from openai_agents_models import BRIDGES, Stage, assert_told
from openai_agents_programs import PROGRAMS


@pytest.fixture(params=BRIDGES)
def bridge(request, told):
    module = f"{request.param}.instrumentation.openai_agents"
    set_trace_processors([])
    set_tracing_disabled(False)
    other = import_module(module).OpenAIAgentsInstrumentor()
    other.instrument(tracer_provider=told.tracer_provider)
    yield other
    other.uninstrument()
    set_trace_processors([])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
async def test_ours_stand_in_its_spans_and_each_model_call_names_its_assembly(told, bridge, program):
    stage = Stage()
    await program(stage)
    assemblies = assert_told(told, stage.received)
    assert len({span.trace_id for span in assemblies}) == stage.runs
    ours = [span for span in told.spans if span.scope == "otel_assembly"]
    alone = [span for span in ours if span.name.startswith("invoke_agent")]
    named = {span.attributes["assembly.id"] for span in told.spans
             if span.scope != "otel_assembly" and "assembly.id" in span.attributes}  # fmt: skip
    if alone:  # a run that it tells nothing of, as of one that is resumed: there is a span of ours
        assert program.__name__.startswith("approved_later")
    else:
        assert named == {span.attributes["assembly.id"] for span in assemblies}
    assert all(span.parent is not None for span in ours if span not in alone)
