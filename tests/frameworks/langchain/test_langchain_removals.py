"""Messages that a hook removes from a checkpointed state: each turn is told by that turn's spans alone."""

from __future__ import annotations

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import after_model, before_model
from langchain_agents import scripted
from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from telemetry.forty_lines import read
from telemetry.turn_checks import Ledger, recounted, turns_of


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
