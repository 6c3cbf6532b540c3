"""What is told of LangChain's reducers that fail, and of what raises beside them."""

from __future__ import annotations

import contextlib

import pytest
from langchain.agents.middleware import AgentMiddleware, ClearToolUsesEdit, ContextEditingMiddleware
from langchain_agents import agent, arun, run, scripted, summarizer, tool_loop
from langchain_core.messages import AIMessage, trim_messages
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
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


def broken_trim(messages):
    def counter(given):
        raise ConnectionError("the customer's secret")

    return trim_messages(messages, max_tokens=3, token_counter=counter)


def graph_of(node):
    graph = StateGraph(MessagesState)
    graph.add_node("ask", node)
    graph.add_edge(START, "ask")
    return graph.compile()


def test_a_trim_that_raises_and_is_done_without_has_dropped_nothing(telemetry):
    model = scripted("Done.")

    def ask(state):
        messages = state["messages"]
        with contextlib.suppress(ConnectionError):
            messages = broken_trim(messages)
        return {"messages": [model.invoke(messages)]}

    graph_of(ask).invoke({"messages": tool_loop(3)})
    (span,), (step,) = telemetry.spans_named("assemble_context"), telemetry.spans_named("apply_policy trim_messages")
    assert (step.status, step.attributes["error.type"]) == ("ERROR", "ConnectionError")
    assert span.attributes["assembly.events.out"] == len(model.sent[0]) == 7
    assert span.attributes["assembly.dropped.count"] == 0
    assert "secret" not in str(telemetry.spans)


def test_a_trim_that_raises_for_good_sends_nothing(telemetry):
    with pytest.raises(ConnectionError):
        graph_of(lambda state: {"messages": broken_trim(state["messages"])}).invoke({"messages": tool_loop(3)})
    failed(telemetry, "apply_policy trim_messages")


def test_who_waits_for_a_person_has_not_failed(telemetry):
    class Asks(AgentMiddleware):
        def before_model(self, state, runtime):
            interrupt("Is that right?")

    graph, _ = agent(0, summarizer(), Asks(), checkpointer=InMemorySaver())
    run(graph, tool_loop(4), configurable={"thread_id": "1"})
    assert [span.status for span in telemetry.spans_named("assemble_context")] == ["UNSET"]
    assert "assembly.policy.errors" not in telemetry.metrics
