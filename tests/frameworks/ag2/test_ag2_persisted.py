"""Streams whose storage keeps serialised events, as AG2's Redis storage does: every turn brings new objects of them."""

from __future__ import annotations

import pickle

import pytest
from ag2_package import MemoryStream, Model, ag2, answer, ask, call, events, part, policies
from counting import Reads, Work, counted_texts

from otel_assembly import SlidingWindowPolicy
from otel_assembly.explain import Explainer
from otel_assembly.instrumentation.ag2 import AssembledPolicy
from otel_assembly.telemetry import read_ledgers

MemoryStorage = part("history").MemoryStorage
ASSEMBLY = "assemble_context"


class KeptStorage:
    """Keeps what AG2's own Redis storage keeps, where a test can see it."""

    def __init__(self, *given):
        self.kept = list(map(pickle.dumps, given))

    async def save_event(self, event, context):
        self.kept.append(pickle.dumps(event))

    async def get_history(self, stream_id):
        return list(map(pickle.loads, self.kept))

    async def set_history(self, stream_id, events):
        self.kept = list(map(pickle.dumps, events))

    async def drop_history(self, stream_id):
        self.kept = []


def exchanges(count):
    for number in range(count):
        asked = call("look_up", id=f"c{number}")
        result = events.ToolResultEvent.from_call(asked, f"result {number}")
        yield from (
            ask(f"question {number}?"),
            events.ModelResponse(tool_calls=events.ToolCallsEvent([asked])),
            events.ToolCallsEvent([asked]),
            result,
            events.ToolResultsEvent([result]),
            answer(f"answer {number}"),
        )


CHAINS = {
    "ag2's": lambda: [policies.ConversationPolicy(), policies.SlidingWindowPolicy(9)],
    "plug-in": lambda: [AssembledPolicy([SlidingWindowPolicy(9)])],
}


def agent(kind):
    return ag2.Agent("support", config=Model(*["sure"] * 30), assembly=CHAINS[kind]())


@pytest.mark.parametrize("kind", CHAINS)
async def test_a_turn_of_a_long_conversation_takes_the_work_of_a_turn_of_a_short_one(kind, telemetry):
    work = []
    for length in (10, 200):
        stream = MemoryStream(KeptStorage(*exchanges(length)), id=f"stream {length}")
        someone = agent(kind)
        for number in range(3):
            await someone.ask(f"warming up {number}", stream=stream)
        rows = (events.ModelRequest, events.ModelResponse, events.ToolResultsEvent, events.ToolCallsEvent)
        with Reads(*rows) as reads, counted_texts() as counted:
            turns = []
            for number in range(3):
                with Work(reads, counted) as done:
                    await someone.ask(f"and at {length}, {number}?", stream=stream)
                turns.append(done)
        work.append([max(getattr(turn, name) for turn in turns) for name in ("reads", "counts", "calls")])
    (reads, counts, made), (long_reads, long_counts, long_made) = work
    assert long_reads <= reads <= 3
    assert long_counts <= counts <= 3
    assert long_made <= made * 1.1 + 50


@pytest.mark.parametrize("kind", CHAINS)
async def test_what_is_said_again_and_again_is_an_item_each_time(kind, telemetry):
    stream, someone = MemoryStream(KeptStorage(), id="one"), agent(kind)
    for _ in range(12):
        await someone.ask("ok", stream=stream)
    spans = telemetry.spans_named(ASSEMBLY)
    assert [span.attributes["assembly.turn"] for span in spans] == list(range(12))
    (ledger,) = read_ledgers(telemetry.spans).values()
    kept, told = spans[-1].kept, Explainer(ledger, 11)
    assert kept == sorted(kept, key=int)
    assert len(kept) == 9
    assert {told.explain(item).outcome for item in kept} == {"kept"}
    assert {told.explain(str(item)).outcome for item in range(min(map(int, kept)))} == {"dropped"}


async def test_an_event_that_was_changed_in_the_storage_is_read_and_counted_anew(telemetry):
    storage = KeptStorage(*exchanges(1))
    stream, someone = MemoryStream(storage, id="one"), agent("ag2's")
    await someone.ask("one?", stream=stream)
    changed = pickle.loads(storage.kept[0])
    changed.parts[0].content = "word " * 50
    storage.kept[0] = pickle.dumps(changed)
    await someone.ask("two?", stream=stream)
    one, two = telemetry.spans_named(ASSEMBLY)
    assert two.attributes["assembly.tokens.in"] - one.attributes["assembly.tokens.in"] > 40


async def test_a_result_that_was_cut_in_place_and_kept_is_read_and_counted_anew(telemetry):
    """As a strategy may do it, with the objects that were read before."""
    storage = KeptStorage(*exchanges(1))
    stream, someone = MemoryStream(storage, id="one"), agent("ag2's")
    seen = []

    async def get_history(stream_id, get=storage.get_history):
        seen[:] = await get(stream_id)
        return seen

    storage.get_history = get_history
    await someone.ask("one?", stream=stream)
    for event in seen:
        if isinstance(event, events.ToolResultEvent):
            event.result.parts[0].content = "word " * 50
    storage.kept = list(map(pickle.dumps, [*seen, answer("sure")]))
    await someone.ask("two?", stream=stream)
    one, two = telemetry.spans_named(ASSEMBLY)
    assert two.attributes["assembly.tokens.in"] - one.attributes["assembly.tokens.in"] > 40
