"""One run, one trace; nothing is repeated that the program has; nothing is left attached."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, TypedDict

import pytest
from langchain.agents.middleware import before_model
from langchain_agents import agent, arun, chat, look_up, run, scripted, summarizer, tool_loop
from langchain_core.messages import AIMessage, RemoveMessage, trim_messages
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from opentelemetry import trace

ASSEMBLY = "assemble_context"


class State(TypedDict):
    messages: Annotated[list, add_messages]


def chatbot(model, name=None, limit=3):
    def answer(state: State) -> dict:
        return {"messages": [model.invoke(trim_messages(state["messages"], max_tokens=limit, token_counter=len))]}

    builder = StateGraph(State)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(name=name)


def forgetting():
    @before_model
    def forget(state, runtime):
        return {"messages": [RemoveMessage(state["messages"][0].id)]}

    return forget


def one_trace(telemetry, name, assemblies):
    (top,) = [span for span in telemetry.spans if span.parent_id is None]
    assert top.name == f"invoke_agent {name}"
    assert top.attributes["assembly.framework"] == "langchain"
    assert not any(key.startswith(("gen_ai.usage", "gen_ai.request")) for key in top.attributes)
    spans = telemetry.spans_named(ASSEMBLY)
    assert [span.parent_id for span in spans] == [top.span_id] * assemblies
    return top


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream", "batch", "events"])
async def test_a_run_is_one_trace_whichever_way_it_is_read(telemetry, way):
    graph, _ = agent(0, summarizer(at=4, keep=2), forgetting(), name="bob")
    given, config = {"messages": tool_loop(4)}, {"recursion_limit": 100}
    if way == "invoke":
        graph.invoke(given, config)
    elif way == "ainvoke":
        await graph.ainvoke(given, config)
    elif way == "stream":
        for _ in graph.stream(given, config):
            assert not trace.get_current_span().get_span_context().is_valid
    elif way == "astream":
        async for _ in graph.astream(given, config, stream_mode="updates"):
            assert not trace.get_current_span().get_span_context().is_valid
    elif way == "batch":
        graph.batch([given], config)
    else:
        async for _ in graph.astream_events(given, config, version="v2"):
            pass
    one_trace(telemetry, "bob", 1)
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_span_that_is_current_is_enough(telemetry):
    graph, _ = agent(4, summarizer(at=4, keep=2))
    with telemetry.tracer().start_as_current_span("request") as request:
        await arun(graph)
    spans = telemetry.spans_named(ASSEMBLY)
    assert {span.parent_id for span in spans} == {f"{request.get_span_context().span_id:016x}"}
    assert not [span for span in telemetry.spans if span.name.startswith("invoke_agent")]


async def test_another_graph_gets_a_span_only_if_something_in_it_reduces(telemetry):
    class Plain(TypedDict):
        n: int

    builder = StateGraph(Plain)
    builder.add_node("add", lambda state: {"n": state["n"] + 1})
    builder.add_edge(START, "add")
    builder.add_edge("add", END)
    assert builder.compile().invoke({"n": 1}) == {"n": 2}
    assert telemetry.spans == []

    await chatbot(scripted("Yes.", "No."), "chatbot").ainvoke({"messages": chat(3)})
    one_trace(telemetry, "chatbot", 1)


async def test_an_agent_inside_a_tool_opens_no_run_of_its_own(telemetry):
    inner, _ = agent(3, summarizer(at=4, keep=2), name="inner")

    @tool
    def ask_inner(topic: str) -> str:
        """Ask the other agent."""
        return run(inner)["messages"][-1].content

    from langchain.agents import create_agent

    asks = AIMessage("", tool_calls=[{"id": "1", "name": "ask_inner", "args": {"topic": "x"}}])
    outer = create_agent(scripted(asks, "Done."), [ask_inner], name="outer")
    await arun(outer)
    spans = telemetry.spans_named(ASSEMBLY)
    one_trace(telemetry, "outer", len(spans))
    assert [span.attributes["gen_ai.agent.name"] for span in spans] == ["outer", *["inner"] * 4, "outer"]


async def test_a_graph_in_a_graph_that_has_no_span_yet_shares_the_one_it_gets(telemetry):
    inner = chatbot(scripted("a", "b", "c", "d"), "inner")

    def twice(state: State) -> dict:
        inner.invoke({"messages": state["messages"]})
        return {"messages": inner.invoke({"messages": state["messages"]})["messages"]}

    builder = StateGraph(State)
    builder.add_node("twice", twice)
    builder.add_edge(START, "twice")
    builder.add_edge("twice", END)
    builder.compile(name="outer").invoke({"messages": chat(3)})
    one_trace(telemetry, "outer", 2)


async def test_model_calls_that_something_else_tells_of_are_stamped(telemetry):
    """As if the chat model were instrumented: a span that opens inside the model's own call."""
    tracer = telemetry.tracer("chat")

    class Told(type(scripted())):
        def _generate(self, *args, **kwargs):
            with tracer.start_as_current_span("chat fake", attributes={"gen_ai.operation.name": "chat"}):
                return super()._generate(*args, **kwargs)

    summaries = Told(messages=iter([AIMessage("S"), AIMessage("T")]))
    graph, _ = agent(0, summarizer(summaries, at=4, keep=2))
    model = Told(messages=iter([AIMessage("Done.")]))
    from langchain.agents import create_agent

    graph = create_agent(model, [look_up], middleware=[summarizer(summaries, at=4, keep=2)])
    await arun(graph, tool_loop(3))
    summary_call, model_call = telemetry.spans_named("chat fake")
    assert summary_call.parent.name == "compact_block summary"
    assert "assembly.id" not in summary_call.attributes
    assert model_call.attributes["assembly.id"] == telemetry.span(ASSEMBLY).attributes["assembly.id"]
    assert model_call.attributes["gen_ai.conversation.compacted"] is True
    assert model_call.parent.name == "invoke_agent LangGraph"


async def test_a_reader_that_has_had_enough_ends_the_run(telemetry):
    graph, _ = agent(4, summarizer(at=4, keep=2))
    stream = graph.stream({"messages": tool_loop(2)})
    next(stream)
    stream.close()
    astream = graph.astream({"messages": tool_loop(2)})
    await anext(astream)
    await astream.aclose()
    tops = [span for span in telemetry.spans if span.name.startswith("invoke_agent")]
    assert [top.status for top in tops] == ["UNSET", "UNSET"]


PROGRAM = """
import asyncio
from langchain_agents import agent, tool_loop
from otel_assembly.instrumentation import instrument
from otel_assembly.testing import RecordedTelemetry

async def main():
    graph, _ = agent(3)
    async for _ in graph.astream({"messages": tool_loop(1)}):
        break

telemetry = RecordedTelemetry()
with telemetry.as_default():
    instrument("langchain")
    asyncio.run(main())
print([span.name for span in telemetry.spans])
"""


def test_a_stream_that_is_left_lying_is_closed_in_silence():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    assert (done.stdout.strip(), done.stderr) == ("['assemble_context', 'invoke_agent LangGraph']", "")


async def test_what_a_reader_throws_in_reaches_the_graph(telemetry):
    graph, _ = agent(3)
    stream = graph.astream({"messages": tool_loop(1)})
    await anext(stream)
    with pytest.raises(ZeroDivisionError):
        await stream.athrow(ZeroDivisionError())
    assert telemetry.span("invoke_agent LangGraph").attributes["error.type"] == "ZeroDivisionError"


async def test_what_the_model_raises_comes_out_unchanged(telemetry):
    problem = RuntimeError("the model's own")

    class Broken(type(scripted())):
        def _generate(self, *args, **kwargs):
            raise problem

    from langchain.agents import create_agent

    for how in ("sync", "async"):
        graph = create_agent(Broken(messages=iter(())), [])
        with pytest.raises(RuntimeError) as raised:
            run(graph) if how == "sync" else await arun(graph)
        assert raised.value is problem
        assert telemetry.span("invoke_agent LangGraph").attributes["error.type"] == "RuntimeError"


async def test_agents_in_a_thread_pool_keep_to_themselves(telemetry):
    graphs = [agent(3, summarizer(at=4, keep=2), name=f"agent {number}")[0] for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, graphs))
    tops = {span.trace_id: span for span in telemetry.spans if span.parent_id is None}
    assert sorted(top.name for top in tops.values()) == [f"invoke_agent agent {number}" for number in range(6)]
    for span in telemetry.spans_named(ASSEMBLY):
        assert f"invoke_agent {span.attributes['gen_ai.agent.name']}" == tops[span.trace_id].name
