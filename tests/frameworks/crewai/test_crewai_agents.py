"""CrewAI's crews and agents: their names, one run for each task, and the summaries of long histories."""

from __future__ import annotations

import asyncio

import pytest
from chat_provider import agents_of_calls, assemblies, one_assembly_for_each_request, runs, steps, turns
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from otel_assembly.instrumentation import uninstrument

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@tool("search")
def search(query: str) -> str:
    """Search."""
    return f"Nothing is known of {query}, although many have looked for it."


@pytest.fixture
def llm(provider):
    return LLM(model="openai/gpt-4o", base_url=provider.url, api_key="none", max_retries=0)


@pytest.fixture
def writer(llm):
    return Agent(role="writer", goal="write", backstory="writes", llm=llm, tools=[search])


@pytest.fixture
def crew(llm, writer):
    """Return a function that creates a crew of a writer and an editor."""

    def create(**settings):
        editor = Agent(role="editor", goal="edit", backstory="edits", llm=llm)
        write = Task(description="Write on owls.", expected_output="a text", agent=writer)
        edit = Task(description="Edit it.", expected_output="a text", agent=editor, context=[write])
        return Crew(name="desk", agents=[writer, editor], tasks=[write, edit], **settings)

    return create


@pytest.fixture
def recorded(instrumented, assembly_telemetry):
    instrumented("openai", "litellm", "crewai")
    return assembly_telemetry


def answers_of_crew(provider):
    provider.calls("search", query="owls")
    provider.says("Owls are birds that hunt at night.", "Owls hunt at night.")


def tells_of_crew(recorded, provider):
    assert runs(recorded) == [("desk", None), ("writer", "desk"), ("editor", "desk")]
    assert agents_of_calls(recorded) == ["writer", "writer", "editor"]
    assert turns(recorded) == [0, 1, 0]
    assert steps(recorded) == [[], [], []]
    assert {span.attributes["assembly.framework"] for span in assemblies(recorded)} == {"crewai"}
    assert len({span.trace_id for span in recorded.spans}) == 1
    assert one_assembly_for_each_request(recorded, provider)


def test_a_crew_and_its_agents_have_names_of_their_own(recorded, provider, crew):
    answers_of_crew(provider)
    assert crew().kickoff().raw == "Owls hunt at night."
    tells_of_crew(recorded, provider)


def test_an_async_crew_is_told_of_alike(recorded, provider, crew):
    answers_of_crew(provider)
    assert asyncio.run(crew().kickoff_async()).raw == "Owls hunt at night."
    tells_of_crew(recorded, provider)


def test_a_native_async_crew_is_told_of_alike(recorded, provider, crew):
    answers_of_crew(provider)
    assert asyncio.run(crew().akickoff()).raw == "Owls hunt at night."
    tells_of_crew(recorded, provider)


def test_a_streamed_crew_has_one_run(recorded, provider, writer):
    task = Task(description="Write on owls.", expected_output="a text", agent=writer)
    provider.streams_text("Owls are birds that hunt at night.")
    output = Crew(name="desk", agents=[writer], tasks=[task], stream=True).kickoff()
    assert "".join(chunk.content for chunk in output).strip() == "Owls are birds that hunt at night."
    assert runs(recorded) == [("desk", None), ("writer", "desk")]
    assert agents_of_calls(recorded) == ["writer"]
    assert one_assembly_for_each_request(recorded, provider)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_agent_without_a_crew_has_one_run(recorded, provider, writer, is_async):
    provider.calls("search", query="owls")
    provider.says("Owls are birds.")
    question = "What are owls?"
    output = asyncio.run(writer.kickoff_async(question)) if is_async else writer.kickoff(question)
    assert output.raw == "Owls are birds."
    assert runs(recorded) == [("writer", None)]
    assert turns(recorded) == [0, 1]
    assert one_assembly_for_each_request(recorded, provider)


def test_a_summary_of_a_long_history_is_a_step_with_the_call_of_the_model_that_summarizes(recorded, provider, writer):
    provider.calls("search", query="owls")
    provider.refuses("This model's maximum context length is 8192 tokens.")
    provider.says("<summary>Nothing is known of owls.</summary>", "Nothing is known.")
    task = Task(description="Write on owls.", expected_output="a text", agent=writer)
    assert Crew(name="desk", agents=[writer], tasks=[task]).kickoff().raw == "Nothing is known."
    summarized = assemblies(recorded)[-1]
    assert steps(recorded)[-1][0] == "summarize_messages"
    assert not any("caller" in names for names in steps(recorded))
    step = next(child for child in summarized.children if child.name == "apply_policy summarize_messages")
    (attempt,) = step.children
    assert attempt.name.startswith("compact_block")
    assert "error.type" not in attempt.attributes
    assert len(step.compacted) == 3
    assert agents_of_calls(recorded) == ["writer"] * len(assemblies(recorded))
    assert len(assemblies(recorded)) == len(provider.requests) - 1  # the summarizer's call is a part of the step


def test_an_error_ends_the_run_with_its_type(recorded, provider, writer):
    for _ in range(3):  # CrewAI tries a task three times
        provider.refuses("no such model")
    task = Task(description="Write on owls.", expected_output="a text", agent=writer)
    with pytest.raises(Exception, match="no such model") as raised:
        Crew(name="desk", agents=[writer], tasks=[task]).kickoff()
    crew_run = next(span for span in recorded.spans if span.name == "invoke_agent desk")
    assert crew_run.attributes["error.type"].endswith(type(raised.value).__name__)
    assert crew_run.status == "ERROR"


def test_the_program_runs_as_without_instrumentation(instrumented, provider, crew):
    def program():
        answers_of_crew(provider)
        output = crew().kickoff().raw
        sent, provider.requests = provider.requests, []
        return output, sent

    before = Agent.execute_task, Agent.kickoff, Crew.kickoff
    bare = program()
    instrumented("openai", "litellm", "crewai")
    assert Crew.kickoff is not before[2]
    assert program() == bare
    uninstrument()
    assert (Agent.execute_task, Agent.kickoff, Crew.kickoff) == before
