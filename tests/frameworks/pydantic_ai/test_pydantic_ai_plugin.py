"""Our policies as a capability of a Pydantic AI agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRequestNode
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai_models import ScriptedModel, Stage, history, words

from otel_assembly import (
    BudgetPolicy,
    SlidingWindowPolicy,
    describe,
)
from otel_assembly.instrumentation.pydantic_ai import AssemblyCapability

LOOKS = [*(["call:look", "call:look"] for _ in range(6)), "Done."]


def look() -> str:
    """Look something up."""
    return f"found {words(20)}"


def agent(stage: Stage, *capabilities: Any, lines: Any = LOOKS, **more: Any) -> Agent[Any, str]:
    model = ScriptedModel(stage, *lines)
    return Agent(model, name="bob", tools=[look], capabilities=capabilities, system_prompt="You look.", **more)


def budget(window: int = 400, **more: Any) -> AssemblyCapability:
    return AssemblyCapability([BudgetPolicy(window=window, output_reserve=50, step_tokens=0, **more)])


async def test_system_prompts_stay_where_the_request_that_they_stood_in_goes():
    stage = Stage()
    talker = agent(stage, budget(), instructions="Be exact.")
    first = await talker.run("First")
    await talker.run("Second", message_history=first.all_messages())
    assert "First" not in str(stage.received[-1].messages)
    assert {tuple(received.prompts) for received in stage.received} == {("You look.", "Be exact.")}
    assert max(received.tokens for received in stage.received) <= 350


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


async def test_a_run_by_steps_meets_the_budget():
    stage = Stage()
    talker = agent(stage, budget(), instructions="Be exact.")
    async with talker.iter("Find all", message_history=history(4)) as run:
        async for _ in run:
            pass
    assert max(received.tokens for received in stage.received) <= 350


async def test_observers_see_each_message_once_in_runs_without_a_conversations_id():
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


async def test_the_dependencies_of_the_run_are_those_of_the_policies():
    seen = []

    @dataclass
    class Order:
        number: int

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.append(context.dependencies[Order].number)
            return [*prompts, "Remember the order."], events

    stage = Stage()
    talker = agent(stage, AssemblyCapability([Looks()]), lines=["Done."], deps_type=Order, instructions="Be exact.")
    await talker.run("Go", deps=Order(4711))
    assert seen == [4711]
    assert stage.received[0].prompts == ["You look.", "Be exact.\n\nRemember the order."]


@pytest.mark.xfail(
    hasattr(ModelRequestNode, "_apply_before_model_request"),  # earlier releases keep the change in the run's history
    strict=True,
    reason="without instructions, Pydantic AI takes those of the last request, with the added prompt",
)
async def test_a_prompt_that_a_policy_adds_is_sent_once_if_the_agent_has_no_instructions():
    class Reminds:
        name = "reminds"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            return [*prompts, "Remember the order."], events

    stage = Stage()
    await agent(stage, AssemblyCapability([Reminds()]), lines=["call:look", "Done."]).run("Go")
    assert [received.prompts for received in stage.received] == [["You look.", "Remember the order."]] * 2
