"""Any mix of middleware, over several turns: each model call has one assembly, which tells what it was sent."""

from __future__ import annotations

import random
from itertools import count

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    after_model,
    before_model,
)
from langchain_agents import arun, call, look_up, run, scripted, summarizer
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, trim_messages
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from otel_assembly.telemetry import read_ledgers

ASSEMBLY, CALL = "assemble_context", "chat fake"


class Told(type(scripted())):
    """A chat model whose calls somebody else tells of."""

    def _generate(self, messages, *args, **kwargs):
        sent = [message for message in messages if message.type != "system"]
        held = {"gen_ai.operation.name": "chat", "sent": len(sent), "asks": self._asks}
        with self._tracer.start_as_current_span(CALL, attributes=held):
            return super()._generate(messages, *args, **kwargs)


def told(telemetry, asks, answers):
    model = Told(messages=answers)
    object.__setattr__(model, "_tracer", telemetry.tracer("chat"))
    object.__setattr__(model, "_asks", asks)
    return model


class Newest(AgentMiddleware):
    def __init__(self, most):
        self.most = most

    def wrap_model_call(self, request, handler):
        return handler(request.override(messages=request.messages[-self.most :]))

    async def awrap_model_call(self, request, handler):
        return await handler(request.override(messages=request.messages[-self.most :]))


def middleware(chance, telemetry):
    """Some of them, in any order."""
    most = chance.randint(3, 6)

    @before_model
    def trims(state, runtime):
        kept = trim_messages(state["messages"], max_tokens=most, token_counter=len)
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *kept]} if len(kept) < len(state["messages"]) else None

    @before_model
    def remarks(state, runtime):
        return {"messages": [HumanMessage("It rains.")]} if chance.random() < 0.3 else None

    @after_model
    def forgets(state, runtime):
        if len(state["messages"]) > 4 and chance.random() < 0.5:
            return {"messages": [RemoveMessage(state["messages"][0].id)]}
        return None

    summaries = told(telemetry, "summary", (AIMessage(f"Summary {number}.") for number in count()))
    every = [
        summarizer(summaries, at=chance.randint(4, 9), keep=chance.randint(2, 4)),
        ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=chance.randint(10, 60), keep=1)]),
        Newest(chance.randint(1, 6)),
        trims,
        remarks,
        forgets,
    ]
    return chance.sample(every, chance.randint(1, len(every)))


def answers(chance):
    for number in count():
        yield (
            call(number) if chance.random() < 0.4 else AIMessage(f"Answer {number}. " + "word " * chance.randint(1, 30))
        )


def adds_up(span):
    """Whether the tokens that went out of a span are those that came in, less what left, and what was put in."""
    came, left = ("in", "injected"), ("out", "dropped", "compacted")
    names = {"in": "assembly.tokens.in", "out": "assembly.tokens.out"}
    tokens = {message: span.attributes[names.get(message, f"assembly.{message}.tokens")] for message in (*came, *left)}
    return sum(tokens[message] for message in came) == sum(tokens[message] for message in left)


@pytest.mark.parametrize("seed", range(10))
async def test_what_each_model_call_was_sent_is_what_its_assembly_let_out(telemetry, seed):
    chance = random.Random(seed)
    kept = chance.random() < 0.5
    graph = create_agent(
        told(telemetry, "agent", answers(chance)),
        [look_up],
        middleware=middleware(chance, telemetry),
        checkpointer=InMemorySaver() if kept else None,
    )
    messages = []
    for turn in range(chance.randint(3, 6)):
        given = [*messages, HumanMessage(f"Question {turn}?")]
        config = {"configurable": {"thread_id": "one"}} if kept else {}
        asked = run(graph, given, **config) if chance.random() < 0.5 else await arun(graph, given, **config)
        messages = [] if kept else asked["messages"]

    spans = {span.attributes["assembly.id"]: span for span in telemetry.spans_named(ASSEMBLY)}
    stamped = [span for span in telemetry.spans_named(CALL) if "assembly.id" in span.attributes]
    assert {span.attributes["asks"] for span in stamped} <= {"agent"}
    assert len({span.attributes["assembly.id"] for span in stamped}) == len(stamped)
    for message in stamped:
        span = spans.pop(message.attributes["assembly.id"])
        assert span.attributes["assembly.events.out"] == message.attributes["sent"]
        assert span.end_ns <= message.start_ns
        assert adds_up(span)
        assert all(map(adds_up, span.children))
    # No model is called with what is left but for what comes after its answer.
    assert {step.name for span in spans.values() for step in span.children} <= {"apply_policy forgets"}

    ledgers = read_ledgers(telemetry.spans)
    assert len(ledgers) <= 1
    for ledger in ledgers.values():
        assert ledger.problems == []
        assert [turn.number for turn in ledger.turns] == list(range(len(ledger.turns)))
