"""Conversations that a checkpointer keeps: every ask brings fresh objects of the messages that were there before."""

from __future__ import annotations

import pytest
from counting import Reads, Work, counted_texts
from langchain.agents import create_agent
from langchain.agents.middleware import before_model, wrap_model_call
from langchain_agents import scripted, summarizer
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
    trim_messages,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from otel_assembly import Assembler, Context, SlidingWindowPolicy, describe
from otel_assembly.explain import Explainer
from otel_assembly.instrumentation.langchain import AssemblyMiddleware
from otel_assembly.telemetry import read_ledgers
from otel_assembly.tokens import TiktokenCounter, TokenMeter

ASSEMBLY = "assemble_context"
THREAD = {"configurable": {"thread_id": "one"}}


def ask(graph, message):
    given = HumanMessage(message) if isinstance(message, str) else message
    return graph.invoke({"messages": [given]}, THREAD)["messages"]


def agent(*middleware, answers=("Sure.",) * 99):
    return create_agent(scripted(*answers), [], middleware=middleware, checkpointer=InMemorySaver())


def exchanges(count):
    """So many exchanges, as a state holds them."""
    for number in range(count):
        yield HumanMessage(f"Question {number}?", id=f"question {number}")
        yield AIMessage(f"Answer {number}.", id=f"answer {number}")


@wrap_model_call
def trims(request, handler):
    kept = trim_messages(request.messages, max_tokens=9, token_counter=len, strategy="last")
    return handler(request.override(messages=kept))


@wrap_model_call
def reminds(request, handler):
    """As many do: a reminder in front of what is left, made anew each time."""
    return handler(request.override(messages=[HumanMessage("Be kind."), *request.messages[-9:]]))


@wrap_model_call
def filters(request, handler):
    asked = [message for message in request.messages if message.type == "human"]
    return handler(request.override(messages=[*request.messages[:2], *asked[-9:]]))


@before_model
def looks(state, runtime):
    return None


def takes(messages):
    """Tokens of a prompt of these messages, counted by themselves."""
    meter = TokenMeter(TiktokenCounter("o200k_base"))
    return meter.priming + sum(meter.event(describe(message)) for message in messages)


@pytest.mark.parametrize(
    "change",
    [
        lambda messages: [],
        lambda messages: [RemoveMessage(id=messages[0].id)],
        lambda messages: [AIMessage("Or so.", id=messages[1].id)],
    ],
    ids=["as it was", "one removed", "one edited"],
)
def test_what_was_trimmed_long_ago_has_its_tokens_on_every_turn(telemetry, change):
    def answer(state):
        kept = trim_messages(state["messages"], max_tokens=9, token_counter=len, strategy="last")
        return {"messages": [AIMessage(f"{len(kept)} messages say so.")]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    graph = builder.compile(checkpointer=InMemorySaver())
    graph.update_state(THREAD, {"messages": list(exchanges(15))})
    for number in range(3):
        graph.update_state(THREAD, {"messages": change(graph.get_state(THREAD).values["messages"])})
        came = [*graph.get_state(THREAD).values["messages"], HumanMessage(f"And {number}?")]
        ask(graph, came[-1])
        for name in (ASSEMBLY, "apply_policy trim_messages"):
            held = telemetry.spans_named(name)[-1].attributes
            assert held["assembly.tokens.in"] == takes(came)
            assert held["assembly.tokens.out"] == takes(came[-9:])
            assert held["assembly.dropped.tokens"] == takes(came[:-9]) - takes([])


REDUCERS = {
    "trim": lambda: trims,
    "reminder": lambda: reminds,
    "filter": lambda: filters,
    "nothing": lambda: looks,
    "plug-in": lambda: AssemblyMiddleware([SlidingWindowPolicy(9)]),
}


#: What the checkpointer itself does with a thousand exchanges takes seconds.
LONG = [200, pytest.param(1_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("exchanged", LONG)
@pytest.mark.parametrize("reducer", REDUCERS)
def test_a_turn_of_a_long_conversation_takes_the_work_of_a_turn_of_a_short_one(reducer, exchanged, telemetry):
    work = []
    for length in (20, exchanged):
        graph = agent(REDUCERS[reducer]())
        graph.update_state(THREAD, {"messages": list(exchanges(length))})
        for number in range(3):
            ask(graph, f"Warming up {number}?")
        with Reads(BaseMessage) as reads, counted_texts() as counted:
            turns = []
            for number in range(3):
                with Work(reads, counted) as turn:
                    ask(graph, f"And at {length}, {number}?")
                turns.append(turn)
        work.append([max(getattr(turn, name) for turn in turns) for name in ("reads", "counts", "calls")])
    (reads, counts, calls), (long_reads, long_counts, long_calls) = work
    assert long_reads <= reads <= 4  # the question, the last answer, and a reminder that is made anew
    assert long_counts <= counts <= 3
    assert long_calls <= calls * 1.1 + 50


def test_two_messages_that_say_the_same_are_two_items(telemetry):
    graph = agent(summarizer(at=6, keep=2))
    for _ in range(9):
        ask(graph, "ok")
    spans = telemetry.spans_named(ASSEMBLY)
    assert len(spans) >= 3
    compacted = [item for span in spans for step in span.children for item in step.compacted]
    assert len(compacted) == len(set(compacted))
    assert all(not set(span.kept) & set(compacted[:5]) for span in spans if span.children)
    (ledger,) = read_ledgers(telemetry.spans).values()
    last = ledger.turns[-1].number
    kept, told = spans[-1].kept, Explainer(ledger, last)
    assert {told.explain(item).outcome for item in kept} == {"kept"}
    assert {told.explain(item).outcome for item in compacted} == {"compacted"}


def test_a_message_that_was_changed_under_its_id_is_read_and_counted_anew(telemetry):
    graph = agent(trims)
    graph.update_state(THREAD, {"messages": list(exchanges(9))})
    ask(graph, "One?")
    graph.update_state(THREAD, {"messages": [HumanMessage("Changed: " + "word " * 50, id="question 8")]})
    ask(graph, "Two?")
    one, two = telemetry.spans_named(ASSEMBLY)
    assert one.kept == list(map(str, range(10, 19)))
    assert two.kept == list(map(str, range(12, 21)))
    assert two.attributes["assembly.tokens.out"] - one.attributes["assembly.tokens.out"] > 40
    assert two.attributes["assembly.prefix.break"] in {"event_changed", "cut_moved"}
    assert sum(two.attributes["assembly.kind.tokens"]) == two.attributes["assembly.tokens.out"]


def test_a_message_that_a_node_changes_in_place_is_read_and_counted_anew_once_it_comes_back(telemetry):
    """The object that was read before is the one that is changed, and then kept."""

    def changes(state):
        state["messages"][-2].content += " " + "word " * 50
        return {"messages": [state["messages"][-2]]}

    builder = StateGraph(MessagesState)
    builder.add_node("trims", lambda state: trim_messages(state["messages"], max_tokens=9, token_counter=len) and None)
    builder.add_node("changes", changes)
    builder.add_edge(START, "trims")
    builder.add_edge("trims", "changes")
    graph = builder.compile(checkpointer=InMemorySaver())
    graph.update_state(THREAD, {"messages": list(exchanges(3))})
    ask(graph, "One?")
    ask(graph, "Two?")
    one, two = telemetry.spans_named(ASSEMBLY)
    assert two.kept == [*one.kept, "7"]
    assert two.attributes["assembly.tokens.out"] - one.attributes["assembly.tokens.out"] > 50


def test_a_message_that_was_removed_is_not_offered_and_what_is_said_again_is_new(telemetry):
    graph = agent(trims)
    graph.update_state(THREAD, {"messages": list(exchanges(3))})
    ask(graph, "Again?")
    graph.update_state(THREAD, {"messages": [RemoveMessage(id="question 1"), RemoveMessage(id="answer 2")]})
    ask(graph, HumanMessage("Question 1?"))
    one, two = telemetry.spans_named(ASSEMBLY)
    assert one.kept == ["0", "1", "2", "3", "4", "5", "6"]
    assert two.kept == ["0", "1", "3", "4", "6", "7", "8"]
    assert not {"2", "5"} & set(two.offered)


def test_what_a_node_added_without_an_id_is_the_message_that_comes_back_with_one(telemetry):
    """The state gives it its id after it was told of."""
    graph = agent(summarizer("In short.", at=6, keep=2), trims)
    for number in range(4):
        ask(graph, f"Question {number}?")
    summarised = telemetry.span("apply_policy summarization")
    trimmed = telemetry.spans_named("apply_policy trim_messages")
    assert summarised.injected
    assert {span.trace_id for span in trimmed} >= {summarised.trace_id}
    made = set(summarised.injected)
    later = [span for span in telemetry.spans_named(ASSEMBLY) if span.attributes["assembly.turn"] > 0]
    assert later
    assert [item for span in later for item in span.arrived if item in made] == sorted(made)


CHANGES = [
    (HumanMessage("short", id="1"), {"content": "quite a bit longer"}),
    (HumanMessage("short", id="1"), {"content": [{"type": "text", "text": "in a block"}]}),
    (HumanMessage("short", id="1"), {"name": "somebody"}),
    (HumanMessage("short", id="1"), {"additional_kwargs": {"lc_source": "summarization"}}),
    (ToolMessage("found", tool_call_id="c", id="1"), {"content": "found quite a bit more"}),
    (ChatMessage("short", role="user", id="1"), {"role": "assistant"}),
    *(
        (AIMessage("", tool_calls=[{"id": "c", "name": "look_up", "args": {"topic": "this"}}], id="1"), change)
        for change in (
            {"tool_calls": [{"id": "c", "name": "look_up", "args": {"topic": "this and that"}}]},
            {"tool_calls": []},
            {"invalid_tool_calls": [{"id": "d", "name": "look_up", "args": "{", "error": None}]},
            {"additional_kwargs": {"refusal": "I would rather not."}},
        )
    ),
]


@pytest.mark.parametrize(("message", "change"), CHANGES)
async def test_whatever_of_a_message_is_changed_under_its_id_the_model_is_known_to_be_sent_that(message, change):
    assembler, context, rest = Assembler([]), Context(), [HumanMessage("go on", id="2")]
    await assembler.assemble([], [message, *rest], context)
    changed = message.model_copy(update=change, deep=True)
    again = await assembler.assemble([], [changed, *rest], context)
    assert again.kinds == (await Assembler([]).assemble([], [changed, *rest])).kinds
    assert again.items == ["0", "1"]
