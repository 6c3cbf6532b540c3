"""What the allocator keeps, cuts, compacts and drops, in the words of who gives it blocks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from otel_assembly import (
    Block,
    BlockItem,
    ConfigurationError,
    ContextOverflowError,
    HaltedError,
    ModelRequest,
    ModelResponse,
    ToolCallEvent,
    ToolResultEvent,
    allocate,
    allocate_async,
)
from otel_assembly.budget import CompactedBlock, Compactors, Cut, order_for_attention_and_cache
from otel_assembly.tokens import counter_for


def words(text):
    return len(text.split())


def say(number, word="w"):
    return " ".join([word] * number)


def first_words(text, target_tokens):
    return " ".join(text.split()[:target_tokens])


def refuses(text, target_tokens):
    raise AssertionError("no compactor may be called here")


NO_COMPACTOR = Compactors(refuses, fallback=None, attempts=1)


def kept(allocation):
    return {block.name: block.content for block in allocation.blocks}


def outcome(allocation, name):
    decision = next(decision for decision in allocation.decisions if decision.block.name == name)
    return decision.outcome.value, decision.reason.value


def fates(allocation, name):
    return [(item.outcome.value, item.reason.value) for item in allocation.items if item.block == name]


def items(*sizes, **settings):
    return [BlockItem(say(size, f"w{at}"), **settings) for at, size in enumerate(sizes)]


# Budget truth


def test_everything_that_fits_is_the_very_object_that_was_given():
    blocks = [Block("system", 1, "be brief", cuttable=False), Block("evidence", 5, "a fact", cuttable=True)]
    allocation = allocate(blocks, 10, 0, words)
    assert all(block is other for block, other in zip(allocation.blocks, blocks, strict=True))
    assert allocation.used == 4
    assert [outcome(allocation, block.name) for block in blocks] == [("kept", "pinned"), ("kept", "fits")]


def test_fixed_blocks_one_token_over_are_a_loud_error_with_every_number_before_any_compactor_runs():
    blocks = [
        Block("system", 1, say(6), cuttable=False),
        Block("query", 3, say(5), cuttable=False),
        Block("evidence", 5, say(50), cuttable=True),
    ]
    with pytest.raises(ContextOverflowError, match="takes 11 tokens, 1 over the budget of 10") as caught:
        allocate(blocks, 15, 5, words, NO_COMPACTOR)
    assert (caught.value.budget, caught.value.needed) == (10, 11)
    assert caught.value.costs == {"system": 6, "query": 5}


def test_fixed_blocks_at_exactly_the_budget_pass_and_nothing_is_asked_of_a_compactor():
    blocks = [
        Block("system", 1, say(6), cuttable=False),
        Block("query", 3, say(4), cuttable=False),
        Block("evidence", 5, say(50), cuttable=True),
    ]
    allocation = allocate(blocks, 15, 5, words, NO_COMPACTOR)
    assert (allocation.used, allocation.remaining, allocation.utilization) == (10, 0, 1.0)
    assert outcome(allocation, "evidence") == ("dropped", "over_budget")


def test_the_real_tokenizer_counts_messages_and_the_replys_priming():
    blocks = [Block("system", 1, "be brief", cuttable=False)]
    # Two tokens, four around the message, three for the reply.
    allocation = allocate(blocks, 9, 0)
    assert (allocation.used, allocation.framing, allocation.costs) == (9, 3, {"system": 6})
    with pytest.raises(ContextOverflowError) as caught:
        allocate(blocks, 8, 0)
    assert caught.value.costs == {"system": 6, "reply_priming": 3}


@pytest.mark.parametrize("cut", [Cut.TAIL, Cut.OLDEST, Cut.COMPRESS])
@pytest.mark.parametrize(
    "text",
    ["한국어 문서입니다. " * 9000, "aGVsbG8gd29ybGQ=" * 9000, '{"a":[1,2,{"b":null}]},' * 9000, "<|endoftext|>" * 9000],
    ids=["korean", "base64", "json", "special"],
)
def test_a_tool_result_of_a_megabyte_ends_within_a_budget_of_2000(text, cut):
    blocks = [
        Block("query", 3, "what does it say?", cuttable=False),
        Block("result", 5, text, cuttable=True, cut=cut),
    ]
    allocation = allocate(blocks, 2_000, 0)
    assert allocation.used <= 2_000
    assert outcome(allocation, "result") == ("compacted", "compacted")
    assert allocation.compacted[0].item.content == text


def test_costs_separators_and_framing_sum_to_what_is_used():
    blocks = [
        Block("memory", 6, [BlockItem(say(3)), BlockItem(say(4), profile=True), BlockItem(say(5))], cuttable=True),
        Block("evidence", 5, [say(2), say(3), say(4), say(5)], cuttable=True),
    ]
    allocation = allocate(blocks, 1_000, 0)
    assert sum(allocation.costs.values()) + allocation.separators + allocation.framing == allocation.used


# Floors


def test_with_room_for_one_floor_only_the_lower_priority_is_dropped_whole_and_never_squeezed():
    blocks = [
        Block("evidence", 5, say(30), cuttable=True, min_tokens=10),
        Block("memory", 6, say(30), cuttable=True, min_tokens=10),
    ]
    allocation = allocate(blocks, 15, 0, words, first_words)
    assert outcome(allocation, "memory") == ("dropped", "below_floor")
    assert words(kept(allocation)["evidence"].summary) == 15


def test_a_greedy_block_of_high_priority_cannot_eat_the_floor_of_a_lower_one():
    blocks = [
        Block("evidence", 5, say(100), cuttable=True),
        Block("memory", 6, say(100), cuttable=True, min_tokens=8),
    ]
    allocation = allocate(blocks, 20, 0, words, first_words)
    assert {decision.block.name: decision.tokens_out for decision in allocation.decisions} == {
        "evidence": 12,
        "memory": 8,
    }


def test_a_block_shorter_than_its_floor_reserves_only_what_it_takes():
    blocks = [
        Block("evidence", 5, say(17), cuttable=True),
        Block("memory", 6, say(3), cuttable=True, min_tokens=500),
    ]
    allocation = allocate(blocks, 520, 500, words, NO_COMPACTOR)
    assert allocation.used == 20


def test_a_rest_under_the_floor_is_useless_so_the_next_item_is_compacted_to_make_up_for_it():
    block = Block("evidence", 5, items(4, 40), cuttable=True, min_tokens=8)
    allocation = allocate([block], 10, 0, words, first_words)
    assert fates(allocation, "evidence") == [("kept", "fits"), ("compacted", "compacted")]
    assert allocation.used == 10


def test_a_rest_under_the_floor_that_nothing_makes_up_for_is_dropped_with_that_reason():
    block = Block("evidence", 5, items(4, 40), cuttable=True, min_tokens=8)
    allocation = allocate([block], 10, 0, words, Compactors(lambda text, target: "", fallback=None))
    assert outcome(allocation, "evidence") == ("dropped", "below_floor")
    assert allocation.used == 0
    assert [decision.attempts[0].outcome.value for decision in allocation.decisions] == ["empty"]


# How each kind of block gives way


def test_evidence_is_cut_from_its_worst_rank_and_a_worse_item_never_survives_a_better_one():
    ranks = [4, 1, 3, 2]
    block = Block("evidence", 5, [BlockItem(say(5, f"w{rank}"), rank=rank) for rank in ranks[:3]], cuttable=True)
    short_but_worst = BlockItem("w", rank=5)
    block = block.with_content([*block.items, short_but_worst])
    allocation = allocate([block], 10, 0, words, NO_COMPACTOR)
    assert fates(allocation, "evidence") == [
        ("dropped", "low_rank"),
        ("kept", "fits"),
        ("kept", "fits"),
        ("dropped", "low_rank"),
    ]


def test_memories_of_low_score_go_first_and_the_profile_last():
    block = Block(
        "memory",
        6,
        [
            BlockItem(say(4, "a"), id="a", score=0.9),
            BlockItem(say(4, "b"), id="b", score=0.1, profile=True),
            BlockItem(say(4, "c"), id="c", score=0.5),
            BlockItem(say(4, "d"), id="d"),
        ],
        cuttable=True,
    )
    allocation = allocate([block], 8, 0, words, NO_COMPACTOR)
    assert [item.item.id for item in allocation.dropped] == ["c", "d"]


def test_a_summary_is_compressed_further_before_it_is_cut():
    block = Block("summary", 7, items(6, 6, 6), cuttable=True)
    allocation = allocate([block], 10, 0, words, first_words)
    assert fates(allocation, "summary") == [("compacted", "compacted")] * 3
    assert allocation.used == 10


def test_a_summary_that_nobody_can_compress_is_cut_from_its_tail():
    block = Block("summary", 7, items(6, 6, 6), cuttable=True)
    allocation = allocate([block], 13, 0, words, Compactors(lambda text, target: "", fallback=None))
    assert fates(allocation, "summary") == [("kept", "fits"), ("kept", "fits"), ("dropped", "low_rank")]


def test_of_turns_the_oldest_go_first():
    block = Block("recent", 8, items(6, 6, 6), cuttable=True)
    allocation = allocate([block], 13, 0, words, NO_COMPACTOR)
    assert fates(allocation, "recent") == [("dropped", "over_budget"), ("kept", "fits"), ("kept", "fits")]


def test_a_block_that_is_kept_whole_or_not_at_all_is_never_compacted():
    block = Block("older", 9, say(20), cuttable=True, cut=Cut.WHOLE)
    allocation = allocate([block], 10, 0, words, NO_COMPACTOR)
    assert outcome(allocation, "older") == ("dropped", "over_budget")


def test_ties_are_as_they_stand():
    block = Block("evidence", 5, [BlockItem(say(5, word), rank=1) for word in ("x", "y", "z")], cuttable=True)
    allocation = allocate([block], 10, 0, words, NO_COMPACTOR)
    assert [item.item.content[0] for item in allocation.dropped] == ["z"]


def test_only_the_best_passage_is_compacted_where_not_even_that_fits_and_the_others_are_dropped():
    block = Block("evidence", 5, items(40, 40, 40), cuttable=True)
    allocation = allocate([block], 10, 0, words, first_words)
    assert fates(allocation, "evidence") == [
        ("compacted", "compacted"),
        ("dropped", "low_rank"),
        ("dropped", "low_rank"),
    ]
    assert allocation.blocks[0].lossy


def test_nine_passages_open_and_close_the_variable_part_by_rank_with_the_query_last():
    evidence = [BlockItem(f"passage {rank}", rank=rank) for rank in (7, 3, 9, 1, 5, 2, 8, 4, 6)]
    blocks = [
        Block("query", 3, "why?", cuttable=False, restated="in one line"),
        Block("evidence", 5, evidence, cuttable=True),
        Block("system", 1, "be brief", cuttable=False),
    ]
    said = [message["content"] for message in order_for_attention_and_cache(allocate(blocks, 900, 0).blocks).messages]
    assert said[0] == "be brief"
    assert said[1] == "passage 1"
    assert said[2].split("\n\n") == [f"passage {rank}" for rank in (3, 5, 7, 9, 8, 6, 4)]
    assert said[3:] == ["passage 2", "why?\n\nin one line"]


# Duplicates and what is out of date


def test_of_two_versions_the_newest_stays_and_the_older_one_names_it():
    blocks = [
        Block("wiki", 5, [BlockItem("plan is basic", id="plan", version=1)], cuttable=True, rank=1),
        Block("crm", 5, [BlockItem("plan is gold", id="plan", version=2)], cuttable=True, rank=2),
    ]
    allocation = allocate(blocks, 100, 0, words)
    (gone,) = allocation.dropped
    assert (gone.block, gone.reason.value, gone.winner) == ("wiki", "stale", ("crm", 0))
    assert list(kept(allocation)) == ["crm"]
    assert outcome(allocation, "wiki") == ("dropped", "stale")


def test_a_duplicate_that_may_be_cut_never_takes_the_place_of_one_that_may_not():
    blocks = [
        Block("found", 5, ["the same fact"], cuttable=True),
        Block("must", 6, ["the  same fact"], cuttable=False),
    ]
    allocation = allocate(blocks, 3, 0, words)
    assert list(kept(allocation)) == ["must"]
    assert [(item.block, item.reason.value, item.winner) for item in allocation.dropped] == [
        ("found", "duplicate", ("must", 0))
    ]


# Tool calls


def call(*ids):
    return ModelResponse(
        content="", tool_calls=tuple(ToolCallEvent(id=item_id, name="find", arguments="{}") for item_id in ids)
    )


def result(value, text="found"):
    return ToolResultEvent(parent_id=value, name="find", content=text)


def test_three_parallel_calls_stay_or_go_as_one_group_where_only_one_result_would_fit():
    turns = [ModelRequest(content="go"), call("1", "2", "3"), *(result(letter, say(9)) for letter in "123")]
    whole = allocate([Block("recent", 8, turns, cuttable=True)], 9_000, 0).used
    allocation = allocate([Block("recent", 8, turns, cuttable=True)], whole - 1, 0)
    cut = [item for item in allocation.items if item.outcome == "dropped"]
    assert [item.index for item in cut] == [0]
    tight = allocate([Block("recent", 8, [*turns, ModelRequest(content="so?")], cuttable=True)], whole - 20, 0)
    assert [item.index for item in tight.items if item.outcome == "kept"] == [5]
    assert {item.atom for item in tight.items if 1 <= item.index <= 4} == {1}


@pytest.mark.parametrize("cuttable", [True, False])
@pytest.mark.parametrize(
    ("turns", "left"),
    [
        ([result("gone"), ModelRequest(content="hi")], {0: "orphaned_tool_result"}),
        ([call("1"), ModelResponse(content="never mind")], {0: "orphaned_tool_call"}),
        ([ModelRequest(content="hi"), call("1")], {}),
    ],
    ids=["a result without its call", "a call that was given up", "a call that is pending"],
)
def test_orphans_leave_with_their_reason_also_where_everything_fits(turns, left, cuttable):
    allocation = allocate([Block("recent", 8, turns, cuttable=cuttable)], 1_000, 0)
    assert {item.index: item.reason.value for item in allocation.dropped} == left
    assert [item.content for item in allocation.blocks[0].items] == [
        turn for at, turn in enumerate(turns) if at not in left
    ]


def test_a_call_without_its_result_is_no_longer_pending_once_another_block_goes_on():
    blocks = [
        Block("older", 9, [ModelRequest(content="go"), call("1")], cuttable=True),
        Block("recent", 8, [result("1"), ModelResponse(content="done")], cuttable=True),
    ]
    allocation = allocate(blocks, 1_000, 0)
    assert {(item.block, item.reason.value) for item in allocation.dropped} == {
        ("older", "orphaned_tool_call"),
        ("recent", "orphaned_tool_result"),
    }


def test_a_group_that_holds_a_part_of_a_tool_call_holds_all_of_it():
    turns = [BlockItem(ModelRequest(content=say(9)), group="g"), call("1"), BlockItem(result("1", say(9)), group="g")]
    allocation = allocate([Block("recent", 8, turns, cuttable=True)], 30, 0)
    assert {item.outcome.value for item in allocation.items} == {"dropped"}
    assert {item.atom for item in allocation.items} == {0}


def test_turns_of_a_profile_keep_their_order():
    turns = [BlockItem(call("1")), BlockItem(result("1"), profile=True)]
    prompt = order_for_attention_and_cache(allocate([Block("memory", 6, turns, cuttable=True)], 500, 0).blocks)
    assert prompt.messages == [turn.content for turn in turns]


# Compaction


def test_a_compactor_is_asked_for_what_is_left_and_its_result_carries_where_it_came_from():
    asked = []

    def compact(text, target_tokens):
        asked.append((text, target_tokens))
        return "short"

    blocks = [
        Block("state", 4, say(5), cuttable=False),
        Block("summary", 7, CompactedBlock(say(20), ("turn-1", "turn-2"), (0, 1)), cuttable=True),
    ]
    allocation = allocate(blocks, 12, 0, words, compact)
    assert asked == [(say(20), 7)]
    made = kept(allocation)["summary"]
    # A summary of a summary stands for what that one stood for.
    assert (made.summary, made.provenance, made.lossy) == ("short", ("turn-1", "turn-2"), True)


def test_a_compactor_that_fails_costs_no_original_and_every_attempt_is_told():
    hangs = threading.Event()

    def hanging(text, target_tokens):
        hangs.wait(500)
        return text

    def failing(text, target_tokens):
        raise RuntimeError("down")

    block = Block("evidence", 5, say(40), cuttable=True)
    expected = {
        "raised": failing,
        "timed_out": hanging,
        "empty": lambda text, target_tokens: "",
        "error_text": lambda text, target_tokens: "Error: rate limit exceeded",
        "too_long": lambda text, target_tokens: text,
    }
    try:
        for told, compact in expected.items():
            allocation = allocate([block], 10, 0, words, Compactors(compact, fallback=None, attempts=1, deadline=0.05))
            (gone,) = allocation.dropped
            assert gone.item.content == block.content
            assert outcome(allocation, "evidence") == ("dropped", "over_budget")
            assert [attempt.outcome.value for attempt in allocation.decisions[0].attempts] == [told]
            assert allocate([block], 10, 0, words, Compactors(compact, attempts=1, deadline=0.05)).compacted
    finally:
        hangs.set()


def test_what_stops_an_agent_is_no_failure_of_a_compactor():
    def halting(text, target_tokens):
        raise HaltedError("stop", "guard")

    with pytest.raises(HaltedError):
        allocate([Block("evidence", 5, say(40), cuttable=True)], 10, 0, words, halting)


async def test_an_async_compactor_is_awaited_and_gives_what_a_plain_one_gives():
    async def compact(text, target_tokens):
        await asyncio.sleep(0)
        return first_words(text, target_tokens)

    block = Block("evidence", 5, say(40), cuttable=True)
    allocation = await allocate_async([block], 10, 0, words, compact)
    assert allocation.blocks == allocate([block], 10, 0, words, first_words).blocks
    with pytest.raises(ConfigurationError, match="is async"):
        allocate([block], 10, 0, words, compact)


# A counter that finds more in a joined text than in its parts


def test_the_budget_holds_where_the_real_tokenizer_finds_more_in_a_joined_text_than_in_its_parts():
    block = Block("recent", 8, ["what was said before", "[", "/*"], cuttable=True)
    count = counter_for().count
    assert count("[\n\n/*") == 4 > count("[") + count("\n\n") + count("/*")
    # Three for the reply, four for the message, three for the parts; joined they take four.
    allocation = allocate([block], 10, 0, None, NO_COMPACTOR)
    assert [item.outcome.value for item in allocation.items] == ["dropped", "dropped", "kept"]
    assert allocation.used == 8
    assert allocate([block], 11, 0, None, NO_COMPACTOR).used == 11


def test_the_budget_holds_also_where_a_joined_text_takes_more_than_its_parts():
    def joined_takes_more(text):
        return len(text.split()) + 3 * text.count("\n\n")

    block = Block("recent", 8, items(3, 3, 3), cuttable=True, separator="\n\n")
    allocation = allocate([block], 12, 0, joined_takes_more, NO_COMPACTOR)
    assert allocation.used == joined_takes_more("\n\n".join(item.content for item in allocation.blocks[0].items)) <= 12
    # By its parts and the separator alone nothing would have been wrong with three.
    quirk = Block("recent", 8, items(3, 3, 3), cuttable=True, separator=" ")

    def long_takes_more(text):
        return len(text.split()) + (5 if len(text) > 20 else 0)

    assert long_takes_more(" ".join(item.content for item in quirk.items)) > 11
    allocation = allocate([quirk], 11, 0, long_takes_more, NO_COMPACTOR)
    assert allocation.used <= 11
    assert [item.outcome.value for item in allocation.items] == ["dropped", "kept", "kept"]
