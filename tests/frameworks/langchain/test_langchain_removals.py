"""Messages that a hook removes from a checkpointed state: each turn is told by that turn's spans alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import after_model, before_model
from langchain_agents import scripted
from langchain_core.messages import HumanMessage, RemoveMessage, trim_messages
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Command, Overwrite
from pydantic import BaseModel
from telemetry.forty_lines import read
from telemetry.turn_checks import Ledger, recounted, turns_of

from otel_assembly.instrumentation import instrument, uninstrument


def plain(messages):
    roles = {"human": "user", "ai": "assistant"}
    return [{"role": roles[message.type], "content": message.content} for message in messages]


class Thread:
    """An agent with a checkpointer; what the state held before each model call, and what the model was sent."""

    def __init__(self, *hooks, asks=5):
        self.came = []

        @before_model
        def looks(state, runtime):
            self.came.append(list(state["messages"]))

        self.model = scripted(*(f"Answer {number}." for number in range(asks)))
        agent = create_agent(self.model, [], middleware=[looks, *hooks], checkpointer=InMemorySaver())
        for number in range(asks):
            agent.invoke({"messages": [HumanMessage(f"Question {number}?")]}, {"configurable": {"thread_id": "t"}})

    def turns(self, telemetry):
        """Each turn on which a hook had something to do, recounted from what the state held and what was sent."""
        turns, ledger = turns_of(telemetry), Ledger()
        for turn, came, went in zip(turns, self.came[-len(turns) :], self.model.sent[-len(turns) :], strict=True):
            recounted(turn, ledger, plain(came), plain(went))
            yield read(turn)


def removes(state):
    """All but the newest three."""
    return [RemoveMessage(message.id) for message in state["messages"][:-3]]


def rewrites(state):
    """The same, by the other way that there is."""
    return [RemoveMessage(REMOVE_ALL_MESSAGES), *state["messages"][-3:]]


@pytest.mark.parametrize("how", [removes, rewrites])
def test_what_a_hook_removes_before_the_call_is_out_on_that_turn_and_offered_on_none_after_it(telemetry, how):
    @before_model
    def forgets(state, runtime):
        return {"messages": how(state)} if len(state["messages"]) > 3 else None

    turns = list(Thread(forgets).turns(telemetry))
    assert [(offered, kept) for offered, kept, *_ in turns] == [
        (list("0"), list("0")),
        (list("012"), list("012")),
        (list("01234"), list("234")),
        (list("23456"), list("456")),
        (list("45678"), list("678")),
    ]
    assert [list(out) for *_, out, _ in turns] == [[], [], ["0", "1"], ["2", "3"], ["4", "5"]]
    assert {told for *_, out, _ in turns for told in out.values()} == {("dropped", "policy", "forgets", 0)}


def test_what_a_hook_removes_between_two_calls_is_a_turn_of_its_own_and_is_offered_no_more(telemetry):
    @after_model
    def forgets(state, runtime):
        return {"messages": removes(state)}

    @before_model
    def remarks(state, runtime):
        return {"messages": [HumanMessage("It rains.")]}

    thread = Thread(remarks, forgets)
    before, prompts = [], 0
    for turn in turns_of(telemetry):
        offered, kept, out, unlisted = read(turn)
        assert (offered[: len(before)], unlisted) == (before, {})
        if turn.children[0].name == "apply_policy remarks":
            assert (out, len(kept)) == ({}, len(thread.model.sent[prompts]))
            prompts += 1
        else:
            assert (kept, len(offered)) == (offered[-3:], len(before) + 1)
            assert out == dict.fromkeys(offered[:-3], ("dropped", "policy", "forgets", 0))
        before = kept
    assert prompts == len(thread.model.sent)
    assert before == ["8", "m4", "9"]


class PydanticState(BaseModel):
    messages: Annotated[list, add_messages] = []


@dataclass
class DataclassState:
    messages: Annotated[list, add_messages]


def removals(state):
    return [RemoveMessage(message.id) for message in state.messages[:-1]]


def all_but_last(state):
    return [RemoveMessage(REMOVE_ALL_MESSAGES), state.messages[-1]]


@pytest.mark.parametrize(
    "shrink",
    [
        lambda state: {"messages": removals(state)},
        lambda state: {"messages": Overwrite(state.messages[-1:])},
        lambda state: {"messages": {"__overwrite__": state.messages[-1:]}},
        lambda state: {"messages": {"type": "__overwrite__", "value": state.messages[-1:]}},
        lambda state: Command(update={"messages": removals(state)}),
        lambda state: Command(update={"messages": Overwrite(state.messages[-1:])}),
        lambda state: Command(update=[("messages", removals(state)[:1]), ("messages", removals(state)[1:])]),
        lambda state: [Command(update={"messages": [removal]}) for removal in removals(state)],
        lambda state: [Command(goto=[]), {"messages": removals(state)}],
        lambda state: PydanticState(messages=all_but_last(state)),
        lambda state: DataclassState(messages=all_but_last(state)),
        lambda state: Command(update=DataclassState(messages=all_but_last(state))),
    ],
)
@pytest.mark.parametrize("state", [PydanticState, DataclassState])
def test_a_node_that_removes_messages_is_a_step_for_each_form_of_a_state_update(telemetry, state, shrink):
    model = scripted("Answer.")
    builder = StateGraph(state).add_node("shrink", shrink)
    builder.add_node("answer", lambda state: {"messages": model.invoke(state.messages)})
    graph = builder.add_edge(START, "shrink").add_edge("shrink", "answer").compile()
    graph.invoke({"messages": [HumanMessage(f"Question {number}?") for number in range(3)]})
    (turn,) = turns_of(telemetry)
    assert [step.name for step in turn.children] == ["apply_policy <lambda>"]
    assert read(turn)[:2] == (list("012"), list("2"))


def test_middleware_that_overwrites_the_messages_is_a_step(telemetry):
    @before_model
    def shrink(state, runtime):
        return {"messages": Overwrite(state["messages"][-1:])}

    agent = create_agent(scripted("Answer."), [], middleware=[shrink])
    agent.invoke({"messages": [HumanMessage(f"Question {number}?") for number in range(3)]})
    (turn,) = turns_of(telemetry)
    assert [step.name for step in turn.children] == ["apply_policy shrink"]
    assert read(turn)[:2] == (list("012"), list("2"))


def test_what_a_subgraph_removes_from_its_parents_state_is_recorded(telemetry):
    model = scripted("Inner.", "Outer.")
    inner = StateGraph(DataclassState)
    inner.add_node("ask", lambda state: {"messages": model.invoke(state.messages)})
    inner.add_node("leave", lambda state: Command(graph=Command.PARENT, update={"messages": removals(state)}))
    inner.add_edge(START, "ask").add_edge("ask", "leave")
    outer = StateGraph(DataclassState).add_node("inner", inner.compile())
    outer.add_node("ask", lambda state: {"messages": model.invoke(state.messages)})
    outer.add_edge(START, "inner").add_edge("inner", "ask")
    outer.compile().invoke({"messages": [HumanMessage(f"Question {number}?") for number in range(3)]})
    steps = [[step.name for step in turn.children] for turn in turns_of(telemetry)]
    assert steps == [[], ["apply_policy <lambda>"], []]
    assert [len(sent) for sent in model.sent] == [3, 0]


def test_an_update_that_cannot_be_read_still_ends_the_calls_of_its_node(assembly_telemetry):
    instrument("langchain")
    turns = []

    def shrink(state):
        trim_messages(state["messages"], max_tokens=1, token_counter=len)
        return {"messages": [object()]}

    def look(state):
        turns.append([step.name for turn in turns_of(assembly_telemetry) for step in turn.children])

    class State(TypedDict):
        messages: list

    graph = StateGraph(State).add_node("shrink", shrink).add_node("look", look)
    graph = graph.add_edge(START, "shrink").add_edge("shrink", "look").compile()
    graph.invoke({"messages": [HumanMessage(f"Question {number}?") for number in range(3)]})
    uninstrument("langchain")
    assert turns == [["apply_policy trim_messages"]]
