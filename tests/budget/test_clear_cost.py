"""What a question costs in a long conversation: what is new, and what the window holds; counted, never timed."""

from __future__ import annotations

import pytest
from clearing import Source, desk, passage
from counting import Reads, Rounds, counted_texts
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import conversations

from otel_assembly import (
    AssemblyError,
    BlockItem,
    Context,
    History,
    ModelRequest,
    ModelResponse,
    Task,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.recorder import NullRecorder

ASKED = "And now?"


def chat(number):
    """A question, a call, its result, an answer."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"Where is order number {number}, please?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"order {number} is on its way"},
        {"role": "assistant", "content": f"Order {number} is on its way to you."},
    ]


def ours(number):
    """The same as events."""
    call = ToolCallEvent(id=f"c{number}", name="find", arguments="{}")
    return [
        ModelRequest(content=f"Where is order number {number}, please?"),
        ModelResponse(tool_calls=(call,)),
        ToolResultEvent(parent_id=f"c{number}", name="find", content=f"order {number} is on its way"),
        ModelResponse(content=f"Order {number} is on its way to you."),
    ]


async def steady_turn(length, holds, made, **settings):
    """What the last of some questions took, each four messages after the one before: reads, counts, rounds of loops."""
    assembler = desk(recorder=NullRecorder(), **settings)
    context, turns = Context(), holds(message for number in range(length // 4) for message in made(number))
    rounds = Rounds()
    with Reads(dict, ModelRequest, ModelResponse, ToolResultEvent) as reads, counted_texts() as texts:
        for question in range(4):
            turns.extend(made(length + question))
            reads.made = 0
            texts.clear()
            await assembler.assemble(Task(f"{ASKED} {question}", recent=turns), None, context)
        asked = [text for text in texts if not text.startswith(ASKED)]
        read = reads.made
    turns.extend(made(length + 4))
    with rounds:
        await assembler.assemble(Task(f"{ASKED} 4", recent=turns), None, context)
    return read, asked, rounds.made


@pytest.mark.parametrize("order", ["attention", "cache"])
@pytest.mark.parametrize(("holds", "made"), [(History, chat), (list, chat), (list, ours)])
async def test_a_question_reads_and_counts_what_is_new_and_costs_what_the_window_holds(order, holds, made):
    short = await steady_turn(400, holds, made, order=order, window=2_000)
    long = await steady_turn(1_600, holds, made, order=order, window=2_000)
    for reads, texts, _ in (short, long):
        assert reads <= 4
        assert len(texts) <= 4
    # Numbers with more digits take more tokens, so that the window may hold a message less; and of a list of more than
    # 1,024 messages, the compared ones are chosen.
    assert abs(long[2] - short[2]) < short[2] / 25
    assert long[2] < 6_000


async def test_a_question_whose_evidence_is_another_reads_what_is_new():
    async def reads_of(length):
        docs = Source()
        assembler, context, turns = desk(docs, window=2_000, recorder=NullRecorder()), Context(), History()
        for number in range(length // 4):
            turns.extend(chat(number))
        with Reads(dict) as reads:
            for question in range(3):
                turns.extend(chat(length + question))
                docs.brings = [passage(10 * question + number) for number in range(4)]
                reads.made = 0
                await assembler.assemble(Task(f"{ASKED} {question}", recent=turns), None, context)
        return reads.made

    assert await reads_of(40) == await reads_of(400) == 4


@pytest.mark.parametrize("order", ["attention", "cache"])
async def test_a_message_of_a_list_that_was_changed_in_place_is_read_again(order):
    assembler, context = desk(order=order), Context()
    turns = [message for number in range(5) for message in chat(number)]
    before = await assembler.assemble(Task(ASKED, recent=turns), None, context)
    turns[0]["content"] = "Where is the order that I sent you a letter about, all those many days ago, please?"
    after = await assembler.assemble(Task(ASKED, recent=turns), None, context)
    assert after.allocation.used == before.allocation.used + 11
    assert after.assembly.totals.tokens_out == after.allocation.used
    assert [decision.item for decision in after.decisions if decision.outcome == "kept"] == ["22"]


async def test_what_is_sent_are_the_objects_of_this_question():
    assembler, context = desk(), Context()
    for _ in range(3):
        turns = [message for number in range(5) for message in chat(number)]
        made = await assembler.assemble(Task(ASKED, recent=turns), None, context)
        sent = list(map(id, made.messages))
        assert all(id(turn) in sent for turn in turns)


def said(context):
    """All that was decided of one question."""
    items = [
        (
            item.block,
            item.index,
            item.kind,
            item.tokens,
            item.bytes,
            item.atom,
            item.outcome,
            item.reason,
            item.item.group,
        )
        for item in context.allocation.items
    ]
    blocks = [
        (
            decision.block.name,
            decision.outcome,
            decision.reason,
            decision.room,
            decision.tokens_in,
            decision.tokens_out,
            decision.items_out,
        )
        for decision in context.allocation.decisions
    ]
    totals, allocation = context.assembly.totals, context.allocation
    return items, blocks, allocation.used, allocation.fixed, totals.tokens_in, totals.tokens_out, totals.dropped


async def answer_of(assembler, task, context, turns):
    try:
        made = await assembler.assemble(task, None, context)
    except AssemblyError as error:
        return str(error)
    theirs = set(map(id, turns))
    return [id(message) for message in made.messages if id(message) in theirs], said(made)


async def test_a_step_of_turns_that_does_not_fit_is_dropped_even_if_it_begins_with_empty_turns():
    assembler = desk(system="Be kind.", window=60, output_reserve=0, floors={}, order="cache", step_tokens=3)
    turns = [{"role": role, "content": ""} for role in ("system", "assistant")]
    turns.append({"role": "user", "content": "The flight was moved to gate 14, boarding begins at 17:40. " * 2})
    context = await assembler.assemble(Task(ASKED, recent=turns), None, Context())
    assert context.assembly.totals.tokens_out <= 60


@settings(deadline=None, max_examples=80)
@given(conversations(), st.data())
async def test_what_is_remembered_of_the_turns_is_what_would_be_read_of_them(events, data):
    order = data.draw(st.sampled_from(["attention", "cache"]))
    step_tokens = data.draw(st.sampled_from([0, 3, 10, 1_000]))
    window = data.draw(st.integers(60, 400))
    assembler = desk(
        system="Be kind.", window=window, output_reserve=0, floors={}, order=order, step_tokens=step_tokens
    )
    context, upto = Context(), 0
    while upto < len(events):
        upto += data.draw(st.integers(1, 6))
        turns = events[:upto]
        at = data.draw(st.integers(0, len(turns)))
        older, recent = turns[:at], turns[at:]
        remembered = await answer_of(assembler, Task(ASKED, older=older, recent=recent), context, turns)
        # Items are read anew each time, one by one.
        task = Task(ASKED, older=list(map(BlockItem, older)), recent=list(map(BlockItem, recent)))
        assert remembered == await answer_of(assembler, task, Context(), turns)
