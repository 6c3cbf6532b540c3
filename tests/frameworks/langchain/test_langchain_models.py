"""The model whose tokenizer counts is the one that the framework holds, however it is wrapped."""

from __future__ import annotations

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, trim_messages
from langgraph.graph import START, MessagesState, StateGraph

from otel_assembly import SlidingWindowPolicy
from otel_assembly.instrumentation import uninstrument
from otel_assembly.instrumentation.langchain import AssemblyMiddleware

TALK = [HumanMessage("one two three", id="a"), AIMessage("four", id="b"), HumanMessage("five", id="c")]


class Named(GenericFakeChatModel):
    """A chat model that says what it calls, as most of them do."""

    model_name: str = "gpt-4"

    def bind_tools(self, tools, **settings):
        return self.bind(tools=tools, **settings)


def named(**settings):
    return Named(messages=iter([AIMessage("answer")] * 9), **settings)


def counted(span):
    return [span.attributes.get(f"assembly.{name}") for name in ("model", "tokens.method", "tokens.encoding")]


@wrap_model_call
def newest(request, handler):
    return handler(request.override(messages=request.messages[-1:]))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (named(), ["gpt-4", "exact", "cl100k_base"]),
        (named(model_name="gpt-4o"), ["gpt-4o", "exact", "o200k_base"]),
        (named(model_name="claude-x"), ["claude-x", "estimated", "o200k_base"]),
        (GenericFakeChatModel(messages=iter([AIMessage("answer")])), [None, "estimated", "o200k_base"]),
    ],
    ids=["gpt-4", "gpt-4o", "claude", "unnamed"],
)
def test_an_agents_model_counts(telemetry, model, expected):
    create_agent(model, middleware=[newest]).invoke({"messages": list(TALK)})
    assert counted(telemetry.span("assemble_context")) == expected


@pytest.mark.parametrize(
    ("around", "expected"),
    [
        (lambda model: model.bind(stop=["end"]), "gpt-4"),
        (lambda model: model.bind(model="gpt-4o"), "gpt-4o"),
        (lambda model: model.bind_tools([]), "gpt-4"),
        (lambda model: model.with_config(tags=["x"]), "gpt-4"),
        (lambda model: model.with_fallbacks([named(model_name="gpt-4o")]), "gpt-4"),
    ],
    ids=["bound", "bound to another", "with tools", "configured", "with a fall-back"],
)
def test_what_stands_around_a_model_hides_it_not(telemetry, around, expected):
    model = around(named())

    def ask(state):
        newest = trim_messages(state["messages"], max_tokens=1, token_counter=len, strategy="last")
        return {"messages": [model.invoke(newest)]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
    graph.invoke({"messages": list(TALK)})
    assert counted(telemetry.span("assemble_context"))[0] == expected


def test_who_trims_with_a_models_own_counter_trims_for_that_model(telemetry):
    class Counting(Named):
        def get_num_tokens_from_messages(self, messages, tools=None):
            return len(messages)

    model = Counting(messages=iter(()))
    trim_messages(list(TALK), max_tokens=1, token_counter=model, strategy="last")
    uninstrument("langchain")
    assert counted(telemetry.span("assemble_context")) == ["gpt-4", "exact", "cl100k_base"]


def test_who_trims_by_another_count_trims_for_nobody_that_is_known(telemetry):
    trim_messages(list(TALK), max_tokens=1, token_counter=len, strategy="last")
    uninstrument("langchain")
    assert counted(telemetry.span("assemble_context")) == [None, "estimated", "o200k_base"]


@pytest.mark.parametrize(("name", "method"), [("gpt-4", "exact"), ("claude-x", "estimated")])
def test_the_plug_in_counts_for_the_requests_model(telemetry, name, method):
    model = named(model_name=name)
    create_agent(model, middleware=[AssemblyMiddleware([SlidingWindowPolicy(1)])]).invoke({"messages": list(TALK)})
    assert counted(telemetry.span("assemble_context"))[:2] == [name, method]
