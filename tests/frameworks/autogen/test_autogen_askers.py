"""A ledger is one context as one agent has it; what prepares one model call are steps of one assembly."""

from __future__ import annotations

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core.memory import ListMemory, MemoryContent
from autogen_core.model_context import BufferedChatCompletionContext, UnboundedChatCompletionContext
from autogen_talk import model, said

from otel_assembly.telemetry import read_ledgers


def agent(name, *answers, **settings):
    return AssistantAgent(name, model(*answers), description=name, **settings)


def turns(telemetry):
    """The turns of each ledger, and whose they are."""
    found = {}
    for span in telemetry.spans_named("assemble_context"):
        held = span.attributes
        found.setdefault((held.get("gen_ai.agent.name"), held["assembly.ledger.id"]), []).append(held["assembly.turn"])
    assert [problem for ledger in read_ledgers(telemetry.spans).values() for problem in ledger.problems] == []
    return sorted((str(name), numbers) for (name, _), numbers in found.items())


async def test_two_agents_that_share_a_context_have_each_their_own_ledger(told):
    shared = BufferedChatCompletionContext(buffer_size=3)
    draft = agent("draft", *map(str, range(9)), model_context=shared)
    review = agent("review", *map(str, range(9)), model_context=shared)
    await RoundRobinGroupChat([draft, review], termination_condition=MaxMessageTermination(5)).run(task="write")
    assert turns(told) == [("draft", [0, 1]), ("review", [0, 1])]
    last = {}
    for span in told.spans_named("assemble_context"):
        name = span.attributes["gen_ai.agent.name"]
        if name in last:
            assert span.attributes["assembly.previous.id"] == last[name]
        last[name] = span.attributes["assembly.id"]


async def test_a_selector_and_an_agent_that_share_a_context_have_each_their_own(told):
    shared = UnboundedChatCompletionContext()
    clerk = agent("clerk", "one", "two", model_context=shared)
    other = agent("other", "three", "four", model_context=shared)
    team = SelectorGroupChat(
        [clerk, other],
        model_client=model("clerk", "other", "clerk"),
        model_context=shared,
        allow_repeated_speaker=True,
        termination_condition=MaxMessageTermination(3),
    )
    await team.run(task="go")
    found = dict(turns(told))
    assert found["clerk"] == [0]
    assert found["other"] == [0]
    (manager,) = set(found) - {"clerk", "other"}
    assert found[manager] == [0, 1]


async def test_a_program_that_reads_the_context_itself_makes_no_assembly(told):
    shared = BufferedChatCompletionContext(buffer_size=2)
    clerk = agent("clerk", "one", "two", model_context=shared)
    await clerk.run(task="first")
    assert said(await shared.get_messages()) == ["first", "one"]
    await clerk.run(task="second")
    assert turns(told) == [("clerk", [0, 1])]


async def test_memories_and_a_buffer_are_steps_of_one_assembly(told):
    memory = ListMemory()
    await memory.add(MemoryContent(content="likes tea", mime_type="text/plain"))
    clerk = agent("clerk", *map(str, range(9)), memory=[memory], model_context=BufferedChatCompletionContext(3))
    for task in ("first", "second", "third"):
        await clerk.run(task=task)
    for span in told.spans_named("assemble_context"):
        assert [step.name for step in span.children] == ["apply_policy memory", "apply_policy buffered"]
    assert turns(told) == [("clerk", [0, 1, 2])]


@pytest.mark.parametrize("names", [("a", "a"), ("a", "b")], ids=str)
async def test_contexts_of_their_own_are_conversations_of_their_own(names, told):
    for name in names:
        await agent(name, "yes", "no").run(task="go")
    assert [numbers for _, numbers in turns(told)] == [[0], [0]]
