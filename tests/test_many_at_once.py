"""Many assemblies at once: tasks, threads, conversations, assemblers."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import weakref
from collections import Counter
from itertools import count

import pytest
from assembling import Coin, requests, turns, user
from counting import held_by, ours_alive
from opentelemetry.sdk.trace import SpanProcessor

from otel_assembly import (
    Assembler,
    Context,
    ConversationPolicy,
    EventFacts,
    History,
    ModelRequest,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    describe,
)
from otel_assembly.decision import DecisionOutcome
from otel_assembly.errors import DescribeError
from otel_assembly.testing import RecordedTelemetry
from otel_assembly.tokens import CharacterCounter


class Yields:
    """Gives other tasks the turn, as often as it is told."""

    name = "yields"

    def __init__(self):
        self.times = iter([3, 0, 7, 1, 5, 2] * 100)

    async def apply(self, prompts, events, context):
        for _ in range(next(self.times)):
            await asyncio.sleep(0)
        return prompts, events


@pytest.mark.parametrize("sampled", [lambda number: True, lambda number: number % 3 == 0])
async def test_fifty_assemblies_at_once_tell_each_arrival_once_and_the_last_one_knows_the_truth(sampled):
    history = History(requests("a", "b"))
    telemetry = RecordedTelemetry(sampler=Coin(map(sampled, count())))
    assembler = Assembler([SlidingWindowPolicy(6), Yields()], recorder=telemetry.recorder)

    async def turn(number):
        for _ in range(number % 4):
            await asyncio.sleep(0)
        history.append(ModelRequest(content=f"turn {number}"))
        ended.append(await assembler.assemble([], history))

    ended, inside = [], set()
    await asyncio.gather(*(turn(number) for number in range(50)))
    assert {assembly.turn for assembly in ended} == set(range(50))
    assert all(len(assembly.events) == 6 or assembly.totals.events_in < 6 for assembly in ended)
    last = await assembler.assemble([], history)
    assert last.items == list(map(str, range(46, 52)))
    for assembly in (*ended, last):
        for decision in assembly.decisions:
            (inside.discard if decision.outcome is DecisionOutcome.DROPPED else inside.add)(decision.item)
        # One that began earlier may end later: what came in since was not offered to it, and it decides nothing of it.
        inside = {item for item in inside if int(item) < assembly.totals.events_in}
        assert inside == set(assembly.items)
    told = turns(telemetry)
    assert len(told) == sum(sampled(number) for number in range(51))
    arrived = [item for turn in told for item in turn.arrived]
    assert len(arrived) == len(set(arrived))
    assert set(arrived) == set(map(str, range(max(turn.span.attributes["assembly.events.in"] for turn in told))))


async def test_two_assemblers_on_one_history_have_ledgers_of_their_own():
    history = History(requests("a", "b", "c"))
    small, large = Assembler([SlidingWindowPolicy(1)]), Assembler([SlidingWindowPolicy(9)])
    assert (await small.assemble([], history)).items == ["2"]
    assembly = await large.assemble([], history)
    assert (assembly.items, assembly.turn) == (["0", "1", "2"], 0)
    assert (await small.assemble([], history)).turn == 1


def test_threads_share_an_assembler_and_a_history(recorder):
    history, chain = History(requests("a")), [ConversationPolicy(), TokenBudgetPolicy(60)]
    assembler = Assembler(chain, recorder=recorder.recorder, counter=CharacterCounter(4))
    errors = []

    def work(number):
        try:
            for turn in range(20):
                history.append(ModelRequest(content=f"{number} {turn}"))
                assembly = asyncio.run(assembler.assemble([], history))
                assert assembly.totals.tokens_out <= 60
                totals = assembly.totals
                assert totals.events_in == totals.events_out + totals.dropped
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    told = turns(recorder)
    assert sorted(int(item) for turn in told for item in turn.arrived) == list(range(121))
    assert sorted(turn.number for turn in told) == list(range(120))


def test_one_assembler_serves_many_event_loops_and_conversations_and_forgets_those_that_are_gone():
    assembler = Assembler([SlidingWindowPolicy(3)])

    async def run():
        history = History(requests("a", "b", "c", "d"))
        await assembler.assemble([], history)
        assembly = await assembler.assemble([], history)
        assert assembly.turn == 1
        context = Context()
        await assembler.assemble([], requests("x"), context)
        return weakref.ref(history), weakref.ref(context), weakref.ref(assembly)

    asyncio.run(run())
    before = ours_alive()
    dead = [ref for _ in range(5) for ref in asyncio.run(run())]
    assert ours_alive() <= before
    assert [ref() for ref in dead] == [None] * 15


async def test_a_history_that_lives_on_does_not_keep_assemblers_alive():
    history = History(requests("a"))
    await Assembler([]).assemble([], history)
    before = ours_alive()
    assembler = Assembler([])
    await assembler.assemble([], history)
    assert ours_alive() > before
    del assembler
    assert ours_alive() <= before + 2  # what the history's tokens were counted with


async def test_lists_are_one_conversation_by_their_id_and_the_least_recently_used_of_many_is_forgotten():
    assembler = Assembler([])

    async def turn(name):
        return (await assembler.assemble([], [user("a")], Context(conversation_id=name))).turn

    assert [await turn("first"), await turn("first"), await turn("second")] == [0, 1, 0]
    for number in range(998):
        await turn(f"other {number}")
    assert await turn("first") == 2
    assert await turn("one more") == 0
    assert await turn("first") == 3
    assert await turn("second") == 0


async def test_a_list_that_slides_on_for_ever_is_remembered_no_further_than_it_is_long(recorder):
    assembler, context = Assembler([TokenBudgetPolicy(500)], recorder=recorder.recorder), Context()
    events, held = requests(*map(str, range(5))), []
    for number in range(160):
        events[2] = events[2].model_copy(update={"content": f"{events[2].content}!"})
        events = [*events[1:], ModelRequest(content=f"next {number % 7}")]
        await assembler.assemble([], events, context)
        recorder.clear()
        if number in {39, 159}:
            held.append(held_by(assembler, context))
    assert held[1] < held[0] + 100  # less than one object for each of 120 turns


async def test_a_list_with_a_fresh_context_is_a_conversation_of_one_assembly():
    assembler, events = Assembler([]), [user("a")]
    assert [(await assembler.assemble([], events)).turn for _ in range(2)] == [0, 0]
    context = Context()
    assert [(await assembler.assemble([], events, context)).turn for _ in range(2)] == [0, 1]


def test_turns_that_wait_for_the_vocabulary_keep_what_they_were_asked_with():
    """A plug-in has one context for a conversation, and gives it anew what each turn brings."""
    program = """
import asyncio
from otel_assembly import Assembler, Context, ModelRequest

class Keeps:
    name = "keeps"
    seen = []

    async def apply(self, prompts, events, context):
        self.seen.append((context.variables["turn"], context.tools))
        return prompts, events

async def main():
    assembler, context = Assembler([Keeps()], model="gpt-4o"), Context()

    async def turn(number):
        context.variables, context.tools = {"turn": number}, ({"name": str(number)},)
        await assembler.assemble([], [ModelRequest(content="hello")], context)

    await asyncio.gather(*map(turn, range(5)))
    assert sorted(Keeps.seen, key=str) == [(n, ({"name": str(n)},)) for n in range(5)], Keeps.seen

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- Long lists -------------------------------------------------------------------------------------------------------


class Note:
    """An event that says in which turn of the event loop it was read."""

    def __init__(self, text):
        self.text = text


TICKS = count()
READ_IN = []


@describe.register
def _(event: Note) -> EventFacts:
    if event.text == "unreadable":
        raise ValueError(event.text)
    READ_IN.append(READ_IN[-1] if READ_IN else 0)
    return EventFacts("request", event.text)


@contextlib.asynccontextmanager
async def ticking():
    """Another task of the loop, which has its turn whenever it can."""

    async def tick():
        while True:
            READ_IN.append(next(TICKS))
            await asyncio.sleep(0)

    READ_IN.clear()
    task = asyncio.create_task(tick())
    await asyncio.sleep(0)
    yield
    task.cancel()


def notes(number):
    return [Note(f"note {index}") for index in range(number)]


@pytest.mark.parametrize("before", [0, 10])
async def test_between_slices_of_a_long_list_other_tasks_have_their_turn(before):
    events, context = notes(1_000), Context()
    assembler = Assembler([SlidingWindowPolicy(3)], counter=CharacterCounter(4))
    await assembler.assemble([], events[:before], context)
    async with ticking():
        assembly = await assembler.assemble([], events, context)
        read = Counter(READ_IN)
    assert assembly.items == ["997", "998", "999"]
    assert max(read.values()) <= 64 + 1
    assert read.total() >= 1_000 - before


class Heard(SpanProcessor):
    """Hears of every span as it ends, in which turn of the event loop that is."""

    def on_end(self, span):
        if span.name == "list_items":
            READ_IN.append(READ_IN[-1])


async def test_between_slices_of_what_is_told_other_tasks_have_their_turn(recorder):
    recorder.tracer_provider.add_span_processor(Heard())
    assembler = Assembler([SlidingWindowPolicy(3)], counter=CharacterCounter(4), recorder=recorder.recorder)
    history = History(requests(*map(str, range(2_000))))
    async with ticking():
        await assembler.assemble([], history)
        told = Counter(READ_IN)
    assert max(told.values()) == 1 + 1
    assert sum(count > 1 for count in told.values()) >= 10
    (turn,) = turns(recorder)
    assert sorted(map(int, turn.arrived)) == list(range(2_000))


async def test_of_assemblies_of_one_conversation_each_waits_until_another_has_read_its_list(recorder):
    events = notes(500)
    assembler = Assembler([SlidingWindowPolicy(3)], counter=CharacterCounter(4), recorder=recorder.recorder)

    async def turn(upto):
        return await assembler.assemble([], events[:upto], Context(conversation_id="one"))

    found = await asyncio.gather(*map(turn, (300, 300, 400, 500, 100)))
    assert [assembly.items[-1] for assembly in found] == ["299", "299", "399", "499", "99"]
    assert sorted(assembly.turn for assembly in found) == [0, 1, 2, 3, 4]
    told = [int(item) for turn in turns(recorder) for item in turn.arrived]
    assert sorted(told) == list(range(500))


async def test_who_is_cancelled_while_a_long_list_is_read_or_told_of_leaves_a_ledger_that_goes_on(recorder):
    events, context = notes(500), Context()
    assembler = Assembler([SlidingWindowPolicy(3)], counter=CharacterCounter(4), recorder=recorder.recorder)
    for pauses in range(0, 30, 2):
        task = asyncio.create_task(assembler.assemble([], events, context))
        for _ in range(pauses):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assembly = await assembler.assemble([], events, context)
    assert assembly.items == ["497", "498", "499"]
    assert all(span.parent for span in recorder.spans if span.name == "list_items")
    told = [int(item) for turn in turns(recorder) for item in turn.arrived]
    assert sorted(told) == list(range(500))


async def test_of_a_long_list_with_an_event_that_cannot_be_read_nothing_is_kept():
    context, assembler = Context(), Assembler([], counter=CharacterCounter(4))
    with pytest.raises(DescribeError):
        await assembler.assemble([], [*notes(200), Note("unreadable")], context)
    assembly = await assembler.assemble([], notes(100), context)
    assert assembly.items == list(map(str, range(100)))


class Threads(CharacterCounter):
    """Says in which threads it counted."""

    def __init__(self):
        super().__init__(4)
        self.seen = Counter()

    def count(self, text):
        self.seen[threading.current_thread() is threading.main_thread()] += 1
        return super().count(text)


async def test_no_estimate_is_counted_in_the_thread_of_the_event_loop(recorder):
    counter = Threads()
    events = requests(*(f"{number} " * 20_000 for number in range(100)))  # more than is counted at once
    assembly = await Assembler([ConversationPolicy()], counter=counter, recorder=recorder.recorder).assemble([], events)
    assert assembly.totals.estimated_in == 0
    assert counter.seen == {False: 100}
