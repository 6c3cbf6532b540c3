"""Our policies inside AutoGen: the same objects, within the budget, pairs whole, halted where an alert is fatal."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_calls import as_read
from autogen_core.model_context import ChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import UserMessage
from autogen_talk import asks_for, calls, filled, model, reply, results, said, user
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recount import assert_sendable, newest_request, prompt_tokens

from otel_assembly import (
    AlertPolicy,
    BudgetPolicy,
    ConfigurationError,
    ContextOverflowError,
    ConversationPolicy,
    HaltedError,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
)
from otel_assembly.instrumentation.autogen import AssembledChatCompletionContext


def fatal():
    return ObserverAlert(source="guard", severity=Severity.FATAL, message="stop it")


def weather(city: str) -> str:
    """The weather in a city."""
    return f"it rains in {city}"


async def test_an_agent_runs_on_our_policies(told):
    context = AssembledChatCompletionContext([SlidingWindowPolicy(3)], agent_name="clerk")
    clerk = AssistantAgent(
        "clerk",
        model(asks_for("weather", '{"city": "Bonn"}'), "rain", "sun"),
        tools=[weather],
        reflect_on_tool_use=True,
        model_context=context,
    )
    await clerk.run(task="the weather in Bonn?")
    await clerk.run(task="and in Ulm?")
    sent = [call["messages"][1:] for call in clerk._model_client.create_calls]
    assert said(sent[1]) == ["the weather in Bonn?", "AssistantMessage", "FunctionExecutionResultMessage"]
    assert said(sent[2])[-1] == "and in Ulm?"
    assert all(any(item is message for item in context._messages) for message in sent[2])
    # One assembly each: the instrumentation sees a plug-in and leaves it to tell of itself.
    assert [span.name for span in told.spans if span.name.startswith("a")] == [
        "apply_policy sliding_window",
        "assemble_context",
    ] * 3
    assert told.span("assemble_context").attributes["assembly.framework"] == "autogen"


def conversation(seed, turns):
    """Turns with tool calls in parallel, results apart or together, and the newest turn still open."""
    dice = random.Random(seed)
    talk = []
    for number in range(turns):
        talk.append(user(f"request {number} " + "word " * dice.randrange(30)))
        if dice.random() < 0.6:
            ids = [f"{number}.{index}" for index in range(dice.randrange(1, 4))]
            talk.append(calls(*ids, thought="well " * dice.randrange(8) or None))
            if dice.random() < 0.5:
                talk.append(results(*ids, text="result " * dice.randrange(1, 40)))
            else:
                talk += [results(item_id, text="result " * dice.randrange(1, 40)) for item_id in ids]
        if number < turns - 1 or dice.random() < 0.5:
            talk.append(reply("answer " * dice.randrange(1, 30)))
    return talk


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), turns=st.integers(1, 25), window=st.integers(300, 1_500))
async def test_any_conversation_is_within_the_budget_and_has_whole_pairs(seed, turns, window):
    talk = conversation(seed, turns)
    budget = BudgetPolicy(window=window, output_reserve=100, on_overflow="drop")
    context = AssembledChatCompletionContext([budget], initial_messages=talk, prompts=["be kind"])
    try:
        sent = await context.get_messages()
    except ContextOverflowError:
        return
    read = {id(message): as_read(message) for message in talk}
    events, kept = ([read[id(message)] for message in messages] for messages in (talk, sent))
    assert prompt_tokens(["be kind"], kept) <= window - 100
    assert_sendable(events, kept)
    assert events[newest_request(events)] in kept


async def test_a_reset_of_the_agent_does_not_resume_a_halted_conversation():
    context = AssembledChatCompletionContext([ConversationPolicy()])
    clerk = AssistantAgent("clerk", model("never said"), model_context=context)
    await context.context_of().send(fatal())
    await clerk.on_reset(None)
    with pytest.raises(HaltedError):
        await clerk.run(task="go on")
    assert clerk._model_client.create_calls == []


async def test_fifty_readers_at_once_are_given_nothing_after_a_fatal_alert():
    context = AssembledChatCompletionContext([AlertPolicy(), ConversationPolicy()])
    await context.add_message(user("hello"))
    sent = []

    async def turn(index):
        for _ in range(index % 7):
            await asyncio.sleep(0)
        if index == 25:
            await context.context_of().send(fatal())
        await context.get_messages()
        sent.append(context.context_of().guard.halted)

    outcomes = await asyncio.gather(*map(turn, range(50)), return_exceptions=True)
    assert sent == [False] * len(sent)
    assert sum(isinstance(outcome, HaltedError) for outcome in outcomes) == 50 - len(sent)


async def test_a_fatal_alert_ends_a_team_with_a_runtime_error():
    context = AssembledChatCompletionContext([ConversationPolicy()])
    await context.context_of().send(fatal())
    ann = AssistantAgent("ann", model("never said"), model_context=context)
    team = RoundRobinGroupChat([ann], termination_condition=MaxMessageTermination(3))
    with pytest.raises(RuntimeError, match="HaltedError"):
        await team.run(task="hello")
    assert ann._model_client.create_calls == []


async def test_an_observer_sees_the_conversation_and_halts_it():
    class Listens:
        name = "listens"
        watches = UserMessage

        async def process(self, event, context):
            return fatal() if "bomb" in event.content else None

    context = AssembledChatCompletionContext([ConversationPolicy()], observers=[Listens()])
    await filled(context, user("hello"))
    assert said(await context.get_messages()) == ["hello"]
    await filled(context, user("a bomb"))
    with pytest.raises(HaltedError):
        await context.get_messages()


async def test_its_state_is_autogens():
    talk = [user("a"), calls("1"), results("1"), reply("b")]
    context = AssembledChatCompletionContext([ConversationPolicy()], initial_messages=talk)
    state = json.loads(json.dumps(await context.save_state()))
    assert state == await UnboundedChatCompletionContext(talk).save_state()
    other = AssembledChatCompletionContext([SlidingWindowPolicy(2)])
    await other.load_state(state)
    await other.add_message(user("c"))
    assert said(await other.get_messages()) == ["b", "c"]
    await other.clear()
    assert await other.get_messages() == []
    await other.add_message(user("d"))
    assert said(await other.get_messages()) == ["d"]


async def test_a_subclass_that_changes_the_messages_itself():
    class Trimming(AssembledChatCompletionContext):
        async def add_message(self, message):
            await super().add_message(message)
            self._messages = self._messages[-2:]

    context = await filled(Trimming([ConversationPolicy()]), user("a"), user("b"), user("c"))
    assert said(await context.get_messages()) == ["b", "c"]


async def test_it_is_a_component():
    context = AssembledChatCompletionContext(
        [ConversationPolicy(), TokenBudgetPolicy(max_tokens=500)],
        initial_messages=[user("a"), reply("b")],
        name="minutes",
        model="gpt-4o",
        prompts=["be kind"],
        tools=[{"name": "weather", "description": "The weather.", "parameters": {"type": "object", "properties": {}}}],
        agent_name="clerk",
    )
    dumped = context.dump_component()
    assert dumped.component_type == "chat_completion_context"
    assert dumped.config["assembler"]["policies"][0] == "conversation"
    assert dumped.config["assembler"]["policies"][1]["token_budget"]["max_tokens"] == 500
    loaded = ChatCompletionContext.load_component(json.loads(dumped.model_dump_json()))
    assert type(loaded) is AssembledChatCompletionContext
    assert loaded.dump_component() == dumped
    assert said(await loaded.get_messages()) == ["a", "b"]
    agent = AssistantAgent("clerk", model("yes"), model_context=loaded)
    reloaded = AssistantAgent.load_component(agent.dump_component())
    assert type(reloaded.model_context) is AssembledChatCompletionContext


def test_what_cannot_be_configured():
    class Watching:
        name = "watching"
        watches = UserMessage

        async def process(self, event, context):
            return None

    context = AssembledChatCompletionContext([ConversationPolicy()], observers=[Watching()])
    with pytest.raises(ConfigurationError, match="observers"):
        context.dump_component()
