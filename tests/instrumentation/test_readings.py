"""A store is read in one place, and a model called in another: what the store did is told with that call."""

from __future__ import annotations

import asyncio
import gc
import weakref
from copy import copy, deepcopy
from types import SimpleNamespace

import pytest

from otel_assembly import DecisionReason
from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    InvokingAgent,
    Read,
    ReadingRun,
    Readings,
    Reduction,
    StepReport,
    client,
    run_hook,
)


class Message(dict):
    """A dict that can be weakly referred to, as other messages can."""


def said(content, role="user"):
    return Message(role=role, content=content)


class Store:
    """Gives the newest of what it holds, copies if it is told to."""

    def __init__(self, *texts, newest=2, copies=False, inner=None):
        self.held = [said(text) for text in texts]
        self.newest, self.copies, self.inner = newest, copies, inner

    def all(self):
        return list(self.held)

    def get(self):
        held = self.inner.get() if self.inner is not None else self.all()
        return list(map(copy, held[-self.newest :])) if self.copies else held[-self.newest :]

    def failing(self):
        self.all()
        raise LookupError("gone")

    async def aget(self):
        return await asyncio.to_thread(self.get)


class Model:
    def __init__(self):
        self.received = []

    def call(self, messages):
        self.received.append(deepcopy(messages))
        return "fine"


class Pretend:
    """The store and the model, instrumented."""

    def __init__(self, instrumentation, *, replaces_stored=False, holds=None):
        self.instrumentation = instrumentation
        self.readings = Readings("pretend", lambda message: message["content"] if message["role"] == "system" else None)
        hook = self.readings.store_hook(
            lambda store: StepReport("newest", config={"newest": store.newest}, reason=DecisionReason.OUTSIDE_WINDOW),
            InvokingAgent,
            stored=lambda store: store.held if holds else None,
            replaces_stored=lambda _: replaces_stored,
        )
        self.get, self.aget, self.failing = (
            hook(item, instrumentation) for item in (Store.get, Store.aget, Store.failing)
        )
        Store.all = self.readings.contents_hook(Store.all, instrumentation) if holds is None else Store.all
        self.call = client(
            lambda model, messages: ClientRequest(messages, model="gpt-4o"), str, record=self.readings.record_call
        )(Model.call, instrumentation)


@pytest.fixture
def instrumentation(assembly_telemetry, monkeypatch):
    for name in ("all", "get"):
        monkeypatch.setattr(Store, name, getattr(Store, name))
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")
    assert not assembly_telemetry.violations()


def told(telemetry):
    return [
        (
            span.attributes["assembly.events.in"],
            span.attributes["assembly.events.out"],
            [step.name for step in span.children],
        )
        for span in telemetry.spans_named("assemble_context")
    ]


def test_what_a_store_left_out_is_told_with_the_call_that_is_made_elsewhere(instrumentation, assembly_telemetry):
    pretend, store = Pretend(instrumentation), Store("one", "two", "three")
    run = ReadingRun(pretend.readings, instrumentation, "clerk", "c-1")
    with run.current():
        given = asyncio.run(pretend.aget(store))  # in a context of its own
        pretend.call(Model(), [said("Be kind.", "system"), *given])
        pretend.call(Model(), [said("Something else.")])
    run.end()
    run.end()
    assert told(assembly_telemetry) == [(3, 2, ["apply_policy newest"]), (1, 1, [])]
    first, second = assembly_telemetry.spans_named("assemble_context")
    assert first.attributes["assembly.prompts.out"] == 1
    assert first.attributes["gen_ai.conversation.id"] == second.attributes["gen_ai.conversation.id"] == "c-1"
    assert first.parent.name == second.parent.name == "invoke_agent clerk"
    assert len(assembly_telemetry.spans_named("invoke_agent clerk")) == 1


def test_a_system_message_that_a_store_gives_is_an_item(instrumentation, assembly_telemetry):
    pretend, store = Pretend(instrumentation), Store("one", "two")
    store.held[0]["role"] = "system"
    pretend.call(Model(), [said("Be kind.", "system"), *pretend.get(store)])
    [assembly] = assembly_telemetry.spans_named("assemble_context")
    assert (assembly.attributes["assembly.prompts.out"], assembly.attributes["assembly.events.out"]) == (1, 2)


def test_what_a_framework_copies_is_known_as_what_was_read_last_in_the_run(instrumentation, assembly_telemetry):
    pretend, store = Pretend(instrumentation), Store("one", "two", "three", copies=True)
    run = ReadingRun(pretend.readings, instrumentation, "clerk")
    with run.current():
        given = pretend.get(store)
        pretend.call(Model(), [said("Which question?")])
        pretend.call(Model(), list(map(copy, given)))
    run.end()
    assert told(assembly_telemetry) == [(1, 1, []), (3, 2, ["apply_policy newest"])]


def test_what_is_sent_in_spite_of_what_a_store_left_out_is_not_called_dropped(instrumentation, assembly_telemetry):
    pretend, store = Pretend(instrumentation), Store("one", "two", "three")
    pretend.get(store)
    pretend.call(Model(), store.held)
    assert told(assembly_telemetry) == [(3, 3, [])]


def test_what_is_read_for_no_call_is_not_told(instrumentation, assembly_telemetry):
    pretend, store = Pretend(instrumentation), Store("one", "two", "three")
    pretend.get(store)
    assert told(assembly_telemetry) == []


def test_what_a_store_keeps_of_it_waits_for_its_next_call(instrumentation, assembly_telemetry):
    pretend, store = Pretend(instrumentation, replaces_stored=True), Store("one", "two", "three")
    store.held = pretend.get(store)
    store.held.append(said("four"))
    store.newest = 3
    pretend.call(Model(), pretend.get(store))
    assert told(assembly_telemetry) == [(4, 3, ["apply_policy newest"])]


def test_a_store_in_a_store_is_a_step_of_its_own(instrumentation, assembly_telemetry):
    pretend = Pretend(instrumentation)
    store = Store(newest=1, inner=Store("one", "two", "three"))
    Store.get = pretend.get
    pretend.call(Model(), store.get())
    assert told(assembly_telemetry) == [(3, 1, ["apply_policy newest", "apply_policy newest"])]


def test_of_two_stores_that_have_given_the_same_it_is_the_one_that_has_given_the_least_beside_that(
    instrumentation, assembly_telemetry
):
    pretend = Pretend(instrumentation)
    Store.get = pretend.get
    first, second = Store("one", "two", "three"), Store(newest=9)
    second.held = [said("zero"), *first.held]
    store = Store(newest=1, inner=SimpleNamespace(get=lambda: (first.get(), second.get())[0]))
    pretend.call(Model(), store.get())
    assert told(assembly_telemetry) == [(3, 1, ["apply_policy newest", "apply_policy newest"])]


def test_what_nobody_has_seen_is_asked_for(instrumentation, assembly_telemetry):
    pretend, store = Pretend(instrumentation, holds=True), Store("one", "two", "three")
    pretend.call(Model(), pretend.get(store))
    assert told(assembly_telemetry) == [(3, 2, ["apply_policy newest"])]


def test_a_model_that_is_asked_as_a_store_is_read_is_a_part_of_that(instrumentation, assembly_telemetry):
    pretend, store = Pretend(instrumentation), Store("one", "two", "three")

    def summed(store):
        pretend.call(Model(), store.all())
        return [said("summary")]

    hook = pretend.readings.store_hook(lambda _: StepReport("sums"), InvokingAgent)
    pretend.call(Model(), hook(summed, instrumentation)(store))
    [assembly] = assembly_telemetry.spans_named("assemble_context")
    [step] = assembly.children
    assert [step.name, *(child.name for child in step.children)] == ["apply_policy sums", "compact_block summary"]


def test_a_store_that_raises_ends_the_call_that_is_not_made(instrumentation, assembly_telemetry):
    pretend, store = Pretend(instrumentation), Store("one", "two", "three")
    run = ReadingRun(pretend.readings, instrumentation, "clerk", at_once=False)
    with run.current(), pytest.raises(LookupError):
        pretend.failing(store)
    [assembly] = assembly_telemetry.spans_named("assemble_context")
    assert assembly.attributes["error.type"] == "LookupError"
    assert assembly.attributes["assembly.events.in"] == 3
    assert assembly.attributes["gen_ai.agent.name"] == "clerk"


def test_what_a_plug_in_of_ours_has_given_is_told_by_itself(instrumentation, assembly_telemetry):
    pretend, messages = Pretend(instrumentation), [said("one")]
    pretend.readings.record_read(Read(InvokingAgent.of("c-1"), messages, replaced_by_plugin=True))
    pretend.call(Model(), messages)
    assert told(assembly_telemetry) == []


def test_an_agent_in_a_run_of_several_asks_by_its_own_name(instrumentation, assembly_telemetry):
    pretend = Pretend(instrumentation)
    run = ReadingRun(pretend.readings, instrumentation, "team")
    with run.current():
        token = pretend.readings.agent_name.set("writer")
        pretend.call(Model(), [said("one")])
        pretend.readings.agent_name.reset(token)
        pretend.call(Model(), [said("one")])
    run.end()
    names = [span.attributes["gen_ai.agent.name"] for span in assembly_telemetry.spans_named("assemble_context")]
    assert names == ["writer", "team"]


async def test_a_stream_that_has_to_be_waited_for_is_a_part_of_its_run(instrumentation, assembly_telemetry):
    async def stream():
        pretend.call(Model(), [said("one")])
        yield "fine"

    async def ask():
        return stream()

    pretend = Pretend(instrumentation)
    asked = run_hook(lambda instrumentation: instrumentation.begin_run("clerk"))(ask, instrumentation)
    assert [word async for word in await asked()] == ["fine"]
    [assembly] = assembly_telemetry.spans_named("assemble_context")
    assert assembly.parent.name == "invoke_agent clerk"


def test_a_reduction_that_is_told_later_says_why(instrumentation):
    reduction = Reduction(instrumentation, StepReport("newest", [1, 2], budget=3))
    assert reduction.to_deferred([2]).budget == 3


def test_what_was_read_is_not_kept_alive_by_that(instrumentation, assembly_telemetry):
    pretend, store = Pretend(instrumentation), Store("one", "two", "three")
    run = ReadingRun(pretend.readings, instrumentation, "clerk")
    with run.current():
        given = pretend.get(store)
        pretend.call(Model(), given)
    run.end()
    message = weakref.ref(given[0])
    del given, store, run
    gc.collect()
    assert message() is None
    assert told(assembly_telemetry) == [(3, 2, ["apply_policy newest"])]
