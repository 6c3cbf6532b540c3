"""What is told of middleware that changes what the model gets to see."""

from __future__ import annotations

import asyncio
from typing import Annotated, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    after_model,
    before_model,
    dynamic_prompt,
    wrap_model_call,
)
from langchain_agents import REQUEST, agent, arun, chat, look_up, run, scripted, summarizer, tool_loop
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, trim_messages
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages

ASSEMBLY = "assemble_context"


def editing():
    return ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=50, keep=1)])


class Newest(AgentMiddleware):
    """Sends the newest messages alone; the state stays as it is."""

    def wrap_model_call(self, request, handler):
        return handler(request.override(messages=request.messages[-3:]))

    async def awrap_model_call(self, request, handler):
        return await handler(request.override(messages=request.messages[-3:]))


async def either(how, graph, messages=REQUEST, **config):
    return run(graph, messages, **config) if how == "sync" else await arun(graph, messages, **config)


HOWS = pytest.mark.parametrize("how", ["sync", "async"])


@HOWS
async def test_cleared_tool_results_are_compacted(telemetry, how):
    graph, model = agent(0, editing())
    await either(how, graph, tool_loop(3))
    assert [message.content for message in model.sent[0] if message.type == "tool"][:2] == ["[cleared]"] * 2
    step = telemetry.span("apply_policy context_editing")
    assert step.compacted == ["2", "4"]
    assert len(step.injected) == 2
    assert step.dropped_reasons == {}
    assert '"keep":1' in step.attributes["assembly.policy.config"]


@HOWS
async def test_what_one_wraps_around_the_model_call_is_told(telemetry, how):
    graph, model = agent(0, Newest())
    await either(how, graph, tool_loop(3))
    assert len(model.sent[0]) == 4
    step = telemetry.span("apply_policy Newest")
    assert step.dropped_reasons == dict.fromkeys(map(str, range(4)), "policy")
    assert telemetry.span(ASSEMBLY).attributes["assembly.prompts.in"] == 1


@HOWS
async def test_each_of_several_is_a_step_in_order(telemetry, how):
    graph, _ = agent(0, editing(), Newest())
    await either(how, graph, tool_loop(3))
    (span,) = telemetry.spans_named(ASSEMBLY)
    assert [step.name for step in span.children] == ["apply_policy context_editing", "apply_policy Newest"]
    assert [step.attributes["assembly.events.out"] for step in span.children] == [7, 3]


@HOWS
async def test_an_agent_that_was_made_before_is_seen_too(before_us, assembly_telemetry, how):
    graph, model = agent(0, summarizer("S"), editing(), Newest())
    before_us()
    await either(how, graph, tool_loop(4))
    assert len(model.sent[0]) == 4
    (span,) = assembly_telemetry.spans_named(ASSEMBLY)
    first, together = span.children
    assert first.name == "apply_policy summarization"
    assert together.name == "apply_policy framework"
    assert together.attributes["assembly.events.in"] == 5
    assert together.attributes["assembly.events.out"] == 3
    assert len(together.dropped_reasons) == 2


@HOWS
async def test_nothing_is_told_twice_whenever_the_agent_was_made(telemetry, how):
    graph, _ = agent(2, summarizer(at=4, keep=2), Newest())
    await either(how, graph)
    for span in telemetry.spans_named(ASSEMBLY):
        names = [step.name for step in span.children]
        assert len(names) == len(set(names))
        assert "apply_policy wrap_model_call" not in names


async def test_a_sync_hook_in_an_async_run_is_told_once(telemetry):
    @before_model
    def forget(state, runtime):
        return {"messages": [RemoveMessage(message.id) for message in state["messages"][:2]]}

    graph, _ = agent(0, forget)
    await arun(graph, chat(3))
    assert telemetry.span("apply_policy forget").dropped_reasons == {"0": "policy", "1": "policy"}
    assert len(telemetry.spans_named(ASSEMBLY)) == 1


@HOWS
async def test_messages_that_a_hook_adds_or_rewrites_are_told(telemetry, how):
    @before_model
    def remember(state, runtime):
        if len(state["messages"]) > 1:
            return None
        opening = state["messages"][0]
        return {
            "messages": [HumanMessage("[redacted]", id=opening.id), {"role": "user", "content": "By the way: rain."}]
        }

    graph, model = agent(1, remember)
    await either(how, graph)
    assert [message.content for message in model.sent[0][1:]] == ["[redacted]", "By the way: rain."]
    step = telemetry.span("apply_policy remember")
    assert step.compacted == ["0"]
    assert len(step.injected) == 2
    assert [span.children for span in telemetry.spans_named(ASSEMBLY)] == [[step], []]


@HOWS
async def test_a_hook_that_trims_is_told_by_what_trimmed(telemetry, how):
    @before_model
    def shorten(state, runtime):
        kept = trim_messages(state["messages"], max_tokens=3, token_counter=len)
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *kept]}

    graph, model = agent(0, shorten)
    await either(how, graph, chat(4))
    assert len(model.sent[0]) == 4
    assert [span.children[0].name for span in telemetry.spans_named(ASSEMBLY)] == ["apply_policy trim_messages"]
    assert telemetry.span(ASSEMBLY).attributes["assembly.dropped.count"] == 6


async def test_what_is_removed_after_the_model_call_is_told_and_nothing_else_there(telemetry):
    @after_model
    def forget(state, runtime):
        return {"messages": [RemoveMessage(state["messages"][0].id)]}

    @after_model
    def comment(state, runtime):
        return {"messages": [AIMessage("By the way.")]}

    graph, _ = agent(0, forget, comment)
    await arun(graph, chat(2))
    called, removed = telemetry.spans_named(ASSEMBLY)
    assert called.children == []
    assert [step.name for step in removed.children] == ["apply_policy forget"]


async def test_a_jump_to_the_end_is_no_assembly(telemetry):
    from langchain.agents.middleware import hook_config

    class Stop(AgentMiddleware):
        @hook_config(can_jump_to=["end"])
        def before_model(self, state, runtime):
            return {"jump_to": "end", "messages": [AIMessage("Enough.")]}

    graph, model = agent(3, Stop())
    await arun(graph)
    assert model.sent == []
    assert telemetry.spans_named(ASSEMBLY) == []


@HOWS
async def test_a_system_prompt_that_is_made_for_the_call_is_told(telemetry, how):
    @dynamic_prompt
    def seasonal(request):
        return "You help, in winter."

    graph, model = agent(0, seasonal)
    if how == "async" and type(seasonal).awrap_model_call is AgentMiddleware.awrap_model_call:
        pytest.skip("this version has no async form of it")
    await either(how, graph)
    assert model.sent[0][0].content == "You help, in winter."
    span = telemetry.span(ASSEMBLY)
    assert span.attributes["assembly.prompt.sources"] == [type(seasonal).__name__]
    assert span.attributes["assembly.dropped.count"] == 0


async def test_a_middleware_that_tries_again_is_told_for_each_call(telemetry):
    @wrap_model_call
    async def twice(request, handler):
        shorter = request.override(messages=request.messages[-1:])
        await handler(shorter)
        return await handler(shorter)

    graph, model = agent(0, twice)
    model.messages = iter([AIMessage("one"), AIMessage("two")])
    await arun(graph, chat(2))
    assert len(model.sent) == 2
    assert [len(span.children) for span in telemetry.spans_named(ASSEMBLY)] == [1, 1]
    assert list(conversations(telemetry).values()) == [[0, 1]]


async def test_middleware_that_changes_nothing_leaves_no_step(telemetry):
    class Idle(AgentMiddleware):
        def before_model(self, state, runtime):
            return {"messages": []}

        async def awrap_model_call(self, request, handler):
            return await handler(request.override(messages=list(request.messages)))

    graph, _ = agent(2, Idle())
    await arun(graph)
    assert [span.children for span in telemetry.spans_named(ASSEMBLY)] == [[]] * 3


async def test_no_agent_gains_a_node_by_it(telemetry):
    graph, _ = agent(0)
    assert set(graph.nodes) == {"__start__", "model", "tools"}
    graph, _ = agent(0, editing())
    assert set(graph.nodes) == {"__start__", "model", "tools"}


class State(TypedDict):
    messages: Annotated[list, add_messages]


async def test_a_node_of_any_graph_that_removes_messages_is_told(telemetry):
    model = scripted("Done.")

    def prune(state: State) -> dict:
        return {"messages": [RemoveMessage(message.id) for message in state["messages"][:-1]]}

    def answer(state: State) -> dict:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(State)
    builder.add_node("prune", prune)
    builder.add_node("answer", answer)
    builder.add_edge(START, "prune")
    builder.add_edge("prune", "answer")
    builder.add_edge("answer", END)
    run(builder.compile(), chat(2))
    assert len(model.sent[0]) == 1
    step = telemetry.span("apply_policy prune")
    assert step.dropped_reasons == dict.fromkeys(map(str, range(4)), "policy")
    assert telemetry.span(ASSEMBLY).parent.name == "invoke_agent LangGraph"


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@pytest.mark.filterwarnings("ignore:AgentStatePydantic has been moved")
async def test_what_a_hook_sends_instead_of_the_state_is_told(telemetry):
    from langgraph.prebuilt import create_react_agent

    def newest(state):
        return {"llm_input_messages": state["messages"][-2:]}

    def trimmed(state):
        return {"llm_input_messages": trim_messages(state["messages"], max_tokens=2, token_counter=len)}

    for hook, told in ((newest, "apply_policy newest"), (trimmed, "apply_policy trim_messages")):
        model = scripted("Done.")
        await arun(create_react_agent(model, [look_up], pre_model_hook=hook), chat(2))
        assert len(model.sent[0]) == 2
        assert telemetry.span(ASSEMBLY).children[0].name == told
        assert telemetry.span(ASSEMBLY).attributes["assembly.dropped.count"] == 3
    assert len(telemetry.spans_named(ASSEMBLY)) == 2
    assert telemetry.span(ASSEMBLY).parent.name == "invoke_agent LangGraph"


@HOWS
async def test_tools_and_prompt_take_tokens_too(telemetry, how):
    graph, _ = agent(0, Newest())
    await either(how, graph, tool_loop(3))
    span = telemetry.span(ASSEMBLY)
    kinds = dict(zip(span.attributes["assembly.kind.names"], span.attributes["assembly.kind.tokens"], strict=True))
    assert kinds["tool_schemas"] > 0
    assert kinds["prompt"] > 0
    assert sum(kinds.values()) == span.attributes["assembly.tokens.out"]


def conversations(telemetry):
    found = {}
    for span in telemetry.spans_named(ASSEMBLY):
        found.setdefault(span.attributes["assembly.ledger.id"], []).append(span.attributes["assembly.turn"])
    return found


async def test_a_thread_is_one_conversation_and_another_agent_has_its_own(telemetry):
    from langgraph.checkpoint.memory import InMemorySaver

    for _ in range(2):
        graph = create_agent(
            scripted(*["Yes."] * 9), [look_up], middleware=[Newest()], checkpointer=InMemorySaver(), name="bob"
        )
        for thread in ("one", "two"):
            for number in range(3):
                await arun(graph, f"Question {number}?", configurable={"thread_id": thread})
    assert sorted(conversations(telemetry).values()) == [[0, 1, 2]] * 4
    span = telemetry.span(ASSEMBLY)
    assert span.attributes["gen_ai.conversation.id"] == "two"
    assert span.attributes["gen_ai.agent.name"] == "bob"
    assert span.dropped_count if hasattr(span, "dropped_count") else span.attributes["assembly.dropped.count"] == 2


async def test_a_list_that_the_program_keeps_is_one_conversation(telemetry):
    graph = create_agent(scripted(*["Yes."] * 9), [], middleware=[Newest()])
    messages = chat(2)
    for number in range(3):
        messages = (await arun(graph, [*messages, HumanMessage(f"More {number}?")]))["messages"]
    assert list(conversations(telemetry).values()) == [[0, 1, 2]]


async def test_agents_at_once_never_share_a_parent_or_a_ledger(telemetry):
    graphs = [agent(3, summarizer(at=5, keep=3), Newest(), name=f"agent {number}")[0] for number in range(4)]
    await asyncio.gather(*(arun(graph, tool_loop(number)) for number, graph in enumerate(graphs)))
    for number in range(4):
        top = telemetry.span(f"invoke_agent agent {number}")
        spans = [span for span in telemetry.spans_named(ASSEMBLY) if span.trace_id == top.trace_id]
        assert spans
        assert {span.parent_id for span in spans} == {top.span_id}
        assert {span.attributes["gen_ai.agent.name"] for span in spans} == {f"agent {number}"}
    assert len(conversations(telemetry)) == 4
