"""Our policies as middleware of a LangChain agent."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_agents import agent, arun, chat, run, tool_loop
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    ContextOverflowError,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    describe,
)
from otel_assembly.budget import ExtractiveCompactor
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.instrumentation.langchain import AssemblyMiddleware
from otel_assembly.tokens import TokenMeter, counter_for

HOWS = pytest.mark.parametrize("how", ["sync", "async"])


async def either(how, graph, messages, **config):
    return run(graph, messages, **config) if how == "sync" else await arun(graph, messages, **config)


def fatal(message="The card was stolen."):
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


@HOWS
async def test_the_newest_request_stays_and_the_objects_are_the_very_ones(assembly_telemetry, how):
    graph, model = agent(0, AssemblyMiddleware([BudgetPolicy(window=250, output_reserve=50, step_tokens=0)]))
    messages = [*chat(15), *tool_loop(4)]
    for number, message in enumerate(messages):
        message.id = str(number)
    result = await either(how, graph, messages)
    sent = model.sent[0][1:]
    assert 3 < len(sent) < len(messages)
    assert all(any(item is message for message in messages) for item in sent)
    assert sent[0].content == messages[31].content  # the request of the tool loop
    assert [message.tool_call_id for message in sent if message.type == "tool"] == [
        call["id"] for message in sent if message.type == "ai" for call in message.tool_calls
    ]
    assert len(result["messages"]) == len(messages) + 1  # the state is left alone
    span = assembly_telemetry.span("assemble_context")
    assert span.attributes["assembly.framework"] == "langchain"
    assert span.attributes["assembly.budget.limit"] == 200
    assert span.attributes["assembly.tokens.out"] <= 200
    assert assembly_telemetry.violations() == []


@HOWS
async def test_inside_an_instrumented_agent_it_is_told_once(telemetry, how):
    graph, _ = agent(2, AssemblyMiddleware([SlidingWindowPolicy(3)], name="window"), name="bob")
    await either(how, graph, chat(5), configurable={"thread_id": "one"})
    spans = telemetry.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 2]
    assert {span.attributes["assembly.name"] for span in spans} == {"window"}
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {"one"}
    assert {child.name for span in spans for child in span.children} == {"apply_policy sliding_window"}
    assert {span.parent.name for span in spans} == {"invoke_agent bob"}


@HOWS
async def test_a_fatal_alert_from_outside_ends_the_run_before_the_model(assembly_telemetry, how):
    middleware = AssemblyMiddleware([AlertPolicy()])
    graph, model = agent(3, middleware)
    await middleware.context_of("one").send(fatal())
    result = await either(how, graph, chat(1), configurable={"thread_id": "one"})
    assert model.sent == []
    assert result["messages"][-1].content == "Halted: FATAL: The card was stolen."
    other = await either(how, graph, chat(1), configurable={"thread_id": "two"})
    assert other["messages"][-1].content == "Done."


@HOWS
async def test_a_fatal_alert_in_the_middle_of_a_run_ends_it(telemetry, how):
    from langchain.agents import create_agent
    from langchain_agents import call, scripted
    from langchain_core.tools import tool

    middleware = AssemblyMiddleware([AlertPolicy()])

    @tool
    async def look_up(topic: str) -> str:
        """Look something up."""
        await middleware.context_of("one").send(fatal())
        return "found"

    @tool("look_up")
    def look_up_sync(topic: str) -> str:
        """Look something up."""
        asyncio.run(middleware.context_of("one").send(fatal()))
        return "found"

    model = scripted(call(0), call(1), "Never said.")
    graph = create_agent(model, [look_up if how == "async" else look_up_sync], middleware=[middleware])
    result = await either(how, graph, chat(0), configurable={"thread_id": "one"})
    assert len(model.sent) == 1
    assert result["messages"][-1].content.startswith("Halted: ")
    top = telemetry.span("invoke_agent LangGraph")
    assert top.status == "ERROR"
    assert top.attributes["error.type"] == "assembly_halt"
    assert telemetry.metric("assembly.halts") == 1


@HOWS
@pytest.mark.parametrize("on_halt", ["raise", "return"])
async def test_no_tool_is_called_once_the_conversation_is_halted(assembly_telemetry, how, on_halt):
    from langchain.agents import create_agent
    from langchain.agents.middleware import AgentMiddleware
    from langchain_agents import call, scripted
    from langchain_core.tools import tool

    called = []
    middleware = AssemblyMiddleware(Assembler([AlertPolicy()], on_halt=on_halt))

    class Halts(AgentMiddleware):
        def after_model(self, state, runtime):
            middleware.context_of("one").guard.observe(fatal())

        async def aafter_model(self, state, runtime):
            await middleware.context_of("one").send(fatal())

    @tool
    def look_up(topic: str) -> str:
        """Look something up."""
        called.append(topic)
        return "found"

    model = scripted(call(0), "Never said.")
    graph = create_agent(model, [look_up], middleware=[middleware, Halts()])
    result = await either(how, graph, chat(0), configurable={"thread_id": "one"})
    assert (called, len(model.sent)) == ([], 1)
    *_, answer, last = result["messages"]
    assert (answer.type, answer.status, answer.content) == (
        "tool",
        "error",
        "Not called: FATAL: The card was stolen.",
    )
    assert last.content == "Halted: FATAL: The card was stolen."


@pytest.mark.parametrize("on_halt", ["raise", "return"])
async def test_a_fatal_alert_while_the_chain_runs_calls_no_model(assembly_telemetry, on_halt):
    class Halts:
        name = "halts"

        async def apply(self, prompts, events, context):
            await context.send(fatal())
            return prompts, events

    graph, model = agent(1, AssemblyMiddleware(Assembler([Halts()], on_halt=on_halt)))
    result = await arun(graph, chat(1), configurable={"thread_id": "one"})
    assert model.sent == []
    assert result["messages"][-1].content == "Halted: FATAL: The card was stolen."
    assert assembly_telemetry.metric("assembly.halts") == 1


@pytest.mark.parametrize("on_halt", ["raise", "return"])
async def test_of_thirty_runs_at_once_none_begins_a_model_call_or_a_tool_call_after_the_halt(on_halt):
    from langchain.agents import create_agent
    from langchain.agents.middleware import AgentMiddleware
    from langchain_agents import call, look_up, scripted

    class WaitingModel:
        name = "waits"

        async def apply(self, prompts, events, context):
            await asyncio.sleep(0)
            return prompts, events

    middleware = AssemblyMiddleware(Assembler([WaitingModel(), AlertPolicy(), WaitingModel()], on_halt=on_halt))
    context, called, refused = middleware.context_of("one"), [], []

    class Outside(AgentMiddleware):
        """What is begun after the halt; between two of its middlewares LangChain lets other tasks run."""

        async def awrap_model_call(self, request, handler):
            halted = context.guard.halted
            response = await handler(request)
            if halted:
                refused.append(response.result[-1].content)
            return response

        async def awrap_tool_call(self, request, handler):
            halted = context.guard.halted
            result = await handler(request)
            called.append(result)
            if halted:
                refused.append(result.content)
            elif len(called) >= 20 and not context.guard.halted:
                await context.send(fatal())
            return result

    model = scripted(*map(call, range(3_000)))
    graph = create_agent(model, [look_up], middleware=[Outside(), middleware])
    turns = [arun(graph, chat(0), configurable={"thread_id": "one"}) for _ in range(30)]
    results = await asyncio.gather(*turns)
    assert all(text.startswith(("Not called: ", "Halted: ")) for text in refused)
    assert len(called) >= 20
    assert {result["messages"][-1].content for result in results} == {"Halted: FATAL: The card was stolen."}


@HOWS
async def test_a_warning_reaches_the_model_once_and_beside_the_system_prompt(assembly_telemetry, how):
    middleware = AssemblyMiddleware([AlertPolicy()])
    graph, model = agent(2, middleware)
    context = middleware.context_of("one")
    await context.send(ObserverAlert(source="loop", severity=Severity.WARNING, message="Same call twice."))
    await either(how, graph, chat(1), configurable={"thread_id": "one"})
    prompts = [sent[0].content for sent in model.sent]
    assert prompts[0].startswith("You help.\n\n")
    assert "Same call twice." in prompts[0]
    assert prompts[1:] == ["You help."] * 2
    assert assembly_telemetry.metric("assembly.alerts.delivered") == 1


@HOWS
@pytest.mark.parametrize("kept", ["by the caller", "by a checkpointer"])
async def test_an_alert_whose_model_call_failed_is_shown_again(assembly_telemetry, how, kept):
    from langchain.agents import create_agent
    from langchain_agents import Scripted
    from langgraph.checkpoint.memory import InMemorySaver

    class Failing(Scripted):
        def _generate(self, messages, *args, **kwargs):
            if len(self.sent) < 2:
                self.sent.append(list(messages))
                raise ConnectionError("no answer")
            return super()._generate(messages, *args, **kwargs)

    middleware = AssemblyMiddleware([AlertPolicy()])
    model = Failing(messages=iter([AIMessage("one"), AIMessage("two")]))
    checkpointer = InMemorySaver() if kept == "by a checkpointer" else None
    graph = create_agent(model, middleware=[middleware], checkpointer=checkpointer)
    warning = ObserverAlert(source="ops", severity=Severity.WARNING, message="Costs rise.")
    await middleware.context_of("one").send(warning)
    messages = [HumanMessage("hello", id="1"), AIMessage("hi", id="2"), HumanMessage("and?", id="3")]
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await either(how, graph, messages, configurable={"thread_id": "one"})
    result = await either(how, graph, messages, configurable={"thread_id": "one"})
    more = [HumanMessage("go on", id="4")]
    await either(how, graph, more if checkpointer else [*result["messages"], *more], configurable={"thread_id": "one"})
    assert ["Costs rise." in str(sent) for sent in model.sent] == [True, True, True, False]
    assert assembly_telemetry.metric("assembly.alerts.delivered") == 1


@HOWS
async def test_a_budget_that_cannot_hold_is_raised(assembly_telemetry, how):
    graph, model = agent(0, AssemblyMiddleware([BudgetPolicy(window=60, output_reserve=10)]))
    with pytest.raises(ContextOverflowError):
        await either(how, graph, [HumanMessage("word " * 500)])
    assert model.sent == []
    assert assembly_telemetry.span("assemble_context").attributes["assembly.overflowed"] is True


async def test_summaries_are_messages_that_langchain_can_send(assembly_telemetry):
    policy = BudgetPolicy(
        window=500, output_reserve=50, step_tokens=0, compact=ExtractiveCompactor(), summary_tokens=60
    )
    graph, model = agent(0, AssemblyMiddleware([policy]))
    await arun(graph, chat(40))
    summaries = [message for message in model.sent[0] if message.additional_kwargs.get("lc_source") == "summarization"]
    assert [type(summary) for summary in summaries] == [HumanMessage]
    assert assembly_telemetry.span("compact_block older").attributes["assembly.compaction.outcome"] == "compacted"


async def test_a_sync_agent_may_be_called_where_a_loop_is_running(assembly_telemetry):
    graph, model = agent(1, AssemblyMiddleware([SlidingWindowPolicy(2)]))
    loop = asyncio.get_running_loop()
    run(graph, chat(3))
    assert asyncio.get_running_loop() is loop
    assert len(model.sent[0]) == 3


async def test_conversations_at_once_do_not_mix(assembly_telemetry):
    middleware = AssemblyMiddleware([SlidingWindowPolicy(3)])
    graphs = [agent(3, middleware)[0] for _ in range(5)]
    await asyncio.gather(
        *(arun(graph, chat(number), configurable={"thread_id": str(number)}) for number, graph in enumerate(graphs))
    )
    turns = {}
    for span in assembly_telemetry.spans_named("assemble_context"):
        turns.setdefault(span.attributes["gen_ai.conversation.id"], []).append(span.attributes["assembly.turn"])
    assert turns == {str(number): [0, 1, 2, 3] for number in range(5)}


async def test_a_run_without_a_thread_is_known_by_its_first_message(assembly_telemetry):
    middleware = AssemblyMiddleware([AlertPolicy()])
    graph, model = agent(0, middleware)
    await middleware.context_of("opening").send(fatal())
    await arun(graph, tool_loop(1))
    assert model.sent == []


def test_an_assembler_brings_its_own_name_and_model():
    middleware = AssemblyMiddleware(Assembler([SlidingWindowPolicy(2)], name="mine", model="gpt-4o"))
    assert middleware.name == "mine"
    with pytest.raises(ConfigurationError, match="AssemblyMiddleware takes its name and model"):
        AssemblyMiddleware(middleware.assembler, name="other")


async def test_instrumenting_does_not_change_what_it_sends(assembly_telemetry):
    async def sent():
        graph, model = agent(2, AssemblyMiddleware([SlidingWindowPolicy(4)]))
        await arun(graph, tool_loop(3))
        return [[message.content for message in item] for item in model.sent]

    without = await sent()
    instrument("langchain")
    try:
        assert await sent() == without
    finally:
        uninstrument("langchain")


texts = st.text("abcdef ", min_size=0, max_size=200)


@st.composite
def conversations(draw):
    messages = [HumanMessage(draw(texts) or "Hello.", id="first")]
    for number in range(draw(st.integers(0, 12))):
        if draw(st.booleans()):
            messages += [AIMessage(draw(texts), id=f"a{number}"), HumanMessage(draw(texts), id=f"h{number}")]
            continue
        calls = [
            {"id": f"{number}.{call}", "name": "f", "args": {"x": draw(texts)}}
            for call in range(draw(st.integers(1, 3)))
        ]
        messages.append(AIMessage(draw(texts), tool_calls=calls, id=f"c{number}"))
        messages += [ToolMessage(draw(texts), tool_call_id=call["id"], id=f"r{call['id']}") for call in calls]
    return messages


METER = TokenMeter(counter_for(None))


@given(conversations(), st.integers(60, 400))
@settings(max_examples=40, deadline=None)
def test_whatever_the_conversation_pairs_are_whole_and_the_budget_holds(messages, budget):
    graph, model = agent(0, AssemblyMiddleware([BudgetPolicy(window=budget + 20, output_reserve=20, step_tokens=0)]))
    try:
        run(graph, messages)
    except ContextOverflowError:
        assert model.sent == []
        return
    (sent,) = model.sent
    counted = (
        METER.priming + METER.prompt(sent[0].content) + sum(METER.event(describe(message)) for message in sent[1:])
    )
    assert counted <= budget
    open_calls = set()
    for message in sent[1:]:
        if isinstance(message, ToolMessage):
            assert message.tool_call_id in open_calls
            open_calls.remove(message.tool_call_id)
        open_calls |= {call["id"] for call in getattr(message, "tool_calls", ())}
    assert not open_calls
