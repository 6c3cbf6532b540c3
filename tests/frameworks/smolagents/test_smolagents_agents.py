"""smolagents' agents: their names, one run for each call of `run`, and one assembly for each request to a model."""

from __future__ import annotations

import pytest
from chat_provider import agents_of_calls, assemblies, one_assembly_for_each_request, runs, steps, turns
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

from otel_assembly.instrumentation import uninstrument


@pytest.fixture
def model(provider):
    return OpenAIServerModel(model_id="gpt-4o", api_base=provider.url, api_key="none")


@pytest.fixture
def recorded(instrumented, assembly_telemetry):
    instrumented("openai", "smolagents")
    return assembly_telemetry


def code(line):
    return f"Thought: next\n<code>\n{line}\n</code>"


@tool
def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: Where.
    """
    return f"It rains in {city}."


def test_an_agent_and_the_agent_that_its_code_calls_have_two_names(recorded, provider, model):
    helper = CodeAgent(tools=[], model=model, verbosity_level=0, name="helper", description="helps")
    manager = CodeAgent(tools=[], model=model, verbosity_level=0, managed_agents=[helper])
    provider.says(code("print(helper('What is two?'))"), code("final_answer('two')"), code("final_answer(4)"))
    assert manager.run("What is 2 + 2?") == 4
    assert runs(recorded) == [("CodeAgent", None), ("helper", "CodeAgent")]
    assert agents_of_calls(recorded) == ["CodeAgent", "helper", "CodeAgent"]
    assert {span.attributes["assembly.framework"] for span in assemblies(recorded)} == {"smolagents"}
    assert len({span.trace_id for span in recorded.spans}) == 1
    assert one_assembly_for_each_request(recorded, provider)


def test_each_step_and_the_next_run_continue_the_conversation(recorded, provider, model):
    agent = CodeAgent(tools=[], model=model, verbosity_level=0, name="coder", description="codes")
    provider.says(code("print(1)"), code("print(2)"), code("final_answer(3)"))
    agent.run("Count.")
    provider.says(code("print(4)"), code("final_answer(5)"))
    agent.run("And now?", reset=False)
    assert turns(recorded) == [0, 1, 2, 3, 4]
    assert steps(recorded) == [[]] * 5
    assert runs(recorded) == [("coder", None)] * 2
    assert one_assembly_for_each_request(recorded, provider)


def test_the_steps_of_a_streamed_run_belong_to_the_run(recorded, provider, model):
    agent = ToolCallingAgent(tools=[weather], model=model, verbosity_level=0, stream_outputs=False)
    provider.calls("weather", city="Rome")
    provider.calls("final_answer", answer="It rains.")
    *_, last = agent.run("How is it in Rome?", stream=True)
    assert last.output == "It rains."
    assert runs(recorded) == [("ToolCallingAgent", None)]
    assert agents_of_calls(recorded) == ["ToolCallingAgent"] * 2
    assert turns(recorded) == [0, 1]
    assert one_assembly_for_each_request(recorded, provider)


def test_streamed_outputs_have_one_assembly_for_each_request(recorded, provider, model):
    agent = CodeAgent(tools=[], model=model, verbosity_level=0, stream_outputs=True)
    provider.streams_text("Thought: now <code> final_answer(7) </code>")
    assert agent.run("Say seven.") == 7
    assert runs(recorded) == [("CodeAgent", None)]
    assert one_assembly_for_each_request(recorded, provider)


def test_an_error_ends_the_run_with_its_type(recorded, provider, model):
    def fail(step):
        raise LookupError("no such step")

    agent = CodeAgent(tools=[], model=model, verbosity_level=0, step_callbacks=[fail])
    provider.says(code("print(1)"))
    with pytest.raises(LookupError, match="no such step"):
        agent.run("Count.")
    run = assemblies(recorded)[0].parent
    assert run.attributes["error.type"] == "LookupError"
    assert run.status == "ERROR"


def test_the_program_runs_as_without_instrumentation(instrumented, provider, model):
    def program():
        helper = CodeAgent(tools=[weather], model=model, verbosity_level=0, name="helper", description="helps")
        manager = CodeAgent(tools=[], model=model, verbosity_level=0, managed_agents=[helper])
        provider.says(code("print(helper('Rome?'))"), code("final_answer(weather('Rome'))"), code("final_answer(4)"))
        answers = [str(manager.run("How is it?")), str(manager.memory.get_full_steps()[1]["observations"])]
        sent, provider.requests = provider.requests, []
        return answers, sent

    before = (CodeAgent.run, CodeAgent.__call__)
    bare = program()
    instrumented("openai", "smolagents")
    assert CodeAgent.run is not before[0]
    assert program() == bare
    uninstrument()
    assert (CodeAgent.run, CodeAgent.__call__) == before
