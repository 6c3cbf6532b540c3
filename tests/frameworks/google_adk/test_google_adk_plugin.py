"""Our policies as a plugin of an ADK app."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents import Agent, ParallelAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types
from google_adk_models import ScriptedLlm, Stage, Talk, words
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    ContextOverflowError,
    HaltedError,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    describe,
)
from otel_assembly.budget import ExtractiveCompactor
from otel_assembly.errors import PolicyFailedError
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.instrumentation.google_adk import AssemblyPlugin
from otel_assembly.testing import RecordedTelemetry

LOOKS = [*(["call:look", "call:look"] for _ in range(6)), "Done."]


def look() -> str:
    """Look something up."""
    return f"found {words(20)}"


def fatal(message: str = "The card was stolen.") -> ObserverAlert:
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


def talk(stage: Stage, *plugins: Any, lines: Any = LOOKS, tools: Any = (look,), **more: Any) -> Talk:
    model = ScriptedLlm(stage, *lines)
    bob = Agent(name="bob", model=model, tools=list(tools), instruction="You look.", **more)
    return Talk(bob, plugins=list(plugins))


async def session_of(conversation: Talk) -> Any:
    service, how = conversation.runner.session_service, {"app_name": "talk", "user_id": "guest"}
    held = await service.get_session(session_id=conversation.session, **how)
    return held or await service.create_session(session_id=conversation.session, **how)


def whole_pairs(contents: list[Any]) -> bool:
    """Whether each result stands behind its call, and each call in front of its result."""
    asked: list[str] = []
    for content in contents:
        for part in content.parts:
            if part.function_call:
                asked.append(part.function_call.name)
            elif part.function_response:
                asked.remove(part.function_response.name)
    return not asked


def budget(window: int = 400, **more: Any) -> AssemblyPlugin:
    return AssemblyPlugin([BudgetPolicy(window=window, output_reserve=50, step_tokens=0, **more)])


async def test_no_request_is_over_the_budget_and_the_session_is_left_alone(assembly_telemetry):
    stage = Stage()
    conversation = talk(stage, budget())
    await conversation.say("Hello")
    await conversation.say("Find all")
    assert max(received.tokens for received in stage.received) <= 350
    assert all(whole_pairs(received.contents) for received in stage.received)
    assert all("Find all" in str(received.contents) for received in stage.received[7:])
    assert len(await conversation.events()) == 2 + 13 + 1
    spans = assembly_telemetry.spans_named("assemble_context")
    assert {span.attributes["assembly.budget.limit"] for span in spans} == {350}
    assert {span.attributes["assembly.framework"] for span in spans} == {"google_adk"}
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {conversation.session}
    assert assembly_telemetry.violations() == []


async def test_contents_come_out_as_the_very_objects():
    seen = []

    class Notes(BasePlugin):
        async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
            seen.append(list(llm_request.contents))

    stage = Stage()
    await talk(stage, Notes("first"), AssemblyPlugin([SlidingWindowPolicy(3)]), Notes("last")).say("Find all")
    pairs = list(zip(seen[::2], seen[1::2], strict=True))
    assert len(pairs) == 7
    assert all({*map(id, after)} <= {*map(id, before)} for before, after in pairs)
    assert [len(after) for _, after in pairs] == [1, 3, 3, 3, 3, 3, 3]


async def test_inside_an_instrumented_app_it_is_told_once(told):
    stage = Stage()
    conversation = talk(stage, AssemblyPlugin([SlidingWindowPolicy(3)], name="window"))
    await conversation.say("Find all")
    spans = told.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [*range(7)]
    assert {span.attributes["assembly.name"] for span in spans} == {"window"}
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {conversation.session}
    assert {child.name for span in spans for child in span.children} == {"apply_policy sliding_window"}
    assert {span.parent.name for span in spans} == {"invoke_agent bob"}
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [request.tokens for request in stage.received]


async def test_what_other_plugins_and_callbacks_do_is_told_beside_it(told):
    def reminds(callback_context: Any, llm_request: Any) -> None:
        llm_request.contents.append(types.Content(role="user", parts=[types.Part(text="Remember.")]))

    stage = Stage()
    conversation = talk(
        stage, ContextFilterPlugin(num_invocations_to_keep=1), AssemblyPlugin([SlidingWindowPolicy(3)], name="window"),
        before_model_callback=reminds, lines=["call:look", "Done.", "call:look", "Done."],
    )  # fmt: skip
    await conversation.say("One")
    await conversation.say("Two")
    spans = told.spans_named("assemble_context")
    steps = {child.name.partition(" ")[2] for span in spans for child in span.children}
    assert steps == {"context_filter", "sliding_window", "reminds"}
    sent = [span for span in spans if any(child.name.endswith("reminds") for child in span.children)]
    assert [span.attributes["assembly.tokens.out"] for span in sent] == [request.tokens for request in stage.received]


async def test_an_alert_is_told_the_model_once():
    stage = Stage()
    plugin = AssemblyPlugin([AlertPolicy()])
    conversation = talk(stage, plugin)
    warning = ObserverAlert(source="disk", severity=Severity.WARNING, message="Nearly full.")
    await plugin.context_of(await session_of(conversation)).send(warning)
    await conversation.say("Find all")
    assert ["Nearly full." in str(received.prompts) for received in stage.received] == [True, *[False] * 6]
    assert all(received.prompts[0].startswith("You look.") for received in stage.received)


@pytest.mark.parametrize("on_halt", ["raise", "return"])
async def test_a_fatal_alert_from_outside_ends_the_run_before_the_model(told, on_halt):
    stage = Stage()
    plugin = AssemblyPlugin(Assembler([AlertPolicy()], on_halt=on_halt))
    conversation = talk(stage, plugin)
    await plugin.context_of(await session_of(conversation)).send(fatal())
    with pytest.raises(HaltedError, match="stolen"):
        await conversation.say("Find all")
    with pytest.raises(HaltedError, match="stolen"):
        await conversation.say("Please")
    assert stage.received == []
    top = told.span("invoke_agent bob")
    assert (top.status, top.attributes["error.type"]) == ("ERROR", "assembly_halt")
    assert (await talk(stage, plugin).say("Find all"))[-1] == "bob: Done."


async def test_a_fatal_alert_in_the_middle_of_a_run_ends_it():
    called = []
    plugin = AssemblyPlugin([AlertPolicy()])

    async def stop(tool_context: Any) -> str:
        """Stop."""
        await plugin.context_of(tool_context.session).send(fatal())
        return "stopped"

    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    stage = Stage()
    with pytest.raises(HaltedError, match="stolen"):
        await talk(stage, plugin, lines=["call:stop", "call:note"], tools=[stop, note]).say("Go")
    assert (len(stage.received), called) == (1, [])


async def test_no_tool_is_called_of_an_answer_upon_which_an_observer_halts():
    called = []

    class Watches:
        name = "watches"
        watches = (types.Content,)

        async def process(self, event: Any, context: Any) -> None:
            if event.role == "model":
                await context.send(fatal())

    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    stage = Stage()
    plugin = AssemblyPlugin([AlertPolicy()], observers=[Watches()])
    with pytest.raises(HaltedError):
        await talk(stage, plugin, lines=[["call:note", "call:note"]], tools=[note]).say("Go")
    assert (len(stage.received), called) == (1, [])


async def test_tools_of_an_answer_that_came_before_the_halt_are_not_called_any_more():
    called = []
    plugin = AssemblyPlugin([AlertPolicy()])

    class Halts(BasePlugin):
        async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> None:
            await plugin.context_of(tool_context.session).send(fatal())

    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    stage = Stage()
    conversation = talk(stage, Halts("halts"), plugin, lines=["call:note"], tools=[note])
    with pytest.raises(HaltedError):
        await conversation.say("Go")
    assert (len(stage.received), called) == (1, [])
    assert "Not called" in str(await conversation.events())


async def test_a_budget_that_cannot_hold_raises_and_nothing_is_sent():
    stage = Stage()
    with pytest.raises(ContextOverflowError):
        await talk(stage, budget(60)).say(f"Find all: {words(100)}")
    assert stage.received == []


async def test_what_it_raises_is_told_once(told):
    with pytest.raises(ContextOverflowError):
        await talk(Stage(), budget(60)).say(f"Find all: {words(100)}")
    (span,) = told.spans_named("assemble_context")
    assert span.attributes["error.type"] == "context_overflow"


async def test_what_a_policy_raises_goes_through():
    class Fails:
        name = "fails"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            raise RuntimeError("no")

    with pytest.raises(PolicyFailedError, match="fails"):
        await talk(Stage(), AssemblyPlugin([Fails()])).say("Go")


async def test_streamed_runs_are_held_as_well():
    stage = Stage()
    await talk(stage, budget()).say("Find all", run_config=RunConfig(streaming_mode=StreamingMode.SSE))
    assert len(stage.received) == 7
    assert max(received.tokens for received in stage.received) <= 350


async def test_each_agent_of_an_app_is_held():
    stage = Stage()
    agents = [Agent(name=name, model=ScriptedLlm(stage, *LOOKS), tools=[look]) for name in ("first", "second")]
    await Talk(SequentialAgent(name="both", sub_agents=agents), plugins=[budget(600)]).say("Find all")
    assert len(stage.received) == 14
    assert max(received.tokens for received in stage.received) <= 550


async def test_agents_that_ask_at_once_keep_their_own_tools_and_names():
    seen = []

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            await asyncio.sleep(0)
            seen.append((context.agent_name, len(context.tools)))
            return prompts, events

    async def variables(_: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {}

    stage = Stage()
    agents = [
        Agent(name=f"a{at}", model=ScriptedLlm(stage, "Done."), tools=[look] if at % 2 else []) for at in range(4)
    ]
    both = ParallelAgent(name="all", sub_agents=agents)
    await Talk(both, plugins=[AssemblyPlugin([Looks()], variables=variables)]).say("Go")
    assert sorted(seen) == [("a0", 0), ("a1", 1), ("a2", 0), ("a3", 1)]


async def test_policies_are_given_what_the_run_has():
    seen = []

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.append((context.variables["city"], context.agent_name, context.conversation_id))
            return [*prompts, "Remember the order."], events

    stage = Stage()
    plugin = AssemblyPlugin([Looks()], variables=lambda callback: {"city": callback.state.get("city", "Bonn")})
    conversation = talk(stage, plugin, lines=["Done."])
    await conversation.say("Go")
    assert seen == [("Bonn", "bob", conversation.session)]
    assert stage.received[0].prompts[0].endswith("\n\nRemember the order.")


async def test_a_summary_is_a_content_that_any_model_can_be_sent(assembly_telemetry):
    stage = Stage()
    plugin = budget(700, compact=ExtractiveCompactor(), summary_tokens=60)
    conversation = talk(stage, plugin, lines=[f"Said: {words(60)}"])
    for turn in range(6):
        await conversation.say(f"Question {turn}: {words(20)}")
    assert max(received.tokens for received in stage.received) <= 650
    texts = [text for event in stage.received[-1].events for text in event.texts]
    assert sum(text.startswith("[Earlier messages, summarised") for text in texts) == 1
    block = assembly_telemetry.spans_named("compact_block older")[0]
    assert block.attributes["assembly.compaction.outcome"] == "compacted"


async def test_observers_are_shown_every_message_once():
    class Notes:
        name = "notes"
        watches = (types.Content,)

        def __init__(self) -> None:
            self.seen: list[Any] = []

        async def process(self, event: Any, context: Any) -> None:
            self.seen.append(event)

    notes = Notes()
    stage = Stage()
    plugin = AssemblyPlugin([SlidingWindowPolicy(4)], observers=[notes])
    conversation = talk(stage, plugin, lines=["call:look", "Yes.", "Yes.", "Yes."])
    for text in ("One", "Two", "Two"):
        await conversation.say(text)
    kinds = [str(describe(message).kind) for message in notes.seen]
    assert kinds == ["request", "response", "tool_result", "response", *(["request", "response"] * 2)]


async def test_users_of_one_session_id_are_two_conversations():
    plugin = AssemblyPlugin([AlertPolicy()])
    service = InMemorySessionService()
    one, other = [await service.create_session(app_name="talk", user_id=user, session_id="1") for user in ("a", "b")]
    await plugin.context_of(one).send(fatal())
    assert plugin.context_of(one).guard.halt is not None
    assert plugin.context_of(other).guard.halt is None


@pytest.mark.parametrize("more", [{"name": "x"}, {"model": "gpt-4o"}])
def test_a_name_or_model_beside_an_assembler_is_refused(more):
    with pytest.raises(ConfigurationError, match="takes its name and model from the Assembler"):
        AssemblyPlugin(Assembler([]), **more)


async def test_with_and_without_instrumentation_the_same_is_sent():
    sent = []
    for on in (False, True):
        stage = Stage()
        telemetry = RecordedTelemetry()
        with telemetry.as_default():
            if on:
                instrument("google_adk")
            await talk(stage, budget()).say("Find all")
            uninstrument("google_adk")
        sent.append([received.said for received in stage.received])
        telemetry.shutdown()
    assert sent[0] == sent[1]


@settings(max_examples=15, deadline=None)
@given(
    turns=st.integers(0, 4),
    calls=st.lists(st.integers(1, 3), max_size=4),
    window=st.integers(350, 900),
    step=st.sampled_from([0, 200]),
)
async def test_whatever_a_run_does_its_requests_hold_the_budget_and_whole_pairs(turns, calls, window, step):
    stage = Stage()
    plugin = AssemblyPlugin([BudgetPolicy(window=window, output_reserve=50, step_tokens=step)])
    lines = [*["Said."] * turns, *(["call:look"] * count for count in calls), "Done."]
    conversation = talk(stage, plugin, lines=lines)
    for turn in range(turns):
        await conversation.say(f"Question {turn}: {words(10)}")
    assert (await conversation.say("Find all"))[-1] == "bob: Done."
    for received in stage.received:
        assert received.tokens <= window - 50
        assert whole_pairs(received.contents)
        assert received.contents[-1].role == "user"
    results = [response for event in await conversation.events() for response in event.get_function_responses()]
    assert len(results) == sum(calls)
