"""What is wrapped, and what is given back; what is imported when; the examples."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import pytest
from google.adk.agents import Agent
from google.adk.flows.llm_flows import base_llm_flow
from google.adk.models.base_llm import BaseLlm
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.adk.runners import Runner
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from google_adk_models import ScriptedLlm, Stage, Talk

from otel_assembly.instrumentation import GoogleADKInstrumentor, HookState, instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry


def test_every_hook_takes_that_this_release_has():
    instrument("google_adk")
    try:
        instrumentor = GoogleADKInstrumentor()
        expected = {hook.name: hook for hook in instrumentor.hooks if hook.expected(instrumentor.version)}
        for hook in expected.values():
            import_module(hook.module)
        assert {instrumentor.states[name] for name in expected} == {HookState.TAKEN}
        assert len(expected) == 20
    finally:
        uninstrument("google_adk")


async def test_all_that_was_wrapped_is_given_back(assembly_telemetry):
    class Own(BasePlugin):
        async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
            llm_request.contents = llm_request.contents[-1:]

    owners: list[Any] = [
        BaseLlm, ScriptedLlm, BasePlugin, ContextFilterPlugin, Own, BaseTool, PreloadMemoryTool, Runner,
        base_llm_flow.BaseLlmFlow, *(sys.modules[hook.module] for hook in GoogleADKInstrumentor.hooks
                                     if hook.module in sys.modules),
    ]  # fmt: skip
    before = [dict(vars(owner)) for owner in owners]
    stage = Stage()
    with assembly_telemetry.as_default():
        instrument("google_adk")
        try:

            class LateModel(ScriptedLlm):
                async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
                    async for answer in super().generate_content_async(llm_request, stream):
                        yield answer

            talk = Talk(Agent(name="bob", model=LateModel(stage, "Done.")), plugins=[Own("own")])
            await talk.say("Go")
            assert [dict(vars(owner)) for owner in owners] != before
        finally:
            uninstrument("google_adk")
    assert [dict(vars(owner)) for owner in owners] == before
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1
    await talk.say("Go again")
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1


async def test_agents_that_were_built_before_are_seen(assembly_telemetry):
    model = ScriptedLlm(Stage(), "Done.")
    talk = Talk(Agent(name="bob", model=model), plugins=[ContextFilterPlugin(num_invocations_to_keep=1)])
    await talk.say("One")
    with assembly_telemetry.as_default():
        instrument("google_adk")
        try:
            await talk.say("Two")
        finally:
            uninstrument("google_adk")
    assert assembly_telemetry.span("assemble_context").attributes["assembly.dropped.count"] == 2


@pytest.mark.parametrize("breaks", ["schemas_of", "prompts_of", "AgentCall"])
async def test_what_fails_of_ours_is_not_felt(monkeypatch, breaks):
    import otel_assembly.instrumentation.google_adk.calls as calls

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr(calls, breaks, broken)
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("google_adk")
        try:
            talk = Talk(
                Agent(name="bob", model=ScriptedLlm(Stage(), "Done."), tools=[PreloadMemoryTool()]),
                plugins=[ContextFilterPlugin(num_invocations_to_keep=1)],
            )
            assert await talk.say("Go") == ["bob: Done."]
            assert await talk.say("Go") == ["bob: Done."]
        finally:
            uninstrument("google_adk")
    assert telemetry.metric("assembly.telemetry.errors") > 0
    telemetry.shutdown()


def test_nothing_of_adk_is_imported_for_it(imported):
    assert imported("google_adk", "google.adk", "google.genai") == []


def test_the_lost_request_is_explained_from_the_traces_of_an_unmodified_agent(explained):
    said, lost = explained("google_adk", turn=5)
    assert said[1] == "guide: Take the lift behind the desk."
    assert said[5] == "guide: Take the stairs on the left."
    assert "context_filter" in lost
    assert "outside_window" in lost


def test_the_plug_in_s_example_keeps_the_request(kept):
    assert kept("google_adk").startswith("All ten.")
