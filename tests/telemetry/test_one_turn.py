"""Any turn is told by that turn's spans: what was offered, kept and out, why and by whom, is what the objects say."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from assembling import Coin, Custom, requests
from forty_lines import read, whole
from oracle.seeded import TRANSCRIPTS, changed, policy, transcripts, turns_of

from otel_assembly import (
    Assembler,
    AssemblyError,
    BudgetPolicy,
    CompactionSummary,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    History,
    ModelRequest,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
)
from otel_assembly.observe import ObservedAssembler
from otel_assembly.testing import RecordedTelemetry
from otel_assembly.tokens import CharacterCounter


class Spied:
    """A policy, with what went in and came out the last time."""

    def __init__(self, policy):
        self.policy, self.name = policy, policy.name
        self.kind = getattr(policy, "kind", None)
        self.seen = None
        if hasattr(policy, "decide"):
            self.decide = self._decide

    async def _decide(self, prompts, events, context):
        came, self.seen = list(events), None
        outcome = await self.policy.decide(prompts, events, context)
        why = {id(event): verdict.reason.value for verdict in outcome.decisions for event in verdict.events}
        self.seen = came, list(outcome.events), why
        return outcome

    async def apply(self, prompts, events, context):
        came, self.seen = list(events), None
        prompts, events = await self.policy.apply(prompts, events, context)
        self.seen = came, list(events), {}
        return prompts, events


def truth(chain):
    """By object, the place of the policy that took it out in the end, and the reason that it gave."""
    out = {}
    for index, spied in enumerate(chain):
        if spied.seen is None:
            continue
        came, went, why = spied.seen
        stays = set(map(id, went))
        for event in came:
            if id(event) not in stays:
                out[id(event)] = index, why.get(id(event))
        for event in went:
            out.pop(id(event), None)
    return out


class Ledger:
    """What a reader who keeps arrivals knows of the items."""

    def __init__(self):
        self.tokens, self.sources = {}, {}

    def take(self, turn):
        told = whole(turn)
        names = ("items", "tokens", "sources")
        for item, tokens, sources in zip(*(told.get(f"assembly.arrived.{n}", ()) for n in names), strict=True):
            self.tokens[item], self.sources[item] = tokens, sources


def check_counts(turn):
    for span in (turn, *(child for child in turn.children if child.name.startswith("apply_policy"))):
        n = {key: span.attributes.get(f"assembly.{key}") for key in EQUATION}
        assert n["events.in"] + n["events.injected"] == n["events.out"] + n["dropped.count"] + n["compacted.count"]
        assert span.attributes["assembly.dropped.new"] <= n["dropped.count"]


EQUATION = ("events.in", "events.injected", "events.out", "dropped.count", "compacted.count")


def check(turn, given, assembly, chain, ledger):
    offered, kept, out, unlisted = read(turn)
    check_counts(turn)
    ledger.take(turn)
    assert len(offered) == len(given)
    assert len(set(offered)) == len(offered)
    assert kept == ([] if assembly is None else assembly.items)
    assert {*offered, *kept} <= ledger.tokens.keys(), "an item has not arrived"
    if assembly is None:
        return
    known = dict(zip(kept, map(id, assembly.events), strict=True))
    for item, event in zip(offered, given, strict=True):
        assert item not in known or known[item] == id(event) or not isinstance(event, str)
    gone = truth(chain)
    assert {item for item in offered if item not in kept} == {item for item in {*out, *unlisted} if item in offered}
    net = Counter(out[item][0] if item in out else "dropped" for item in offered if item not in kept)
    totals = turn.attributes
    assert net["dropped"] == totals["assembly.dropped.count"]
    assert net["compacted"] == totals["assembly.compacted.count"]
    for item, event in zip(offered, given, strict=True):
        if item in kept or id(event) not in gone:
            continue
        index, reason = gone[id(event)]
        told = [out[item]] if item in out else unlisted[item]
        assert index in {where for *_, where in told}
        assert reason is None or out.get(item, ("", reason))[1] in {reason, "compacted"}


@pytest.mark.parametrize("seed", range(300))
async def test_a_turn_of_a_generated_conversation_is_told_by_its_spans(seed):
    r = random.Random(f"one turn {seed}")
    telemetry, context, ledger = RecordedTelemetry(), Context(), Ledger()
    drawn = [policy(r, r.choice((40, 90, 200, 900))) for _ in range(r.randint(1, 3))]
    # A shortened copy that has its original's id is that item: the objects say something else.
    chain = [Spied(one) for one in drawn if one.name != "shorten"]
    assembler = Assembler(chain, recorder=telemetry.recorder, on_policy_error=r.choice(("raise", "skip")))
    events, kind = [], r.choice(("list", "changed"))
    for turn in turns_of(r):
        events += turn
        given = events if kind == "list" else changed(r, events)
        for spied in chain:
            spied.seen = None
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
    chain = [Spied(ConversationPolicy()), Spied(BudgetPolicy(4_000, 500, on_overflow="drop"))]
    assembler = Assembler(chain, recorder=telemetry.recorder)
    for message in transcripts()[number][1:]:
        if message["role"] == "assistant":
            assembly = await assembler.assemble([], history)
            (span,) = telemetry.spans_named("assemble_context")
            check(span, list(history), assembly, chain, ledger)
            dropped = [item for item in read(span)[0] if item not in assembly.items]
            assert sum(ledger.tokens[item] for item in dropped) == span.attributes["assembly.dropped.tokens"]
            telemetry.clear()
        history.append(message)
    telemetry.shutdown()


def window(n):
    return lambda events: events[-n:]


def made(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize("seed", range(100))
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
        check_counts(span)
        assert unlisted == {}
        assert len(kept) == len(events)
        assert {*offered, *kept} <= ledger.tokens.keys()
        for item, event in zip(offered, given, strict=True):
            assert (item in told) == (id(event) in out), item
            assert item not in told or told[item][3] == out[id(event)]
        telemetry.clear()
        state = events if fed else state
    telemetry.shutdown()


# Cases that must hold


def bytes_of(turn):
    """Bytes of a turn's arrays: its own, its steps', and what did not fit."""
    spans = [turn, *turn.children, *(below for child in turn.children for below in child.children)]
    arrays = (value for span in spans for value in span.attributes.values() if isinstance(value, list))
    return sum(len(str(entry)) for array in arrays for entry in array)


def last(telemetry):
    found = telemetry.spans_named("assemble_context")[-1]
    return found, read(found)


@pytest.mark.parametrize("then", [SlidingWindowPolicy(40), TokenBudgetPolicy(400, on_overflow="drop")], ids=str)
async def test_scattered_filters_before_a_cut_cost_what_they_cost_in_a_short_conversation(then):
    sizes = []
    for length in (1_000, 50_000):
        telemetry = RecordedTelemetry()
        chain = [Custom(lambda p, e: (p, e[::2]), "halves"), Custom(lambda p, e: (p, e[::2]), "again"), then]
        assembler = Assembler(chain, recorder=telemetry.recorder, counter=CharacterCounter(1))
        history, context = requests(*map(str, range(length))), Context()
        for _ in range(2):
            await assembler.assemble([], history, context)
            history = [*history, ModelRequest(content="one more")]
        turn, (offered, kept, out, unlisted) = last(telemetry)
        sizes.append(bytes_of(turn))
        assert {*kept, *out, *unlisted} == set(offered)
        telemetry.shutdown()
    assert sizes[1] < sizes[0] * 1.3 < 6_000


async def test_one_made_item_a_turn_costs_the_same_after_a_thousand(recorder):
    numbers = iter(range(2_000))
    chain = [Custom(lambda p, e: (p, [*e, ModelRequest(content=f"turn {next(numbers)}")])), SlidingWindowPolicy(10)]
    assembler, context, events = Assembler(chain, recorder=recorder.recorder), Context(), []
    sizes = []
    for turn in range(1_000):
        events.append(ModelRequest(content=f"{turn % 10}"))
        await assembler.assemble([], events, context)
        found, (offered, kept, _, _) = last(recorder)
        assert offered == [str(n) for n in range(turn + 1)]
        assert kept[-1] == f"m{turn}"
        sizes.append(bytes_of(found))
        recorder.clear()
    assert max(sizes[900:]) < sizes[20] + 40


async def test_the_same_reminder_is_the_same_item_on_every_turn(recorder):
    chain = [Custom(lambda p, e: (p, [*e, ModelRequest(content="be kind")]))]
    assembler, context, events = Assembler(chain, recorder=recorder.recorder), Context(), []
    arrived = []
    for turn in range(4):
        events.append(ModelRequest(content=f"{turn}"))
        await assembler.assemble([], events, context)
        found, (_, kept, _, _) = last(recorder)
        assert kept[-1] == "m0"
        arrived += found.arrived
    assert Counter(arrived)["m0"] == 1


async def test_what_a_later_step_puts_back_keeps_its_id_and_is_in_the_prompt(recorder):
    held = []

    def takes(prompts, events):
        held[:] = events[:2]
        return prompts, events[2:]

    chain = [Custom(takes, "takes"), Custom(lambda p, e: (p, [held[1], *e]), "gives back")]
    assembly = await Assembler(chain, recorder=recorder.recorder).assemble([], requests(*"abcd"), Context())
    turn, (offered, kept, out, _) = last(recorder)
    assert (offered, kept, list(out)) == (["0", "1", "2", "3"], ["1", "2", "3"], ["0"])
    assert recorder.span("apply_policy gives back").injected == ["1"]
    check_counts(turn)
    assert (turn.attributes["assembly.dropped.count"], turn.attributes["assembly.events.injected"]) == (1, 0)
    assert (assembly.totals.dropped, assembly.totals.events_injected) == (1, 0)
    assert recorder.metric("assembly.items.dropped") == 1


async def test_what_one_step_makes_and_a_later_one_drops_is_in_neither_count(recorder):
    chain = [Custom(lambda p, e: (p, [ModelRequest(content="note"), *e]), "notes"), SlidingWindowPolicy(2)]
    await Assembler(chain, recorder=recorder.recorder).assemble([], requests(*"abc"), Context())
    turn, (_, kept, out, _) = last(recorder)
    assert (kept, sorted(out)) == (["1", "2"], ["0", "m0"])
    check_counts(turn)
    assert (turn.attributes["assembly.dropped.count"], turn.attributes["assembly.events.injected"]) == (1, 0)
    assert "m0" in turn.arrived


async def test_a_summary_says_on_arrival_what_it_stands_for(recorder):
    chain = [Custom(lambda p, e: (p, [CompactionSummary(summary="in short"), *e[-1:]]))]
    await Assembler(chain, recorder=recorder.recorder).assemble([], requests(*"abcd"), Context())
    ledger = Ledger()
    ledger.take(last(recorder)[0])
    assert ledger.sources == {"0": "", "1": "", "2": "", "3": "", "m0": "0-2"}


async def test_a_turn_that_raised_tells_its_arrivals_and_what_was_offered(recorder):
    chain = [SlidingWindowPolicy(3), BudgetPolicy(30, 5)]
    assembler, context = Assembler(chain, recorder=recorder.recorder, counter=CharacterCounter(1)), Context()
    events = requests("a", "b", "c", "d")
    await assembler.assemble([], events, context)
    events.append(ModelRequest(content="far too long for this budget " * 3))
    with pytest.raises(ContextOverflowError):
        await assembler.assemble([], events, context)
    turn, (offered, kept, out, _) = last(recorder)
    assert (offered, kept) == (["0", "1", "2", "3", "4"], [])
    assert "assembly.kept.items" not in turn.attributes
    assert list(turn.arrived) == ["4"]
    assert out == dict.fromkeys(("0", "1"), ("dropped", "outside_window", "sliding_window", 0))
    check_counts(turn)
    events[-1] = ModelRequest(content="e")
    await assembler.assemble([], events, context)
    assert list(last(recorder)[0].arrived) == ["5"]


async def test_what_changed_in_place_arrives_again_under_its_id(recorder):
    assembler, context = Assembler([], recorder=recorder.recorder, counter=CharacterCounter(1)), Context()
    events = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    await assembler.assemble([], events, context)
    events[0]["content"] = "a longer one"
    await assembler.assemble([], events, context)
    turn, (offered, _, _, _) = last(recorder)
    assert offered == ["0", "1"]
    assert list(turn.arrived) == ["0"]
    assert turn.arrived["0"].bytes == 12


async def test_of_two_assemblies_at_once_the_later_may_end_first(recorder):
    observed = ObservedAssembler("peer", recorder=recorder.recorder)
    events = [made(str(n)) for n in range(6)]
    first, second = observed.begin("c", events[:4]), observed.begin("c", events)
    second.end()
    first.end()
    third = observed.begin("c", events)
    third.end()
    spans = recorder.spans_named("assemble_context")
    arrived = [list(span.arrived) for span in spans]
    assert sorted(item for some in arrived for item in some) == list("012345")
    assert [len(read(span)[0]) for span in spans] == [6, 4, 6]


async def test_under_head_sampling_a_reader_has_every_item_that_it_reads_of():
    telemetry = RecordedTelemetry(sampler=Coin(turn % 10 == 3 for turn in range(60)))
    assembler, context = Assembler([SlidingWindowPolicy(5)], recorder=telemetry.recorder), Context()
    events, ledger = [], Ledger()
    for turn in range(60):
        events.append(ModelRequest(content=f"{turn}"))
        await assembler.assemble([], events, context)
        for span in telemetry.spans_named("assemble_context"):
            offered, kept, out, _ = read(span)
            ledger.take(span)
            assert set(offered) == {*kept, *out} <= ledger.tokens.keys()
        telemetry.clear()
    assert len(ledger.tokens) == 54
    telemetry.shutdown()
