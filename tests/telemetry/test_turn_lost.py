"""What a turn says stays true where other turns were not recorded, were lost, or belong to somebody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from assembling import Coin, Custom, requests, user
from recount import event_tokens
from telemetry.forty_lines import read, whole
from telemetry.spied import spied, truth
from telemetry.turn_checks import Ledger, adds_up, last, recounted, steps_of, turns_of

import otel_assembly
from otel_assembly import (
    Assembler,
    Block,
    BlockItem,
    Context,
    ModelRequest,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    allocate,
)
from otel_assembly.budget import Compactors
from otel_assembly.observe import ObservedAssembler
from otel_assembly.telemetry import read_ledgers
from otel_assembly.testing import RecordedTelemetry


class Played:
    """A conversation of which a part is recorded: by turn, what came in, what was sent, and who took what."""

    def __init__(self, **settings):
        self.telemetry, self.turns = RecordedTelemetry(**settings), {}

    async def play(self, turns):
        notes = map("note {}".format, range(turns))
        reminds = Custom(lambda p, e: (p, [*e, *requests("be kind", next(notes))]), "reminds")
        chain = [spied(item) for item in (reminds, SlidingWindowPolicy(12), TokenBudgetPolicy(90, on_overflow="drop"))]
        assembler, context, events = Assembler(chain, recorder=self.telemetry.recorder), Context(), []
        for turn in range(turns):
            events += requests(f"question {turn}", "why " * (turn % 9 + 1))
            assembly = await assembler.assemble([], events, context)
            self.turns[turn] = list(events), assembly.events, truth(chain)
        return turns_of(self.telemetry)


NAMES = ["reminds", "sliding_window", "token_budget"]


async def test_under_head_sampling_each_recorded_turn_tells_all_with_the_tokens_of_each_item():
    played, ledger = Played(sampler=Coin(turn % 10 == 3 for turn in range(60))), Ledger()
    recorded = await played.play(60)
    assert [turn.attributes["assembly.turn"] for turn in recorded] == [3, 13, 23, 33, 43, 53]
    for turn in recorded:
        given, sent, gone = played.turns[turn.attributes["assembly.turn"]]
        recounted(turn, ledger, given, sent)
        for item, event in zip(read(turn)[0], given, strict=True):
            assert item in read(turn)[1] or (read(turn)[2][item][3], read(turn)[2][item][1]) == gone[id(event)]
    assert len([item for item in ledger.tokens if not item.startswith("m")]) == 2 * 54
    played.telemetry.shutdown()


async def test_where_nine_of_ten_traces_are_lost_each_that_is_left_has_its_reasons_and_totals():
    played = Played()
    for turn in (await played.play(60))[7::10]:
        given, sent, gone = played.turns[turn.attributes["assembly.turn"]]
        adds_up(turn)
        offered, kept, out, unlisted = read(turn)
        assert (len(offered), len(kept), unlisted) == (len(given), len(sent), {})
        left = dict(zip(offered, given, strict=True))
        assert {item: (told[3], told[1]) for item, told in out.items() if item in left} == {
            item: gone[id(event)] for item, event in left.items() if item not in kept
        }
        assert all(("dropped", NAMES[told[3]]) == (told[0], told[2]) for told in out.values())
        tokens = sum(event_tokens(event) for item, event in left.items() if item not in kept)
        assert turn.attributes["assembly.dropped.tokens"] == tokens
        assert "question 0" not in json.dumps(turn.attributes)
    played.telemetry.shutdown()


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("runs_it", ["assembler", "framework"])
async def test_a_step_whose_span_was_lost_is_recognised_by_the_counts(recorder, lost, runs_it):
    events = requests(*"abcdef")
    swaps = lambda e: [*e[1:], ModelRequest(content="note")]  # noqa: E731
    reducers = {"swaps": swaps, "window": lambda e: e[-4:], "swaps again": swaps}
    if runs_it == "assembler":
        chain = [Custom(lambda p, e, f=f: (p, f(e)), name) for name, f in reducers.items()]
        await Assembler(chain, recorder=recorder.recorder).assemble([], events, Context())
    else:
        assembly = ObservedAssembler("peer", recorder=recorder.recorder).begin("thread", events)
        for name, reduces in reducers.items():
            with assembly.step(name) as step:
                step.out(events := reduces(events))
        assembly.end()
    turn, _ = last(recorder)
    adds_up(turn)
    assert turn.attributes["assembly.steps"] == len(steps_of(turn)) == 3
    gone = steps_of(turn)[lost].span_id
    (ledger,) = read_ledgers(span for span in recorder.spans if span.span_id != gone).values()
    assert ledger.problems == ["turn 0: 1 of its 3 policies have no span"]
    assert {item: exit_.policy for item, exit_ in ledger.exits(0).items() if exit_.policy is None}


async def test_of_two_assemblies_at_once_the_later_may_end_first(recorder):
    observed = ObservedAssembler("peer", recorder=recorder.recorder)
    events = [user(str(n)) for n in range(6)]
    first, second = observed.begin("c", events[:4]), observed.begin("c", events)
    second.end()
    first.end()
    observed.begin("c", events).end()
    turns, ledger = turns_of(recorder), Ledger()
    assert [turn.attributes["assembly.turn"] for turn in turns] == [1, 0, 2]
    for turn, given in zip(turns, (events, events[:4], events), strict=True):
        recounted(turn, ledger, given, given)
    assert sorted(item for turn in turns for item in turn.arrived) == list("012345")


# Another process goes on with the same conversation

GOES_ON = """
import asyncio, json, sys
from otel_assembly import Assembler, Context, SlidingWindowPolicy
from otel_assembly.testing import RecordedTelemetry
from telemetry.forty_lines import read
from telemetry.turn_checks import adds_up, turns_of

async def main(events):
    telemetry, context = RecordedTelemetry(), Context(conversation_id="the same")
    assembler = Assembler([SlidingWindowPolicy(3)], recorder=telemetry.recorder)
    for more in range(2):
        events.append({"role": "user", "content": f"more {more}"})
        await assembler.assemble([], events, context)
    for turn in turns_of(telemetry):
        adds_up(turn)
    print(json.dumps([[turn.attributes, *read(turn)[:3]] for turn in turns_of(telemetry)]))

asyncio.run(main(json.load(sys.stdin)))
"""


def test_a_process_that_goes_on_with_a_conversation_tells_every_item_in_a_ledger_of_its_own():
    """What the one before it told is needed for none of its turns."""
    path = os.pathsep.join([str(Path(otel_assembly.__file__).parents[1]), *sys.path])
    events, ledgers = [user(f"remark {number}") for number in range(4)], []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", GOES_ON],
            input=json.dumps(events),
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        turns = json.loads(done.stdout)
        for number, (told, offered, kept, out) in enumerate(turns):
            events.append(user(f"more {number}"))
            assert told["assembly.turn"] == number
            assert told["gen_ai.conversation.id"] == "the same"
            assert offered == list(map(str, range(len(events))))
            assert (kept, list(out)) == (offered[-3:], offered[:-3])
            arrived = offered if number == 0 else offered[-1:]
            assert told["assembly.arrived.items"] == arrived
            assert told["assembly.arrived.tokens"] == [event_tokens(event) for event in events[-len(arrived) :]]
        ledgers.append({told["assembly.ledger.id"] for told, *_ in turns})
    assert [len(ids) for ids in ledgers] == [1, 1]
    assert ledgers[0] != ledgers[1]


# An allocation that stands alone


def test_an_allocation_of_more_than_128_blocks_is_one_turn_that_is_told_whole():
    telemetry, ledger = RecordedTelemetry(), Ledger()
    compact = Compactors(lambda text, target_tokens: "in short", fallback=None)
    blocks = [
        Block("system", 1, "Be brief.", cuttable=False),
        *(Block(f"fact {at}", 5, f"fact number {at}", cuttable=True) for at in range(100)),
        *(Block(f"old {at}", 7, "very old news " * 9, cuttable=True, min_tokens=8) for at in range(40)),
        *(Block(f"pair {at}", 9, [BlockItem(f"{at} a"), BlockItem(f"{at} b " * 9)], cuttable=True) for at in range(90)),
    ]
    with telemetry.as_default():
        allocation = allocate(blocks, 1_700, 0, compact=compact)
    span = telemetry.span("allocate_budget")
    offered, kept, out, unlisted = read(span)
    ledger.take(span)
    made = [item for item in kept if item not in offered]
    assert unlisted == {}
    assert len([child for child in span.children if child.name.startswith("allocate_block")]) == 128
    assert len(whole(span)["assembly.blocks.names"]) == len(blocks) - 128
    assert len(offered) == len(allocation.items) == 1 + 100 + 40 + 2 * 90
    assert {*kept, *out} == {*offered, *made} == ledger.tokens.keys()
    told = [(item in kept, *out.get(item, ("kept", ""))[:2], ledger.tokens[item]) for item in offered]
    truth_of = [
        (item.outcome == "kept", item.outcome.value, "" if item.outcome == "kept" else item.reason.value, item.tokens)
        for item in allocation.items
    ]
    assert told == truth_of
    assert {name for _, name, *_ in told} == {"kept", "dropped", "compacted"}
    assert {item[2:] for item in out.values()} == {("allocator", 0)}
    assert len(made) == sum(decision.made is not None for decision in allocation.decisions) > 0
    telemetry.shutdown()
