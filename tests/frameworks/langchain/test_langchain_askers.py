"""What reduces before one model call are steps of one assembly; a ledger is one conversation as one asker has it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Annotated, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    before_model,
    wrap_model_call,
)
from langchain_agents import REQUEST, agent, arun, call, chat, look_up, run, scripted, summarizer, tool_loop
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, trim_messages
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt
from opentelemetry import trace

from otel_assembly.telemetry import read_ledgers

ASSEMBLY = "assemble_context"
HOWS = pytest.mark.parametrize("how", ["sync", "async"])


class State(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    shown: list
    topic: str


class Newest(AgentMiddleware):
    """Sends the newest messages alone; the state stays as it is."""

    def __init__(self, most=3):
        self.most = most

    def wrap_model_call(self, request, handler):
        return handler(request.override(messages=request.messages[-self.most :]))

    async def awrap_model_call(self, request, handler):
        return await handler(request.override(messages=request.messages[-self.most :]))


def newest(messages, most):
    return trim_messages(messages, max_tokens=most, token_counter=len)


def graph_of(*edges, **nodes):
    builder = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node)
    for edge in edges:
        builder.add_edge(*edge)
    return builder


def line_of(**nodes):
    """Nodes one after the other."""
    names = [START, *nodes, END]
    return graph_of(*pairwise(names), **nodes)


async def either(how, graph, messages=REQUEST, **config):
    return run(graph, messages, **config) if how == "sync" else await arun(graph, messages, **config)


def steps(span):
    return [child.name.removeprefix("apply_policy ") for child in span.children if child.name.startswith("apply")]


def chains(telemetry):
    return [steps(span) for span in telemetry.spans_named(ASSEMBLY)]


def turns(telemetry):
    """The turns of each ledger, as they ended."""
    found = {}
    for span in telemetry.spans_named(ASSEMBLY):
        found.setdefault(span.attributes["assembly.ledger.id"], []).append(span.attributes["assembly.turn"])
    return sorted(found.values())


def sound(telemetry):
    """What the exported spans say adds up; steps stand in their assembly's time, in order."""
    for ledger in read_ledgers(telemetry.spans).values():
        assert ledger.problems == []
    for span in telemetry.spans_named(ASSEMBLY):
        told = [child for child in span.children if child.name.startswith("apply_policy")]
        if not told:
            assert span.attributes["assembly.events.in"] == span.attributes["assembly.events.out"]
            continue
        assert [child.attributes["assembly.policy.index"] for child in told] == list(range(len(told)))
        assert [child.start_ns for child in told] == sorted(child.start_ns for child in told)
        assert span.start_ns <= told[0].start_ns
        assert max(child.end_ns for child in told) <= span.end_ns
        assert told[0].attributes["assembly.events.in"] == span.attributes["assembly.events.in"]
        assert told[-1].attributes["assembly.events.out"] == span.attributes["assembly.events.out"]
        for step in told:
            assert all(step.start_ns <= child.start_ns <= child.end_ns <= step.end_ns for child in step.children)
        for message, other in pairwise(told):
            assert message.end_ns <= other.start_ns
            assert message.attributes["assembly.events.out"] == other.attributes["assembly.events.in"]


class Heard(type(scripted())):
    """A chat model that is instrumented by somebody else, and notes which assemblies have ended when it is called."""

    def _generate(self, messages, *args, **kwargs):
        telemetry = self._telemetry
        ended = [span.attributes["assembly.id"] for span in telemetry.spans_named(ASSEMBLY)]
        with telemetry.tracer("chat").start_as_current_span(
            "chat fake", attributes={"gen_ai.operation.name": "chat", "ended": ended, "messages": len(messages)}
        ):
            return super()._generate(messages, *args, **kwargs)


def heard(telemetry, *answers):
    model = Heard(messages=iter([AIMessage(answer) if isinstance(answer, str) else answer for answer in answers]))
    object.__setattr__(model, "_telemetry", telemetry)
    return model


# --- One assembly -----------------------------------------------------------------------------------------------------


@HOWS
async def test_a_summary_an_edit_and_a_window_before_one_call_are_steps_of_one_assembly(telemetry, how):
    model = heard(telemetry, "Done.")
    graph = create_agent(
        model,
        [look_up],
        middleware=[
            summarizer(heard(telemetry, "They want a refund."), at=8, keep=6),
            ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=20, keep=1)]),
            Newest(5),
        ],
        system_prompt="You help.",
    )
    await either(how, graph, tool_loop(5))
    (span,) = telemetry.spans_named(ASSEMBLY)
    assert steps(span) == ["summarization", "context_editing", "Newest"]
    assert span.attributes["assembly.events.in"] == 11
    assert span.attributes["assembly.events.out"] == 5 == len(model.sent[0]) - 1
    assert span.attributes["assembly.prompts.in"] == span.attributes["assembly.prompts.out"] == 1
    assert span.attributes["assembly.prompt.sources"] == ["caller"]
    assert span.parent.name == "invoke_agent LangGraph"
    kinds = dict(zip(span.attributes["assembly.kind.names"], span.attributes["assembly.kind.tokens"], strict=True))
    assert kinds["tool_schemas"] > 0
    assert kinds["prompt"] > 0
    assert telemetry.span("compact_block summary").parent.name == "apply_policy summarization"
    sound(telemetry)


@HOWS
async def test_the_model_call_is_stamped_with_it_and_comes_after_it(telemetry, how):
    """What only the first of two steps reduced is reduced; the summariser's own call is not what is waited for."""

    @before_model
    def remark(state, runtime):
        return {"messages": [HumanMessage("By the way: rain.")]}

    model = heard(telemetry, "Done.")
    middleware = [summarizer(heard(telemetry, "S"), at=8, keep=4), remark]
    await either(how, create_agent(model, [look_up], middleware=middleware), tool_loop(4))
    (span,) = telemetry.spans_named(ASSEMBLY)
    assert steps(span) == ["summarization", "remark"]
    summary_call, model_call = telemetry.spans_named("chat fake")
    assert summary_call.parent.name == "compact_block summary"
    assert "assembly.id" not in summary_call.attributes
    assert summary_call.attributes["ended"] == []
    assert model_call.attributes["ended"] == [span.attributes["assembly.id"]] == [model_call.attributes["assembly.id"]]
    assert model_call.attributes["gen_ai.conversation.compacted"] is True
    assert [link.span_id for link in model_call.links] == [span.span_id]
    assert span.end_ns <= model_call.start_ns
    sound(telemetry)


@HOWS
async def test_every_model_call_of_a_loop_has_its_own(telemetry, how):
    graph, model = agent(5, summarizer(at=5, keep=3), Newest())
    await either(how, graph)
    assert len(model.sent) == 6
    assert chains(telemetry)[-1] == ["summarization", "Newest"]
    assert len(telemetry.spans_named(ASSEMBLY)) <= 6
    assert turns(telemetry) == [list(range(len(telemetry.spans_named(ASSEMBLY))))]
    sent = [len(messages) - 1 for messages in model.sent]
    assert [span.attributes["assembly.events.out"] for span in telemetry.spans_named(ASSEMBLY)] == sent[
        -len(chains(telemetry)) :
    ]
    sound(telemetry)


@HOWS
async def test_a_node_that_prunes_and_one_that_trims_for_its_model_make_one(telemetry, how):
    model = heard(telemetry, "Done.")

    def prune(state):
        return {"messages": [RemoveMessage(message.id) for message in state["messages"][:2]]}

    def answer(state):
        return {"messages": [model.invoke([SystemMessage("You help."), *newest(state["messages"], 3)])]}

    await either(how, line_of(prune=prune, answer=answer).compile(), chat(4))
    (span,) = telemetry.spans_named(ASSEMBLY)
    assert steps(span) == ["prune", "trim_messages"]
    assert span.attributes["assembly.events.in"] == 9
    assert span.kept == ["6", "7", "8"]
    assert telemetry.span("apply_policy prune").dropped_reasons == {"0": "policy", "1": "policy"}
    assert telemetry.span("apply_policy trim_messages").dropped_reasons == dict.fromkeys(
        map(str, range(2, 6)), "outside_window"
    )
    assert telemetry.span("chat fake").attributes["assembly.id"] == span.attributes["assembly.id"]
    assert span.attributes["assembly.prompts.out"] == 1  # the model was sent a system message
    sound(telemetry)


async def test_two_trims_in_one_node_are_two_steps(telemetry):
    model = heard(telemetry, "Done.")

    async def answer(state):
        given = newest(state["messages"], 5)
        return {
            "messages": [await model.ainvoke(trim_messages(given, max_tokens=2, token_counter=len, strategy="first"))]
        }

    await arun(line_of(answer=answer).compile(), chat(4))
    assert chains(telemetry) == [["trim_messages", "trim_messages"]]
    assert telemetry.span(ASSEMBLY).kept == ["4", "5"]
    sound(telemetry)


async def test_a_part_that_is_trimmed_is_put_back_into_the_whole(telemetry):
    """A program that keeps the opening request, and trims what comes after it."""
    model = heard(telemetry, "Done.")

    def answer(state):
        opening, *rest = state["messages"]
        return {"messages": [model.invoke([opening, *newest(rest, 2)])]}

    await arun(line_of(answer=answer).compile(), chat(4))
    span = telemetry.span(ASSEMBLY)
    assert chains(telemetry) == [["trim_messages"]]
    assert span.attributes["assembly.events.in"] == 9
    assert span.kept == ["0", "7", "8"]
    sound(telemetry)


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@pytest.mark.filterwarnings("ignore:AgentStatePydantic has been moved")
async def test_a_hook_that_trims_and_then_adds_is_two_steps_of_one(telemetry):
    from langgraph.prebuilt import create_react_agent

    def hook(state):
        return {"llm_input_messages": [HumanMessage("Note: rain."), *newest(state["messages"], 2)]}

    model = heard(telemetry, call(0), "Done.")
    await arun(create_react_agent(model, [look_up], pre_model_hook=hook, prompt="You help."), chat(2))
    assert chains(telemetry) == [["trim_messages", "hook"]] * 2
    assert turns(telemetry) == [[0, 1]]
    for span, answer in zip(telemetry.spans_named(ASSEMBLY), telemetry.spans_named("chat fake"), strict=True):
        assert answer.attributes["assembly.id"] == span.attributes["assembly.id"]
        assert span.attributes["assembly.events.out"] == answer.attributes["messages"] - 1
    sound(telemetry)


async def test_what_a_node_trims_and_hands_on_is_what_the_next_one_calls_its_model_with(telemetry):
    model = heard(telemetry, "Done.")

    def choose(state):
        return {"shown": newest(state["messages"], 2)}

    def answer(state):
        return {"messages": [model.invoke(state["shown"])]}

    await arun(line_of(choose=choose, answer=answer).compile(), chat(3))
    (span,) = telemetry.spans_named(ASSEMBLY)
    assert telemetry.span("chat fake").attributes["ended"] == [span.attributes["assembly.id"]]
    assert telemetry.span("chat fake").attributes["assembly.id"] == span.attributes["assembly.id"]


@pytest.mark.parametrize("way", ["stream", "astream"])
async def test_a_model_that_is_read_as_a_stream_is_called_after_it_too(telemetry, way):
    model = heard(telemetry, "Done.")

    async def answer(state):
        given = newest(state["messages"], 2)
        if way == "stream":
            return {"messages": [list(model.stream(given))[-1]]}
        return {"messages": [[part async for part in model.astream(given)][-1]]}

    await arun(line_of(answer=answer).compile(), chat(3))
    (span,) = telemetry.spans_named(ASSEMBLY)
    assert telemetry.span("chat fake").attributes["ended"] == [span.attributes["assembly.id"]]


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_the_call_of_a_graph_without_a_span_belongs_to_the_one_it_gets(telemetry, way):
    """The plainest chatbot: one node that trims and calls, and no span around it."""
    model = heard(telemetry, "Done.")

    async def answer(state):
        given = newest(state["messages"], 2)
        if way == "invoke":
            return {"messages": [model.invoke(given)]}
        if way == "ainvoke":
            return {"messages": [await model.ainvoke(given)]}
        if way == "stream":
            return {"messages": [list(model.stream(given))[-1]]}
        return {"messages": [[part async for part in model.astream(given)][-1]]}

    await arun(line_of(answer=answer).compile(), chat(3))
    span, answered = telemetry.span(ASSEMBLY), telemetry.span("chat fake")
    assert answered.attributes["assembly.id"] == span.attributes["assembly.id"]
    assert answered.parent.name == span.parent.name == "invoke_agent LangGraph"
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_question_beside_it_is_not_the_call_it_waits_for(telemetry):
    """A node asks for a title first, of nothing that was trimmed."""
    model = heard(telemetry, "A title", "Done.")

    def answer(state):
        given = newest(state["messages"], 2)
        model.invoke([HumanMessage("Think of a title.")])
        return {"messages": [model.invoke(given)]}

    await arun(line_of(answer=answer).compile(), chat(3))
    first, span = telemetry.spans_named(ASSEMBLY)
    title, answered = telemetry.spans_named("chat fake")
    assert steps(first) == []
    assert title.attributes["assembly.id"] == first.attributes["assembly.id"]
    assert steps(span) == ["trim_messages"]
    assert answered.attributes["assembly.id"] == span.attributes["assembly.id"]


async def test_what_the_model_is_sent_beside_what_was_let_out_is_told(telemetry):
    model = heard(telemetry, "Done.")

    def answer(state):
        return {"messages": [model.invoke([*newest(state["messages"], 2), HumanMessage("In one word.")])]}

    await arun(line_of(answer=answer).compile(), chat(3))
    assert chains(telemetry) == [["trim_messages", "framework"]]
    assert telemetry.span(ASSEMBLY).attributes["assembly.events.out"] == 3
    assert len(telemetry.span("apply_policy framework").injected) == 1
    sound(telemetry)


async def test_a_middleware_that_tries_again_makes_an_assembly_for_each_call(telemetry):
    @wrap_model_call
    async def twice(request, handler):
        shorter = request.override(messages=request.messages[-3:])
        await handler(shorter)
        return await handler(shorter)

    model = heard(telemetry, "one", "two")
    await arun(create_agent(model, [], middleware=[twice, Newest(1)]), chat(2))
    assert chains(telemetry) == [["twice", "Newest"]] * 2
    assert turns(telemetry) == [[0, 1]]
    stamped = [span.attributes["assembly.id"] for span in telemetry.spans_named("chat fake")]
    assert stamped == [span.attributes["assembly.id"] for span in telemetry.spans_named(ASSEMBLY)]
    sound(telemetry)


# --- No model call ----------------------------------------------------------------------------------------------------


@HOWS
async def test_where_no_model_call_comes_it_ends_with_the_node(telemetry, how):
    seen = []

    def report(state):
        return {"topic": str(len(newest(state["messages"], 2)))}

    def later(state):
        seen.append(len(telemetry.spans_named(ASSEMBLY)))
        return {}

    await either(how, line_of(report=report, later=later).compile(), chat(3))
    assert seen == [1]
    assert chains(telemetry) == [["trim_messages"]]
    sound(telemetry)


@HOWS
async def test_what_a_hook_reduced_is_told_where_another_ends_the_run(telemetry, how):
    from langchain.agents.middleware import hook_config

    class Stop(AgentMiddleware):
        @hook_config(can_jump_to=["end"])
        def before_model(self, state, runtime):
            return {"jump_to": "end", "messages": [AIMessage("Enough.")]}

    graph, model = agent(0, summarizer("S", at=8, keep=4), Stop())
    await either(how, graph, tool_loop(4))
    assert model.sent == []
    (span,) = telemetry.spans_named(ASSEMBLY)
    assert steps(span) == ["summarization"]
    assert span.parent.name == "invoke_agent LangGraph"
    assert telemetry.span("apply_policy summarization").compacted == ["0", "1", "2", "3", "4"]
    sound(telemetry)


@HOWS
async def test_what_raises_after_it_loses_nothing(telemetry, how):
    @before_model
    def broken(state, runtime):
        raise KeyError("its own")

    graph, _ = agent(0, summarizer("S", at=8, keep=4), broken)
    with pytest.raises(KeyError):
        await either(how, graph, tool_loop(4))
    (span,) = telemetry.spans_named(ASSEMBLY)
    assert steps(span) == ["summarization"]
    assert len(telemetry.span("apply_policy summarization").compacted) == 5

    def answer(state):
        newest(state["messages"], 2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await either(how, line_of(answer=answer).compile(), chat(3))
    assert chains(telemetry)[1:] == [["trim_messages"]]
    assert telemetry.span(ASSEMBLY).kept == ["5", "6"]
    sound(telemetry)


@HOWS
async def test_an_interrupt_and_what_comes_after_it_is_told(telemetry, how):
    from langgraph.types import Command

    model = heard(telemetry, "Done.")

    def answer(state):
        given = newest(state["messages"], 2)
        interrupt("Really?")
        return {"messages": [model.invoke(given)]}

    graph = line_of(answer=answer).compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "one"}}
    await either(how, graph, chat(3), **config)
    assert chains(telemetry) == [["trim_messages"]]
    assert telemetry.span(ASSEMBLY).status == "UNSET"
    with telemetry.tracer().start_as_current_span("request"):
        graph.invoke(Command(resume=True), config)
    assert turns(telemetry) == [[0, 1]]
    first, second = telemetry.spans_named(ASSEMBLY)
    assert telemetry.span("chat fake").attributes["assembly.id"] == second.attributes["assembly.id"]
    assert second.attributes["assembly.previous.id"] == first.attributes["assembly.id"]
    sound(telemetry)


async def test_a_run_that_stops_before_its_model_and_one_that_goes_on(telemetry):
    model = heard(telemetry, "Done.")
    graph = create_agent(
        model, [], middleware=[summarizer("S", at=8, keep=4)], checkpointer=InMemorySaver(), interrupt_before=["model"]
    )
    config = {"configurable": {"thread_id": "one"}}
    graph.invoke({"messages": tool_loop(4)}, config)
    assert chains(telemetry) == [["summarization"]]
    graph.invoke(None, config)
    assert chains(telemetry) == [["summarization"], []]
    assert len(model.sent) == 1


async def test_a_task_that_is_cancelled_and_a_reader_that_leaves_lose_nothing(telemetry):
    reached = asyncio.Event()

    async def answer(state):
        newest(state["messages"], 2)
        reached.set()
        await asyncio.sleep(60)

    graph = line_of(answer=answer).compile()
    task = asyncio.create_task(arun(graph, chat(3)))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert chains(telemetry) == [["trim_messages"]]

    graph, _ = agent(1, summarizer("S", at=8, keep=4), Newest())
    stream = graph.stream({"messages": tool_loop(4)}, stream_mode="updates")
    next(stream)
    stream.close()
    assert chains(telemetry)[1:] == [["summarization"]]
    astream = agent(1, summarizer("S", at=8, keep=4), Newest())[0].astream({"messages": tool_loop(4)})
    await anext(astream)
    await anext(astream)
    await astream.aclose()
    assert [chain[0] for chain in chains(telemetry)[2:]] == ["summarization"]
    sound(telemetry)


async def test_the_end_of_one_that_was_ended_late_is_when_it_was_done(telemetry):
    """A node that trims, and then works long without a model that could be seen."""
    import time

    trimmed = []

    def answer(state):
        newest(state["messages"], 2)
        trimmed.append(time.time_ns())
        return {}

    await arun(line_of(answer=answer).compile(), chat(3))
    span = telemetry.span(ASSEMBLY)
    assert span.end_ns <= trimmed[0]
    sound(telemetry)


# --- Who asks ---------------------------------------------------------------------------------------------------------


@HOWS
async def test_two_nodes_of_a_thread_have_each_its_own_ledger(telemetry, how):
    model = heard(telemetry, *(f"Answer {number}." for number in range(8)))

    def node(most):
        return lambda state: {"messages": [model.invoke(newest(state["messages"], most))]}

    graph = line_of(draft=node(4), review=node(2)).compile(checkpointer=InMemorySaver())
    for number in range(3):
        await either(how, graph, f"Question {number}?", configurable={"thread_id": "one"})
    assert turns(telemetry) == [[0, 1, 2], [0, 1, 2]]
    spans = telemetry.spans_named(ASSEMBLY)
    for first, second in zip(spans, spans[2:], strict=False):
        assert second.attributes["assembly.previous.id"] == first.attributes["assembly.id"]
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {"one"}
    sound(telemetry)


@HOWS
async def test_one_node_with_two_reducers_has_one_which_goes_on_from_turn_to_turn(telemetry, how):
    graph, model = agent(0, summarizer(at=6, keep=4), Newest(), checkpointer=InMemorySaver())
    model.messages = iter([AIMessage(f"Answer {number}.") for number in range(9)])
    for number in range(9):
        await either(how, graph, f"Question {number}?", configurable={"thread_id": "one"})
    spans = telemetry.spans_named(ASSEMBLY)
    assert turns(telemetry) == [list(range(len(spans)))]
    assert ["summarization", "Newest"] in chains(telemetry)
    assert ["Newest"] in chains(telemetry)
    for first, second in pairwise(spans):
        assert second.attributes["assembly.previous.id"] == first.attributes["assembly.id"]
    arrived = [item for span in spans for item in span.arrived]
    assert len(arrived) == len(set(arrived))
    # What was summarised away is gone: neither does it come in again, nor is it said to have left a second time.
    (ledger,) = read_ledgers(telemetry.spans).values()
    compacted = [item for span in telemetry.spans_named("apply_policy summarization") for item in span.compacted]
    assert len(compacted) == len(set(compacted)) > 4
    assert ledger.problems == []
    sound(telemetry)


async def test_a_list_that_the_program_keeps_is_one_ledger_whatever_reduces_it(telemetry):
    graph, model = agent(0, summarizer(at=6, keep=4), Newest())
    model.messages = iter([AIMessage(f"Answer {number}.") for number in range(9)])
    messages = []
    for number in range(7):
        messages = (await arun(graph, [*messages, HumanMessage(f"Question {number}?")]))["messages"]
    assert turns(telemetry) == [list(range(len(telemetry.spans_named(ASSEMBLY))))]
    assert ["summarization", "Newest"] in chains(telemetry)
    sound(telemetry)


@HOWS
async def test_agents_in_a_graph_have_each_their_own(telemetry, how):
    """The same agent in two places of a thread is two askers; each of them is one, whatever reduces for it."""
    inner = create_agent(
        heard(telemetry, *map(str, range(12))), [], middleware=[summarizer(at=4, keep=2), Newest(1)], name="inner"
    )
    graph = line_of(first=inner, second=inner).compile(checkpointer=InMemorySaver(), name="outer")
    for number in range(3):
        await either(how, graph, f"Question {number}?", configurable={"thread_id": "one"})
    found = turns(telemetry)
    assert len(found) == 2
    assert all(message == list(range(len(message))) for message in found)
    assert ["summarization", "Newest"] in chains(telemetry)
    sound(telemetry)


async def test_parallel_nodes_never_share_an_assembly(telemetry):
    model = heard(telemetry, *map(str, range(9)))

    async def prune(state):
        return {"messages": [RemoveMessage(message.id) for message in state["messages"][:2]]}

    def branch(most):
        async def answer(state):
            given = newest(state["messages"], most)
            await asyncio.sleep(0.02 / most)
            return {"messages": [await model.ainvoke(given)]}

        return answer

    edges = [(START, "prune"), ("prune", "left"), ("prune", "right"), ("left", END), ("right", END)]
    nodes = {"prune": prune, "left": branch(2), "right": branch(3)}
    await arun(graph_of(*edges, **nodes).compile(), chat(4))
    assert chains(telemetry) == [["prune", "trim_messages"]] * 2  # what stood before both is each one's
    assert turns(telemetry) == [[0], [0]]
    spans = {span.attributes["assembly.id"]: span for span in telemetry.spans_named(ASSEMBLY)}
    for answer in telemetry.spans_named("chat fake"):
        span = spans[answer.attributes["assembly.id"]] if "assembly.id" in answer.attributes else None
        assert span is None or answer.attributes["assembly.id"] in answer.attributes["ended"]
    sound(telemetry)


async def test_tasks_that_are_sent_out_at_once_prepare_each_their_own_call(telemetry):
    model = heard(telemetry, *map(str, range(9)))

    async def worker(state):
        given = newest(newest(state["messages"], 3), 2)
        await asyncio.sleep(0.01)
        return {"messages": [await model.ainvoke(given)]}

    builder = graph_of(("worker", END), worker=worker)
    builder.add_conditional_edges(
        START, lambda state: [Send("worker", {"messages": chat(number)}) for number in (2, 3, 4)], ["worker"]
    )
    await arun(builder.compile(), chat(1))
    assert chains(telemetry) == [["trim_messages", "trim_messages"]] * 3
    sound(telemetry)


async def test_two_calls_at_once_in_one_node_have_each_their_own(telemetry):
    model = heard(telemetry, *map(str, range(9)))

    async def answer(state):
        async def ask(messages, most):
            given = newest(messages, most)
            await asyncio.sleep(0.01)
            return await model.ainvoke(given)

        one, other = await asyncio.gather(ask(state["messages"][:4], 2), ask(state["messages"][4:], 3))
        return {"messages": [one, other]}

    await arun(line_of(answer=answer).compile(), chat(4))
    assert chains(telemetry) == [["trim_messages", "framework"]] * 2  # each is sent a part of what the graph holds
    assert [span.attributes["assembly.events.out"] for span in telemetry.spans_named(ASSEMBLY)] == [2, 3]
