"""What an explanation says would have kept an item of a block keeps it, and less does not."""

from __future__ import annotations

import pytest
from block_sets import Allocated, block_sets, budgets, compactors, counts, more_together
from hypothesis import HealthCheck, given, settings

from otel_assembly import Block, BlockItem
from otel_assembly.budget import CompactedBlock, Compactors
from otel_assembly.explain import detail_lines

QUICK = settings(
    max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
OUT_FROM_THE_START = {"duplicate", "stale", "orphaned_tool_call", "orphaned_tool_result"}


def check(allocated, item, answer):
    assert answer.raises or answer.never or answer.unknown
    if answer.never:
        assert answer.reason in OUT_FROM_THE_START
        assert item not in allocated.kept(allocated.window + 5_000)
    for change in answer.raises:
        assert (change.policy, change.parameter, change.unit) == ("allocator", "window", "tokens")
        assert change.to == allocated.window + change.extra
        assert item in allocated.kept(change.to)
        if not change.at_most:
            assert item not in allocated.kept(change.to - 1)
            for window in range(allocated.window, min(change.to, allocated.window + 40)):
                assert item not in allocated.kept(window)


def true_when_allocated_again(blocks, budget, counted_by, compact):
    allocated = Allocated(blocks, budget + 40, counted_by, compact)
    if allocated.allocation is None:
        return
    # How much room an instruction takes that is said behind a compacted text is told only in part.
    sure = counted_by is not more_together and not any(block.cuttable and block.restated for block in blocks)
    # Among events of a block's own kind, which items are texts is not told.
    sure = sure and not any(block.has_events and block.priority in (1, 7) for block in blocks)
    for item, answer in allocated.answers():
        assert not sure or not answer.unknown
        check(allocated, item, answer)


@QUICK
@given(block_sets(), budgets, counts, compactors)
def test_the_window_that_is_named_keeps_the_item_and_a_smaller_one_does_not(blocks, budget, counted_by, compact):
    true_when_allocated_again(blocks, budget, counted_by, compact)


@pytest.mark.slow
@settings(QUICK, max_examples=60)
@given(block_sets(), budgets, counts, compactors)
def test_it_does_so_in_many_more_cases(blocks, budget, counted_by, compact):
    true_when_allocated_again(blocks, budget, counted_by, compact)


def answers(blocks, window, **settings):
    allocated = Allocated(blocks, window, **settings)
    return allocated, dict(allocated.answers())


FAILS = Compactors(lambda text, target_tokens: "", fallback=None)


def test_a_larger_window_that_lets_a_higher_block_in_first_is_passed_over():
    passages = [BlockItem("first passage " * 2, rank=1), BlockItem("second passage " * 10, rank=2)]
    blocks = [
        Block("docs", 5, passages, cuttable=True),
        Block("notes", 6, ["remember this " * 6], cuttable=True),
    ]
    kept_at = [
        window
        for window in range(44, 141)
        if "2" in Allocated(blocks, window, compact=FAILS).kept(window)  # out again where the second passage comes in
    ]
    assert kept_at != list(range(kept_at[0], 141))
    for window in (kept_at[0] - 3, next(at for at in range(kept_at[0], 141) if at not in kept_at)):
        allocated, answered = answers(blocks, window, compact=FAILS)
        (change,) = answered["2"].raises
        assert not change.at_most
        assert change.to == next(at for at in range(window, 200) if "2" in allocated.kept(at))


def test_a_compactor_may_take_all_that_it_is_given_so_that_less_may_do():
    blocks = [
        Block("rules", 1, "be kind", cuttable=False),
        Block("summary", 7, "so far they have talked about the flight and the bag " * 6, cuttable=True),
        Block("recent", 8, ["and what now"], cuttable=True),
    ]
    allocated, answered = answers(blocks, 90, compact=lambda text, target_tokens: "short")
    assert "2" in allocated.kept(90)
    greedy = Compactors(lambda text, target_tokens: " ".join(text.split()[:target_tokens]), fallback=None)
    allocated, answered = answers(blocks, 90, compact=greedy)
    (change,) = answered["2"].raises
    assert change.at_most
    assert "to keep it" in dict(detail_lines(answered["2"]))
    assert dict(detail_lines(answered["2"]))["to keep it"].startswith("at most ")
    assert "2" in allocated.kept(change.to)


def test_a_block_below_its_floor_says_which_floor_that_is():
    blocks = [
        Block("question", 3, "where is my bag", cuttable=False),
        Block("docs", 5, ["a long passage " * 20], cuttable=True, min_tokens=50),
        Block("memory", 6, ["likes tea " * 20], cuttable=True, min_tokens=30),
    ]
    allocated, answered = answers(blocks, 110)
    answer = answered["2"]
    assert (answer.reason, answer.block.floor) == ("below_floor", 30)
    assert "memory (memory, priority 6, floor 30)" in dict(detail_lines(answer))["block"]
    check(allocated, "2", answer)


def test_who_has_the_room_are_the_blocks_before_it_and_the_better_items_of_its_own():
    passages = [BlockItem(f"passage {rank} says so", rank=rank) for rank in (3, 1, 2)]
    blocks = [
        Block("question", 3, "where is my bag", cuttable=False),
        Block("docs", 5, passages, cuttable=True),
        Block("notes", 6, "note", cuttable=True),
    ]
    _, answered = answers(blocks, 72)
    answer = answered["1"]  # rank 3
    assert answer.reason == "low_rank"
    assert {competitor.item for competitor in answer.competitors} == set("023")
    assert [(span.name, span.priority) for span in answer.block.before] == [("question", 3)]
    assert "question 8" in dict(detail_lines(answer))["blocks before it"]


def test_what_stands_for_a_duplicate_and_for_an_old_version_is_named():
    blocks = [
        Block(
            "docs",
            5,
            [
                BlockItem("the fee is ten", id="fee", version=1),
                BlockItem("the fee is twelve", id="fee", version=2),
                BlockItem("bags may weigh 23 kg"),
            ],
            cuttable=True,
        ),
        Block("memory", 6, [BlockItem("bags may  weigh 23 kg"), BlockItem("moved away", current=False)], cuttable=True),
    ]
    _, answered = answers(blocks, 900)
    assert {item: (value.reason, value.winner) for item, value in answered.items()} == {
        "0": ("stale", "1"),
        "3": ("duplicate", "2"),
        "4": ("stale", None),
    }
    assert all(span.never and not span.unknown for span in answered.values())
    assert dict(detail_lines(answered["0"]))["kept copy"] == "item 1"
    assert "kept copy" not in dict(detail_lines(answered["4"]))


def test_a_compacted_text_names_its_summary_and_what_keeps_it_as_it_is():
    blocks = [Block("summary", 7, ["so far. they talked. of bags. " * 20], cuttable=True)]
    allocated, answered = answers(blocks, 100)
    answer = answered["0"]
    assert (answer.outcome, answer.holder.in_prompt) == ("compacted", True)
    check(allocated, "0", answer)
    assert not answer.raises[0].at_most


def without(allocated, unwanted):
    allocated.spans = [span for span in allocated.spans if not unwanted(span)]
    return allocated


BLOCKS = [
    Block("question", 3, "where is my bag", cuttable=False),
    Block("docs", 5, [BlockItem("one " * 20, rank=1), BlockItem("two " * 20, rank=2)], cuttable=True),
    Block("notes", 6, "note", cuttable=True),
]


def test_the_span_of_a_block_is_missing():
    allocated = without(Allocated(BLOCKS, 80), lambda span: span.attributes.get("assembly.block.name") == "question")
    answer = dict(allocated.answers())["2"]
    assert (answer.outcome, answer.reason, answer.raises) == ("dropped", "low_rank", ())
    assert "the spans of 1 of its 3 blocks are missing" in answer.unknown[0]


@pytest.mark.parametrize("key", ["ranked_items", "ranked_tokens", "cut_strategy", "priority", "min_tokens"])
def test_a_number_is_missing(key):
    from dataclasses import replace

    allocated = Allocated(BLOCKS, 80)
    name = f"assembly.block.{key}"
    allocated.spans = [
        replace(span, attributes={k: v for k, v in span.attributes.items() if k != name}) for span in allocated.spans
    ]
    answer = dict(allocated.answers())["2"]
    assert answer.raises == ()
    assert "what would have kept it" in answer.unknown[0]


def test_numbers_that_do_not_give_what_was_kept_are_no_ground_for_an_answer():
    from dataclasses import replace

    allocated = Allocated(BLOCKS, 80)
    allocated.spans = [
        replace(span, attributes={**span.attributes, "assembly.block.ranked_tokens": [90, 5]})
        if span.attributes.get("assembly.block.name") == "docs"
        else span
        for span in allocated.spans
    ]
    answer = dict(allocated.answers())["2"]
    assert answer.raises == ()
    assert "decides block 'docs' differently" in answer.unknown[0]


def test_of_more_blocks_than_have_spans_it_is_not_known():
    blocks = [Block(f"note {n}", 9, f"note {n} " * 3, cuttable=True, rank=n + 1) for n in range(140)]
    _, answered = answers(blocks, 900)
    assert answered
    for answer in answered.values():
        assert answer.raises == ()
        assert "of its 140 blocks have no span" in answer.unknown[0]


def test_a_summary_that_was_given_is_an_item_like_any_other():
    given_summary = CompactedBlock("they talked of bags " * 10, ("1", "2"), (0, 3))
    blocks = [Block("query", 3, "and now", cuttable=False), Block("summary", 7, given_summary, cuttable=True)]
    allocated, answered = answers(blocks, 70, compact=FAILS)
    check(allocated, "1", answered["1"])


def test_turns_in_front_of_the_first_request_are_explained_by_the_providers_rule():
    def said_by(role, text):
        return {"role": role, "content": [{"text": f"{text} {'word ' * 8}"}]}  # Bedrock's form

    turns = [said_by(role, f"Turn {n}.") for n in range(4) for role in ("user", "assistant")]
    blocks = [Block("query", 3, "And now?", cuttable=False), Block("recent", 8, turns, cuttable=True)]
    ruled, required = 0, "the provider requires a user message before it"
    for window in range(50, 200, 9):
        allocated, answered = answers(blocks, window)
        for item, answer in answered.items():
            assert not any("decides block" in text for text in answer.unknown)
            if answer.reason == "before_user_message":
                ruled += 1
                assert answer.unknown == (f"what would have kept it: {required}",)
            elif int(item) % 2:  # a request, behind the query
                check(allocated, item, answer)
            else:
                assert f"whether it would be kept then: {required}" in answer.unknown
    assert ruled > 3
