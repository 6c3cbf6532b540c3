"""The order for the cache: what a conversation keeps stands in front of what a question brings."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from clearing import SYSTEM, Source, desk
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_assembly import Block, BlockItem, ConfigurationError, Context, ModelRequest, ModelResponse, Task
from otel_assembly.budget import order_for_attention_and_cache
from otel_assembly.context_assembler import Candidate


def blocks() -> list[Block]:
    return [
        Block("query", 3, "Why was I billed twice?", cuttable=False, restated="Answer in one sentence."),
        Block("state", 4, "plan: pro", cuttable=False),
        Block("evidence", 5, ["first passage", "second passage", "third passage"], cuttable=True),
        Block("memory", 6, [BlockItem("likes tea"), BlockItem("is Korean", profile=True)], cuttable=True),
        Block("summary", 7, "They asked before.", cuttable=True),
        Block("recent", 8, [ModelRequest(content="hello"), ModelResponse(content="hi there")], cuttable=True),
        Block("older", 9, ["an old turn"], cuttable=True),
        Block("examples", 2, "Q: hi A: hello", cuttable=False, rank=2),
        Block("schema", 2, "Answer as JSON.", cuttable=False, rank=1),
        Block("system", 1, "You are support.", cuttable=False),
    ]


def contents(prompt) -> list:
    return [message["content"] if isinstance(message, dict) else message.content for message in prompt.messages]


def rendered(context) -> bytes:
    """What a provider is sent, one message behind the other."""
    return b"".join(json.dumps(message, sort_keys=True).encode() for message in context.messages)


def shared(before: bytes, after: bytes) -> int:
    return next((at for at, (item, other) in enumerate(zip(before, after, strict=False)) if item != other), len(before))


def test_what_a_conversation_keeps_stands_in_front_of_what_a_question_brings():
    assert contents(order_for_attention_and_cache(blocks(), order="cache")) == [
        "You are support.",
        "Answer as JSON.",
        "Q: hi A: hello",
        "is Korean",
        "They asked before.",
        "an old turn",
        "hello",
        "hi there",
        "plan: pro",
        "likes tea",
        "third passage",
        "second passage",
        "first passage",
        "Why was I billed twice?\n\nAnswer in one sentence.",
    ]


def test_the_seeds_order_stays_the_default():
    assert contents(order_for_attention_and_cache(blocks())) == contents(
        order_for_attention_and_cache(blocks(), order="attention")
    )
    assert contents(order_for_attention_and_cache(blocks()))[3:5] == ["first passage", "is Korean"]


def test_markers_stand_behind_what_changes_at_another_time_and_are_four_at_most():
    prompt = order_for_attention_and_cache(blocks(), order="cache")
    marked = [contents(prompt)[at] for at in prompt.breakpoints]
    assert marked == ["Q: hi A: hello", "is Korean", "They asked before.", "hi there"]
    assert prompt.boundary == 3


def test_the_best_passage_stands_right_in_front_of_the_question():
    nine = [Block(f"evidence-{rank}", 5, f"passage {rank}", cuttable=True, rank=rank) for rank in range(1, 10)]
    prompt = order_for_attention_and_cache([*nine, Block("query", 3, "Q", cuttable=False)], order="cache")
    assert [block.name for block in prompt] == [f"evidence-{rank}" for rank in range(9, 0, -1)] + ["query"]


@pytest.mark.parametrize("order", ["fast", "", None, ["cache"]])
def test_an_order_that_is_not_known_is_refused(order):
    with pytest.raises(ConfigurationError, match="order must be 'attention' or 'cache'"):
        order_for_attention_and_cache(blocks(), order=order)
    with pytest.raises(ConfigurationError, match="order must be 'attention' or 'cache'"):
        desk(order=order)


WORDS = st.lists(
    st.sampled_from(["refund", "parcel", "invoice", "depot", "label", "plan"]), min_size=1, max_size=30
).map(" ".join)
TURN = st.tuples(WORDS, WORDS)
BROUGHT = st.tuples(WORDS, st.lists(WORDS, max_size=4), WORDS)


class Chat:
    """Sources of a chat: a profile that stays, and what each question brings."""

    name = "chat"

    def __init__(self):
        self.passages, self.memory = [], ""

    async def search(self, query, *, scopes, k):
        return [Candidate(f"d{at}-{text}", text, "public") for at, text in enumerate(self.passages)]

    async def recall(self, query, *, user, scopes, k):
        profile = Candidate("name", "Ada, since 2019, prefers letters.", "public", profile=True, score=1.0)
        return [profile, Candidate(f"m-{self.memory}", self.memory, "public", score=0.1)]

    async def turn(self, assembler, context, turns, brought, recent):
        question, self.passages, self.memory = brought
        events = [event for turn in turns for event in turn]
        cut = max(0, len(events) - recent)
        task = Task(f"What of {question}?", summary="They met before.", older=events[:cut], recent=events[cut:])
        return await assembler.assemble(task, user="ada", context=context)


def chat_of(chat, **settings):
    return desk(chat, recall=chat, state=lambda task, scopes: {"asked": chat.memory}, examples="Q: a A: b", **settings)


def said(turn):
    return {"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}


@settings(max_examples=20, deadline=None)
@given(
    turns=st.lists(TURN, min_size=1, max_size=12),
    brought=st.lists(BROUGHT, min_size=13, max_size=13),
    recent=st.integers(0, 6),
)
async def test_all_bytes_in_front_of_what_a_question_brings_are_those_of_the_turn_before(turns, brought, recent):
    """Wherever a caller draws the border between older and recent turns, as long as everything fits."""
    chat, context = Chat(), Context()
    assembler = chat_of(chat, window=20_000, order="cache")
    before, kept = b"", 0
    for at in range(len(turns) + 1):
        made = await chat.turn(assembler, context, [said(turn) for turn in turns[:at]], brought[at], recent)
        after = rendered(made)
        assert shared(before, after) >= kept
        # Of the last marker: everything in front of it stays, everything behind it was brought by the question.
        front = made.messages[: made.prompt.breakpoints[-1] + 1]
        kept = len(b"".join(json.dumps(message, sort_keys=True).encode() for message in front))
        assert [message["content"] for message in front][-1] in {
            *(text for turn in turns for text in turn),
            "They met before.",
        }
        before = after


async def test_the_assembly_tells_the_same_reuse_as_the_bytes_that_are_sent():
    """`Assembly.prefix` counts the texts of whole items; marks of messages are not in it."""
    chat, context = Chat(), Context()
    assembler = chat_of(chat, window=20_000, order="cache")
    turns = [said((f"question {at}", f"answer {at}")) for at in range(6)]
    before = 0
    for at in range(6):
        brought = (f"case {at}", [f"passage {at}"], f"memory {at}")
        made = await chat.turn(assembler, context, turns[:at], brought, 2)
        stays = [message["content"] for message in made.messages[: made.prompt.breakpoints[-1] + 1]]
        if at:
            assert made.assembly.prefix.bytes == before
            assert made.assembly.prefix.cause == "event_changed"
        before = sum(map(len, stays))


@pytest.mark.parametrize("window", [1_500, 2_500])
async def test_at_the_ceiling_most_turns_keep_what_can_be_kept(window):
    """The cut through the turns moves in steps; the seed's order reuses the prefix alone, whatever the window."""
    reused = {}
    for order in ("attention", "cache"):
        chat, context = Chat(), Context()
        assembler = chat_of(chat, window=window, output_reserve=200, order=order, step_tokens=250)
        turns, before, shares, dropped = [], b"", [], 0
        for at in range(60):
            brought = (f"case {at}", [f"passage {at} " * 20, f"leaflet {at} " * 20], f"memory of {at}")
            made = await chat.turn(assembler, context, turns, brought, 6)
            after = rendered(made)
            shares.append(shared(before, after) / len(before) if before else 0.0)
            before = after
            dropped += len(made.allocation.dropped) > 0
            turns.append(said((f"question {at} " * 6, f"answer {at} " * 15)))
            assert made.allocation.used <= window - 200
        assert dropped > 20
        reused[order] = sum(share > 0.6 for share in shares[20:])
    assert reused["attention"] == 0
    assert reused["cache"] >= 30


async def test_the_cut_moves_in_steps_and_never_leaves_half_of_the_room_unused():
    for order, moves in (("attention", 30), ("cache", 12)):
        chat, context = Chat(), Context()
        assembler = chat_of(chat, window=2_000, output_reserve=200, order=order, step_tokens=400)
        turns, firsts, least = [], [], 1.0
        for at in range(60):
            made = await chat.turn(assembler, context, turns, ("case", [], "m"), 6)
            held = [m["content"] for m in made.messages if m["role"] in {"user", "assistant"}][:-1]
            firsts.append(held[0] if held else "")
            if made.allocation.dropped:
                least = min(least, made.allocation.utilization)
            turns.append(said((f"question {at} " * 6, f"answer {at} " * 15)))
        moved = sum(item != other for item, other in pairwise(firsts[20:]))
        assert (moved >= moves) if order == "attention" else (moved <= moves)
        assert least > 0.5


async def test_no_step_parts_a_tool_call_from_its_result_and_a_call_that_waits_pins_itself_alone():
    turns = []
    for at in range(40):
        call = {"id": f"c{at}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        turns += [
            {"role": "user", "content": f"question {at} " * 8},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{at}", "content": f"result {at} " * 12},
            {"role": "assistant", "content": f"answer {at} " * 8},
        ]
    for length in range(8, len(turns), 7):
        assembler = desk(window=1_500, output_reserve=200, order="cache", step_tokens=150)
        made = await assembler.assemble(Task("And now?", recent=turns[:length]), user="ada")
        asked = {c["id"] for m in made.messages for c in m.get("tool_calls") or ()}
        answered = {m["tool_call_id"] for m in made.messages if m["role"] == "tool"}
        pending = {turns[length - 1]["tool_calls"][0]["id"]} if turns[length - 1].get("tool_calls") else set()
        assert asked - pending == answered


async def test_floors_of_older_and_recent_turns_hold_for_the_turns_together():
    passages = Source(brings=[Candidate(f"d{at}", f"word {at} " * 60, "public") for at in range(12)])
    turns = [{"role": "user", "content": f"turn {at} " * 10} for at in range(20)]
    held = {}
    for floor in (0, 200):
        assembler = desk(
            passages, window=1_000, output_reserve=100, order="cache", floors={"recent": floor, "older": floor}
        )
        made = await assembler.assemble(Task("And?", older=turns[:10], recent=turns[10:]), user="ada")
        held[floor] = sum(message["content"].startswith("turn") for message in made.messages)
    assert held[200] > held[0]


async def test_where_the_question_stands_when_the_model_is_called_again_after_its_tools():
    """Last, in both orders, behind the calls and results that it led to: what has just been found out is a turn like
    any other, and what is to be answered is the last that the model reads. The instruction stands behind it.
    """
    call = {"id": "a", "type": "function", "function": {"name": "bill", "arguments": "{}"}}
    before = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    found = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "charged on 3 and 4 March"},
    ]
    passages = Source(brings=[Candidate("d", "Two charges are a reservation and a booking.", "public")])
    for order, result_at in (("attention", -2), ("cache", -3)):
        assembler, context = desk(passages, order=order), Context()
        task = Task("Why was I billed twice?", key_instruction="One sentence.", recent=before)
        first = await assembler.assemble(task, user="ada", context=context)
        again = Task(task.query, key_instruction=task.key_instruction, recent=[*before, *found])
        second = await assembler.assemble(again, user="ada", context=context)
        question = {"role": "user", "content": "Why was I billed twice?\n\nOne sentence."}
        assert first.messages[-1] == second.messages[-1] == question
        assert second.messages.count(question) == 1
        assert second.messages[result_at] == found[1]
        assert second.messages[0]["content"] == SYSTEM
        # What the first call was sent in front of the place where the results went is what the second begins with.
        same = [message for message, other in zip(first.messages, second.messages, strict=False) if message == other]
        assert same[: len(same)] == second.messages[: second.messages.index(found[0])]
