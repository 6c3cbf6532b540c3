"""Whatever a program does: every call of its model has an assembly that says what the client received."""

from __future__ import annotations

import importlib.util

import pytest
from llama_index_instrumentation import root_dispatcher
from llama_index_models import Stage, assert_told
from llama_index_programs import PROGRAMS
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)

#: Programs that call a model outside of any run: its own span begins behind what it is given.
CALL_BY_THEMSELVES = {"composed", "own_loop", "own_loop_in_a_thread", "completed", "called_directly"}


@every_program
async def test_every_call_has_its_assembly(told, program):
    stage = Stage()
    await program(stage)
    assert stage.received
    assert_told(told, stage.received)
    assert len({span.trace_id for span in told.spans}) == stage.runs


if importlib.util.find_spec("llama_index.observability") is not None:

    @every_program
    async def test_beside_its_own_telemetry_all_stands_in_its_spans(told, program):
        from llama_index.observability.otel import LlamaIndexOpenTelemetry

        handlers = list(root_dispatcher.span_handlers), list(root_dispatcher.event_handlers)
        LlamaIndexOpenTelemetry(
            tracer_provider=told.tracer_provider, span_exporter=InMemorySpanExporter()
        ).start_registering()
        stage = Stage()
        try:
            await program(stage)
        finally:
            root_dispatcher.span_handlers, root_dispatcher.event_handlers = handlers
        assemblies = assert_told(told, stage.received)
        assert all(span.parent_id is not None for span in assemblies) or program.__name__ in CALL_BY_THEMSELVES
        assert len({span.trace_id for span in assemblies}) <= stage.runs
        assert not [span for span in told.spans if span.name.startswith("invoke_agent")]


@every_program
async def test_a_program_says_and_sends_the_same_with_and_without_us(program, capsys):
    alone = Stage()
    answers = await program(alone)
    printed = capsys.readouterr()
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("llama_index")
        try:
            observed = Stage()
            assert await program(observed) == answers
        finally:
            uninstrument("llama_index")
    assert capsys.readouterr() == printed
    assert [request.said for request in observed.received] == [request.said for request in alone.received]
    assert [summary.said for summary in observed.summaries] == [summary.said for summary in alone.summaries]
    telemetry.shutdown()
