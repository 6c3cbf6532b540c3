"""What is wrapped, and what is given back; what is imported when; the examples."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import agents
import openai.resources.responses.responses as responses  # waited for as well
import pytest
from agents import Agent, Model, RunConfig, Runner, SQLiteSession
from openai_agents_models import ScriptedModel, Stage, history
from openai_agents_programs import newest

from otel_assembly.instrumentation import HookState, OpenAIAgentsInstrumentor, instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

FILTERED = RunConfig(call_model_input_filter=newest)


def test_every_hook_takes():
    assert responses.AsyncResponses.compact
    instrument("openai_agents")
    try:
        states = {state for name, state in OpenAIAgentsInstrumentor().states.items() if "sandbox" not in name}
        assert states == {HookState.TAKEN}
    finally:
        uninstrument("openai_agents")


async def test_all_that_was_wrapped_is_given_back(assembly_telemetry):
    internal = agents.run_internal
    owners = [Model, ScriptedModel, agents.run, agents.run.AgentRunner, SQLiteSession, internal.run_loop,
              internal.turn_resolution, agents.OpenAIResponsesCompactionSession, responses.AsyncResponses]  # fmt: skip
    before = [dict(vars(owner)) for owner in owners]
    with assembly_telemetry.as_default():
        instrument("openai_agents")
        try:

            class LateModel(ScriptedModel):
                async def get_response(self, *arguments: Any, **given: Any) -> Any:
                    return await super().get_response(*arguments, **given)

            agent = Agent("later", model=LateModel(Stage(), "Done."))
            await Runner.run(agent, "Go", session=SQLiteSession("given back"))
            now = [dict(vars(owner)) for owner in owners]
            assert all(message != other for message, other in zip(now, before, strict=True))
        finally:
            uninstrument("openai_agents")
    assert [dict(vars(owner)) for owner in owners] == before
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1
    await Runner.run(agent, "Go again")
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1


async def test_agents_that_were_built_before_are_seen(assembly_telemetry):
    agent, session = Agent("before", model=ScriptedModel(Stage(), "Done.")), SQLiteSession("built before")
    await session.add_items(history(2))
    with assembly_telemetry.as_default():
        instrument("openai_agents")
        try:
            await Runner.run(agent, "Go", session=session, run_config=FILTERED)
        finally:
            uninstrument("openai_agents")
    assert assembly_telemetry.span("assemble_context").attributes["assembly.dropped.count"] == 2


def test_a_sync_run_is_seen_as_well(assembly_telemetry):
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # the one that is taken; nobody else closes it
    with assembly_telemetry.as_default(), closing(loop):
        instrument("openai_agents")
        try:
            agent = Agent("sync", model=ScriptedModel(Stage(), "Done."))
            assert Runner.run_sync(agent, "Go").final_output == "Done."
        finally:
            uninstrument("openai_agents")
            asyncio.set_event_loop(None)
    told = assembly_telemetry.span("assemble_context")
    assert told.attributes["assembly.model"] == "gpt-4o"
    assert told.parent.name == "invoke_agent sync"


@pytest.mark.parametrize(
    "breaks",
    ["runs.items_of", "runs.as_prompts", "runs.session_id_of", "runs.name_of", "reducers.items_of", "reducers.same"],
)
async def test_what_fails_of_ours_is_not_felt(monkeypatch, breaks):
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ours")

    module, _, name = breaks.partition(".")
    import otel_assembly.instrumentation.openai_agents.reducers as reducers
    import otel_assembly.instrumentation.openai_agents.runs as runs

    monkeypatch.setattr({"runs": runs, "reducers": reducers}[module], name, broken)
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("openai_agents")
        try:
            other = Agent("other", model=ScriptedModel(Stage(), "Done."))
            agent = Agent("broken", model=ScriptedModel(Stage(), "call:transfer_to_other"), handoffs=[other])
            session = SQLiteSession("broken")
            assert (await Runner.run(agent, "Go", session=session, run_config=FILTERED)).final_output == "Done."
            result = Runner.run_streamed(agent, "Go", session=session, run_config=FILTERED)
            assert [event async for event in result.stream_events()]
            assert result.final_output == "Done."
        finally:
            uninstrument("openai_agents")
    assert telemetry.metric("assembly.telemetry.errors") > 0
    telemetry.shutdown()


def test_nothing_of_the_sdk_is_imported_for_it(imported):
    assert imported("openai_agents", "agents", "openai") == []


def test_the_lost_request_is_explained_from_the_traces_of_an_unmodified_agent(explained):
    said, lost = explained("openai_agents", turn=3)
    assert said[1] == "guide: Take the lift behind the desk."
    assert said[3] == "guide: Take the stairs on the left."
    assert "session_limit" in lost


def test_the_plug_in_s_example_keeps_the_request(kept):
    assert kept("openai_agents").startswith("All ten.")
