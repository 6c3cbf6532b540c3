"""Our policies as middleware of a LangChain agent."""

from __future__ import annotations

import asyncio

import pytest
from langchain_agents import agent, arun, chat, run, tool_loop
from langchain_core.messages import AIMessage, HumanMessage

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
)
from otel_assembly.budget import ExtractiveCompactor
from otel_assembly.instrumentation.langchain import AssemblyMiddleware

HOWS = pytest.mark.parametrize("how", ["sync", "async"])


async def either(how, graph, messages, **config):
    return run(graph, messages, **config) if how == "sync" else await arun(graph, messages, **config)


def fatal(message="The card was stolen."):
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


async def test_the_kept_messages_are_the_same_objects():
    graph, model = agent(0, AssemblyMiddleware([BudgetPolicy(window=250, output_reserve=50, step_tokens=0)]))
    messages = [*chat(15), *tool_loop(4)]
    for number, message in enumerate(messages):
        message.id = str(number)
    await arun(graph, messages)
    sent = model.sent[0][1:]
    assert 3 < len(sent) < len(messages)
    assert all(any(item is message for message in messages) for item in sent)
    assert sent[0] is messages[31]  # the request of the tool loop


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
async def test_an_alert_whose_model_call_failed_is_shown_again_if_the_caller_keeps_the_messages(how):
    from langchain.agents import create_agent
    from langchain_agents import Scripted

    class Failing(Scripted):
        def _generate(self, messages, *args, **kwargs):
            if len(self.sent) < 2:
                self.sent.append(list(messages))
                raise ConnectionError("no answer")
            return super()._generate(messages, *args, **kwargs)

    middleware = AssemblyMiddleware([AlertPolicy()])
    model = Failing(messages=iter([AIMessage("one"), AIMessage("two")]))
    graph = create_agent(model, middleware=[middleware])
    warning = ObserverAlert(source="ops", severity=Severity.WARNING, message="Costs rise.")
    await middleware.context_of("one").send(warning)
    messages = [HumanMessage("hello", id="1"), AIMessage("hi", id="2"), HumanMessage("and?", id="3")]
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await either(how, graph, messages, configurable={"thread_id": "one"})
    result = await either(how, graph, messages, configurable={"thread_id": "one"})
    messages = [*result["messages"], HumanMessage("go on", id="4")]
    await either(how, graph, messages, configurable={"thread_id": "one"})
    assert ["Costs rise." in str(sent) for sent in model.sent] == [True, True, True, False]


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


async def test_a_run_without_a_thread_is_known_by_its_first_message(assembly_telemetry):
    middleware = AssemblyMiddleware([AlertPolicy()])
    graph, model = agent(0, middleware)
    await middleware.context_of("opening").send(fatal())
    await arun(graph, tool_loop(1))
    assert model.sent == []


def test_the_assembler_has_the_name_of_the_middleware():
    assert AssemblyMiddleware(Assembler([], name="mine")).name == "mine"
