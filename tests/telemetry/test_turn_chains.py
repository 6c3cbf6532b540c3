"""Whatever a chain does with its items, each turn's spans say what was offered, kept and out, and by whom."""

from __future__ import annotations

from collections import Counter

import pytest
from assembling import Custom, requests, user
from telemetry.forty_lines import read
from telemetry.turn_checks import Ledger, Talk, adds_up, bytes_of, last, recounted, steps_of, turns_of

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    ModelRequest,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
)
from otel_assembly.budget import Compactors
from otel_assembly.events import CompactionSummary
from otel_assembly.observe import ObservedAssembler
from otel_assembly.telemetry import read_ledgers
from otel_assembly.tokens import CharacterCounter

OUTSIDE = ("dropped", "outside_window", "sliding_window", 0)

# Costs that stay flat


@pytest.mark.parametrize("then", [SlidingWindowPolicy(40), TokenBudgetPolicy(400, on_overflow="drop")], ids=str)
@pytest.mark.parametrize("long", [10_000, pytest.param(50_000, marks=pytest.mark.slow)])
async def test_scattered_filters_before_a_cut_cost_what_they_cost_in_a_short_conversation(recorder, then, long):
    sizes = []
    for length in (1_000, long):
        chain = [Custom(lambda p, e: (p, e[::2]), "halves"), Custom(lambda p, e: (p, e[::2]), "again"), then]
        assembler = Assembler(chain, recorder=recorder.recorder, counter=CharacterCounter(1))
        history, context = requests(*map(str, range(length))), Context()
        for _ in range(2):
            await assembler.assemble([], history, context)
            history = [*history, ModelRequest(content="one more")]
        turn, (offered, kept, out, unlisted) = last(recorder)
        sizes.append(bytes_of(turn))
        assert {*kept, *out, *unlisted} == set(offered)
        adds_up(turn)
        recorder.clear()
    assert sizes[1] < sizes[0] * 1.3 < 6_000


@pytest.mark.parametrize("turns", [400, pytest.param(1_000, marks=pytest.mark.slow)])
async def test_one_made_item_a_turn_costs_the_same_after_hundreds(turns, recorder):
    numbers = iter(range(turns))
    chain = [Custom(lambda p, e: (p, [*e, ModelRequest(content=f"turn {next(numbers)}")])), SlidingWindowPolicy(10)]
    assembler, context, events = Assembler(chain, recorder=recorder.recorder), Context(), []
    sizes = []
    for turn in range(turns):
        events.append(ModelRequest(content=f"{turn % 10}"))
        await assembler.assemble([], events, context)
        found, (offered, kept, _, _) = last(recorder)
        assert offered == [str(n) for n in range(turn + 1)]
        assert kept[-1] == f"m{turn}"
        sizes.append(bytes_of(found))
        recorder.clear()
    assert max(sizes[-100:]) < sizes[20] + 40


# What steps make


async def test_the_same_reminder_is_the_same_item_on_every_turn(recorder):
    talk, events = Talk(recorder, Custom(lambda p, e: (p, [*e, ModelRequest(content="be kind")]))), []
    arrived = []
    for number in range(4):
        events.append(ModelRequest(content=f"{number}"))
        turn = await talk.turn(events)
        assert read(turn)[1] == [*map(str, range(number + 1)), "m0"]
        arrived += turn.arrived
    assert Counter(arrived)["m0"] == 1


async def test_a_reminder_that_its_policy_changes_in_place_is_another_item(recorder):
    reminder = user("be")
    talk, events = Talk(recorder, Custom(lambda p, e: (p, [*e, reminder]))), []
    for number in range(3):
        reminder["content"] += " kind" * (number % 2)
        events.append(ModelRequest(content=f"{number}"))
        turn = await talk.turn(events)
        assert read(turn)[1][-1] == f"m{(number + 1) // 2}"


async def test_what_a_later_step_puts_back_keeps_its_id_and_is_in_the_prompt(recorder):
    held = []

    def takes(prompts, events):
        held[:] = events[:2]
        return prompts, events[2:]

    talk = Talk(recorder, Custom(takes, "takes"), Custom(lambda p, e: (p, [held[1], *e]), "gives back"))
    turn = await talk.turn(requests(*"abcd"))
    offered, kept, out, _ = read(turn)
    assert (offered, kept, list(out)) == (["0", "1", "2", "3"], ["1", "2", "3"], ["0"])
    assert recorder.span("apply_policy gives back").injected == ["1"]
    assert (turn.attributes["assembly.dropped.count"], turn.attributes["assembly.events.injected"]) == (1, 0)
    assert recorder.metric("assembly.items.dropped") == 1


async def test_one_object_that_was_taken_out_twice_and_put_back_twice_is_the_two_items_that_it_was(recorder):
    one, held = ModelRequest(content="again"), []

    def takes(prompts, events):
        held[:] = [event for event in events if event is one]
        return prompts, [event for event in events if event is not one]

    talk = Talk(recorder, Custom(takes, "takes"), Custom(lambda p, e: (p, [*e, *held]), "gives back"))
    turn = await talk.turn([one, *requests("a"), one, *requests("b")])
    assert read(turn)[:3] == (list("0123"), ["1", "3", "0", "2"], {})


async def test_the_copy_that_a_step_made_of_an_item_is_not_that_item_when_it_is_put_back(recorder):
    held = []

    def takes(prompts, events):
        held[:] = events[-1:]
        return prompts, events[:-1]

    chain = [Custom(lambda p, e: (p, [*e, e[0]]), "doubles"), Custom(takes, "takes")]
    talk = Talk(recorder, *chain, Custom(lambda p, e: (p, [*e, *held]), "gives back"))
    turn = await talk.turn(requests(*"ab"))
    assert read(turn)[:3] == (["0", "1"], ["0", "1", "m0"], {})
    assert turn.attributes["assembly.events.injected"] == 1


async def test_what_is_put_back_twice_is_two_items_also_where_it_was_put_back_before(recorder):
    held, copies = [], iter((0, 1, 1, 1))

    def takes(prompts, events):
        held[:] = events[:1]
        return prompts, events[1:]

    gives = [Custom(lambda p, e: (p, [*e, *held * next(copies)]), name) for name in ("gives", "gives more")]
    talk, events = Talk(recorder, Custom(takes, "takes"), *gives), requests(*"ab")
    prompts = [read(await talk.turn(events))[1] for _ in range(2)]
    assert prompts == [["1", "0"], ["1", "0", "m0"]]


async def test_what_one_step_makes_and_a_later_one_drops_is_in_neither_count(recorder):
    notes = Custom(lambda p, e: (p, [ModelRequest(content="note"), *e]), "notes")
    talk = Talk(recorder, notes, SlidingWindowPolicy(2))
    turn = await talk.turn(requests(*"abc"))
    _, kept, out, _ = read(turn)
    assert (kept, sorted(out)) == (["1", "2"], ["0", "m0"])
    assert (turn.attributes["assembly.dropped.count"], turn.attributes["assembly.events.injected"]) == (1, 0)
    assert "m0" in turn.arrived


# Summaries


async def test_a_summary_says_on_arrival_what_it_stands_for(recorder):
    talk = Talk(recorder, Custom(lambda p, e: (p, [CompactionSummary(summary="in short"), *e[-1:]])))
    await talk.turn(requests(*"abcd"))
    assert talk.ledger.sources == {"0": "", "1": "", "2": "", "3": "", "m0": "0-2"}


def summing_up(window):
    return BudgetPolicy(window, 0, 0, summary_tokens=40, compact=Compactors(lambda text, target_tokens: "They talked."))


def remarks(count):
    return [user(f"remark {number}: " + "and so on " * 20) for number in range(count)]


async def test_a_summary_that_goes_on_standing_stands_on_each_turn_for_what_it_stood_for(recorder):
    talk, events = Talk(recorder, summing_up(400)), [*remarks(8), user("well?")]
    first = await talk.turn(events)
    offered, (summary, *others), out, _ = read(first)
    leaves = [item for item in offered if item not in others]
    assert (summary, others[-1], list(first.arrived)[-1]) == ("m0", "8", "m0")
    for _ in range(3):
        events = [*events, user("go on")]
        turn = await talk.turn(events)
        assert read(turn)[1] == [summary, *others, *map(str, range(9, len(events)))]
        assert read(turn)[2] == out == dict.fromkeys(leaves, ("compacted", "compacted", "budget", 0))
        assert list(turn.arrived) == [str(len(events) - 1)]
    assert talk.ledger.sources[summary] == f"{leaves[0]}-{leaves[-1]}"


async def test_a_summary_that_a_later_one_takes_up_is_out_and_the_later_one_stands_for_all(recorder):
    talk, events = Talk(recorder, summing_up(400)), remarks(8)
    summaries = set()
    for text in map(str, range(12)):
        events = [*events, user("and " * 20 + text)]
        turn = await talk.turn(events)
        offered, (summary, *others), out, _ = read(turn)
        assert talk.ledger.sources[summary] == f"0-{len(offered) - len(others) - 1}"
        assert {item for item in out if item in offered} == set(offered) - set(others)
        summaries.add(summary)
    assert len(summaries) > 2


async def test_a_summary_of_summaries_stands_for_what_nobody_made(recorder):
    observed, ledger = ObservedAssembler("peer", recorder=recorder.recorder), Ledger()
    state = [user(f"remark {n}") for n in range(4)]
    for number, sources in enumerate(("0-2", "0-4", "0-6")):
        assembly, given = observed.begin("thread", state), state
        with assembly.step("summarise") as step:
            state = [{"role": "system", "content": f"summary {number}"}, state[-1]]
            step.out(state)
        assembly.end()
        turn, (offered, kept, out, _) = last(recorder)
        recounted(turn, ledger, given, state)
        assert kept == [f"m{number}", offered[-1]]
        assert out == dict.fromkeys(offered[:-1], ("compacted", "compacted", "summarise", 0))
        assert ledger.sources[f"m{number}"] == sources
        state = [*state, user(f"later {number}"), user(f"and later {number}")]


# More than a step lists


class Scattered(Custom):
    """Drops the requests of these numbers, which are other ones on each turn."""

    def __init__(self, name, *turns):
        self.turns = iter(turns)
        super().__init__(self.drops, name)

    def drops(self, prompts, events):
        gone = set(map(str, next(self.turns)))
        return prompts, [event for event in events if event.content not in gone]


@pytest.mark.parametrize("moved", [1, 70])
async def test_what_another_rule_left_out_than_before_is_listed_or_not_known(recorder, moved):
    """On the second turn more runs are new, and more were taken by the other policy before, than a step lists."""
    moved_runs = range(0, 2 * moved, 2)
    first = Scattered("first", moved_runs, range(200, 340, 2))
    second = Scattered("second", (), [*moved_runs, *range(400, 540, 2)])
    talk, events = Talk(recorder, first, second), requests(*map(str, range(600)))
    for _ in range(2):
        turn = await talk.turn(events)
    offered, kept, out, unlisted = read(turn)
    assert len(out) == 2 * 64
    assert set(offered) == {*kept, *out, *unlisted}
    (ledger,) = read_ledgers(recorder.spans).values()
    told = {item: ledger.exit(1, item) for item in map(str, moved_runs)}
    assert {exit_.policy for exit_ in told.values()} <= {"second", None}
    assert [item for item in told if item in out] == list(told)[-64:]


# Steps that fail


async def test_a_skipped_step_took_nothing_and_the_others_are_told(recorder):
    def fails(prompts, events):
        raise RuntimeError("no luck")

    chain = [Custom(lambda p, e: (p, e[1:]), "first"), Custom(fails, "fails"), SlidingWindowPolicy(2)]
    talk = Talk(recorder, *chain, on_policy_error="skip")
    turn = await talk.turn(requests(*"abcde"))
    offered, kept, out, _ = read(turn)
    assert (offered, kept) == (list("01234"), ["3", "4"])
    window = ("dropped", "outside_window", "sliding_window", 2)
    assert out == {"0": ("dropped", "policy", "first", 0), "1": window, "2": window}
    _, skipped, _ = steps_of(turn)
    assert (skipped.status, skipped.attributes["error.type"]) == ("ERROR", "RuntimeError")
    assert skipped.attributes["assembly.events.out"] == 4


LONG = ModelRequest(content="far too long for this budget " * 3)


async def overflows(recorder, chain, turns):
    """The last of these turns overflows: its span."""
    assembler, context = Assembler(chain, recorder=recorder.recorder, counter=CharacterCounter(1)), Context()
    for events in turns[:-1]:
        await assembler.assemble([], events, context)
    with pytest.raises(ContextOverflowError):
        await assembler.assemble([], turns[-1], context)
    turn = turns_of(recorder)[-1]
    adds_up(turn)
    assert "assembly.kept.items" not in turn.attributes
    assert turn.attributes["error.type"] == "context_overflow"
    return assembler, context, turn


async def test_an_overflow_on_the_first_turn_tells_all_that_came_in(recorder):
    events = [*requests("a", "b"), LONG]
    assembler, context, turn = await overflows(recorder, [BudgetPolicy(30, 5)], [events])
    assert read(turn) == (["0", "1", "2"], [], {}, {})
    assert list(turn.arrived) == ["0", "1", "2"]
    await assembler.assemble([], events[:2], context)
    turn, (offered, kept, _, _) = last(recorder)
    assert (offered, kept, turn.arrived) == (["0", "1"], ["0", "1"], {})


async def test_an_overflow_on_a_middle_turn_tells_its_arrivals_and_what_was_offered(recorder):
    before = requests(*"abcd")
    assembler, context, turn = await overflows(recorder, [BudgetPolicy(40, 5)], [before, [*before, LONG]])
    assert read(turn) == (["0", "1", "2", "3", "4"], [], {}, {})
    assert list(turn.arrived) == ["4"]
    await assembler.assemble([], [*before, ModelRequest(content="e")], context)
    assert list(last(recorder)[0].arrived) == ["5"]


async def test_an_overflow_at_the_second_step_tells_what_the_first_one_took(recorder):
    before = requests(*"abcd")
    chain = [SlidingWindowPolicy(3), BudgetPolicy(30, 5)]
    _, _, turn = await overflows(recorder, chain, [before, [*before, LONG]])
    assert read(turn) == (list("01234"), [], dict.fromkeys("01", OUTSIDE), {})
    window, budget = steps_of(turn)
    assert (window.status, budget.attributes["error.type"]) == ("UNSET", "context_overflow")
    assert budget.attributes["assembly.dropped.count"] == budget.attributes["assembly.events.in"] == 3
