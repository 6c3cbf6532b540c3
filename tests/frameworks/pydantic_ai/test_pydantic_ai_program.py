"""What is wrapped, and what is given back; what is imported when; the examples."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory, combined
from pydantic_ai.models import Model
from pydantic_ai.models.test import TestModel
from pydantic_ai_models import ScriptedModel, Stage, history

from otel_assembly.instrumentation import HookState, PydanticAIInstrumentor, instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry


def test_every_hook_takes():
    instrument("pydantic_ai")
    try:
        assert set(PydanticAIInstrumentor().states.values()) == {HookState.TAKEN}
    finally:
        uninstrument("pydantic_ai")


async def test_all_that_was_wrapped_is_given_back(assembly_telemetry):
    class Own(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            return request_context

    owners = [Model, ScriptedModel, TestModel, combined.CombinedCapability, ProcessHistory, Own, AbstractCapability]
    before = [dict(vars(owner)) for owner in owners]
    with assembly_telemetry.as_default():
        instrument("pydantic_ai")
        try:

            class LateModel(ScriptedModel):
                async def request(self, *arguments: Any) -> Any:
                    return await super().request(*arguments)

            agent = Agent(LateModel(Stage(), "Done."), capabilities=[Own(), ProcessHistory(lambda messages: messages)])
            await agent.run("Go")
            assert [dict(vars(owner)) for owner in owners] != before
        finally:
            uninstrument("pydantic_ai")
    assert [dict(vars(owner)) for owner in owners] == before
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1
    await agent.run("Go again")
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1


async def test_agents_that_were_built_before_are_seen(assembly_telemetry):
    stage = Stage()
    agent = Agent(ScriptedModel(stage, "Done."), capabilities=[ProcessHistory(lambda messages: messages[-1:])])
    with assembly_telemetry.as_default():
        instrument("pydantic_ai")
        try:
            await agent.run("Go", message_history=history(2))
        finally:
            uninstrument("pydantic_ai")
    assert assembly_telemetry.span("assemble_context").attributes["assembly.dropped.count"] == 4


def test_a_sync_run_is_seen_as_well(assembly_telemetry):
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # the one that is taken; nobody else closes it
    with assembly_telemetry.as_default(), closing(loop):
        instrument("pydantic_ai")
        try:
            assert Agent(TestModel(), name="sync").run_sync("Go").output
        finally:
            uninstrument("pydantic_ai")
            asyncio.set_event_loop(None)
    told = assembly_telemetry.span("assemble_context")
    assert told.attributes["assembly.model"] == "test"
    assert told.parent.name == "invoke_agent sync"


@pytest.mark.parametrize("breaks", ["split_prompts", "instructions_of", "schemas_of"])
async def test_what_fails_of_ours_is_not_felt(monkeypatch, breaks):
    import otel_assembly.instrumentation.pydantic_ai.calls as calls

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr(calls, breaks, broken)
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("pydantic_ai")
        try:
            agent = Agent(ScriptedModel(Stage(), "Done."), capabilities=[ProcessHistory(lambda messages: messages)])
            assert (await agent.run("Go")).output == "Done."
            async with agent.run_stream("Go") as result:
                assert await result.get_output() == "Done."
        finally:
            uninstrument("pydantic_ai")
    assert telemetry.metric("assembly.telemetry.errors") > 0
    telemetry.shutdown()


def test_nothing_of_pydantic_ai_is_imported_for_it(imported):
    assert imported("pydantic_ai", "pydantic_ai") == []


def test_the_lost_request_is_explained_from_the_traces_of_an_unmodified_agent(explained):
    said, lost = explained("pydantic_ai", turn=3)
    assert said[1] == "guide: Take the lift behind the desk."
    assert said[3] == "guide: Take the stairs on the left."
    assert "keep_recent" in lost


def test_the_plug_in_s_example_keeps_the_request(kept):
    assert kept("pydantic_ai").startswith("All ten.")
