"""What is wrapped, and what is given back; what is imported when; the examples."""

from __future__ import annotations

import sys
from typing import Any

import haystack_programs as programs
import pytest
from haystack import Pipeline, component
from haystack.components.agents import Agent, agent
from haystack.components.generators.chat import MockChatGenerator, OpenAIChatGenerator
from haystack.core.component.component import ComponentMeta
from haystack.dataclasses import ChatMessage
from haystack.tools.tool import Tool
from haystack_models import AwaitedGenerator, ScriptedGenerator, Stage, history

from otel_assembly.instrumentation import HaystackInstrumentor, HookState, instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

asked = ChatMessage.from_user


def test_every_hook_takes():
    import haystack.hooks.human_in_the_loop

    if programs.COMPACTORS:
        import haystack.hooks.compaction.hooks

    assert haystack.hooks.human_in_the_loop
    instrument("haystack")
    try:
        states = HaystackInstrumentor().states
        expected = {HookState.TAKEN}
        assert {state for name, state in states.items() if programs.COMPACTORS or "compaction" not in name} == expected
    finally:
        uninstrument("haystack")


def test_all_that_was_wrapped_is_given_back(assembly_telemetry):
    class Own:
        def run(self, state: Any) -> None:
            state.data["messages"] = state.data["messages"][-1:]

    owners = [
        ScriptedGenerator, AwaitedGenerator, MockChatGenerator, OpenAIChatGenerator, Agent, Pipeline, ComponentMeta,
        Tool, Own, agent, programs.Duck,
    ]  # fmt: skip
    before = [dict(vars(owner)) for owner in owners]
    with assembly_telemetry.as_default():
        instrument("haystack")
        try:

            class Undecorated(ScriptedGenerator):
                def run(self, messages: list[ChatMessage], tools: Any = None) -> Any:
                    return ScriptedGenerator.run(self, messages, tools=tools)

            later: Any = component(Undecorated)
            talker = Agent(chat_generator=later(Stage(), "Done."), hooks={"before_llm": [Own()]})
            Agent(chat_generator=programs.Duck(Stage()), tools=[programs.look]).run([asked("Go")])
            talker.run([asked("Go")])
            assert [dict(vars(owner)) for owner in owners] != before
        finally:
            uninstrument("haystack")
    assert [dict(vars(owner)) for owner in owners] == before
    told = len(assembly_telemetry.spans_named("assemble_context"))
    assert told == 3
    assert not hasattr(vars(later)["run"], "__wrapped__")
    assert not hasattr(vars(Undecorated)["run"], "__wrapped__")
    talker.run([asked("Go again")])
    assert len(assembly_telemetry.spans_named("assemble_context")) == told


def test_agents_that_were_built_before_are_seen(assembly_telemetry):
    talker = Agent(chat_generator=ScriptedGenerator(Stage(), "Done."), hooks={"before_llm": [programs.newest]})
    with assembly_telemetry.as_default():
        instrument("haystack")
        try:
            talker.run([*history(3), asked("Go")])
        finally:
            uninstrument("haystack")
    assert assembly_telemetry.span("assemble_context").attributes["assembly.dropped.count"] == 3


@pytest.mark.parametrize("breaks", ["split_prompts", "input_messages", "schema_of"])
async def test_what_fails_of_ours_is_not_felt(monkeypatch, breaks):
    import otel_assembly.instrumentation.haystack.calls as calls
    import otel_assembly.instrumentation.haystack.generators as generators

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ours")

    for module in (calls, generators):
        monkeypatch.setitem(vars(module.rows), breaks, broken)
    if breaks == "schema_of":
        monkeypatch.setattr(generators, "schemas_of", broken)
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("haystack")
        try:
            made = {"tools": [programs.look], "hooks": {"before_llm": [programs.newest]}}
            talker = Agent(chat_generator=AwaitedGenerator(Stage(), "call:look", "Done."), **made)
            assert talker.run([asked("Go")])["last_message"].text == "Done."
            assert (await talker.run_async([asked("Go")]))["last_message"].text == "Done."
        finally:
            uninstrument("haystack")
    assert telemetry.metric("assembly.telemetry.errors") > 0
    telemetry.shutdown()


def test_what_a_program_calls_wrongly_is_its_own_error(told):
    generator = ScriptedGenerator(Stage(), "Done.")
    for wrong in (None, 7, ["text"], []):
        with pytest.raises(Exception):  # noqa: B017  # whatever the generator makes of it
            generator.run(wrong, unknown=1)
    assert not told.spans


def test_nothing_of_haystack_is_imported_for_it(imported):
    assert imported("haystack", "haystack") == []


def test_it_is_instrumented_before_it_is_imported_and_no_warning_comes_of_that(run_program):
    program = (
        "from otel_assembly.instrumentation import instrument; instrument('haystack');"
        "from haystack import Pipeline; from haystack.components.agents import Agent;"
        "from haystack.components.generators.chat import MockChatGenerator;"
        "from haystack.dataclasses import ChatMessage;"
        "print(Agent(chat_generator=MockChatGenerator('Yes.')).run([ChatMessage.from_user('Go')])['last_message'].text)"
    )
    done = run_program(sys.executable, "-c", program)
    assert (done.stdout, done.stderr) == ("Yes.\n", "")


@pytest.mark.skipif(not programs.COMPACTORS, reason="this release does not compact")
def test_the_lost_request_is_explained_from_the_traces_of_an_unmodified_agent(explained):
    said, lost = explained("haystack", turn=7)
    assert said[5] == "adviser: Take Alba."
    assert said[7] == "adviser: Take Durolack, it lasts longer."
    assert "sliding_window" in lost
    assert "over_budget" in lost


def test_the_plug_in_s_example_keeps_the_request(kept):
    assert kept("haystack") == "All ten. The history has 23 messages."
