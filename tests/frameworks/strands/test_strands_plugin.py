"""Our policies as the conversation manager of a Strands agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strands import Agent, ToolContext, tool
from strands.hooks import AfterModelCallEvent
from strands.session import FileSessionManager
from strands.types.exceptions import ContextWindowOverflowException
from strands_models import ScriptedModel, Stage, history, words
from strands_programs import InvokeModelStage, look, said

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    ContextOverflowError,
    HaltedError,
    HeadAndTailPolicy,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    describe,
)
from otel_assembly.budget import ExtractiveCompactor
from otel_assembly.errors import PolicyFailedError
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

if InvokeModelStage is None:
    pytest.skip("it works as middleware, which this release has not", allow_module_level=True)

from otel_assembly.instrumentation.strands import AssemblyConversationManager

LOOKS = [*(["call:look", "call:look"] for _ in range(6)), "Done."]


def fatal(message: str = "The card was stolen.") -> ObserverAlert:
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


def agent(stage: Stage, manager: Any, *, lines: Any = LOOKS, tools: Any = (look,), **more: Any) -> Agent:
    more.setdefault("system_prompt", "You look.")
    return Agent(
        model=ScriptedModel(stage, *lines), name="bob", tools=list(tools), conversation_manager=manager,
        callback_handler=None, **more,
    )  # fmt: skip


def sendable(messages: list[Any]) -> bool:
    """Whether Bedrock would take it: it begins with a user's, roles alternate, and each call has its result behind."""
    roles = [message["role"] for message in messages]
    asked: set[str] = set()
    for message in messages:
        asked |= {block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block}
        for block in message["content"]:
            if "toolResult" in block:
                asked.remove(block["toolResult"]["toolUseId"])
    return roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] and not asked


def budget(window: int = 400, **more: Any) -> AssemblyConversationManager:
    return AssemblyConversationManager([BudgetPolicy(window=window, output_reserve=50, step_tokens=0, **more)])


async def test_no_call_is_over_the_budget_and_the_history_is_left_alone(assembly_telemetry):
    stage = Stage()
    talker = agent(stage, budget(), messages=history(4))
    await talker.invoke_async("Find all")
    assert [received.tokens <= 350 for received in stage.received] == [True] * 7
    assert all(sendable(received.messages) for received in stage.received)
    assert all(received.prompts == ["You look."] for received in stage.received)
    assert all("Find all" in str(received.messages) for received in stage.received)
    assert len(talker.messages) == 8 + 2 * 7
    spans = assembly_telemetry.spans_named("assemble_context")
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [request.tokens for request in stage.received]
    assert {span.attributes["assembly.budget.limit"] for span in spans} == {350}
    assert {span.attributes["assembly.framework"] for span in spans} == {"strands"}
    assert assembly_telemetry.violations() == []


async def test_policies_are_handed_the_very_messages_of_the_agent():
    seen: list[Any] = []

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.append(list(events))
            return prompts, events

    talker = agent(Stage(), AssemblyConversationManager([Looks()]), lines=["call:look", "Done."])
    await talker.invoke_async("Find all")
    assert [len(message) for message in seen] == [1, 3]
    assert all(event is own for events in seen for event, own in zip(events, talker.messages, strict=False))


async def test_inside_an_instrumented_agent_it_is_told_once(told):
    stage = Stage()
    window = AssemblyConversationManager([SlidingWindowPolicy(3)], name="window")
    await agent(stage, window).invoke_async("Find all")
    spans = told.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [*range(7)]
    assert {span.attributes["assembly.name"] for span in spans} == {"window"}
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}
    assert {child.name for span in spans for child in span.children} == {
        "apply_policy sliding_window", "apply_policy alternating_roles"
    }  # fmt: skip
    assert {span.parent.name for span in spans} == {"invoke_agent bob"}
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [request.tokens for request in stage.received]
    assert [span.attributes["assembly.events.out"] for span in spans] == [
        len(request.events) for request in stage.received
    ]


async def test_what_other_middleware_does_before_it_is_told_of_beside_it(told):
    def verbose(context: Any) -> Any:
        context.messages = [*history(9), *context.messages]
        return context

    stage = Stage()
    talker = agent(stage, AssemblyConversationManager([BudgetPolicy(400, 50, 0)], name="budget"))
    talker._middleware_registry.add_middleware(InvokeModelStage.Input, verbose)
    await talker.invoke_async("Find all")
    assert max(received.tokens for received in stage.received) <= 350
    spans = told.spans_named("assemble_context")
    sent = [span for span in spans if span.attributes.get("assembly.name") == "budget"]
    assert [span.attributes["assembly.tokens.out"] for span in sent] == [request.tokens for request in stage.received]
    before = [span for span in spans if span not in sent]
    assert {child.name for span in before for child in span.children} == {"apply_policy verbose"}


async def test_middleware_behind_it_is_a_step_by_its_name(told):
    async def answers_first(context: Any, next_fn: Any) -> Any:
        context.messages = [*context.messages, *reversed(history(1))]
        async for event in next_fn(context):
            yield event

    one = agent(Stage(), AssemblyConversationManager([SlidingWindowPolicy(4)]), lines=["Done."], messages=history(4))
    one._middleware_registry.add_middleware(InvokeModelStage, answers_first)
    await one.invoke_async("Go")
    _, behind = told.spans_named("assemble_context")
    assert [step.attributes["assembly.policy.name"] for step in behind.children] == ["answers_first"]


async def test_what_is_left_is_what_bedrock_takes(told):
    """A window may begin with an answer, and what is left out between two ends leaves two of one role."""
    for policy in (SlidingWindowPolicy(4), SlidingWindowPolicy(2), HeadAndTailPolicy(1, 1), HeadAndTailPolicy(2, 2)):
        stage = Stage()
        lines = ["One.", "call:look", "Two.", "Three."]
        talker = agent(stage, AssemblyConversationManager([policy]), lines=lines, messages=history(3))
        for number in range(3):
            await talker.invoke_async(f"Question {number}")
        assert [sendable(received.messages) for received in stage.received] == [True] * 4
        assert all("Question" in str(received.messages) for received in stage.received)
        spans = told.spans_named("assemble_context")
        assert [span.attributes["assembly.tokens.out"] for span in spans] == [
            request.tokens for request in stage.received
        ]
        told.clear()


async def test_an_alert_is_told_the_model_once_behind_the_prompt_as_it_was():
    stage = Stage()
    manager = AssemblyConversationManager([AlertPolicy()])
    prompt: Any = [{"text": "You look."}, {"cachePoint": {"type": "default"}}]
    talker = agent(stage, manager, system_prompt=prompt)
    warning = ObserverAlert(source="disk", severity=Severity.WARNING, message="Nearly full.")
    await manager.context_of(talker).send(warning)
    await talker.invoke_async("Find all")
    assert ["Nearly full." in str(received.prompts) for received in stage.received] == [True, *[False] * 6]
    assert [received.prompts[0] for received in stage.received] == ["You look."] * 7


@pytest.mark.parametrize("on_halt", ["raise", "return"])
async def test_a_fatal_alert_from_outside_ends_the_run_before_the_model(told, on_halt):
    stage = Stage()
    manager = AssemblyConversationManager(Assembler([AlertPolicy()], on_halt=on_halt))
    talker, other = agent(stage, manager), agent(stage, manager)
    await manager.context_of(talker).send(fatal())
    with pytest.raises(HaltedError, match="stolen"):
        await talker.invoke_async("Find all")
    assert stage.received == []
    top = told.span("invoke_agent bob")
    assert (top.status, top.attributes["error.type"]) == ("ERROR", "assembly_halt")
    with pytest.raises(HaltedError, match="stolen"):
        await talker.invoke_async("And now?")
    assert said(await other.invoke_async("Find all")) == "Done."


@pytest.mark.parametrize("sync", [False, True])
async def test_a_fatal_alert_in_the_middle_of_a_run_ends_it_and_no_tool_is_called(sync):
    called = []
    manager = AssemblyConversationManager([AlertPolicy()])

    @tool(context=True)
    async def stop(tool_context: ToolContext) -> str:
        """Stop."""
        await manager.context_of(tool_context.agent).send(fatal())
        return "stopped"

    @tool
    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    stage = Stage()
    talker = agent(stage, manager, lines=["call:stop", "call:note"], tools=(stop, note))
    with pytest.raises(HaltedError, match="stolen") as raised:
        await (asyncio.to_thread(talker, "Go") if sync else talker.invoke_async("Go"))
    assert type(raised.value).__name__ == "HaltedError"
    assert (len(stage.received), called) == (1, [])


async def test_no_tool_is_called_of_an_answer_upon_which_an_observer_halts():
    called = []

    @tool
    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    class Watches:
        name = "watches"
        watches = (dict,)

        async def process(self, event: Any, context: Any) -> None:
            if any("toolUse" in block for block in event["content"]):
                await context.send(fatal())

    stage = Stage()
    manager = AssemblyConversationManager([AlertPolicy()], observers=[Watches()])
    talker = agent(stage, manager, lines=[["call:note", "call:note"]], tools=(note,))
    with pytest.raises(HaltedError):
        await talker.invoke_async("Go")
    assert (len(stage.received), called) == (1, [])


async def test_no_tool_is_called_once_a_hook_has_halted_the_conversation():
    manager = AssemblyConversationManager([AlertPolicy()])
    stage = Stage()
    talker = agent(stage, manager, lines=["call:look", "Never."])

    async def halts(event: AfterModelCallEvent) -> None:
        await manager.context_of(event.agent).send(fatal())

    talker.hooks.add_callback(AfterModelCallEvent, halts)
    with pytest.raises(HaltedError):
        await talker.invoke_async("Go")
    assert len(stage.received) == 1
    assert "Not called: " in str(talker.messages[-1])


async def test_a_budget_that_cannot_hold_raises_and_nothing_is_sent():
    stage = Stage()
    with pytest.raises(ContextOverflowError):
        await agent(stage, budget(60)).invoke_async(f"Find all: {words(100)}")
    assert stage.received == []


async def test_it_reaches_whoever_runs_the_agent_from_a_later_cycle_too():
    @tool
    def much() -> str:
        """Say very much."""
        return words(500)

    stage = Stage()
    with pytest.raises(ContextOverflowError) as raised:
        await agent(stage, budget(), lines=["call:much"], tools=(much,)).invoke_async("Go")
    assert raised.value.__cause__ is None
    assert len(stage.received) == 1


async def test_a_policy_that_raises_is_told_as_such():
    class Breaks:
        name = "breaks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            raise RuntimeError("broken")

    with pytest.raises(PolicyFailedError, match="breaks"):
        await agent(Stage(), AssemblyConversationManager([Breaks()])).invoke_async("Go")


async def test_a_model_that_takes_less_than_the_budget_says_so():
    stage = Stage()
    talker = agent(stage, budget(), lines=[ContextWindowOverflowException("too long")])
    with pytest.raises(ContextWindowOverflowException, match="too long"):
        await talker.invoke_async("Go")
    assert len(stage.received) == 1


async def test_policies_are_given_what_the_call_has():
    seen = []

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.append((context.variables["number"], context.agent_name, len(context.tools)))
            return [*prompts, "Remember the order."], events

    stage = Stage()
    variables = lambda context: {"number": context.invocation_state["number"]}  # noqa: E731
    talker = agent(stage, AssemblyConversationManager([Looks()], variables=variables), lines=["Done."])
    await talker.invoke_async("Go", invocation_state={"number": 4711})
    assert seen == [(4711, "bob", 1)]
    assert stage.received[0].prompts == ["You look.", "Remember the order."]


@pytest.mark.parametrize("on", [False, True])
async def test_a_summary_is_the_first_message_and_the_user_s(assembly_telemetry, on):
    stage = Stage()
    manager = budget(500, compact=ExtractiveCompactor(), summary_tokens=60)
    with assembly_telemetry.as_default():
        if on:
            instrument("strands")
        await agent(stage, manager, messages=history(40)).invoke_async("Find all")
        uninstrument("strands")
    assert max(received.tokens for received in stage.received) <= 450
    assert all(sendable(received.messages) for received in stage.received)
    assert all(received.prompts == ["You look."] for received in stage.received)
    openings = [received.messages[0]["content"][0]["text"] for received in stage.received]
    assert len(openings) == 7
    assert all(text.startswith("[Earlier messages, summ") for text in openings)
    spans = assembly_telemetry.spans_named("assemble_context")
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [request.tokens for request in stage.received]
    block = assembly_telemetry.spans_named("compact_block older")[0]
    assert block.attributes["assembly.compaction.outcome"] == "compacted"


async def test_observers_are_shown_every_message_once():
    class Notes:
        name = "notes"
        watches = (dict,)

        def __init__(self) -> None:
            self.seen: list[Any] = []

        async def process(self, event: Any, context: Any) -> None:
            self.seen.append(event)

    notes = Notes()
    manager = AssemblyConversationManager([SlidingWindowPolicy(4)], observers=[notes])
    talker = agent(Stage(), manager, lines=["call:look", "Done."])
    await talker.invoke_async("One")
    await talker.invoke_async("Two")
    assert [describe(message).kind for message in notes.seen] == [
        "request", "response", "tool_result", "response", "request", "response"
    ]  # fmt: skip
    assert [message is own for message, own in zip(notes.seen, talker.messages, strict=True)] == [True] * 6


async def test_a_session_keeps_the_whole_history_and_is_one_conversation(tmp_path, told):
    manager = AssemblyConversationManager([SlidingWindowPolicy(2), AlertPolicy()], name="window")
    for turn in range(3):
        session = FileSessionManager(session_id="s-1", storage_dir=str(tmp_path))
        talker = agent(Stage(), manager, lines=["Done."], session_manager=session)
        assert len(talker.messages) == 2 * turn
        await talker.invoke_async(f"Question {turn}")
    spans = told.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 2]
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {"s-1"}
    await manager.context_of(talker).send(fatal())
    again = agent(Stage(), manager, session_manager=FileSessionManager("s-1", storage_dir=str(tmp_path)))
    with pytest.raises(HaltedError):
        await again.invoke_async("On")


@pytest.mark.parametrize("more", [{"name": "x"}, {"model": "gpt-4o"}])
def test_a_name_or_model_beside_an_assembler_is_refused(more):
    with pytest.raises(ConfigurationError, match="takes its name and model from the Assembler"):
        AssemblyConversationManager(Assembler([]), **more)


async def test_with_and_without_instrumentation_the_same_is_sent():
    sent = []
    for on in (False, True):
        stage = Stage()
        telemetry = RecordedTelemetry()
        with telemetry.as_default():
            if on:
                instrument("strands")
            await agent(stage, budget(), messages=history(4)).invoke_async("Find all")
            uninstrument("strands")
        sent.append([received.said for received in stage.received])
        telemetry.shutdown()
    assert sent[0] == sent[1]


@settings(max_examples=20, deadline=None)
@given(
    turns=st.integers(0, 8),
    calls=st.lists(st.integers(1, 3), max_size=5),
    window=st.integers(300, 900),
    step=st.sampled_from([0, 200]),
)
async def test_whatever_a_run_does_its_calls_hold_the_budget_and_whole_pairs(turns, calls, window, step):
    stage = Stage()
    manager = AssemblyConversationManager([BudgetPolicy(window=window, output_reserve=50, step_tokens=step)])
    lines = [*(["call:look"] * count for count in calls), "Done."]
    talker = agent(stage, manager, lines=lines, messages=history(turns))
    assert said(await talker.invoke_async("Find all")) == "Done."
    for received in stage.received:
        assert received.tokens <= window - 50
        assert sendable(received.messages)
    assert len(talker.messages) == 2 * turns + 2 + 2 * len(calls)
