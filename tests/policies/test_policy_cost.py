"""A turn costs what is new and what is in the window: counted in texts, events, calls and rounds, never in seconds."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass

import pytest
from counting import Rounds

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    Context,
    ConversationPolicy,
    EventFacts,
    History,
    ObserverAlert,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    describe,
)
from otel_assembly.budget import Compactors
from otel_assembly.events import TurnStarted
from otel_assembly.messages import summary_like

# Conversations of 100,000 events are made for it; `tests/test_turn_cost.py` holds the same promise sooner.
pytestmark = pytest.mark.slow

SHORT, LONG = 1_000, 100_000


@dataclass(frozen=True, slots=True)
class Said:
    """A message that counts how often it is read."""

    kind: str
    text: str
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()


reads: list[Said] = []


summary_like.register(Said, lambda event, text, events: Said("summary", text))


@describe.register
def _(event: Said) -> EventFacts:
    reads.append(event)
    return EventFacts(event.kind, event.text, opens=event.opens, closes=event.closes)


class SpyCounter:
    name = "words"
    method = "exact"
    generation = 0

    def __init__(self):
        self.asked = []

    def count(self, text):
        self.asked.append(text)
        return len(text.split())


def talk(length, notes=False, orphans=0):
    """A conversation with a tool call in every six messages, in which `orphans` calls are never answered."""
    said = []
    for n in range(length):
        place = n % 6
        if place == 0:
            said.append(Said("request", f"question {n} of the traveller"))
        elif place == 1:
            said.append(Said("response", f"let me look {n}", opens=(f"c{n}",)))
        elif place == 2:
            answers = orphans == 0 or (n // 6) % (length // 6 // orphans) != 1
            said.append(Said("tool_result", f"row {n}", closes=(f"c{n - 1}",)) if answers else Said("summary", f"s{n}"))
        else:
            said.append(Said("response" if place % 2 else "request", f"text number {n}"))
        if notes and place in {2, 4}:
            said.append(TurnStarted(turn=n))
        if notes and n % 500 == 7:
            said.append(ObserverAlert(source="monitor", severity="info", message=f"alert {n}"))
    return said


def two_more(number):
    return [Said("request", f"new question {number}"), Said("response", f"new answer {number}")]


async def summarised(text, target_tokens):
    return "what was said"


CHAINS = {
    "conversation > budget": lambda: [ConversationPolicy(), TokenBudgetPolicy(400)],
    "conversation > stepped budget": lambda: [ConversationPolicy(), TokenBudgetPolicy(400, step_tokens=20)],
    "conversation > window > budget": lambda: [ConversationPolicy(), SlidingWindowPolicy(50), TokenBudgetPolicy(400)],
    "alert > conversation > window": lambda: [AlertPolicy(), ConversationPolicy(), SlidingWindowPolicy(50, stride=10)],
    "conversation > allocator": lambda: [ConversationPolicy(), BudgetPolicy(500, 100, step_tokens=20)],
    "budget alone": lambda: [TokenBudgetPolicy(400)],
    "window alone": lambda: [SlidingWindowPolicy(50)],
}


#: What a new summary is made of is counted and read once more.
COMPACTING = {
    "conversation > compacting allocator": lambda: [
        ConversationPolicy(),
        BudgetPolicy(500, 100, step_tokens=20, compact=Compactors(summarised, fallback=None), summary_tokens=20),
    ],
}


class Turn:
    """What the turns of one conversation cost, once it is warm."""

    def __init__(self, chain, events):
        self.counter = SpyCounter()
        self.history = History(events)
        self.assembler = Assembler({**CHAINS, **COMPACTING}[chain](), counter=self.counter)
        self.context = Context()
        self.number = 0

    async def take(self):
        self.number += 1
        self.history.extend(two_more(self.number))
        return await self.assembler.assemble(["be brief"], self.history, self.context)

    async def warm(self, turns=12):
        for _ in range(turns):
            (await self.take()).totals  # noqa: B018  # worked out when it is asked for


async def work(turn):
    """The calls and the rounds of loops that a turn takes: what is done for each of many shows in them."""
    with Rounds() as rounds:
        await turn.take()
    return rounds.made


async def memory(turn):
    """The most bytes that a turn holds at once: what is copied in C shows, a list or an array of all items."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await turn.take()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def talks():
    """Conversations are built once: only the turns are of interest."""
    return {(length, notes): talk(length, notes) for length in (SHORT, LONG) for notes in (False, True)}


@pytest.mark.parametrize("chain", {**CHAINS, **COMPACTING})
@pytest.mark.parametrize("notes", [pytest.param(False, id="plain"), pytest.param(True, id="with notes")])
async def test_a_turn_at_100_000_events_does_what_a_turn_at_1_000_does(chain, notes, talks):
    taken, held = [], []
    for length in (SHORT, LONG):
        turn = Turn(chain, talks[length, notes])
        await turn.warm()
        taken.append(min([await work(turn) for _ in range(12)]))
        held.append(min([await memory(turn) for _ in range(3)]))
    assert taken[1] <= taken[0] * 1.05, f"{taken[0]} calls and rounds at 1,000 events, {taken[1]} at 100,000"
    assert held[1] <= held[0] + 20_000, f"{held[0]} bytes at 1,000 events, {held[1]} at 100,000"


@pytest.mark.parametrize("chain", CHAINS)
async def test_a_turn_that_adds_two_messages_counts_two_texts_and_reads_two_events(chain, talks):
    turn = Turn(chain, talks[LONG, True])
    await turn.warm()
    for _ in range(6):
        turn.counter.asked.clear()
        reads.clear()
        assembly = await turn.take()
        assert assembly.totals.tokens_out > 0
        assert turn.counter.asked == [f"new question {turn.number}", f"new answer {turn.number}"]
        assert [said.text for said in reads] == turn.counter.asked


async def test_the_first_turn_counts_each_text_once(talks):
    turn = Turn("conversation > window > budget", talks[LONG, False])
    assembly = await turn.take()
    assert assembly.totals.tokens_out <= 400
    assert sorted(turn.counter.asked) == sorted(["be brief", *(said.text for said in turn.history)])


async def test_each_call_that_nobody_answered_costs_a_turn_the_same_little():
    taken = []
    for orphans in (100, 200):
        turn = Turn("conversation > budget", talk(30_000, orphans=orphans))
        await turn.warm()
        taken.append(min([await work(turn) for _ in range(4)]))
    assert taken[1] - taken[0] <= 100 * 60


async def test_a_thousand_tool_calls_after_one_request_are_not_searched_for_it():
    taken = []
    for calls in (500, 20_000):
        said = [Said("request", "find my bag")]
        for n in range(calls):
            said += [
                Said("response", f"look {n}", opens=(f"c{n}",)),
                Said("tool_result", f"row {n}", closes=(f"c{n}",)),
            ]
        said.insert(2, Said("response", "given up", opens=("never",)))
        history = History(said)
        policies = [ConversationPolicy(), SlidingWindowPolicy(50), TokenBudgetPolicy(400)]
        turn = Turn("budget alone", [])
        turn.history, turn.assembler = history, Assembler(policies, counter=turn.counter)

        async def take(turn=turn):
            turn.number += 1
            turn.history.append(Said("response", "look", opens=(f"n{turn.number}",)))
            turn.history.append(Said("tool_result", "row", closes=(f"n{turn.number}",)))
            return await turn.assembler.assemble(["be brief"], turn.history, turn.context)

        turn.take = take
        await turn.warm()
        taken.append(min([await work(turn) for _ in range(4)]))
        assert (await turn.take()).events[0].text == "find my bag"
    assert taken[1] <= taken[0] * 1.05
