"""Calls that await an approval, in blocks that may be cut: they are fixed content of their block."""

from __future__ import annotations

import pytest
from clearing import desk
from hypothesis import given, settings
from hypothesis import strategies as st
from recount import count, event_tokens

from otel_assembly import (
    Block,
    BlockItem,
    ContextOverflowError,
    ModelRequest,
    ModelResponse,
    Task,
    ToolCallEvent,
    ToolResultEvent,
    allocate,
)
from otel_assembly.budget import Cut
from otel_assembly.testing import RecordedTelemetry


def asking(id_, awaiting=True, text=""):
    call = ToolCallEvent(id=id_, name="pay", arguments='{"amount": 100}', awaiting_approval=awaiting)
    return ModelResponse(content=text, tool_calls=(call,))


def said(number, length=20):
    return ModelRequest(content=f"Turn {number}. " + "It goes on. " * length)


def chatter(messages):
    return [
        said(at) if at % 2 else ModelResponse(content=f"Answer {at}. " + "So it is. " * 20) for at in range(messages)
    ]


def reasons(allocation, event):
    return [(item.outcome.value, item.reason.value) for item in allocation.items if item.item.content is event]


WAITING = asking("w")
COST = event_tokens(WAITING)


@pytest.mark.parametrize("cut", [Cut.OLDEST, Cut.WHOLE, Cut.TAIL, Cut.SCORE, Cut.COMPRESS])
@pytest.mark.parametrize("room", [0, 100])
def test_a_call_that_awaits_an_approval_300_messages_back_survives_any_cut(cut, room):
    block = Block("recent", 8, [said(0), WAITING, *chatter(300)], cuttable=True, cut=cut)
    allocation = allocate([block], 3 + COST + room, 0)
    assert reasons(allocation, WAITING) == [("kept", "pending_tool_call")]
    (kept,) = allocation.blocks
    assert WAITING in [item.content for item in kept.items]
    assert allocation.used <= allocation.budget
    assert allocation.used == 3 + sum(event_tokens(item.content) for item in kept.items)
    assert allocation.fixed == 3 + COST
    others = {item.reason.value for item in allocation.dropped}
    assert others <= {"over_budget", "low_rank"}


def test_it_is_reserved_before_a_block_of_higher_priority_is_given_anything():
    blocks = [
        Block("evidence", 5, ["A passage. " * 5] * 4, cuttable=True),
        Block("older", 9, [WAITING, *chatter(9)], cuttable=True),
    ]
    allocation = allocate(blocks, 3 + COST + 30, 0)
    assert reasons(allocation, WAITING) == [("kept", "pending_tool_call")]
    evidence, older = allocation.decisions
    assert evidence.room == 30
    assert older.room >= COST


def test_what_may_be_cut_in_such_a_block_has_what_is_left():
    newest = ModelRequest(content="The newest.")
    block = Block("recent", 8, [WAITING, *chatter(9), newest], cuttable=True)
    allocation = allocate([block], 3 + COST + event_tokens(newest), 0)
    assert [item.content for item in allocation.blocks[0].items] == [WAITING, newest]
    assert allocation.used == allocation.budget


def test_where_everything_fits_nothing_is_said_of_it():
    block = Block("recent", 8, [said(0), WAITING], cuttable=True)
    allocation = allocate([block], 10_000, 0)
    assert allocation.blocks == [block]
    assert {item.reason.value for item in allocation.items} == {"fits"}
    assert allocation.fixed == 3 + COST


def test_what_does_not_fit_is_an_overflow_that_names_it_before_anything_is_compacted():
    def compact(text, target_tokens):
        raise AssertionError("nobody should have asked")

    blocks = [
        Block("system", 1, "Be kind.", cuttable=False),
        Block("summary", 7, "They asked. " * 50, cuttable=True),
        Block("recent", 8, [said(1), WAITING], cuttable=True),
        Block("older", 9, [said(2), WAITING], cuttable=True),
    ]
    fixed = 3 + 4 + count("Be kind.") + 2 * COST
    with pytest.raises(ContextOverflowError) as raised:
        allocate(blocks, fixed - 1, 0, compact=compact)
    assert raised.value.costs == {
        "system": 4 + count("Be kind."),
        "pending_tool_calls": 2 * COST,
        "reply_priming": 3,
    }
    assert raised.value.needed == fixed
    exactly = allocate(blocks, fixed, 0, compact=compact)
    assert exactly.used == exactly.fixed == fixed


def test_a_floor_is_reserved_beside_it_and_a_block_below_its_floor_keeps_it():
    blocks = [
        Block("evidence", 5, "A passage. " * 100, cuttable=True, min_tokens=80),
        Block("recent", 8, [WAITING, *chatter(20)], cuttable=True, min_tokens=COST + 400),
    ]
    roomy = allocate(blocks, 3 + COST + 80 + 400, 0)
    assert roomy.decisions[1].room >= COST + 400
    narrow = allocate(blocks, 3 + COST + 80 + 399, 0)
    assert narrow.decisions[1].reason == "below_floor"
    assert reasons(narrow, WAITING) == [("kept", "pending_tool_call")]
    assert {item.reason.value for item in narrow.dropped if item.block == "recent"} == {"below_floor"}


def test_what_is_grouped_with_it_or_answers_its_other_calls_stays_with_it():
    calls = tuple(ToolCallEvent(id=i, name="pay", arguments="{}", awaiting_approval=i == "a") for i in "ab")
    both, answer = ModelResponse(content="", tool_calls=calls), ToolResultEvent(parent_id="b", name="pay", content="ok")
    note = BlockItem(said(0), group="g")
    events = [note, BlockItem(both, group="g"), answer, *chatter(20)]
    allocation = allocate([Block("recent", 8, events, cuttable=True)], 200, 0)
    assert [item.content for item in allocation.blocks[0].items[:3]] == [note.content, both, answer]
    for event in (note.content, both, answer):
        assert reasons(allocation, event) == [("kept", "pending_tool_call")]


def test_a_call_that_was_answered_or_never_awaited_anything_is_cut_like_any_other():
    answered = [WAITING, ToolResultEvent(parent_id="w", name="pay", content="paid")]
    never = asking("n", awaiting=False)
    for events in (answered, [never]):
        allocation = allocate([Block("recent", 8, [*events, *chatter(20)], cuttable=True)], 200, 0)
        for event in events:
            assert reasons(allocation, event)[0][0] == "dropped"
        assert allocation.fixed == 3


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from(["said", "waiting", "text", "call"]), max_size=12),
    st.integers(0, 400),
    st.integers(0, 200),
    st.sampled_from(list(Cut)),
    st.sampled_from(["", "Be brief."]),
    st.booleans(),
)
def test_none_is_ever_cut_and_no_budget_is_ever_exceeded(kinds, room, floor, cut, restated, mine):
    make = {
        "said": lambda at: said(at, at),
        "waiting": lambda at: asking(f"w{at}", text="I would pay. " * at),
        "text": lambda at: f"Text {at} " * (at + 1),
        "call": lambda at: asking(f"c{at}", awaiting=False),
    }
    items = [make[kind](at) for at, kind in enumerate(kinds)]
    waiting = [item for item, kind in zip(items, kinds, strict=True) if kind == "waiting"]
    own = count if mine else None
    block = Block("recent", 8, items, cuttable=True, min_tokens=floor, cut=cut, restated=restated)
    evidence = Block("evidence", 5, ["A passage. " * 9, "Another. " * 9], cuttable=True, min_tokens=min(floor, room))
    bare = allocate([Block("recent", 8, waiting, cuttable=False, restated=restated)], 100_000, 0, own)
    window = bare.used + room
    if floor <= window and window:
        allocation = allocate([block, evidence], window, 0, own)
        assert allocation.fixed == bare.used
        assert allocation.used <= window
        assert allocation.used == allocation.framing + allocation.separators + sum(allocation.costs.values())
        again = allocate([replaced_fixed(block) for block in allocation.blocks], 100_000, 0, own)
        assert again.used == allocation.used
        for event in waiting:
            assert reasons(allocation, event)[0][0] == "kept"
        assert len(allocation.items) == len(items) + 2


def replaced_fixed(block):
    return Block(block.name, block.priority, block.content, cuttable=False, cut=block.cut, restated=block.restated)


# In the whole pass


async def test_a_conversation_keeps_it_and_the_spans_say_why():
    telemetry = RecordedTelemetry()
    fixed = (await desk(window=100_000, output_reserve=0).assemble(Task("And now?"), None)).allocation.used
    assembler = desk(window=fixed + COST + 60, output_reserve=0, floors={}, recorder=telemetry.recorder)
    task = Task("And now?", older=[said(0), WAITING, *chatter(200)], recent=chatter(100))
    context = await assembler.assemble(task, None)
    assert WAITING in context.messages
    (decision,) = (decision for decision in context.decisions if decision.event.facts.opens)
    assert (decision.outcome.value, decision.reason.value) == ("kept", "pending_tool_call")
    assert telemetry.span("allocate_budget").attributes["assembly.budget.fixed"] == fixed + COST
    assert telemetry.violations() == []
