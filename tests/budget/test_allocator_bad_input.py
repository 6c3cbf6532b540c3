"""What cannot work is a clear error that names the block, and what merely looks odd is allocated like anything else."""

from __future__ import annotations

import pytest

from otel_assembly import AssemblyError, Block, BlockItem, ConfigurationError, allocate
from otel_assembly.budget import Cut
from otel_assembly.errors import DescribeError, TokenizerError


def words(text):
    return len(text.split())


def block(name="evidence", content="some text", **settings):
    return Block(name, settings.pop("priority", 5), content, **{"cuttable": True, **settings})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"priority": 0}, "block 'evidence': its priority must be a whole number from 1 to 9, got 0"),
        ({"priority": 10}, "got 10"),
        ({"priority": True}, "got True"),
        ({"priority": "5"}, "got '5'"),
        ({"content": None}, "block 'evidence': its content must be a text or a sequence of items, got NoneType"),
        ({"content": b"bytes"}, "got bytes"),
        ({"content": 7}, "got int"),
        ({"content": {"a": 1}}, "got dict"),
        ({"min_tokens": -1}, "block 'evidence': min_tokens must be at least 0, got -1"),
        ({"min_tokens": 2.5}, "got 2.5"),
        ({"cuttable": 1}, "block 'evidence': cuttable must be True or False, got 1"),
        ({"stable": "no"}, "block 'evidence': stable must be True, False or None (by priority), got 'no'"),
        ({"stable": 1}, "got 1"),
        ({"cut": "sideways"}, "block 'evidence': cut must be one of tail, score"),
        ({"rank": 0}, "block 'evidence': rank (1 is the best) must be at least 1, got 0"),
        ({"name": ""}, "a block needs a name"),
        ({"name": None}, "a block needs a name"),
        ({"name": "half a pair \ud83d"}, "a block's name must be text that UTF-8 can hold"),
    ],
)
def test_a_block_that_cannot_work_says_what_is_wrong_with_it(settings, says):
    with pytest.raises(ConfigurationError) as caught:
        block(**settings)
    assert says in str(caught.value)


@pytest.mark.parametrize("score", [float("nan"), "high", True])
def test_a_score_that_is_no_number_is_refused(score):
    with pytest.raises(ConfigurationError, match="score is a number"):
        BlockItem("text", score=score)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"group": ["a"]}, "group must be a text, got ['a']; name the group, or leave it out"),
        ({"group": 3}, "group must be a text, got 3"),
        ({"profile": "no"}, "profile must be True or False, got 'no'"),
        ({"current": "no"}, "current must be True or False, got 'no'"),
        ({"echo": 1}, "echo must be True or False, got 1"),
    ],
)
def test_an_items_group_is_a_text_and_its_flags_are_booleans(settings, says):
    with pytest.raises(ConfigurationError) as caught:
        BlockItem("text", **settings)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("window", "reserve", "says"),
    [
        (-1, 0, "window must be at least 0, got -1"),
        (10, -1, "output_reserve must be"),
        (10, 10, "leaves nothing of the window"),
        (10, 11, "leaves nothing of the window"),
        (10.0, 0, "got 10.0"),
        (True, 0, "got True"),
        ("10", 0, "got '10'"),
        (None, 0, "got None"),
    ],
)
def test_a_budget_that_cannot_work_is_refused(window, reserve, says):
    with pytest.raises(ConfigurationError, match=says):
        allocate([block()], window, reserve)


def test_two_blocks_of_one_name_and_a_floor_above_the_window_name_the_block():
    with pytest.raises(ConfigurationError, match="two blocks are named 'twice'"):
        allocate([block("once"), block("twice"), block("twice", priority=6)], 100, 0)
    with pytest.raises(
        ConfigurationError, match="block 'evidence': its floor of 101 tokens is above the window of 100"
    ):
        allocate([block(min_tokens=101)], 100, 0)


@pytest.mark.parametrize("blocks", [None, 7, "text", block(), [block(), "text"], [None]])
def test_what_is_no_list_of_blocks_is_refused(blocks):
    with pytest.raises(ConfigurationError, match="Block objects"):
        allocate(blocks, 100, 0)


@pytest.mark.parametrize("answer", [-1, 1.0, True, None, "3"])
def test_a_counter_that_does_not_count_names_the_block(answer):
    with pytest.raises(TokenizerError, match="block 'evidence': the function count returned"):
        allocate([block()], 100, 0, lambda text: answer)


def test_a_counter_that_raises_names_the_block_and_quotes_no_text():
    def count(text):
        raise ValueError(f"cannot take {text}")

    with pytest.raises(TokenizerError, match="block 'evidence': the function count raised ValueError") as caught:
        allocate([block(content="secret")], 100, 0, count)
    assert "secret" not in str(caught.value)


def test_a_counter_that_fails_on_an_item_of_a_block_that_must_be_cut_names_the_block():
    def count(text):
        return -1 if text == "b b b" else len(text.split())

    with pytest.raises(TokenizerError, match="block 'evidence'"):
        allocate([block(content=["a a a", "b b b"])], 4, 0, count)


def test_a_counter_that_cannot_be_called_is_refused():
    with pytest.raises(ConfigurationError, match="count must be a function"):
        allocate([block()], 100, 0, count=3)


@pytest.mark.parametrize("item", [None, b"bytes", 7, object()])
def test_an_item_that_nobody_can_read_names_the_block(item):
    with pytest.raises(DescribeError, match="item of block 'evidence'"):
        allocate([block(content=["text", item])], 100, 0)


def test_versions_that_cannot_be_compared_name_the_block():
    items = [BlockItem("a", id="1", version=1), BlockItem("b", id="1", version="two")]
    with pytest.raises(ConfigurationError, match="block 'evidence': two versions of one item cannot be compared"):
        allocate([block(content=items)], 100, 0)


ODD = {
    "empty": "",
    "blank": " \n\t " * 50,
    "megabyte": "word " * 210_000,
    "korean": "수하물이 어디에 있습니까? " * 500,
    "base64": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ" * 300,
    "special": "<|endoftext|><|im_start|>" * 500,
    "surrogates": "half a pair: \ud83d and \udc00 " * 200,
    "zero width": "\u200b\u200d\ufeff" * 900,
    "nul": "\0" * 900,
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
@pytest.mark.parametrize("count", [None, words], ids=["tokenizer", "own count"])
@pytest.mark.parametrize("budget", [4, pytest.param(60, marks=pytest.mark.slow), 2_000])
def test_odd_texts_never_overflow_and_never_raise(text, count, budget):
    for content in (text, [text, "one more", text], ["one more", BlockItem(text, rank=1)]):
        for cut in (Cut.TAIL, Cut.COMPRESS, Cut.OLDEST) if len(text) < 100_000 else (Cut.COMPRESS,):
            allocation = allocate([block(content=content, cut=cut)], budget, 0, count)
            assert allocation.used <= budget
            assert len(allocation.items) == len(allocation.decisions[0].block.items)


def test_no_blocks_at_all_are_an_empty_prompt():
    allocation = allocate([], 10, 0, words)
    assert (allocation.blocks, allocation.used, allocation.decisions) == ([], 0, ())


def test_every_error_of_ours_can_be_caught_as_one():
    with pytest.raises(AssemblyError):
        allocate([block(), block()], 10, 0)
