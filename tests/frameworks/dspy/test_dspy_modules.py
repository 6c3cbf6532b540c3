"""DSPy's modules: their names and runs, and one assembly for each request, through LiteLLM or DSPy's own clients."""

from __future__ import annotations

import asyncio

import dspy
import pytest
from chat_provider import agents_of_calls, assemblies, one_assembly_for_each_request, runs, steps, turns

from otel_assembly.instrumentation import uninstrument

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # pydantic on LiteLLM's types
]


@pytest.fixture
def lm(provider):
    """A model in front of the server, in the context of the test."""
    lm = dspy.LM("openai/gpt-4o", api_base=provider.url, api_key="none", cache=False, num_retries=0)
    with dspy.context(lm=lm):
        yield lm


@pytest.fixture
def recorded(instrumented, assembly_telemetry):
    instrumented("openai", "litellm", "dspy")
    return assembly_telemetry


def fields(**values):
    return "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in values.items()) + "[[ ## completed ## ]]"


def add(left: int, right: int) -> int:
    """Add."""
    return left + right


class Support(dspy.Module):
    def __init__(self):
        super().__init__()
        self.guard = dspy.Predict("question -> allowed")
        self.agent = dspy.ReAct("question -> answer", tools=[add])

    def forward(self, question):
        self.guard(question=question)
        return self.agent(question=question)

    async def aforward(self, question):
        await self.guard.acall(question=question)
        return await self.agent.acall(question=question)


class Chat(dspy.Signature):
    question: str = dspy.InputField()
    history: dspy.History = dspy.InputField()
    answer: str = dspy.OutputField()


def answers_of_support(provider):
    provider.says(
        fields(allowed="yes"),
        fields(next_thought="add", next_tool_name="add", next_tool_args='{"left": 1, "right": 2}'),
        fields(next_thought="done", next_tool_name="finish", next_tool_args="{}"),
        fields(reasoning="added", answer="three"),
    )


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_program_and_its_agent_have_two_names(recorded, provider, lm, is_async):
    answers_of_support(provider)
    support = Support()
    question = "What is 1 + 2?"
    output = asyncio.run(support.acall(question=question)) if is_async else support(question=question)
    assert output.answer == "three"
    assert runs(recorded) == [("Support", None), ("ReAct", "Support")]
    assert agents_of_calls(recorded) == ["Support", "ReAct", "ReAct", "ReAct"]
    assert {span.attributes["assembly.framework"] for span in assemblies(recorded)} == {"dspy"}
    assert len({span.trace_id for span in recorded.spans}) == 1
    assert steps(recorded) == [[]] * 4
    assert one_assembly_for_each_request(recorded, provider)


def test_a_history_continues_the_conversation(recorded, provider, lm):
    chat, history = dspy.Predict(Chat), dspy.History(messages=[])
    for number in range(3):
        question = f"What is {number} + {number}?"
        provider.says(fields(answer=f"It is the number {2 * number}."))
        history.messages.append({"question": question, "answer": chat(question=question, history=history).answer})
    assert runs(recorded) == [("Predict", None)] * 3
    assert turns(recorded) == [0, 1, 2]
    # DSPy 3.0 sends earlier questions without their instructions: an edit.
    assert [span.attributes["assembly.newly_dropped.count"] for span in assemblies(recorded)] == [0, 0, 0]
    assert one_assembly_for_each_request(recorded, provider)


def test_a_streamed_program_has_one_run(recorded, provider, lm):
    async def program():
        stream = dspy.streamify(
            dspy.Predict("question -> answer"),
            stream_listeners=[dspy.streaming.StreamListener(signature_field_name="answer")],
        )
        return [item async for item in stream(question="Where is the bag?")][-1]

    provider.streams_text("[[ ## answer ## ]] In the hall, I think. [[ ## completed ## ]]")
    assert "hall" in asyncio.run(program()).answer
    assert runs(recorded) == [("Predict", None)]
    assert agents_of_calls(recorded) == ["Predict"]
    assert one_assembly_for_each_request(recorded, provider)


def test_an_error_ends_the_run_with_its_type(recorded):
    class Failing(dspy.Module):
        def forward(self):
            raise LookupError("no such guest")

    with pytest.raises(LookupError, match="no such guest"):
        Failing()()
    (run,) = recorded.spans
    assert run.name == "invoke_agent Failing"
    assert run.attributes["error.type"] == "LookupError"


def test_the_program_runs_as_without_instrumentation(instrumented, provider, lm):
    def program():
        answers_of_support(provider)
        output = Support()(question="What is 1 + 2?")
        sent, provider.requests = provider.requests, []
        return dict(output), sent

    before = dict(vars(dspy.Module))
    bare = program()
    instrumented("openai", "litellm", "dspy")
    assert dspy.Module.__call__ is not before["__call__"]
    assert program() == bare
    uninstrument()
    assert dict(vars(dspy.Module)) == before
