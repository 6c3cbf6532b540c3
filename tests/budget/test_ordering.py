"""Where blocks stand in a prompt: the five zones, the cacheable prefix, and one order for any order of the input."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recount import count, event_tokens

from otel_assembly import Block, BlockItem, ConfigurationError, ModelRequest, ModelResponse, allocate
from otel_assembly.budget import Cut, Zone, order_for_attention_and_cache


def blocks() -> list[Block]:
    return [
        Block("system", 1, "You are support.", cuttable=False),
        Block("schema", 2, "Answer as JSON.", cuttable=False, rank=1),
        Block("examples", 2, "Q: hi A: hello", cuttable=False, rank=2),
        Block("query", 3, "Why was I billed twice?", cuttable=False, restated="Answer in one sentence."),
        Block("state", 4, "plan: pro", cuttable=False),
        Block("evidence", 5, ["first passage", "second passage", "third passage"], cuttable=True),
        Block("memory", 6, [BlockItem("likes tea"), BlockItem("is Korean", profile=True)], cuttable=True),
        Block("summary", 7, "They asked before.", cuttable=True),
        Block("recent", 8, [ModelRequest(content="hello"), ModelResponse(content="hi there")], cuttable=True),
        Block("older", 9, ["an old turn"], cuttable=True),
    ]


def contents(prompt) -> list:
    return [message["content"] if isinstance(message, dict) else message.content for message in prompt.messages]


def test_the_five_zones_stand_in_the_seeds_order():
    assert contents(order_for_attention_and_cache(blocks())) == [
        "You are support.",
        "Answer as JSON.",
        "Q: hi A: hello",
        "first passage",
        "is Korean",
        "third passage",
        "likes tea",
        "They asked before.",
        "an old turn",
        "second passage",
        "plan: pro",
        "hello",
        "hi there",
        "Why was I billed twice?\n\nAnswer in one sentence.",
    ]


def test_zones_are_told_beside_the_blocks():
    prompt = order_for_attention_and_cache(blocks())
    assert list(zip([block.name for block in prompt], prompt.zones, strict=True)) == [
        ("system", Zone.PREFIX),
        ("schema", Zone.PREFIX),
        ("examples", Zone.PREFIX),
        ("evidence", Zone.OPENING),
        ("memory", Zone.OPENING),
        ("evidence", Zone.MIDDLE),
        ("memory", Zone.MIDDLE),
        ("summary", Zone.MIDDLE),
        ("older", Zone.MIDDLE),
        ("evidence", Zone.CLOSING),
        ("state", Zone.CLOSING),
        ("recent", Zone.CLOSING),
        ("query", Zone.QUERY),
    ]


def nine() -> list[Block]:
    return [Block(f"evidence-{rank}", 5, f"passage {rank}", cuttable=True, rank=rank) for rank in range(1, 10)]


@given(st.permutations([*nine(), Block("system", 1, "S", cuttable=False), Block("query", 3, "Q", cuttable=False)]))
def test_rank_one_opens_and_rank_two_closes_whatever_the_order_of_the_input(shuffled):
    prompt = order_for_attention_and_cache(shuffled)
    best_outside = [f"evidence-{rank}" for rank in (1, 3, 5, 7, 9, 8, 6, 4, 2)]
    assert [block.name for block in prompt] == ["system", *best_outside, "query"]
    assert prompt.zones[1] is Zone.OPENING
    assert prompt.zones[-2] is Zone.CLOSING


@given(st.permutations([Block(name, 5, f"text of {name}", cuttable=True, rank=1) for name in "abcdefg"]))
def test_ties_are_stable(shuffled):
    assert [block.name for block in order_for_attention_and_cache(shuffled)] == list("acegfdb")


def test_ranked_items_of_one_block_stand_best_first_second_last_weakest_in_the_middle():
    items = [BlockItem(f"passage {rank}", rank=rank) for rank in (4, 9, 2, 7, 1, 8, 3, 6, 5)]
    prompt = order_for_attention_and_cache([Block("evidence", 5, items, cuttable=True)])
    middle = "\n\n".join(f"passage {rank}" for rank in (3, 5, 7, 9, 8, 6, 4))
    assert contents(prompt) == ["passage 1", middle, "passage 2"]
    assert [[item.rank for item in block.items] for block in prompt] == [[1], [3, 5, 7, 9, 8, 6, 4], [2]]


def test_a_block_that_stands_in_one_place_is_the_very_object():
    (summary,) = given_blocks = [Block("summary", 7, "So far.", cuttable=True)]
    assert order_for_attention_and_cache(given_blocks)[0] is summary


def test_the_query_may_be_a_block_of_another_priority_and_is_last():
    given_blocks = [*blocks(), Block("question", 5, "And who is that?", cuttable=False, cut=Cut.WHOLE)]
    prompt = order_for_attention_and_cache(given_blocks, query_block="question")
    assert prompt[-1].name == "question"
    assert prompt.messages[-1] == {"role": "user", "content": "And who is that?"}


def test_a_query_block_that_is_not_there_is_named():
    with pytest.raises(ConfigurationError, match=r"'question'.*system, schema"):
        order_for_attention_and_cache(blocks(), query_block="question")


def test_two_blocks_of_one_name_are_refused():
    twice = [Block("a", 5, "x", cuttable=True), Block("a", 6, "y", cuttable=True)]
    with pytest.raises(ConfigurationError, match="two blocks are named 'a'"):
        order_for_attention_and_cache(twice)


def test_roles_are_the_users_for_the_question_and_the_systems_for_the_rest():
    roles = [m["role"] for m in order_for_attention_and_cache(blocks()).messages if isinstance(m, dict)]
    assert roles == ["system"] * (len(roles) - 1) + ["user"]


def test_events_are_sent_as_the_very_objects():
    given_blocks = blocks()
    events = [item.content for item in given_blocks[8].items]
    sent = order_for_attention_and_cache(given_blocks).messages
    assert [message for message in sent if not isinstance(message, dict)] == events
    assert all(any(message is event for message in sent) for event in events)


def test_an_instruction_is_restated_behind_a_question_that_is_an_event():
    question = {"role": "user", "content": [{"type": "text", "text": "What is this?"}]}
    block = Block("query", 3, [question], cuttable=False, restated="Answer briefly.")
    prompt = order_for_attention_and_cache([block])
    assert prompt.messages == [question, {"role": "user", "content": "Answer briefly."}]
    assert allocate([block], 1_000, 0).used == 3 + sum(map(event_tokens, prompt.messages))


def test_text_is_the_whole_prompt_for_a_model_that_completes_texts():
    text = order_for_attention_and_cache(blocks()[:4]).text
    assert text == (
        "You are support.\n\nAnswer as JSON.\n\nQ: hi A: hello\n\nWhy was I billed twice?\n\nAnswer in one sentence."
    )


def test_what_is_handed_out_cannot_change_the_prompt():
    prompt = order_for_attention_and_cache(blocks())
    prompt.messages[0]["content"] = "You are evil."
    prompt.messages.clear()
    assert prompt.messages[0] == {"role": "system", "content": "You are support."}
    assert isinstance(prompt, Sequence)


# The cacheable prefix


def test_the_boundary_and_the_breakpoints_are_where_things_change_at_different_times():
    prompt = order_for_attention_and_cache(blocks())
    assert prompt.boundary == 3
    assert prompt.breakpoints == (0, 2)


def test_profile_facts_right_behind_the_prefix_deserve_a_breakpoint():
    without_evidence = [block for block in blocks() if block.name not in {"evidence", "examples"}]
    prompt = order_for_attention_and_cache(without_evidence)
    assert prompt.boundary == 2
    assert prompt.breakpoints == (0, 1, 2)
    assert contents(prompt)[2] == "is Korean"


def test_nothing_stable_means_no_boundary():
    prompt = order_for_attention_and_cache([Block("query", 3, "Q", cuttable=False)])
    assert (prompt.boundary, prompt.breakpoints) == (0, ())
    assert order_for_attention_and_cache([]).messages == []


VARIABLE = ("query", "state", "evidence", "memory", "summary", "recent", "older")


@given(st.dictionaries(st.sampled_from(VARIABLE), st.text(), min_size=1))
def test_nothing_that_changes_in_a_variable_block_changes_what_stands_before_the_boundary(changes):
    before = order_for_attention_and_cache(blocks())
    after = order_for_attention_and_cache(
        [block.with_content(changes[block.name]) if block.name in changes else block for block in blocks()]
    )
    assert after.messages[: after.boundary] == before.messages[: before.boundary]
    assert after.prefix_hash == before.prefix_hash


def test_a_stable_block_that_changes_changes_the_hash():
    changed = [block.with_content("You are kind.") if block.name == "system" else block for block in blocks()]
    assert order_for_attention_and_cache(changed).prefix_hash != order_for_attention_and_cache(blocks()).prefix_hash


PROGRAM = """
import datetime, uuid
from otel_assembly import Block
from otel_assembly.budget import order_for_attention_and_cache
import random
names = {"system", "schema", "examples", "clock", "query"}
made = {
    "system": Block("system", 1, "You are support.", cuttable=False),
    "schema": Block("schema", 2, "Answer as JSON.", cuttable=False, rank=1),
    "examples": Block("examples", 5, "Q: hi A: hello", cuttable=False, stable=True),
    "clock": Block("clock", 4, f"{datetime.datetime.now()} {uuid.uuid4()} {set('abcdef')}", cuttable=False),
    "query": Block("query", 3, "Why?", cuttable=False),
}
print(order_for_attention_and_cache([made[name] for name in names]).prefix_hash)
"""


def test_the_hash_is_one_in_every_process():
    hashes = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "42")
    }
    (only,) = hashes
    assert len(only) == 16
    int(only, 16)


# What is sent is what was counted

words = st.text(alphabet=st.sampled_from("abc défg한국 \n<|>.0"), min_size=1, max_size=120)
events = st.one_of(
    words.map(lambda text: {"role": "user", "content": text}),
    words.map(lambda text: ModelResponse(content=text)),
)
passages = st.builds(
    BlockItem,
    content=words,
    rank=st.none() | st.integers(1, 5),
    score=st.none() | st.floats(0, 1),
    profile=st.booleans(),
)


@st.composite
def some_blocks(draw):
    made = []
    for at in range(draw(st.integers(1, 8))):
        priority = draw(st.integers(1, 9))
        content = draw(
            st.one_of(words, st.lists(st.one_of(passages, events), max_size=6), st.lists(passages, max_size=9))
        )
        made.append(
            Block(
                f"b{at}",
                priority,
                content,
                cuttable=draw(st.booleans()) and priority > 3,
                rank=draw(st.none() | st.integers(1, 3)),
                stable=draw(st.none() | st.booleans()),
                restated=draw(st.sampled_from(["", "Say it briefly."])),
                separator=draw(st.sampled_from(["\n\n", "\n", " ", ""])),
            )
        )
    return made


def recounted(prompt) -> int:
    return 3 + sum(
        4 + count(message["content"])
        if isinstance(message, dict) and message["role"] == "system"
        else event_tokens(message)
        for message in prompt.messages
    )


@settings(deadline=None, max_examples=50)
@given(some_blocks(), st.randoms(use_true_random=False))
def test_what_is_sent_costs_what_was_allocated(given_blocks, random):
    fixed = allocate([block for block in given_blocks if not block.cuttable], 10**6, 0).used
    window = fixed + 1 + random.randrange(600)
    allocation = allocate(given_blocks, window, 0)
    prompt = order_for_attention_and_cache(allocation.blocks)
    assert recounted(prompt) == allocation.used <= window
    shuffled = list(allocation.blocks)
    random.shuffle(shuffled)
    assert order_for_attention_and_cache(shuffled).messages == prompt.messages
