"""Whatever a program does: every call of its model has an assembly that says what the client received."""

from __future__ import annotations

from functools import partial

import pytest
from agent_framework import Agent, WorkflowBuilder
from agent_programs import PROGRAMS, Stage, without_any_layer, workflow_of_two
from scripted_clients import ScriptedClient, assert_told

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is experimental"),
    pytest.mark.filterwarnings("ignore:WorkflowBuilder built without:DeprecationWarning"),  # of 1.11
]

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


@every_program
async def test_every_call_has_its_assembly(told, program):
    stage = Stage()
    await program(stage)
    assemblies = assert_told(told, stage.received)
    assert len({span.trace_id for span in assemblies}) == stage.runs


@every_program
async def test_every_call_has_its_assembly_beside_the_frameworks_own_spans(own_spans, program):
    stage = Stage()
    await program(stage)
    assemblies = assert_told(own_spans, stage.received)
    assert len({span.trace_id for span in assemblies}) == stage.runs
    stamps = [span.attributes.get("assembly.id") for span in own_spans.spans if span.name.startswith("chat ")]
    assert stamps.count(None) == len(stage.summaries)
    assert bool(stamps) == (program is not without_any_layer)
    assert set(stamps) - {None} <= {assembly.attributes["assembly.id"] for assembly in assemblies}


@pytest.mark.parametrize(("given", "named"), [(None, "Workflow"), ("review", "review"), ("WorkflowBuilder-2",) * 2])
async def test_a_workflow_is_called_as_its_program_names_it_and_else_by_its_class(told, monkeypatch, given, named):
    monkeypatch.setattr("agent_programs.WorkflowBuilder", partial(WorkflowBuilder, name=given))
    await workflow_of_two(Stage())
    (run,) = (span for span in told.spans if span.parent is None)
    assert (run.name, run.attributes["gen_ai.agent.name"]) == (f"invoke_agent {named}", named)


@every_program
async def test_a_program_says_and_sends_the_same_with_and_without_us(program):
    alone = Stage()
    answers = await program(alone)
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("agent_framework")
        try:
            observed = Stage()
            assert await program(observed) == answers
        finally:
            uninstrument("agent_framework")
    assert [request.said for request in observed.received] == [request.said for request in alone.received]
    assert [summary.said for summary in observed.summaries] == [summary.said for summary in alone.summaries]
    telemetry.shutdown()


async def test_what_the_service_holds_is_not_known(told):
    agent = Agent(ScriptedClient("Yes."), name="bob")
    await agent.run("Where?")
    await agent.run("And now?", options={"conversation_id": "conv_0"})
    await agent.run("So?", session=agent.get_session("resp_0"))
    known = [span.attributes.get("assembly.input.unknown") for span in told.spans_named("assemble_context")]
    assert known == [None, True, True]
