"""What a reader of some of the turns is told of the items: each arrival and each exit once, whatever was sampled."""

from __future__ import annotations

import pytest
from assembling import Custom, recording, requests, turns
from counting import Reads

from otel_assembly import (
    Assembler,
    Context,
    ConversationPolicy,
    History,
    ModelRequest,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
)
from otel_assembly.errors import PolicyFailedError
from otel_assembly.events import CompactionSummary, TurnStarted
from otel_assembly.tokens import CharacterCounter


async def test_what_an_unsampled_turn_did_is_carried_to_the_next_that_is_sampled():
    telemetry, history = recording(0, 3), History(requests("a", "b"))
    assembler = Assembler([SlidingWindowPolicy(2)], recorder=telemetry.recorder, counter=CharacterCounter(1))
    first = await assembler.assemble([], history)
    for text in "cde":
        history.append(ModelRequest(content=text))
        last = await assembler.assemble([], history)
    zero, three = turns(telemetry)
    assert (zero.previous, three.previous) == (None, first.id)
    assert list(zero.arrived) == ["0", "1"]
    assert list(three.arrived) == ["2", "3", "4"]
    assert three.exits == [("0", "outside_window"), ("1", "outside_window"), ("2", "outside_window")]
    assert telemetry.metric("assembly.items.dropped") == 3
    assert [d.item for d in last.dropped] == ["2"]


async def test_what_leaves_at_once_has_its_tokens_at_arrival():
    telemetry, history = recording(0, 2), History(requests("a" * 10, "b"))
    assembler = Assembler([SlidingWindowPolicy(1)], recorder=telemetry.recorder, counter=CharacterCounter(1))
    for text in "cde":
        await assembler.assemble([], history)
        history.append(ModelRequest(content=text))
    zero, two = turns(telemetry)
    assert (zero.arrived, two.arrived) == ({"0": 14, "1": 5}, {"2": 5, "3": 5})


async def test_what_is_sent_in_another_order_has_its_tokens_at_arrival():
    telemetry, history = recording(0, 1), History(requests("a", "bb"))
    chain = [Custom(lambda p, e: (p, e[::-1])), SlidingWindowPolicy(9)]
    assembler = Assembler(chain, recorder=telemetry.recorder, counter=CharacterCounter(1))
    await assembler.assemble([], history)
    history.append(ModelRequest(content="ccc"))
    await assembler.assemble([], history)
    assert [turn.arrived for turn in turns(telemetry)] == [{"0": 5, "1": 6}, {"2": 7}]


async def test_the_prompt_is_told_in_its_own_order_and_only_what_ascends_is_one_run(recorder):
    order = (0, 1, 5, 4, 2, 3)
    chain = [Custom(lambda p, e: (p, [e[at] for at in order]))]
    await Assembler(chain, recorder=recorder.recorder).assemble([], requests("a", "b", "c", "d", "e", "f"))
    span = recorder.span("assemble_context")
    assert span.kept == list(map(str, order))
    assert span.attributes["assembly.kept.items"] == ["0-1", "5", "4", "2-3"]


async def test_a_list_that_was_rebuilt_between_two_sampled_turns_is_told_as_a_whole():
    telemetry, context = recording(0, 3), Context()
    assembler = Assembler([TokenBudgetPolicy(500)], recorder=telemetry.recorder, counter=CharacterCounter(1))
    a, b, c, d = requests("a", "b", "c", "d")
    for events in ([a, b], [b, c], [c], [c, d, a]):
        last = await assembler.assemble([], events, context)
    zero, three = turns(telemetry)
    assert last.items == ["2", "3", "4"]
    assert three.arrived == {"2": 5, "3": 5, "4": 5}
    assert (zero.kept, three.kept) == (["0", "1"], ["2", "3", "4"])


async def test_what_came_and_went_between_two_sampled_turns_is_never_told():
    telemetry, context = recording(0, 2), Context()
    summaries = iter(["one", "two", "three"])
    chain = [Custom(lambda p, e: (p, [CompactionSummary(summary=next(summaries)), *e[1:]]))]
    assembler = Assembler(chain, recorder=telemetry.recorder)
    a, b, c = requests("a", "b", "c")
    for events in ([a, b], [a, b, c], [a, b]):
        await assembler.assemble([], events, context)
    zero, two = turns(telemetry)
    assert zero.injected == ["m0"]
    assert (list(two.arrived), two.injected, two.compacted, two.exits) == (["m2"], ["m2"], ["0"], [])


async def test_a_failed_turn_tells_what_arrived_and_nothing_of_a_prompt(recorder):
    fails = iter([False, True, False])

    class Fails:
        name = "fails"

        async def apply(self, prompts, events, context):
            if next(fails):
                raise ValueError
            return prompts, events

    context = Context()
    assembler = Assembler([Fails(), SlidingWindowPolicy(1)], recorder=recorder.recorder)
    a, b, c = requests("a", "b", "c")
    await assembler.assemble([], [a, b], context)
    with pytest.raises(PolicyFailedError):
        await assembler.assemble([], [b, c], context)
    await assembler.assemble([], [b, c], context)
    _, failed, two = turns(recorder)
    assert (list(failed.arrived), failed.kept, failed.exits) == (["2"], [], [])
    assert (two.arrived, two.exits) == ({}, [("1", "outside_window")])


async def test_the_kinds_bytes_and_atoms_of_arrivals_are_those_of_the_events(recorder):
    spelled = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "é"}}]
    events = [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": None, "tool_calls": spelled},
        {"role": "user", "content": "meanwhile"},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
        TurnStarted(turn=1),
    ]
    await Assembler([ConversationPolicy()], recorder=recorder.recorder).assemble([], events)
    arrived = recorder.span("assemble_context").arrived
    assert {item: (value.kind, value.bytes, value.atom) for item, value in arrived.items()} == {
        "0": ("system", 1, "0"),
        "1": ("response", 3, "1"),
        "2": ("request", 9, "2"),
        "3": ("tool_result", 5, "1"),
        "4": ("other", 0, "4"),
    }


async def test_two_conversations_of_one_assembler_have_ledgers_with_names_of_their_own(recorder):
    assembler = Assembler([], recorder=recorder.recorder)
    one, other = History(requests("a")), History(requests("b"))
    for history in (one, other, one):
        await assembler.assemble([], history)
    ledgers = [turn.span.attributes["assembly.ledger.id"] for turn in turns(recorder)]
    assert ledgers[0] == ledgers[2] != ledgers[1]


async def test_what_is_sent_are_the_caller_s_own_objects_also_where_one_was_replaced_by_its_equal():
    assembler, context = Assembler([]), Context()
    first = [ModelRequest(id=f"m{number}", content="yes") for number in range(3)]
    await assembler.assemble([], first, context)
    second = [first[0], first[1].model_copy(), first[2]]
    assembly = await assembler.assemble([], second, context)
    assert all(event is other for event, other in zip(assembly.events, second, strict=True))
    assert assembly.items == ["0", "1", "2"]


async def test_each_assembly_has_the_objects_of_its_own_list_also_when_it_is_read_later():
    assembler, context = Assembler([SlidingWindowPolicy(2)]), Context()
    lists = [[{"role": "user", "content": f"message {number}"} for number in range(4)] for _ in range(3)]
    assemblies = [await assembler.assemble([], events, context) for events in lists]
    for assembly, events in zip(assemblies, lists, strict=True):
        assert all(event is other for event, other in zip(assembly.events, events[2:], strict=True))
        assert assembly.items == ["2", "3"]


async def test_what_a_caller_makes_anew_on_every_turn_is_read_once(recorder):
    context = Context()
    assembler = Assembler([SlidingWindowPolicy(2)], recorder=recorder.recorder, counter=CharacterCounter(1))
    with Reads(dict) as reads:
        for length in (3, 4, 5):
            await assembler.assemble([], [{"role": "user", "content": f"{n}"} for n in range(length)], context)
    assert reads.made == 5
    assert [list(turn.arrived) for turn in turns(recorder)] == [["0", "1", "2"], ["3"], ["4"]]


async def test_ids_tell_apart_what_reads_the_same_and_an_id_that_one_lacks_does_not():
    assembler, context = Assembler([]), Context()
    for events, items in [
        (["a", "b"], [0, 1]),
        (["b", "c"], [1, 2]),
        (["c", "b"], [2, 1]),
        ([None, "b"], [2, 1]),
        (["d", None], [2, 1]),
    ]:
        given = [{"role": "user", "content": "ok", **({} if name is None else {"id": name})} for name in events]
        assert (await assembler.assemble([], given, context)).items == list(map(str, items)), events


async def test_our_events_that_nobody_gave_an_id_are_matched_by_what_they_say():
    assembler, context = Assembler([]), Context()
    for events, items in [
        ([ModelRequest(content="ok")], [0]),
        ([ModelRequest(content="ok"), ModelRequest(content="ok")], [0, 1]),
        ([ModelRequest(id="x", content="ok"), ModelRequest(id="y", content="ok")], [0, 1]),
        ([ModelRequest(id="y", content="ok"), ModelRequest(id="z", content="ok")], [1, 2]),
    ]:
        assert (await assembler.assemble([], events, context)).items == list(map(str, items))
