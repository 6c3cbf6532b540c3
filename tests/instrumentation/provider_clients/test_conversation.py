"""`conversation` names the calls of a block or function, and opens one span for it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from client_calls import answer_chats, assemblies, chat, user
from opentelemetry import baggage, context

from otel_assembly import conversation, instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry


def named(telemetry):
    return [
        (span.attributes.get("gen_ai.conversation.id"), span.attributes.get("gen_ai.agent.name"))
        for span in assemblies(telemetry)
    ]


def assert_each_run_has_one_assembly(telemetry):
    runs = telemetry.spans_named("invoke_agent support")
    assert [span.parent.span_id for span in assemblies(telemetry)] == [run.span_id for run in runs]
    assert {run.status for run in runs} == {"UNSET"}


def test_an_inner_conversation_inherits_what_it_does_not_name(clients, server, telemetry, question):
    answer_chats(server, 3)
    with conversation("order-17", agent="support"):
        chat(clients, [user(question)])
        with conversation(agent="search"):
            chat(clients, [user(f"{question} Search.")])
        chat(clients, [user(f"{question} Again.")])
    assert named(telemetry) == [("order-17", "support"), ("order-17", "search"), ("order-17", "support")]
    outer, inner = telemetry.span("invoke_agent support"), telemetry.span("invoke_agent search")
    assert inner.parent.span_id == outer.span_id
    assert [span.parent.name for span in assemblies(telemetry)] == [outer.name, inner.name, outer.name]
    assert len({span.trace_id for span in telemetry.spans}) == 1


async def test_decorated_functions_of_each_kind_have_one_span_for_each_call(clients, server, telemetry, question):
    named_block = conversation("order-17", agent="support")

    @named_block
    def plain():
        return chat(clients, [user(question)])

    @named_block
    async def coroutine():
        return chat(clients, [user(question)])

    @named_block
    def generator():
        for number in range(2):
            yield chat(clients, [user(f"{question} {number}")])

    @named_block
    async def async_generator():
        for number in range(2):
            yield chat(clients, [user(f"{question} {number}")])

    answer_chats(server, 8)
    plain()
    await coroutine()
    for _ in generator():
        chat(clients, [user("The reader of the stream asks.")])
    assert len([item async for item in async_generator()]) == 2
    runs = telemetry.spans_named("invoke_agent support")
    assert len(runs) == 4
    in_runs = [span for span in assemblies(telemetry) if span.parent is not None]
    assert [sum(span.parent.span_id == run.span_id for span in in_runs) for run in runs] == [1, 1, 2, 2]
    assert named(telemetry).count((None, None)) == 2
    assert {span.attributes["gen_ai.conversation.id"] for span in in_runs} == {"order-17"}


async def test_one_conversation_names_the_blocks_of_concurrent_tasks(clients, server, telemetry, question):
    support = conversation("order-17", agent="support")
    entered, left = asyncio.Event(), asyncio.Event()

    async def leaves_first():
        with support:
            await entered.wait()
            chat(clients, [user(f"{question} First.")])
        left.set()

    async def leaves_last():
        with support:
            entered.set()
            await left.wait()
            chat(clients, [user(f"{question} Last.")])

    answer_chats(server, 2)
    await asyncio.gather(leaves_first(), leaves_last())
    assert named(telemetry) == [("order-17", "support")] * 2
    assert_each_run_has_one_assembly(telemetry)


@pytest.mark.parametrize("is_decorated", [False, True], ids=["block", "decorator"])
def test_one_conversation_names_the_blocks_of_concurrent_threads(clients, server, telemetry, question, is_decorated):
    support = conversation("order-17", agent="support")
    entered, left = threading.Event(), threading.Event()

    def leaves_first():
        assert entered.wait(9)
        chat(clients, [user(f"{question} First.")])

    def leaves_last():
        entered.set()
        assert left.wait(9)
        chat(clients, [user(f"{question} Last.")])

    def run(function):
        if is_decorated:
            support(function)()
        else:
            with support:
                function()
        left.set()

    answer_chats(server, 2)
    threads = [threading.Thread(target=run, args=(function,)) for function in (leaves_first, leaves_last)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert named(telemetry) == [("order-17", "support")] * 2
    assert_each_run_has_one_assembly(telemetry)


async def test_a_block_can_be_left_in_another_context_than_it_was_entered(clients, server, telemetry, question):
    support = conversation("order-17", agent="support")
    answer_chats(server, 1)

    async def enter():
        support.__enter__()

    await asyncio.create_task(enter())
    with support:
        chat(clients, [user(question)])
    support.__exit__(None, None, None)
    assert [run.status for run in telemetry.spans_named("invoke_agent support")] == ["UNSET", "UNSET"]
    assert named(telemetry) == [("order-17", "support")]


def test_one_conversation_can_be_nested_in_itself(clients, server, telemetry, question):
    support = conversation("order-17", agent="support")
    answer_chats(server, 1)
    with support, support:
        chat(clients, [user(question)])
    inner, outer = telemetry.spans_named("invoke_agent support")
    assert assemblies(telemetry)[0].parent.span_id == inner.span_id
    assert inner.parent.span_id == outer.span_id


def test_a_generator_that_is_not_read_to_its_end_ends_its_span(clients, server, telemetry, question):
    @conversation("order-17", agent="support")
    def generator():
        while True:
            yield chat(clients, [user(question)])

    answer_chats(server, 1)
    stream = generator()
    next(stream)
    stream.close()
    assert telemetry.span("invoke_agent support").status == "UNSET"


def test_an_error_leaves_the_block_and_is_on_its_span(clients, server, telemetry):
    with pytest.raises(KeyError), conversation("order-17", agent="support"):
        raise KeyError("order")
    assert telemetry.span("invoke_agent support").status == "ERROR"


def test_the_names_are_those_of_an_enclosing_span(clients, server, telemetry, question):
    answer_chats(server, 1)
    names = {"gen_ai.conversation.id": "order-18", "gen_ai.agent.name": "porter"}
    tracer = telemetry.tracer()
    with tracer.start_as_current_span("agent", attributes=names), tracer.start_as_current_span("step"):
        chat(clients, [user(question)])
    assert named(telemetry) == [("order-18", "porter")]
    assert assemblies(telemetry)[0].parent.name == "step"


def test_the_names_are_those_of_the_baggage(clients, server, telemetry, question):
    answer_chats(server, 1)
    names = baggage.set_baggage("gen_ai.conversation.id", "order-19")
    token = context.attach(baggage.set_baggage("gen_ai.agent.name", "porter", names))
    try:
        chat(clients, [user(question)])
    finally:
        context.detach(token)
    assert named(telemetry) == [("order-19", "porter")]


def test_the_span_goes_to_the_provider_of_the_instrumentation(server, question):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    own, other = RecordedTelemetry(), RecordedTelemetry()
    instrument("langchain", tracer_provider=other.tracer_provider)
    instrument("openai", tracer_provider=own.tracer_provider)
    client = openai.OpenAI(api_key="k", base_url=server.url, max_retries=0)
    answer_chats(server, 1)
    with conversation("order-17", agent="support"):
        client.chat.completions.create(model="m", messages=[user(question)])
    uninstrument("openai")
    with conversation("order-17", agent="second"):
        pass
    uninstrument()
    with conversation("order-17", agent="third"):
        pass
    run = own.span("invoke_agent support")
    assert [span.parent.span_id for span in assemblies(own)] == [run.span_id]
    assert [span.name for span in other.spans] == ["invoke_agent second"]
    assert len(own.spans) == 2
    own.shutdown(), other.shutdown()
