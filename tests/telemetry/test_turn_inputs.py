"""Whatever a caller does with a list between two turns, each turn's spans say what was offered, kept and out."""

from __future__ import annotations

from copy import copy

import pytest
from assembling import requests, user
from counting import WordCounter
from telemetry.forty_lines import read
from telemetry.turn_checks import Ledger, Talk, adds_up, last, recounted, turns_of

from otel_assembly import Assembler, Context, ModelRequest, ModelResponse, SlidingWindowPolicy
from otel_assembly.observe import ObservedAssembler
from otel_assembly.testing import conversation
from otel_assembly.tokens import CalibratedCounter

OUTSIDE = ("dropped", "outside_window", "sliding_window", 0)


async def test_what_was_withdrawn_and_is_offered_again_is_a_new_item(recorder):
    talk, (a, b, c) = Talk(recorder), requests("the first", "the second", "the third")
    first, second, third = [await talk.turn(events) for events in ([a, b, c], [b, c], [a, b, c])]
    assert [read(turn)[0] for turn in (first, second, third)] == [["0", "1", "2"], ["1", "2"], ["3", "1", "2"]]
    assert [list(turn.arrived) for turn in (first, second, third)] == [["0", "1", "2"], [], ["3"]]
    assert read(second)[2] == {}, "what is not offered is not out"


async def test_what_the_framework_withdrew_and_offers_again_is_a_new_item(recorder):
    observed, (a, b, c) = ObservedAssembler("peer", recorder=recorder.recorder), map(user, ("one", "two", "three"))
    for events in ([a, b, c], [b, c], [a, b, c]):
        observed.begin("thread", events).end()
    assert [read(turn)[0] for turn in turns_of(recorder)] == [["0", "1", "2"], ["1", "2"], ["3", "1", "2"]]
    assert [list(turn.arrived) for turn in turns_of(recorder)] == [["0", "1", "2"], [], ["3"]]


async def test_a_list_that_is_rotated_in_place_holds_the_items_that_it_held(recorder):
    talk, events = Talk(recorder, SlidingWindowPolicy(3)), requests(*"abcde")
    await talk.turn(events)
    for order in ("23401", "40123"):
        events[:] = [*events[2:], *events[:2]]
        turn = await talk.turn(events)
        offered, kept, out, _ = read(turn)
        assert "".join(offered) == order
        assert "".join(kept) == order[2:]
        assert out == dict.fromkeys(order[:2], OUTSIDE)
        assert turn.arrived == {}


async def test_the_same_object_twice_is_two_items(recorder):
    talk = Talk(recorder, SlidingWindowPolicy(2))
    events = [one := ModelRequest(content="again and again"), ModelResponse(content="yes"), one]
    turn = await talk.turn(events)
    assert read(turn)[:3] == (["0", "1", "2"], ["1", "2"], {"0": OUTSIDE})
    events += [ModelResponse(content="still yes"), one]
    turn = await talk.turn(events)
    assert read(turn)[:3] == (list("01234"), ["3", "4"], dict.fromkeys("012", OUTSIDE))
    assert list(turn.arrived) == ["3", "4"]


async def test_what_a_framework_made_and_holds_twice_after_a_turn_that_failed_is_two_items(recorder):
    observed, made, ledger = ObservedAssembler("peer", recorder=recorder.recorder), user("be kind"), Ledger()
    assembly = observed.begin("thread", [])
    with assembly.step("reminds") as step:
        step.out([made])
    assembly.end()
    observed.begin("thread", [made]).end(RuntimeError("no luck"))
    observed.begin("thread", [made, made]).end()
    for turn, given in zip(turns_of(recorder), ([], [made], [made, made]), strict=True):
        adds_up(turn)
        ledger.take(turn)
        assert len(read(turn)[0]) == len(given)
    assert read(turn)[1] == ["m0", "0"]


@pytest.mark.parametrize("made", ["ours", "dicts"])
async def test_copies_are_the_items_that_they_are_copies_of(recorder, made):
    events = conversation("ask", "answer", "ask", "answer")
    events = events if made == "ours" else [user(f"remark {number}") for number in range(4)]
    talk = Talk(recorder, SlidingWindowPolicy(2))
    await talk.turn(events)
    for more in range(3):
        events = list(map(copy, events))
        events.append(user(f"more {more}"))
        turn = await talk.turn(events)
        offered, kept, out, _ = read(turn)
        assert offered == list(map(str, range(len(events))))
        assert kept == offered[-2:]
        assert out == dict.fromkeys(offered[:-2], OUTSIDE)
        assert list(turn.arrived) == offered[-1:]


async def test_what_changed_in_place_arrives_again_under_its_id(recorder):
    talk, events = Talk(recorder), [user("a"), user("b")]
    await talk.turn(events)
    events[0]["content"] = "a longer one"
    turn = await talk.turn(events)
    assert read(turn)[0] == ["0", "1"]
    assert list(turn.arrived) == ["0"]
    assert turn.arrived["0"].bytes == 12


async def test_another_model_for_one_turn_counts_everything_that_it_is_offered(recorder):
    talk, events = Talk(recorder, SlidingWindowPolicy(2)), [user(f"Zażółć gęślą jaźń, часть {n}") for n in range(4)]
    arrived = []
    for model, encoding in (("gpt-4o", "o200k_base"), ("gpt-4", "cl100k_base"), ("gpt-4o", "o200k_base")):
        talk.context.model = model
        turn = await talk.turn(events, encoding)
        assert turn.attributes["assembly.tokens.encoding"] == encoding
        offered, kept, out, _ = read(turn)
        assert offered == list(map(str, range(len(events))))
        assert (kept, out) == (offered[-2:], dict.fromkeys(offered[:-2], OUTSIDE))
        arrived.append(list(turn.arrived))
        events = [*events, user("weiter geht’s")]
    assert arrived == [list("0123"), list("01234"), list("012345")]
    same = await talk.turn(events)
    assert list(same.arrived) == ["6"]


async def test_a_counter_that_learns_counts_everything_anew_and_each_turn_by_itself(recorder):
    counter, ledger, context = CalibratedCounter("my-model", WordCounter()), Ledger(), Context()
    assembler = Assembler([SlidingWindowPolicy(2)], recorder=recorder.recorder, counter=counter)
    events = requests("one two three four", "five six seven", "eight nine ten")
    arrived = []
    for ratio in (1, 1, 2, 2):
        if ratio != counter.ratio:
            counter.observe(100, 200)
        assembly = await assembler.assemble([], events, context)
        turn, (offered, kept, out, _) = last(recorder)
        adds_up(turn)
        ledger.take(turn)
        assert {item: ledger.tokens[item] for item in offered} == {
            item: 4 + ratio * len(event.content.split()) for item, event in zip(offered, events, strict=True)
        }
        assert turn.attributes["assembly.dropped.tokens"] == sum(ledger.tokens[item] for item in out)
        assert kept == assembly.items
        arrived.append(list(turn.arrived))
        events = [*events, ModelRequest(content="and on")]
    assert arrived == [["0", "1", "2"], ["3"], ["0", "1", "2", "3", "4"], ["5"]]


async def test_of_an_input_that_cannot_be_known_only_what_is_sent_is_told(recorder):
    observed, ledger = ObservedAssembler("peer", recorder=recorder.recorder), Ledger()
    events = [user(text) for text in ("one", "two", "three")]
    for given, unknown in ((events[:2], True), (events[1:], True), (events[1:], False)):
        assembly = observed.begin("thread", given, unknown_input=unknown)
        with assembly.step("window") as step:
            step.out(given[-1:] if not unknown else given)
        assembly.end()
        turn, (offered, kept, out, unlisted) = last(recorder)
        adds_up(turn)
        ledger.take(turn)
        assert ("assembly.input.unknown" in turn.attributes) is unknown
        assert len(kept) == (2 if unknown else 1)
        assert {*offered, *kept} <= ledger.tokens.keys()
        assert (len(offered), unlisted) == (0 if unknown else 2, {})
        assert list(out.values()) == ([] if unknown else [("dropped", "policy", "window", 0)])


async def test_what_a_framework_was_given_back_keeps_the_ids_that_it_had(recorder):
    observed, ledger = ObservedAssembler("peer", recorder=recorder.recorder), Ledger()
    state, kept = [user("start")], []
    for number in range(5):
        given = [dict(item) for item in state]
        assembly = observed.begin("thread", given)
        with assembly.step("reminds") as step:
            went = [*given[-3:], user(f"reminder {number}")]
            step.out(went)
        assembly.end()
        before, (turn, (offered, kept, out, _)) = kept, last(recorder)
        recounted(turn, ledger, given, went)
        assert offered[: len(before)] == before
        assert kept[-1] == f"m{number}"
        assert out == dict.fromkeys(offered[:-3], ("dropped", "policy", "reminds", 0))
        state = [*went, user(f"next {number}")]


@pytest.mark.parametrize("rearranged", [False, True])
async def test_what_a_framework_was_given_back_and_changed_in_place_arrives_again(recorder, rearranged):
    observed, ledger = ObservedAssembler("peer", recorder=recorder.recorder), Ledger()
    state, made = [user("start"), user("and more")], user("remember the milk")
    for turn in range(2):
        assembly, given = observed.begin("thread", list(state)), list(map(copy, state))
        with assembly.step("reminds") as step:
            step.out(state := state if turn else [*state, made])
        assembly.end()
        recounted(turns_of(recorder)[-1], ledger, given, state)
        made["content"] += ", and the bread"
        state = state[1:] if rearranged else state
    turn, (offered, *_) = last(recorder)
    assert (offered[-1], list(turn.arrived)) == ("m0", ["m0"])
