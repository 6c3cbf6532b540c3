"""Agno's agents and teams: their names, sessions and runs, and what limits of the history drop."""

from __future__ import annotations

import asyncio
import json

import pytest
from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAIChat
from agno.team import Team
from chat_provider import agents_of_calls, assemblies, one_assembly_for_each_request, runs, steps, turns
from pydantic import BaseModel

from otel_assembly.instrumentation import uninstrument

SENTENCES = [f"This is the answer number {number}." for number in range(8)]


@pytest.fixture
def agent(provider):
    """Return a function that creates an agent."""

    def create(cls=Agent, **settings):
        model = OpenAIChat(id="gpt-4o", base_url=provider.url, api_key="none", max_retries=0)
        return cls(**{"name": "clerk", "model": model, "instructions": "Be brief.", "telemetry": False, **settings})

    return create


@pytest.fixture
def recorded(instrumented, assembly_telemetry):
    instrumented("openai", "agno")
    return assembly_telemetry


def look(place: str) -> str:
    """Look at a place."""
    return f"Nothing is in {place}, and nothing has been there for a long time."


def test_each_run_of_a_session_continues_the_one_before(recorded, provider, agent):
    clerk = agent(db=InMemoryDb(), add_history_to_context=True)
    provider.says(*SENTENCES[:2])
    for question in ("Where is the bag?", "And the coat?"):
        clerk.run(question)
    assert runs(recorded) == [("clerk", None)] * 2
    assert turns(recorded) == [0, 1]
    assert steps(recorded) == [[], []]
    assert {span.attributes["gen_ai.conversation.id"] for span in assemblies(recorded)} == {clerk.session_id}
    assert {span.attributes["assembly.framework"] for span in assemblies(recorded)} == {"agno"}
    assert one_assembly_for_each_request(recorded, provider)


def test_the_named_session_is_the_conversation(recorded, provider, agent):
    provider.says(SENTENCES[0])
    agent().run("Where is the bag?", session_id="order-17")
    assert {span.attributes["gen_ai.conversation.id"] for span in recorded.spans} == {"order-17"}


def test_a_team_and_its_member_have_two_names(recorded, provider, agent):
    desk = agent(Team, name="desk", members=[agent(name="writer", role="writes")])
    provider.calls("delegate_task_to_member", member_id="writer", task="Write it.")
    provider.says("It is written.", "The writer has written it.")
    assert desk.run("Write.").content == "The writer has written it."
    assert runs(recorded) == [("desk", None), ("writer", "desk")]
    assert agents_of_calls(recorded) == ["desk", "writer", "desk"]
    assert len({span.trace_id for span in recorded.spans}) == 1
    assert one_assembly_for_each_request(recorded, provider)


def test_streams_and_async_runs_have_one_run_each(recorded, provider, agent):
    clerk = agent(db=InMemoryDb(), add_history_to_context=True)

    async def program():
        async for _ in clerk.arun("Where is the coat?", stream=True):
            pass
        return (await clerk.arun("And the hat?")).content

    for sentence in SENTENCES[:2]:
        provider.streams_text(sentence)
    provider.says(SENTENCES[2])
    list(clerk.run("Where is the bag?", stream=True))
    assert asyncio.run(program()) == SENTENCES[2]
    assert runs(recorded) == [("clerk", None)] * 3
    assert agents_of_calls(recorded) == ["clerk"] * 3
    assert turns(recorded) == [0, 1, 2]
    assert steps(recorded) == [[], [], []]
    assert one_assembly_for_each_request(recorded, provider)


def test_a_limit_of_the_history_is_a_step_of_each_call_in_the_run(recorded, provider, agent):
    clerk = agent(db=InMemoryDb(), add_history_to_context=True, num_history_runs=1, tools=[look])
    provider.says(*SENTENCES[:2])
    for question in ("Where is the bag?", "And the coat?"):
        clerk.run(question)
    provider.calls("look", place="the hall")
    provider.says(SENTENCES[2])
    clerk.run("And the hat?")
    assert steps(recorded) == [[], [], ["history_limit"], ["history_limit"]]
    (limit,) = assemblies(recorded)[2].children
    assert json.loads(limit.attributes["assembly.policy.config"]) == {"last_n_runs": 1}
    assert set(limit.dropped_reasons.values()) == {"outside_window"}
    assert [span.attributes["assembly.events.in"] for span in assemblies(recorded)] == [1, 3, 5, 7]
    assert assemblies(recorded)[2].attributes["assembly.newly_dropped.count"] == 2
    assert assemblies(recorded)[3].attributes["assembly.newly_dropped.count"] == 0
    assert one_assembly_for_each_request(recorded, provider)


def test_a_limit_of_the_tool_calls_is_a_step(recorded, provider, agent):
    clerk = agent(db=InMemoryDb(), add_history_to_context=True, max_tool_calls_from_history=1, tools=[look])
    for place, sentence in zip(("hall", "attic", "cellar"), SENTENCES, strict=False):
        provider.calls("look", place=place)
        provider.says(sentence)
        clerk.run(f"Is the bag in the {place}?")
    assert steps(recorded)[-1] == ["filter_tool_calls"]
    assert [span.attributes["assembly.events.in"] for span in assemblies(recorded)][-2:] == [9, 11]
    assert one_assembly_for_each_request(recorded, provider)


def test_compressed_results_of_tools_are_a_step_with_the_call_of_the_model_that_compresses(recorded, provider, agent):
    clerk = agent(compress_tool_results=True, tools=[look])
    clerk.initialize_agent()
    clerk.compression_manager.compress_tool_results_limit = 1
    provider.calls("look", place="the hall")
    provider.says("Nothing.", SENTENCES[0])
    clerk.run("Is the bag in the hall?")
    assert steps(recorded) == [[], ["compress_tool_results"]]
    (step,) = assemblies(recorded)[1].children
    (attempt,) = step.children
    assert attempt.name.startswith("compact_block")
    assert "error.type" not in attempt.attributes
    assert step.compacted


class Guest(BaseModel):
    name: str


def test_an_error_ends_the_run_with_its_type(recorded, agent):
    with pytest.raises(ValueError, match="Guest"):
        agent(input_schema=Guest).run({"room": 7})
    (run,) = recorded.spans
    assert run.attributes["error.type"] == "ValueError"
    assert run.status == "ERROR"


def test_the_program_runs_as_without_instrumentation(instrumented, provider, agent):
    def program():
        clerk = agent(db=InMemoryDb(), add_history_to_context=True, num_history_runs=1, tools=[look])
        provider.calls("look", place="the hall")
        provider.says(*SENTENCES[:3])
        answers = [clerk.run(question).content for question in ("Bag?", "Coat?", "Hat?")]
        provider.streams_text(SENTENCES[3])
        answers += [getattr(event, "content", None) for event in clerk.run("Shoes?", stream=True)]
        sent, provider.requests = provider.requests, []
        return answers, sent

    before = dict(vars(Agent)), dict(vars(Team))
    bare = program()
    instrumented("openai", "agno")
    assert Agent.run is not before[0]["run"]
    assert program() == bare
    uninstrument()
    assert (dict(vars(Agent)), dict(vars(Team))) == before
