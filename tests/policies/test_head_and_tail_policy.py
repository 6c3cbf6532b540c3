"""Both ends of a conversation: whole tool calls, the newest request, and nothing else of the middle."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recount import assert_sendable, leading_systems, newest_request
from strategies import conversations

from otel_assembly import Assembler, ConfigurationError, Context, HeadAndTailPolicy, History
from otel_assembly.testing import conversation


def places(assembly, events):
    return [next(at for at, item in enumerate(events) if item is event) for event in assembly.events]


async def kept(policy, *lines):
    events = conversation(*lines)
    assembly = await Assembler([policy]).assemble([], events, Context())
    return places(assembly, events), assembly


async def test_it_keeps_the_first_and_the_last():
    found, assembly = await kept(HeadAndTailPolicy(2, 1), "ask", "answer", "ask", "answer", "ask")
    assert found == [0, 1, 4]
    assert {d.item: d.reason for d in assembly.dropped} == {"2": "outside_window", "3": "outside_window"}


async def test_within_the_limit_nothing_leaves():
    found, assembly = await kept(HeadAndTailPolicy(2, 1, transparent=True), "ask", "answer", "ask")
    assert found == [0, 1, 2]
    assert assembly.prompts == []


async def test_a_call_at_the_end_of_the_head_goes_with_its_result_and_so_does_a_result_that_begins_the_tail():
    lines = ["ask", "call a", "result a", "answer", "ask", "call b", "result b", "answer"]
    found, assembly = await kept(HeadAndTailPolicy(2, 2), *lines)
    assert found == [0, 4, 7]
    assert {d.item: str(d.reason) for d in assembly.dropped} == {
        "1": "orphaned_tool_call",
        "2": "outside_window",
        "3": "outside_window",
        "5": "outside_window",
        "6": "outside_window",
    }


async def test_the_newest_request_takes_a_place_of_the_tail():
    lines = ["ask", "answer", "ask", "call a", "result a", "call b", "result b"]
    found, _ = await kept(HeadAndTailPolicy(1, 3), *lines)
    assert found == [0, 2, 5, 6]


async def test_the_newest_call_stays_whole_past_the_limit_and_nothing_is_raised(assembly_telemetry):
    lines = ["ask", "answer", "ask", "call a b c", "result a", "result b", "result c"]
    found, _ = await kept(HeadAndTailPolicy(1, 2), *lines)
    assert found == [0, 2, 3, 4, 5, 6]
    span = assembly_telemetry.span("apply_policy head_and_tail")
    assert span.attributes["assembly.overflowed"] is True
    assert span.attributes["assembly.overflow.cause"] == "newest_atom"
    assert json.loads(span.attributes["assembly.policy.config"]) == {"head": 1, "tail": 2, "transparent": False}


async def test_system_messages_that_lead_are_prompts_and_do_not_count():
    events = [{"role": "system", "content": "rule"}, *conversation("ask", "answer", "ask", "answer", "ask")]
    assembly = await Assembler([HeadAndTailPolicy(1, 1)]).assemble([], events, Context())
    assert places(assembly, events) == [0, 1, 5]


async def test_a_transparent_one_says_what_it_shows():
    _, assembly = await kept(HeadAndTailPolicy(1, 1, transparent=True), "ask", "answer", "ask")
    assert assembly.prompts == ["[head_and_tail] Showing 2 of 3 events, the first and the last."]


def test_it_stands_in_a_file_under_its_name(tmp_path):
    for name, text in (
        ("chain.yaml", "policies:\n  - head_and_tail: {head: 4, tail: 20}\n"),
        ("chain.json", '{"policies": [{"head_and_tail": {"head": 4, "tail": 20}}]}'),
    ):
        (tmp_path / name).write_text(text)
        assembler = Assembler.from_config(tmp_path / name)
        (policy,) = assembler.policies
        assert (type(policy), policy.head, policy.tail) == (HeadAndTailPolicy, 4, 20)
        assert Assembler.from_config(assembler.to_config()).to_config() == assembler.to_config()


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ((0, 5), "head must be at least 1, got 0"),
        ((5, -1), "tail must be at least 1, got -1"),
        ((True, 5), "head must be a whole number, got True"),
        ((2, 2.5), "tail must be a whole number, got 2.5"),
    ],
)
def test_a_limit_that_cannot_work_is_refused(limits, said):
    with pytest.raises(ConfigurationError, match=f"head_and_tail: {said}"):
        HeadAndTailPolicy(*limits)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(conversations(), st.integers(1, 6), st.integers(1, 6))
async def test_both_ends_hold_whole_pairs_and_the_newest_request(events, head, tail):
    outcome = await HeadAndTailPolicy(head, tail).decide([], events, Context())
    assert_sendable(events, outcome.events)
    found = [next(at for at, item in enumerate(events) if item is event) for event in outcome.events]
    assert found == sorted(found)
    must = {*leading_systems(events)}
    if newest_request(events) is not None:
        must.add(newest_request(events))
    assert must <= set(found)
    if outcome.overflow is None:
        front = max(leading_systems(events), default=-1) + 1  # alerts in front of a system message lead with it
        assert len(found) <= front + head + tail
    again = await HeadAndTailPolicy(head, tail).decide([], list(outcome.events), Context())
    assert list(again.events) == list(outcome.events)


async def test_a_turn_touches_the_ends_and_not_the_middle():
    policy, history = HeadAndTailPolicy(3, 5), History(conversation(*["ask", "call a", "result a", "answer"] * 500))
    await policy.decide([], history.view(), Context())
    read = []
    events = history.events

    class Watched(list):
        def __getitem__(self, place):
            read.append(place)
            return super().__getitem__(place)

    history.events = Watched(events)
    outcome = await policy.decide([], history.view(), Context())
    assert len(list(outcome.events)) <= 8
    assert len(read) <= 20


async def test_a_note_stands_where_the_middle_was_and_counts_all_that_is_out():
    events = conversation("ask", "call a", "result a", "answer", "ask", "answer")
    policy = HeadAndTailPolicy(2, 1, note=lambda skipped: {"role": "user", "content": f"{skipped} are missing"})
    assembly = await Assembler([policy]).assemble([], events, Context())
    assert assembly.events[1] == {"role": "user", "content": "3 are missing"}
    assert [events.index(event) for event in (assembly.events[0], *assembly.events[2:])] == [0, 4, 5]
    assert assembly.items[1] == "m0"


def test_a_note_is_a_function_and_stands_in_no_file():
    with pytest.raises(ConfigurationError, match="head_and_tail: note must be a function"):
        HeadAndTailPolicy(1, 1, note="skipped")
    with pytest.raises(ConfigurationError, match="its 'note' is an object of the program"):
        Assembler([HeadAndTailPolicy(1, 1, note=str)]).to_config()
