"""Aggregates run after turns: in the background, one at a time for each conversation, never at a turn's cost."""

from __future__ import annotations

import asyncio
import gc
import os
from types import SimpleNamespace

import pytest

from otel_assembly import (
    ConfigurationError,
    Context,
    HaltEvent,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    ToolCallEvent,
    ToolResultEvent,
    attach,
)
from otel_assembly.events import AggregationCompleted, AggregationFailed, TurnCompleted, TurnStarted
from otel_assembly.knowledge import (
    CONVERSATIONS_PREFIX,
    WORKING_MEMORY_PATH,
    AggregateTrigger,
    ConversationSummaryAggregate,
    KnowledgeStore,
    MemoryKnowledgeStore,
    WorkingMemoryAggregate,
    render_events,
)
from otel_assembly.runtime import AggregateObserver, Stream

SECRET = "4111-1111-1111-1111"


class Recording:
    """An aggregate that remembers what it was given, and behaves as a test chooses."""

    def __init__(self, behave=None):
        self.given = []
        self.contexts = []
        self.stores = []
        self.now = self.most = 0
        self.behave = behave

    async def aggregate(self, events, context, store):
        self.given.append(render_events(events).replace("user: ", "").replace("\n\n", " "))
        self.contexts.append(context)
        self.stores.append(store)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.behave:
                await self.behave(len(self.given))
        finally:
            self.now -= 1


async def hang(run):
    await asyncio.Event().wait()


async def fail(run):
    raise ValueError(SECRET)


def observer(aggregate, store=None, *, trigger=None, **settings):
    trigger = trigger or AggregateTrigger(every_n_turns=1)
    return AggregateObserver(aggregate, trigger, store=store or MemoryKnowledgeStore(), **settings)


async def turn(stream, *said, number=0):
    for text in said:
        await stream.send(ModelRequest(content=text))
    await stream.send(TurnCompleted(turn=number))


def attached(*observers):
    stream = Stream()
    attach(stream, observers)
    return stream


def told(stream):
    return [event for event in stream.history if isinstance(event, AggregationCompleted | AggregationFailed)]


def others():
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_a_turns_end_does_not_wait_for_the_model():
    gate, store = asyncio.Event(), MemoryKnowledgeStore()

    async def ask(prompt):
        await gate.wait()
        return "likes tea"

    watching = observer(WorkingMemoryAggregate(ask), store)
    stream = attached(watching)
    await turn(stream, "I like tea.")
    assert told(stream) == []
    gate.set()
    await watching.flush()
    assert await store.read(WORKING_MEMORY_PATH) == "likes tea"
    [event] = told(stream)
    assert isinstance(event, AggregationCompleted)
    assert event.aggregate == "WorkingMemoryAggregate"
    assert others() == set()


async def test_each_run_is_given_what_came_since_the_last_and_no_half_of_a_turn():
    aggregate = Recording()
    watching = observer(aggregate, trigger=AggregateTrigger(every_n_turns=2), name="memory")
    stream = attached(watching)
    await turn(stream, "a")
    await turn(stream, "b")
    await stream.send(ModelRequest(content="half"))
    await watching.flush()
    assert aggregate.given == ["a b"]
    await turn(stream, "c")
    await watching.flush()
    assert aggregate.given == ["a b"]
    await turn(stream, "d")
    await stream.send(ModelRequest(content="next"))
    await watching.flush()
    assert aggregate.given == ["a b", "half c d"]
    assert [event.aggregate for event in told(stream)] == ["memory"] * 2


async def test_what_no_model_is_sent_is_no_event_of_the_trigger():
    aggregate = Recording()
    watching = observer(aggregate, trigger=AggregateTrigger(every_n_events=2))
    stream = attached(watching)
    for n in range(5):
        await stream.send(TurnStarted(turn=n))
        await stream.send(ObserverAlert(source="s", severity="info", message="m"))
        await turn(stream, number=n)
    await watching.flush()
    assert aggregate.given == []
    await turn(stream, "a")
    await turn(stream, "b")
    # What it tells itself is none either: it would go round in circles.
    await turn(stream)
    await watching.flush()
    assert aggregate.given == ["a b"]


async def test_messages_of_any_framework_are_remembered():
    aggregate = Recording()
    watching = observer(aggregate)
    stream = attached(watching)
    await stream.send({"role": "user", "content": "hello"})
    call = ToolCallEvent(id="1", name="search", arguments="{}")
    await stream.send(ModelResponse(content="", tool_calls=(call,)))
    await stream.send(ToolResultEvent(parent_id="1", name="search", content="found"))
    await turn(stream)
    await watching.flush()
    assert aggregate.given == ["hello assistant: search {} tool result: found"]


async def test_turns_that_end_while_it_runs_make_one_more_run():
    gate = asyncio.Event()

    async def wait(run):
        await gate.wait()

    aggregate = Recording(wait)
    watching = observer(aggregate)
    stream = attached(watching)
    for n in range(10):
        await turn(stream, str(n), number=n)
        await asyncio.sleep(0)
    gate.set()
    await watching.flush()
    assert aggregate.given == ["0", "1 2 3 4 5 6 7 8 9"]
    assert aggregate.most == 1
    assert len(told(stream)) == 2


async def test_turns_that_are_not_yet_due_while_it_runs_make_none():
    gate = asyncio.Event()

    async def wait(run):
        await gate.wait()

    aggregate = Recording(wait)
    watching = observer(aggregate, trigger=AggregateTrigger(every_n_turns=3))
    stream = attached(watching)
    for n in range(5):
        await turn(stream, str(n), number=n)
        await asyncio.sleep(0)
    gate.set()
    await watching.flush()
    assert aggregate.given == ["0 1 2"]
    await turn(stream, "5")
    await watching.flush()
    assert aggregate.given == ["0 1 2", "3 4 5"]


async def test_conversations_run_at_once_but_only_so_many():
    gate = asyncio.Event()

    async def wait(run):
        await gate.wait()

    aggregate = Recording(wait)
    watching = observer(aggregate, at_once=3)
    streams = [attached(watching) for _ in range(8)]
    for n, stream in enumerate(streams):
        for _ in range(2):
            await turn(stream, str(n))
            await asyncio.sleep(0)
    assert aggregate.now == 3
    gate.set()
    await watching.flush()
    assert aggregate.most == 3
    assert sorted(aggregate.given) == sorted(["0", "0", "1", "1", "2", "2", "3 3", "4 4", "5 5", "6 6", "7 7"])
    assert all(told(stream) for stream in streams)


async def test_a_failure_is_told_by_its_type_and_what_it_was_given_comes_again(caplog):
    async def first_fails(run):
        if run == 1:
            raise ValueError(SECRET)

    aggregate = Recording(first_fails)
    watching = observer(aggregate)
    stream = attached(watching)
    await turn(stream, SECRET)
    await watching.flush()
    [failed] = told(stream)
    assert (failed.aggregate, failed.error) == ("Recording", "ValueError")
    assert SECRET not in caplog.text
    assert "the aggregate Recording failed: ValueError" in caplog.text
    await turn(stream, "b")
    await watching.flush()
    assert aggregate.given == [SECRET, f"{SECRET} b"]
    assert [type(event) for event in told(stream)] == [AggregationFailed, AggregationCompleted]


async def test_one_that_hangs_is_left_after_its_time_and_no_turn_waits_for_it():
    aggregate = Recording(hang)
    watching = observer(aggregate, timeout=0.05)
    stream = attached(watching)
    for n in range(3):
        await turn(stream, str(n), number=n)
    await watching.flush()
    assert [event.error for event in told(stream)] == ["TimeoutError"]
    assert stream.subscriptions[0].errors == 0
    assert others() == set()


async def test_an_aggregate_that_cancels_itself_has_failed():
    async def cancelled(run):
        raise asyncio.CancelledError

    aggregate = Recording(cancelled)
    watching = observer(aggregate)
    stream = attached(watching)
    await turn(stream, "a")
    await watching.flush()
    assert [event.error for event in told(stream)] == ["cancelled"]


async def test_a_subscriber_that_fails_or_hangs_hurts_no_run():
    aggregate = Recording()
    watching = observer(aggregate, timeout=0.05)
    stream = attached(watching)

    async def hanging(event):
        await asyncio.Event().wait()

    stream.subscribe(AggregationCompleted, hanging)
    await turn(stream, "a")
    await watching.flush()
    await turn(stream, "b")
    await watching.flush()
    assert aggregate.given == ["a", "b"]


async def test_a_halted_conversation_asks_no_model():
    aggregate = Recording()
    watching = observer(aggregate, trigger=AggregateTrigger(every_n_turns=1, on_end=True))
    stream, other = attached(watching), attached(watching)
    await stream.send(ModelRequest(content="a"))
    await stream.send(HaltEvent(reason="enough", source="somebody"))
    await stream.send(TurnCompleted(turn=0))
    await turn(other, "b")
    await watching.aclose()
    assert aggregate.given == ["b"]
    assert {event.error for event in told(stream)} == {"assembly_halt"}


async def test_at_its_end_a_conversation_is_given_what_has_come_since():
    aggregate = Recording()
    watching = observer(aggregate, trigger=AggregateTrigger(on_end=True))
    stream, other = attached(watching), attached(watching)
    await turn(stream, "a")
    await stream.send(ModelRequest(content="b"))
    await turn(other, "c")
    await watching.end(stream)
    assert aggregate.given == ["a b"]
    await watching.end(stream)
    await watching.end(Context(stream=stream))
    assert aggregate.given == ["a b"]
    await watching.aclose()
    assert aggregate.given == ["a b", "c"]


async def test_the_end_waits_for_what_runs_and_for_what_waits_behind_others():
    gate = asyncio.Event()

    async def wait(run):
        await gate.wait()

    aggregate = Recording(wait)
    watching = observer(aggregate, trigger=AggregateTrigger(every_n_turns=1, on_end=True), at_once=1)
    first, second = attached(watching), attached(watching)
    await turn(first, "a")
    await asyncio.sleep(0)
    await turn(second, "b")
    await second.send(ModelRequest(content="c"))
    ending = asyncio.create_task(watching.end(second))
    await asyncio.sleep(0.01)
    assert not ending.done()
    gate.set()
    await ending
    assert aggregate.given == ["a", "b c"]


async def test_a_close_runs_what_is_due_at_the_end_and_leaves_nothing_running():
    summaries = MemoryKnowledgeStore()
    aggregate = ConversationSummaryAggregate(lambda prompt: "They talked.")

    async def conversation(watching):
        # Nobody holds the stream when the observer is closed.
        await turn(attached(watching), "hello")

    async with observer(aggregate, summaries, trigger=AggregateTrigger(on_end=True)) as watching:
        await conversation(watching)
        await conversation(watching)
        gc.collect()
    assert len(await summaries.list(CONVERSATIONS_PREFIX)) == 2
    assert others() == set()
    late = attached(watching)
    await turn(late, "too late")
    await watching.aclose()
    assert len(await summaries.list(CONVERSATIONS_PREFIX)) == 2


async def test_a_close_that_fails_keeps_no_one_waiting():
    aggregate = Recording(fail)
    watching = observer(aggregate, trigger=AggregateTrigger(on_end=True))
    streams = [attached(watching) for _ in range(3)]
    for stream in streams:
        await turn(stream, "a")
    await watching.aclose()
    assert [told(stream)[0].error for stream in streams] == ["ValueError"] * 3


async def test_a_close_that_is_cancelled_cancels_what_runs():
    aggregate = Recording(hang)
    watching = observer(aggregate, at_once=2)
    for _ in range(4):
        await turn(attached(watching), "a")
    closing = asyncio.create_task(watching.aclose())
    while aggregate.now < 2:
        await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert others() == set()
    assert aggregate.now == 0
    assert len(aggregate.given) == 2


def test_what_a_loop_cut_short_comes_again_in_the_next():
    aggregate = Recording(hang)
    watching = observer(aggregate, at_once=1)
    stream, second = attached(watching), attached(watching)

    async def cut_short():
        await turn(stream, "a")
        await turn(second, "b")
        await asyncio.sleep(0)

    asyncio.run(cut_short())
    assert told(stream) == []
    aggregate.behave = None

    async def go_on():
        await turn(stream, "c")
        await watching.flush()

    asyncio.run(go_on())
    assert sorted(aggregate.given) == ["a", "a c", "b"]


async def test_a_conversation_with_nothing_left_to_write_is_not_kept():
    watching = observer(Recording())
    stream = attached(watching)
    await turn(stream, "a")
    await watching.flush()
    assert len(watching._states) == 0


async def test_past_so_many_conversations_the_least_recent_is_taken_to_be_over(monkeypatch):
    monkeypatch.setattr("otel_assembly.runtime.aggregation.REMEMBERED_CONVERSATIONS", 2)
    aggregate = Recording()
    watching = observer(aggregate, trigger=AggregateTrigger(on_end=True))
    streams = [attached(watching) for _ in range(4)]
    for n, stream in enumerate(streams):
        await turn(stream, str(n))
    await watching.flush()
    assert aggregate.given == ["0", "1"]
    await watching.aclose()
    assert aggregate.given == ["0", "1", "2", "3"]


async def test_of_a_conversation_that_never_comes_to_a_run_the_newest_are_kept():
    aggregate = Recording(fail)
    watching = observer(aggregate, most_events=3)
    stream = attached(watching)
    for n in range(6):
        await turn(stream, str(n))
        await watching.flush()
    await stream.send(ModelRequest(content="half"))
    aggregate.behave = None
    await stream.send(TurnCompleted(turn=6))
    await watching.flush()
    assert aggregate.given[-1] == "4 5 half"
    assert max(len(given.split()) for given in aggregate.given) == 3


async def test_the_store_of_the_conversations_context_is_written_to():
    aggregate = Recording()
    watching = AggregateObserver(aggregate, AggregateTrigger(every_n_turns=1))
    stores = [MemoryKnowledgeStore() for _ in range(2)]
    for store in stores:
        stream = Stream()
        context = Context(stream=stream, dependencies={KnowledgeStore: store})
        with attach(stream, [watching], context):
            await turn(stream, "a")
        await watching.flush()
        assert aggregate.contexts[-1] is context
    assert [store is two for store, two in zip(aggregate.stores, stores, strict=True)] == [True, True]


async def test_without_a_store_the_mend_is_logged(caplog):
    watching = AggregateObserver(Recording(), AggregateTrigger(every_n_turns=1))
    stream = attached(watching)
    await turn(stream, "a")
    await watching.flush()
    assert told(stream)[0].error == "otel_assembly.errors.ConfigurationError"
    assert "Context(dependencies={KnowledgeStore: store})" in caplog.text


async def test_observers_attached_anew_for_each_turn_are_shown_one_conversation():
    aggregate = Recording()
    watching = observer(aggregate, trigger=AggregateTrigger(every_n_turns=2))
    stream = Stream()
    for text in "ab":
        with attach(stream, [watching]):
            await turn(stream, text)
    await watching.flush()
    assert aggregate.given == ["a b"]


async def test_two_aggregates_of_one_conversation_do_not_wait_for_each_other():
    store = MemoryKnowledgeStore()
    stuck = observer(Recording(hang), timeout=0.2, name="stuck")
    quick = observer(WorkingMemoryAggregate(lambda prompt: "notes"), store)
    stream = attached(stuck, quick)
    await turn(stream, "a")
    await quick.flush()
    assert await store.read(WORKING_MEMORY_PATH) == "notes"
    await stuck.flush()
    assert {event.aggregate for event in told(stream)} == {"stuck", "WorkingMemoryAggregate"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
async def test_what_waits_is_its_parents():
    aggregate = Recording()
    watching = observer(aggregate, trigger=AggregateTrigger(on_end=True))
    await turn(attached(watching), "a")
    child = os.fork()
    if child == 0:
        os._exit(len(watching._states))
    assert os.waitpid(child, 0)[1] == 0
    await watching.aclose()
    assert aggregate.given == ["a"]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: AggregateObserver(Recording, AggregateTrigger(on_end=True)), "class Recording"),
        (lambda: AggregateObserver(SimpleNamespace(), AggregateTrigger(on_end=True)), "has no aggregate"),
        (lambda: AggregateObserver(Recording(), None), "AggregateTrigger"),
        (lambda: AggregateObserver(Recording(), AggregateTrigger), "AggregateTrigger"),
        (
            lambda: AggregateObserver(Recording(), AggregateTrigger(on_end=True), store=MemoryKnowledgeStore),
            "class Mem",
        ),
        (lambda: observer(Recording(), timeout=0), "timeout"),
        (lambda: observer(Recording(), at_once=0), "at_once"),
        (lambda: observer(Recording(), at_once=True), "at_once"),
        (lambda: observer(Recording(), most_events=1.5), "most_events"),
    ],
)
def test_settings_that_cannot_work_are_refused(make, problem):
    with pytest.raises(ConfigurationError, match=problem):
        make()


async def test_a_listener_that_was_cancelled_keeps_no_other_conversation_waiting():
    aggregate = Recording()
    watching = observer(aggregate, at_once=1)
    first, second = Stream(), Stream()

    async def cancelled(event):
        done = asyncio.get_running_loop().create_future()
        done.cancel()
        await done

    first.subscribe(AggregationCompleted, cancelled)
    for stream in (first, second):
        attach(stream, [watching])
        await turn(stream, "hello")
    for _ in range(50):
        await asyncio.sleep(0)
    assert aggregate.given == ["hello", "hello"]
    await watching.aclose()


async def test_a_run_that_failed_loses_nothing_of_what_it_was_given_whatever_it_did_with_the_list():
    class Greedy(Recording):
        async def aggregate(self, events, context, store):
            await super().aggregate(events, context, store)
            events.clear()
            raise ValueError

    aggregate = Greedy()
    watching = observer(aggregate)
    stream = Stream()
    attach(stream, [watching])
    for text in ("one", "two"):
        await turn(stream, text)
        await watching.flush()
    assert aggregate.given == ["one", "one two"]
    await watching.aclose()
