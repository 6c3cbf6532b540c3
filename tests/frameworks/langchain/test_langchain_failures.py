"""What is told of LangChain's reducers that fail, and of what raises beside them."""

from __future__ import annotations

import pytest
from langchain.agents.middleware import AgentMiddleware, ClearToolUsesEdit, ContextEditingMiddleware
from langchain_agents import agent, arun, run, scripted, summarizer, tool_loop
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

SUMMARIZATION = "apply_policy summarization"


class Clear(ClearToolUsesEdit):
    """One that cannot work."""

    def apply(self, messages, *, count_tokens):
        raise ConnectionError("the customer's secret")


async def either(how, graph, messages):
    return run(graph, messages) if how == "sync" else await arun(graph, messages)


def failed(telemetry, name):
    step = telemetry.span(name)
    assert (step.status, step.attributes["error.type"]) == ("ERROR", "ConnectionError")
    assert telemetry.span("assemble_context").attributes["assembly.events.out"] == 0
    assert len(telemetry.spans_named("assemble_context")) == 1
    assert "secret" not in str(telemetry.spans)


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_reducer_that_raises_before_it_has_reduced_is_told(telemetry, how):
    def counter(messages):
        raise ConnectionError("the customer's secret")

    graph, model = agent(0, summarizer(token_counter=counter))
    with pytest.raises(ConnectionError):
        await either(how, graph, tool_loop(4))
    assert model.sent == []
    failed(telemetry, SUMMARIZATION)
    assert telemetry.metric("assembly.policy.errors", policy_name="summarization", error_type="ConnectionError") == 1
    assert "assembly.policy.declined" not in telemetry.metrics


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_an_edit_that_raises_is_told(telemetry, how):
    graph, model = agent(0, ContextEditingMiddleware(edits=[Clear()]))
    with pytest.raises(ConnectionError):
        await either(how, graph, tool_loop(4))
    assert model.sent == []
    failed(telemetry, "apply_policy context_editing")


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_what_the_model_raises_is_no_error_of_the_reducer_before_it(telemetry, how):
    class Down(type(scripted())):
        def _generate(self, *args, **kwargs):
            raise ConnectionError("no")

    from langchain.agents import create_agent

    editing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=0)])
    graph = create_agent(Down(messages=iter([AIMessage("-")])), [], middleware=[editing, summarizer(at=100)])
    with pytest.raises(ConnectionError):
        await either(how, graph, tool_loop(4))
    (step,) = telemetry.spans_named("apply_policy context_editing")
    assert step.status == "UNSET"
    assert telemetry.spans_named(SUMMARIZATION) == []
    assert "assembly.policy.errors" not in telemetry.metrics


def test_who_waits_for_a_person_has_not_failed(telemetry):
    class Asks(AgentMiddleware):
        def before_model(self, state, runtime):
            interrupt("Is that right?")

    graph, _ = agent(0, summarizer(), Asks(), checkpointer=InMemorySaver())
    run(graph, tool_loop(4), configurable={"thread_id": "1"})
    assert [span.status for span in telemetry.spans_named("assemble_context")] == ["UNSET"]
    assert "assembly.policy.errors" not in telemetry.metrics
