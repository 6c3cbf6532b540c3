"""Any turn is told by that turn's spans: what was offered, kept and out, why and by whom, is what the objects say."""

from __future__ import annotations

import random

import pytest
from oracle.seeded import TRANSCRIPTS, changed, policy, transcripts, turns_of
from telemetry.forty_lines import read
from telemetry.spied import spied, truth
from telemetry.turn_checks import Ledger, adds_up, recounted

from otel_assembly import (
    Assembler,
    AssemblyError,
    BudgetPolicy,
    Context,
    ConversationPolicy,
    History,
)
from otel_assembly.observe import ObservedAssembler
from otel_assembly.testing import RecordedTelemetry
from otel_assembly.tokens import CharacterCounter


def seeds(soon, all_of_them):
    """Those that every run plays, and behind them those of the long one."""
    return [*range(soon), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(soon, all_of_them))]


def check(turn, given, assembly, chain, ledger):
    offered, kept, out, unlisted = read(turn)
    adds_up(turn)
    ledger.take(turn)
    assert len(offered) == len(given)
    assert kept == ([] if assembly is None else assembly.items)
    assert {*offered, *kept} <= ledger.tokens.keys(), "an item has not arrived"
    if assembly is None:
        return
    gone = truth(chain)
    for item, event in zip(offered, given, strict=True):
        if item in kept or id(event) not in gone:
            continue
        index, reason = gone[id(event)]
        told = [out[item]] if item in out else unlisted[item]
        assert index in {where for *_, where in told}
        assert reason is None or out.get(item, ("", reason))[1] in {reason, "compacted"}


@pytest.mark.parametrize("seed", seeds(50, 300))
async def test_a_turn_of_a_generated_conversation_is_told_by_its_spans(seed):
    r = random.Random(f"one turn {seed}")
    telemetry, context, ledger = RecordedTelemetry(), Context(), Ledger()
    drawn = [policy(r, r.choice((40, 90, 200, 900))) for _ in range(r.randint(1, 3))]
    # A shortened copy that has its original's id is that item: the objects say something else.
    chain = [spied(entry) for entry in drawn if entry.name != "shorten"]
    assembler = Assembler(chain, recorder=telemetry.recorder, on_policy_error=r.choice(("raise", "skip")))
    events, kind = [], r.choice(("list", "changed"))
    for turn in turns_of(r):
        events += turn
        given = events if kind == "list" else changed(r, events)
        for item in chain:
            item.seen = None
        try:
            assembly = await assembler.assemble([], given, context)
        except AssemblyError:
            assembly = None
        (span,) = telemetry.spans_named("assemble_context")
        check(span, given, assembly, chain, ledger)
        assert telemetry.violations() == []
        telemetry.clear()
    telemetry.shutdown()


@pytest.mark.parametrize("number", range(0, 100, 10))
async def test_a_turn_of_a_recorded_conversation_is_told_by_its_spans(number):
    if not TRANSCRIPTS.exists():
        pytest.skip("the recorded transcripts are not beside this checkout")
    telemetry, ledger, history = RecordedTelemetry(), Ledger(), History()
    chain = [spied(ConversationPolicy()), spied(BudgetPolicy(4_000, 500, on_overflow="drop"))]
    assembler = Assembler(chain, recorder=telemetry.recorder)
    for message in transcripts()[number][1:]:
        if message["role"] == "assistant":
            assembly = await assembler.assemble([], history)
            (span,) = telemetry.spans_named("assemble_context")
            check(span, list(history), assembly, chain, ledger)
            recounted(span, ledger, list(history), assembly.events)
            telemetry.clear()
        history.append(message)
    telemetry.shutdown()


def window(n):
    return lambda events: events[-n:]


def made(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize("seed", seeds(20, 100))
def test_a_turn_of_a_frameworks_reducers_is_told_by_its_spans(seed):
    r = random.Random(f"observed turn {seed}")
    telemetry, ledger = RecordedTelemetry(), Ledger()
    observed = ObservedAssembler("peer", recorder=telemetry.recorder, counter=CharacterCounter(4))
    number = iter(range(10_000))
    reducers = {
        "window": window(r.randint(1, 6)),
        "every other": lambda events: events[::2],
        "summary": lambda events: events if len(events) < 5 else [made(f"{next(number)} in short"), *events[-3:]],
        "reminder": lambda events: [*events, made(f"be kind {next(number)}")],
    }
    chain, state, fed = r.sample(sorted(reducers), r.randint(1, 3)), [], r.random() < 0.4
    for turn in turns_of(r):
        state = [*state, *turn]
        given, events, out = list(state), list(state), {}
        assembly = observed.begin("thread", given)
        for index, name in enumerate(chain):
            with assembly.step(name) as step:
                went = reducers[name](events)
                step.out(went)
            stays = set(map(id, went))
            out.update({id(event): index for event in events if id(event) not in stays})
            events = went
        assembly.end()
        (span,) = telemetry.spans_named("assemble_context")
        offered, kept, told, unlisted = read(span)
        ledger.take(span)
        adds_up(span)
        assert unlisted == {}
        assert len(kept) == len(events)
        assert {*offered, *kept} <= ledger.tokens.keys()
        for item, event in zip(offered, given, strict=True):
            assert (item in told) == (id(event) in out), item
            assert item not in told or told[item][3] == out[id(event)]
        telemetry.clear()
        state = events if fed else state
    telemetry.shutdown()
