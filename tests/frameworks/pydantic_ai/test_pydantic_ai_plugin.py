"""Our policies as a capability of a Pydantic AI agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolReturnPart
from pydantic_ai_models import ScriptedModel, Stage, history, words

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
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.instrumentation.pydantic_ai import AssemblyCapability
from otel_assembly.testing import RecordedTelemetry

LOOKS = [*(["call:look", "call:look"] for _ in range(6)), "Done."]


def look() -> str:
    """Look something up."""
    return f"found {words(20)}"


def fatal(message: str = "The card was stolen.") -> ObserverAlert:
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


def agent(stage: Stage, *capabilities: Any, lines: Any = LOOKS, **more: Any) -> Agent[Any, str]:
    model = ScriptedModel(stage, *lines)
    return Agent(model, name="bob", tools=[look], capabilities=capabilities, system_prompt="You look.", **more)


def whole_pairs(messages: list[Any]) -> bool:
    """Whether each result stands behind its call, and each call in front of its result."""
    asked: list[str] = []
    for message in messages:
        for part in message.parts:
            if part.part_kind == "tool-call":
                asked.append(part.tool_call_id)
            elif part.part_kind == "tool-return":
                asked.remove(part.tool_call_id)
    return not asked


def budget(window: int = 400, **more: Any) -> AssemblyCapability:
    return AssemblyCapability([BudgetPolicy(window=window, output_reserve=50, step_tokens=0, **more)])


async def test_no_request_is_over_the_budget_and_the_history_is_left_alone(assembly_telemetry):
    stage = Stage()
    result = await agent(stage, budget(), instructions="Be exact.").run("Find all", message_history=history(4))
    assert [received.tokens <= 350 for received in stage.received] == [True] * 7
    assert all(whole_pairs(received.messages) for received in stage.received)
    assert all(received.prompts == ["Be exact."] for received in stage.received)
    assert all("Find all" in str(received.messages) for received in stage.received)
    assert len(result.all_messages()) == 8 + 2 * 7
    spans = assembly_telemetry.spans_named("assemble_context")
    assert {span.attributes["assembly.budget.limit"] for span in spans} == {350}
    assert {span.attributes["assembly.framework"] for span in spans} == {"pydantic_ai"}
    assert assembly_telemetry.violations() == []


async def test_system_prompts_stay_where_the_request_that_they_stood_in_goes():
    stage = Stage()
    talker = agent(stage, budget(), instructions="Be exact.")
    first = await talker.run("First")
    await talker.run("Second", message_history=first.all_messages())
    assert "First" not in str(stage.received[-1].messages)
    assert {tuple(received.prompts) for received in stage.received} == {("You look.", "Be exact.")}
    assert max(received.tokens for received in stage.received) <= 350


async def test_inside_an_instrumented_agent_it_is_told_once(told):
    stage = Stage()
    window = AssemblyCapability([SlidingWindowPolicy(3)], name="window")
    await agent(stage, window).run("Find all", conversation_id="one")
    spans = told.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [*range(7)]
    assert {span.attributes["assembly.name"] for span in spans} == {"window"}
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {"one"}
    assert {child.name for span in spans for child in span.children} == {"apply_policy sliding_window"}
    assert {span.parent.name for span in spans} == {"invoke_agent bob"}
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [request.tokens for request in stage.received]


async def test_it_has_the_last_word_behind_other_capabilities():
    @dataclass
    class Verbose(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            request_context.messages = [*history(9), *request_context.messages]
            return request_context

    stage = Stage()
    await agent(stage, budget(), Verbose(), ProcessHistory(lambda messages: messages[-9:])).run("Find all")
    assert max(received.tokens for received in stage.received) <= 350


async def test_what_was_done_before_it_is_told_of_beside_it(told, caplog):
    stage = Stage()
    newest = ProcessHistory(lambda messages: messages[-5:])
    await agent(stage, newest, AssemblyCapability([SlidingWindowPolicy(3)], name="window")).run("Find all")
    assert not caplog.records
    spans = told.spans_named("assemble_context")
    sent = [span for span in spans if span.attributes.get("assembly.name") == "window"]
    assert [span.attributes["assembly.tokens.out"] for span in sent] == [request.tokens for request in stage.received]
    before = [span for span in spans if span not in sent]
    assert {child.name for span in before for child in span.children} == {"apply_policy history_processor"}


async def test_an_alert_is_told_the_model_once():
    stage = Stage()
    capability = AssemblyCapability([AlertPolicy()])
    talker = agent(stage, capability)
    warning = ObserverAlert(source="disk", severity=Severity.WARNING, message="Nearly full.")
    await capability.context_of("one").send(warning)
    await talker.run("Find all", conversation_id="one")
    assert ["Nearly full." in str(received.prompts) for received in stage.received] == [True, *[False] * 6]
    assert [received.prompts[0] for received in stage.received] == ["You look."] * 7


@pytest.mark.parametrize("on_halt", ["raise", "return"])
async def test_a_fatal_alert_from_outside_ends_the_run_before_the_model(told, on_halt):
    stage = Stage()
    capability = AssemblyCapability(Assembler([AlertPolicy()], on_halt=on_halt))
    await capability.context_of("one").send(fatal())
    with pytest.raises(HaltedError, match="stolen"):
        await agent(stage, capability).run("Find all", conversation_id="one")
    assert stage.received == []
    top = told.span("invoke_agent bob")
    assert (top.status, top.attributes["error.type"]) == ("ERROR", "assembly_halt")
    assert (await agent(stage, capability).run("Find all", conversation_id="two")).output == "Done."


async def test_a_fatal_alert_in_the_middle_of_a_run_ends_it_and_no_tool_is_called():
    called = []
    capability = AssemblyCapability([AlertPolicy()])
    stage = Stage()
    talker: Any = Agent(ScriptedModel(stage, "call:stop", ["call:note"]), name="bob", capabilities=[capability])

    @talker.tool
    async def stop(ctx: RunContext[None]) -> str:
        """Stop."""
        await capability.context_of(ctx.conversation_id).send(fatal())
        return "stopped"

    @talker.tool_plain
    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    with pytest.raises(HaltedError, match="stolen"):
        await talker.run("Go")
    assert (len(stage.received), called) == (1, [])


async def test_no_tool_is_called_of_an_answer_upon_which_an_observer_halts():
    called = []

    capability = AssemblyCapability([AlertPolicy()])

    @dataclass
    class Halts(AbstractCapability[Any]):
        async def after_model_request(self, ctx: Any, *, request_context: Any, response: Any) -> Any:
            await capability.context_of(ctx.conversation_id).send(fatal())
            return response

    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    stage = Stage()
    talker = Agent(ScriptedModel(stage, ["call:note", "call:note"]), tools=[note], capabilities=[capability, Halts()])
    with pytest.raises(HaltedError):
        await talker.run("Go")
    assert (len(stage.received), called) == (1, [])


async def test_a_budget_that_cannot_hold_raises_and_nothing_is_sent():
    stage = Stage()
    with pytest.raises(ContextOverflowError):
        await agent(stage, budget(60)).run(f"Find all: {words(100)}")
    assert stage.received == []


async def test_streamed_runs_and_steps_by_hand_are_held_as_well():
    stage = Stage()
    talker = agent(stage, budget(), instructions="Be exact.")
    async with talker.run_stream("Find all", message_history=history(4)) as result:
        assert await result.get_output() == "Done."
    async with talker.iter("Find all", message_history=history(4)) as run:
        async for _ in run:
            pass
    assert max(received.tokens for received in stage.received) <= 350
    assert all(whole_pairs(received.messages) for received in stage.received)


async def test_policies_are_given_what_the_run_has():
    seen = []

    @dataclass
    class Order:
        number: int

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.append((context.dependencies[Order].number, context.variables["city"], context.agent_name))
            return [*prompts, "Remember the order."], events

    stage = Stage()
    capability = AssemblyCapability([Looks()], variables=lambda ctx: {"city": ctx.deps.number + 1})
    talker = agent(stage, capability, lines=["Done."], deps_type=Order, instructions="Be exact.")
    await talker.run("Go", deps=Order(4711))
    assert seen == [(4711, 4712, "bob")]
    assert stage.received[0].prompts == ["You look.", "Be exact.\n\nRemember the order."]


async def test_a_summary_is_a_request_that_any_model_can_be_sent(assembly_telemetry):
    stage = Stage()
    capability = budget(500, compact=ExtractiveCompactor(), summary_tokens=60)
    await agent(stage, capability).run("Find all", message_history=history(40))
    assert max(received.tokens for received in stage.received) <= 450
    texts = [text for event in stage.received[0].events for text in event.texts]
    assert sum(text.startswith("[Earlier messages, summarised") for text in texts) == 1
    block = assembly_telemetry.spans_named("compact_block older")[0]
    assert block.attributes["assembly.compaction.outcome"] == "compacted"


async def test_observers_are_shown_every_message_once():
    class Notes:
        name = "notes"
        watches = (ModelRequest, ModelResponse)

        def __init__(self) -> None:
            self.seen: list[Any] = []

        async def process(self, event: Any, context: Any) -> None:
            self.seen.append(event)

    notes = Notes()
    stage = Stage()
    talker = agent(stage, AssemblyCapability([SlidingWindowPolicy(4)], observers=[notes]), lines=["call:look", "Done."])
    first = await talker.run("One")
    await talker.run("Two", message_history=first.all_messages())
    assert [describe(message).kind for message in notes.seen] == [
        "request", "response", "tool_result", "response", "request", "response"
    ]  # fmt: skip


@pytest.mark.parametrize("more", [{"name": "x"}, {"model": "gpt-4o"}])
def test_a_name_or_model_beside_an_assembler_is_refused(more):
    with pytest.raises(ConfigurationError, match="takes its name and model from the Assembler"):
        AssemblyCapability(Assembler([]), **more)


async def test_with_and_without_instrumentation_the_same_is_sent():
    sent = []
    for on in (False, True):
        stage = Stage()
        telemetry = RecordedTelemetry()
        with telemetry.as_default():
            if on:
                instrument("pydantic_ai")
            await agent(stage, budget()).run("Find all", message_history=history(4))
            uninstrument("pydantic_ai")
        sent.append([received.said for received in stage.received])
        telemetry.shutdown()
    assert sent[0] == sent[1]


@settings(max_examples=25, deadline=None)
@given(
    turns=st.integers(0, 8),
    calls=st.lists(st.integers(1, 3), max_size=5),
    window=st.integers(300, 900),
    step=st.sampled_from([0, 200]),
)
async def test_whatever_a_run_does_its_requests_hold_the_budget_and_whole_pairs(turns, calls, window, step):
    stage = Stage()
    capability = AssemblyCapability([BudgetPolicy(window=window, output_reserve=50, step_tokens=step)])
    lines = [*(["call:look"] * count for count in calls), "Done."]
    result = await agent(stage, capability, lines=lines).run("Find all", message_history=history(turns) or None)
    assert result.output == "Done."
    for received in stage.received:
        assert received.tokens <= window - 50
        assert whole_pairs(received.messages)
        assert isinstance(received.messages[-1], ModelRequest)
    assert sum(isinstance(part, ToolReturnPart) for message in result.all_messages() for part in message.parts) == sum(
        calls
    )
