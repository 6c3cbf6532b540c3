"""What policies and observers of the plug-in get to work with inside AutoGen."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import UserMessage
from autogen_talk import asks_for, model

from otel_assembly import (
    AlertPolicy,
    BudgetPolicy,
    ConfigurationError,
    EpisodicMemoryPolicy,
    HaltedError,
    WorkingMemoryPolicy,
)
from otel_assembly.instrumentation.autogen import AssembledChatCompletionContext
from otel_assembly.knowledge import KnowledgeStore, MemoryKnowledgeStore
from otel_assembly.runtime import BudgetMonitor, LoopDetector

WORKING, EPISODE = "/memory/working.md", "/memory/conversations/2026-01-01.md"


def look_up(topic: str) -> str:
    """Look something up."""
    return "found"


def clerk(client, context, **settings):
    return AssistantAgent("clerk", client, model_context=context, system_message="You help.", **settings)


def sent(client):
    """What each model call was sent, as one text."""
    return ["\n".join(str(message.content) for message in call["messages"]) for call in client.create_calls]


async def test_memory_policies_read_the_store_that_the_plugin_is_given(told):
    store = MemoryKnowledgeStore()
    await store.write(WORKING, "Ada wants a window seat.")
    await store.write(EPISODE, "She was in Rome.")
    context = AssembledChatCompletionContext(
        [WorkingMemoryPolicy(), EpisodicMemoryPolicy()], dependencies={KnowledgeStore: store}
    )
    client = model("fine")
    await clerk(client, context).run(task="hello")
    assert "Ada wants a window seat." in sent(client)[0]
    assert "She was in Rome." in sent(client)[0]
    span = told.span("assemble_context")
    assert span.attributes["assembly.prompt.sources"] == [
        "caller",  # the agent's own system message
        "working_memory",
        "episodic_memory",
        "episodic_memory",
    ]


async def test_what_is_given_may_be_found_for_each_turn(told):
    seen = []

    class Keeps:
        name = "keeps"

        async def apply(self, prompts, events, context):
            seen.append(dict(context.variables))
            return prompts, events

    async def variables(context):
        return {"messages": len((await context.save_state())["messages"])}

    context = AssembledChatCompletionContext([Keeps()], variables=variables)
    agent = clerk(model("one", "two"), context)
    await agent.run(task="a")
    await agent.run(task="b")
    assert seen == [{"messages": 1}, {"messages": 3}]


async def test_a_turn_keeps_what_it_was_given_whatever_another_one_gets_meanwhile(told):
    turns, seen = itertools.count(), []

    class Slow:
        name = "slow"

        async def apply(self, prompts, events, context):
            before = context.variables["turn"]
            await asyncio.sleep(0.01)
            seen.append((before, context.variables["turn"], context.dependencies[int]))
            return prompts, events

    context = AssembledChatCompletionContext(
        [Slow()], variables=lambda _: {"turn": next(turns)}, dependencies=lambda _: {int: next(turns)}
    )
    await asyncio.gather(*(context.get_messages() for _ in range(5)))
    assert sorted(seen) == [(2 * n + 1, 2 * n + 1, 2 * n) for n in range(5)]


async def test_a_memory_policy_without_a_store_says_so_once(told, caplog):
    agent = clerk(model("one", "two", "three"), AssembledChatCompletionContext([WorkingMemoryPolicy()]))
    for task in ("a", "b", "c"):
        await agent.run(task=task)
    said = [record.getMessage() for record in caplog.records if record.name == "otel_assembly"]
    assert len(said) == 1
    assert "working_memory" in said[0]


def looping(*answers):
    return model(*(asks_for("look_up", '{"topic": "x"}', str(number)) for number in range(3)), *answers)


async def test_a_loop_is_found_in_autogens_messages_and_the_model_is_told_once(told):
    client = looping("done")
    context = AssembledChatCompletionContext([AlertPolicy()], observers=[LoopDetector(10, 3)])
    await clerk(client, context, tools=[look_up], max_tool_iterations=5).run(task="hello")
    assert ["loop 1: tool 'look_up' was called 3 times" in text for text in sent(client)] == [False] * 3 + [True]


async def test_a_fatal_alert_of_an_observer_raises_before_the_tool_is_called(told):
    called = []

    def look_up(topic: str) -> str:
        """Look something up."""
        called.append(topic)
        return "found"

    client = looping("never")
    context = AssembledChatCompletionContext([AlertPolicy()], observers=[LoopDetector(10, 3, severity="fatal")])
    agent = clerk(client, context, tools=[look_up], max_tool_iterations=5)
    with pytest.raises(HaltedError, match="loop 1"):
        await agent.run(task="hello")
    assert (len(client.create_calls), len(called)) == (3, 2)
    with pytest.raises(HaltedError):
        await agent.run(task="again")
    assert len(client.create_calls) == 3


async def test_a_budget_that_fills_up_is_said_to_the_model(told):
    client = model("one", "two", "three")
    context = AssembledChatCompletionContext(
        [AlertPolicy(), BudgetPolicy(window=400, output_reserve=100)],
        prompts=["You help."],
        observers=[BudgetMonitor(utilization_threshold=0.01)],
    )
    agent = clerk(client, context)
    for task in ("a", "b", "c"):
        await agent.run(task=task)
    assert ["of the budget" in text for text in sent(client)] == [False, True, False]


async def test_what_can_be_written_into_a_configuration_is_and_the_rest_is_refused(told):
    context = AssembledChatCompletionContext([WorkingMemoryPolicy()], variables={"tier": "gold"})
    again = AssembledChatCompletionContext.load_component(context.dump_component())
    await again.add_message(UserMessage(content="hello", source="user"))
    await again.get_messages()
    assert again.context_of().variables == {"tier": "gold"}
    for given in ({"dependencies": {KnowledgeStore: MemoryKnowledgeStore()}}, {"variables": lambda context: {}}):
        with pytest.raises(ConfigurationError, match=next(iter(given))):
            AssembledChatCompletionContext([WorkingMemoryPolicy()], **given).dump_component()
