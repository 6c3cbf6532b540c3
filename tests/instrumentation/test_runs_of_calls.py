"""What holds for all calls of a run that follow, what stores are known to have left out, and who stands in whom."""

from __future__ import annotations

import asyncio
import inspect
from contextvars import ContextVar
from typing import Any

import pytest
from pretend_instrumentor import reading
from pydantic import BaseModel, PrivateAttr

from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    MultiCallRun,
    Reduction,
    StepReport,
    StoredHistories,
    SubclassHook,
    client,
    innermost_client_hook,
    reducer,
    run_hook,
)

RUN: ContextVar[MultiCallRun | None] = ContextVar("run", default=None)


def said(*texts: Any) -> list[dict[str, str]]:
    return [{"role": "user", "content": str(text)} for text in texts]


@pytest.fixture
def instrumentation(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")


def steps(span: Any) -> list[str]:
    return [child.attributes["assembly.policy.name"] for child in span.children]


def counts(span: Any) -> tuple[int, int]:
    return span.attributes["assembly.events.in"], span.attributes["assembly.events.out"]


def reduces(instrumentation: Instrumentation, of: MultiCallRun, name: str, before: list[Any], after: list[Any]) -> None:
    """A reducer outside of any call makes these of those."""
    hook = reducer(reading(lambda _: before, lambda out, _: out, name), invoking_agent=lambda _: of.as_invoking_agent)
    hook(lambda _: after, instrumentation)(before)


def calls(of: MultiCallRun, messages: list[Any]) -> None:
    call = of.begin_call("clerk")
    call.set_input(messages, prompts=["Help."])
    call.client_called(ClientRequest(messages, ["Help."], model="gpt-4o"))


def test_what_was_reduced_once_is_a_step_of_each_call_that_follows(instrumentation, assembly_telemetry):
    of = MultiCallRun(instrumentation, "clerk", "one", RUN)
    with of.current(), of.turn().current():
        assert RUN.get() is of
        reduces(instrumentation, of, "window", said(1, 2, 3), said(3))
        calls(of, said(3))
        calls(of, said(3, 4, 5))
        reduces(instrumentation, of, "handoff", said(3, 4, 5, 6), said(6))
        calls(of, said(6))
        calls(of, said(6, 7))
    of.end()
    spans = assembly_telemetry.spans_named("assemble_context")
    assert [steps(span) for span in spans] == [["window"], ["window"], ["window", "handoff"], ["window", "handoff"]]
    assert [counts(span) for span in spans] == [(3, 1), (5, 3), (6, 1), (7, 2)]
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 2, 3]
    assert {span.parent.name for span in spans} == {"invoke_agent clerk"}
    assert assembly_telemetry.violations() == []


def test_a_run_in_a_run_stands_in_its_span_which_opens_with_the_first_of_them(instrumentation, assembly_telemetry):
    outer = MultiCallRun(instrumentation, "outer", None, RUN)
    with outer.current():
        inner = MultiCallRun(instrumentation, "inner", None, RUN)
        with inner.current(), inner.turn().current():
            calls(inner, said(1))
        inner.end()
    outer.end()
    assert [span.name for span in assembly_telemetry.spans if span.parent is None] == ["invoke_agent outer"]
    assert len({span.trace_id for span in assembly_telemetry.spans}) == 1


def test_a_summariser_outside_of_any_call_is_an_attempt_of_the_next_one(instrumentation, assembly_telemetry):
    ask = client(lambda messages: ClientRequest(messages, model="small"), str)(
        lambda messages: "They met.", instrumentation
    )
    of = MultiCallRun(instrumentation, "clerk", None, RUN)
    read = reading(lambda held: held, lambda out, _: out, "sums_up")
    sums_up = reducer(read, invoking_agent=lambda _: of.as_invoking_agent)(
        lambda held: said(ask(held)), instrumentation
    )
    with of.current(), of.turn().current():
        calls(of, sums_up(said(1, 2, 3)))
    of.end()
    block = assembly_telemetry.span("compact_block summary")
    assert block.parent.attributes["assembly.policy.name"] == "sums_up"
    assert counts(assembly_telemetry.span("assemble_context")) == (3, 1)


def test_what_a_limit_left_in_a_store_is_what_was_read_and_added_before(instrumentation, assembly_telemetry):
    stored = StoredHistories("limit")
    of = MultiCallRun(instrumentation, "clerk", None, RUN)
    with of.current(), of.turn().current():
        stored.add_items("one", said("nobody", "asked"))
        stored.record_read("one", said(1, 2), of.as_invoking_agent, 2)  # what was there before is not known
        calls(of, said(1, 2))
        stored.add_items("one", said(3))
        stored.record_read("one", said(2, 3), of.as_invoking_agent, 2)
        calls(of, said(2, 3))
    of.end()
    first, second = assembly_telemetry.spans_named("assemble_context")
    assert (steps(first), steps(second)) == ([], ["limit"])
    assert second.children[0].attributes["assembly.dropped.items"] == ["0"]
    assert second.children[0].attributes["assembly.dropped.reasons"] == ["outside_window"]


@pytest.mark.parametrize("read", [said(9, 3), said(3), []])
def test_what_was_changed_elsewhere_is_not_said_to_be_left_out(instrumentation, assembly_telemetry, read):
    stored = StoredHistories("limit")
    of = MultiCallRun(instrumentation, "clerk", None, RUN)
    with of.current(), of.turn().current():
        stored.record_read("one", said(1, 2), of.as_invoking_agent, 2)
        stored.add_items("one", said(3))
        stored.record_read("one", read, of.as_invoking_agent, 2)
        calls(of, [*read, *said(4)])
    of.end()
    assert steps(assembly_telemetry.span("assemble_context")) == []


def test_a_store_that_is_compacted_is_a_step_of_the_call_that_reads_it(instrumentation, assembly_telemetry):
    stored = StoredHistories("limit")
    of = MultiCallRun(instrumentation, "clerk", None, RUN)
    with of.current(), of.turn().current():
        stored.record_read("one", said(1, 2, 3), of.as_invoking_agent, None)
        change = Reduction(instrumentation, StepReport("compaction", ()))
        with change.tracked():
            pass
        stored.record_change("one", change)
        stored.record_read("one", said("They met.", 3), of.as_invoking_agent, None)
        calls(of, said("They met.", 3))
        stored.record_change("one", Reduction(instrumentation, StepReport("compaction", ())))
        stored.record_read("one", said(3), of.as_invoking_agent, None)  # somebody took an item out
        calls(of, said(3))
    of.end()
    first, second = assembly_telemetry.spans_named("assemble_context")
    assert steps(first) == ["compaction"]
    assert first.attributes["assembly.compacted.count"] == 2
    assert steps(second)[:1] != ["compaction", "compaction"]


class Client:
    async def call(self, messages):
        raise NotImplementedError

    def stream(self, messages):
        raise NotImplementedError


class Real(Client):
    async def call(self, messages):
        return "Noted."

    async def stream(self, messages):
        yield "Noted."


class Around(Client):
    """Hands on to the clients that it holds, one after the other."""

    def __init__(self, *held):
        self.held = list(held)

    async def call(self, messages):
        return [await message.call(messages[-1:]) for message in self.held]

    def stream(self, messages):
        return self.held[0].stream(messages[-1:])


class Keeps(Client, BaseModel):
    """Hands on to the client that it holds, which pydantic keeps by itself."""

    _held: Any = PrivateAttr()

    async def call(self, messages):
        return await self._held.call(messages[-1:])


class Beside(Real):
    """Holds another client, and asks nobody."""

    def __init__(self, other):
        self.other = other

    async def call(self, messages):
        return "Mine."


async def test_a_client_that_hands_on_to_those_that_it_holds_is_looked_through(instrumentation, assembly_telemetry):
    for method in ("call", "stream"):
        wrap = innermost_client_hook(
            method,
            lambda _, messages: ClientRequest(messages),
            delegated_methods=(method,),
            is_client=lambda client: isinstance(client, Client),
        )
        SubclassHook(method, wrap).wrap_subclasses(Client, instrumentation)
    try:
        assert await Around(Real(), Real()).call(said(1, 2)) == ["Noted."] * 2
        assert [item async for item in Around(Real()).stream(said(1, 2))] == ["Noted."]
        keeps = Keeps()
        keeps._held = Real()
        assert await keeps.call(said(1, 2)) == "Noted."
        assert await Beside(Real()).call(said(1, 2)) == "Mine."
    finally:
        instrumentation.patches.restore()
    told = [span.attributes["assembly.events.out"] for span in assembly_telemetry.spans_named("assemble_context")]
    assert told == [1, 1, 1, 1, 2]


async def test_steps_that_a_plain_function_hands_on_are_followed_in_its_run(instrumentation, assembly_telemetry):
    async def steps_of():
        await asyncio.sleep(0)
        yield 1

    inner = run_hook(lambda _: instrumentation.begin_run("inner", force_span=True))(steps_of, instrumentation)
    outer = run_hook(lambda _: instrumentation.begin_run("outer", force_span=True))(lambda: inner(), instrumentation)
    assert [item async for item in outer()] == [1]
    assert assembly_telemetry.span("invoke_agent inner").parent.name == "invoke_agent outer"


async def test_a_coroutine_that_gives_an_async_generator_still_gives_one(instrumentation, assembly_telemetry):
    closed = []

    async def pieces():
        try:
            yield "so"
            yield "it"
        finally:
            closed.append(True)

    async def answering(messages):
        return pieces()

    called = client(ClientRequest)(answering, instrumentation)
    answer = await called(said(1))
    assert inspect.isasyncgen(answer)
    assert [piece async for piece in answer] == ["so", "it"]
    left = await called(said(1))
    assert await anext(left) == "so"
    await left.aclose()
    assert closed == [True, True]
    assert len(assembly_telemetry.spans_named("assemble_context")) == 2
