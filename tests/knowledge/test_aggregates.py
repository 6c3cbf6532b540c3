"""What a conversation leaves in the store, whatever the model does."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

from otel_assembly import (
    ConfigurationError,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    Severity,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.errors import DescribeError, KnowledgeError
from otel_assembly.events import CompactionSummary, ToolResultsEvent, TurnStarted
from otel_assembly.knowledge import (
    CONVERSATIONS_PREFIX,
    MAX_TOOL_RESULT_CHARACTERS,
    WORKING_MEMORY_PATH,
    AggregateTrigger,
    ConversationSummaryAggregate,
    WorkingMemoryAggregate,
    render_events,
)

TALK = [ModelRequest(content="Where is my order?"), ModelResponse(content="On its way.")]
NOON = datetime(2026, 3, 14, 12, 0, 0, 5, tzinfo=UTC)


class Model:
    """A summariser that remembers what it was asked."""

    def __init__(self, answer="the answer"):
        self.answer = answer
        self.prompts = []

    async def __call__(self, prompt):
        self.prompts.append(prompt)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def conversation(name):
    return SimpleNamespace(conversation_id=name)


async def summaries(store):
    names = await store.list(CONVERSATIONS_PREFIX)
    return [await store.read(CONVERSATIONS_PREFIX + name) for name in names]


async def test_a_summary_is_a_new_file_named_by_time_and_conversation(store):
    model = Model("They found the order.")
    await ConversationSummaryAggregate(model, clock=lambda: NOON).aggregate(TALK, conversation("c-1"), store)
    (name,) = await store.list(CONVERSATIONS_PREFIX)
    assert re.fullmatch(r"20260314T120000\.000005Z_c-1_\d{6}-[0-9a-f]{16}\.md", name)
    assert await store.read(CONVERSATIONS_PREFIX + name) == "They found the order."
    assert "user: Where is my order?\n\nassistant: On its way." in model.prompts[0]


async def test_summaries_of_one_moment_are_all_kept_in_order(store):
    answers = iter("abcdefgh")
    aggregates = [ConversationSummaryAggregate(lambda _: next(answers), clock=lambda: NOON) for _ in range(2)]
    for _ in range(4):
        for aggregate in aggregates:
            await aggregate.aggregate(TALK, conversation("same"), store)
    assert await summaries(store) == list("abcdefgh")


async def test_names_sort_by_time_whatever_the_zone_and_the_conversation(store):
    moments = [
        NOON.replace(microsecond=999_999),
        NOON + timedelta(seconds=1),
        (NOON + timedelta(seconds=1, microseconds=1)).astimezone(timezone(timedelta(hours=-7))),
        (NOON + timedelta(minutes=30)).astimezone(timezone(timedelta(hours=5, minutes=30))),
        NOON + timedelta(days=400),
    ]
    for n, (moment, name) in enumerate(zip(moments, "zyxwv", strict=True)):
        aggregate = ConversationSummaryAggregate(lambda _, n=n: str(n), clock=lambda moment=moment: moment)
        await aggregate.aggregate(TALK, conversation(name), store)
    assert await summaries(store) == list("01234")


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("support_17-b", "support_17-b"),
        ("../../etc/passwd", "------etc-passwd"),
        ("a/b\\c:d\0e.md", "a-b-c-d-e-md"),
        ("x" * 500, "x" * 64),
        (17, "17"),
        (None, "[0-9a-f]{8}"),
        ("", "[0-9a-f]{8}"),
        ("🦊/🦊", "[0-9a-f]{8}"),
    ],
)
async def test_a_conversation_id_cannot_lead_elsewhere(store, name, segment):
    await ConversationSummaryAggregate(Model(), clock=lambda: NOON).aggregate(TALK, conversation(name), store)
    (found,) = await store.list(CONVERSATIONS_PREFIX)
    assert re.fullmatch(rf"20260314T120000\.000005Z_{segment}_[0-9a-f-]+\.md", found)
    assert await store.list() == ["memory/"]


async def test_a_context_without_an_id_and_the_system_clock_will_do(store):
    await ConversationSummaryAggregate(Model()).aggregate(TALK, object(), store)
    assert await summaries(store) == ["the answer"]


async def test_a_clock_without_a_zone_is_refused(store):
    aggregate = ConversationSummaryAggregate(Model(), clock=lambda: NOON.replace(tzinfo=None))
    with pytest.raises(KnowledgeError, match="zone"):
        await aggregate.aggregate(TALK, object(), store)


async def test_the_working_memory_is_merged(store):
    model = Model("- likes tea")
    aggregate = WorkingMemoryAggregate(model)
    await aggregate.aggregate(TALK, object(), store)
    assert await store.read(WORKING_MEMORY_PATH) == "- likes tea"
    await aggregate.aggregate(TALK, object(), store)
    first, second = model.prompts
    assert "(empty)" in first
    assert "- likes tea" in second
    assert "(empty)" not in second


async def test_braces_are_harmless_and_nothing_is_filled_in_twice(store):
    await store.write(WORKING_MEMORY_PATH, "old {events} {0} {existing} }{")
    model = Model()
    aggregate = WorkingMemoryAggregate(model, prompt='{"json": {}} {existing} | {events} {unknown}')
    await aggregate.aggregate([ModelRequest(content="{existing} {x!r}")], object(), store)
    assert model.prompts == ['{"json": {}} old {events} {0} {existing} }{ | user: {existing} {x!r} {unknown}']


@pytest.mark.parametrize("make", [ConversationSummaryAggregate, WorkingMemoryAggregate])
@pytest.mark.parametrize("answer", ["", " \n\t", None, 17, RuntimeError("model down"), TimeoutError()], ids=repr)
async def test_a_model_that_fails_costs_nothing(store, make, answer):
    await store.write(WORKING_MEMORY_PATH, "precious")
    expected = type(answer) if isinstance(answer, Exception) else KnowledgeError
    with pytest.raises(expected):
        await make(Model(answer)).aggregate(TALK, object(), store)
    assert await store.read(WORKING_MEMORY_PATH) == "precious"
    assert await store.list("/memory") == ["working.md"]


@pytest.mark.parametrize("make", [ConversationSummaryAggregate, WorkingMemoryAggregate])
async def test_a_cancelled_model_costs_nothing(store, make):
    await store.write(WORKING_MEMORY_PATH, "precious")
    asked = asyncio.Event()

    async def model(_):
        asked.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(make(model).aggregate(TALK, object(), store))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await store.read(WORKING_MEMORY_PATH) == "precious"
    assert await store.list("/memory") == ["working.md"]


@pytest.mark.parametrize("make", [ConversationSummaryAggregate, WorkingMemoryAggregate])
async def test_nothing_to_read_asks_nobody(store, make):
    model = Model()
    alert = ObserverAlert(source="s", severity=Severity.INFO, message="m")
    for events in ([], [TurnStarted(turn=1), alert]):
        await make(model).aggregate(events, object(), store)
    assert model.prompts == []
    assert await store.list() == []


@pytest.mark.parametrize("make", [ConversationSummaryAggregate, WorkingMemoryAggregate])
async def test_an_event_nobody_can_read_is_named(store, make):
    with pytest.raises(DescribeError):
        await make(Model()).aggregate([object()], object(), store)
    assert await store.list() == []


async def test_conversations_that_end_at_once_all_reach_the_working_memory(store):
    async def model(prompt):
        await asyncio.sleep(0)
        memory, _, said = prompt.partition("|")
        return memory + said.removeprefix("user: ")

    aggregate = WorkingMemoryAggregate(model, prompt="{existing}|{events}")
    await asyncio.gather(*(aggregate.aggregate([ModelRequest(content=c)], object(), store) for c in "abcdef"))
    assert sorted((await store.read(WORKING_MEMORY_PATH)).removeprefix("(empty)")) == list("abcdef")


def test_an_aggregate_outlives_its_loop(new_store):
    store = new_store()

    async def twice(aggregate):
        await asyncio.gather(*(aggregate.aggregate(TALK, object(), store) for _ in range(2)))
        return await store.read(WORKING_MEMORY_PATH)

    aggregate = WorkingMemoryAggregate(Model())
    assert [asyncio.run(twice(aggregate)) for _ in range(2)] == ["the answer"] * 2
    if hasattr(store, "close"):
        asyncio.run(store.close())


@pytest.mark.parametrize("make", [ConversationSummaryAggregate, WorkingMemoryAggregate])
def test_a_prompt_without_the_conversation_is_refused(make):
    with pytest.raises(ConfigurationError, match=r"no \{events\}"):
        make(Model(), prompt="Say something.")


def test_a_conversation_reads_in_order_and_says_nothing_twice():
    call = ToolCallEvent(id="1", name="search", arguments='{"q": "tea"}')
    result = ToolResultEvent(parent_id="1", name="search", content="three teas")
    turn = [
        ModelRequest(content="find tea"),
        ModelResponse(content="Looking.", tool_calls=(call,)),
        call,
        result,
        ToolResultsEvent(results=(result,)),
    ]
    once = 'user: find tea\n\nassistant: Looking. search {"q": "tea"}\n\ntool result: three teas'
    assert render_events(turn) == once
    # Ids come back in later turns.
    assert render_events([*turn, *turn]) == f"{once}\n\n{once}"
    assert render_events([CompactionSummary(summary="before"), call]) == (
        'summary of earlier events: before\n\ntool call: search {"q": "tea"}'
    )


def test_long_tool_results_are_elided_and_nothing_else_is():
    text = "begin" + "x" * (2 * MAX_TOOL_RESULT_CHARACTERS) + "end"
    rendered = render_events([ToolResultEvent(parent_id="1", content=text)])
    assert len(rendered) < MAX_TOOL_RESULT_CHARACTERS + 100
    assert rendered.startswith("tool result: begin")
    assert rendered.endswith("end")
    assert f"{len(text) - MAX_TOOL_RESULT_CHARACTERS} characters left out" in rendered
    assert text in render_events([ModelRequest(content=text)])
    exact = "x" * MAX_TOOL_RESULT_CHARACTERS
    assert exact in render_events([ToolResultEvent(parent_id="1", content=exact)])


def test_a_trigger_is_due_when_one_of_its_conditions_holds():
    assert AggregateTrigger(every_n_turns=3).due(3, 0, False)
    assert not AggregateTrigger(every_n_turns=3).due(2, 99, True)
    assert AggregateTrigger(every_n_events=10).due(0, 12, False)
    assert not AggregateTrigger(every_n_events=10).due(99, 9, True)
    assert AggregateTrigger(on_end=True).due(0, 0, True)
    assert not AggregateTrigger(on_end=True).due(99, 99, False)
    assert AggregateTrigger(every_n_turns=5, on_end=True).due(1, 1, True)


@pytest.mark.parametrize("settings", [{}, {"every_n_turns": -1}, {"every_n_events": -1, "on_end": True}], ids=repr)
def test_a_trigger_that_cannot_work_is_refused(settings):
    with pytest.raises(ConfigurationError, match="AggregateTrigger"):
        AggregateTrigger(**settings)
