"""What an allocation costs: one count of what is new, and none of what was counted before."""

from __future__ import annotations

import gc

import pytest

from otel_assembly import Block, BlockItem, allocate
from otel_assembly.budget import measure as measuring
from otel_assembly.budget import measure_for
from otel_assembly.tokens import CalibratedCounter, TiktokenCounter, counter_for


class Spy:
    """Counts words, and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, text):
        self.asked.append(text)
        return len(text.split())

    def count(self, text):
        return self(text)


def blocks_of(number):
    return [
        Block(f"b{at}", 1 + at % 9, f"text number {at}", cuttable=at % 9 > 3, min_tokens=at % 3) for at in range(number)
    ]


@pytest.fixture
def tokenised(monkeypatch):
    """Every text that the exact tokenizer is given."""
    asked = []
    original = TiktokenCounter.count

    def count(self, text):
        asked.append(text)
        return original(self, text)

    monkeypatch.setattr(TiktokenCounter, "count", count)
    monkeypatch.setattr(measuring, "_default", {})
    return asked


def test_each_block_is_counted_once_and_a_second_time_nothing_is():
    count = Spy()
    blocks = blocks_of(200)
    allocate(blocks, 10_000, 0, count)
    assert sorted(count.asked) == sorted(block.content for block in blocks)
    allocate(blocks_of(200)[::-1], 500, 0, count, lambda text, target_tokens: "short")
    assert len(count.asked) == 200 + len({"short"} & set(count.asked))


def test_only_what_is_new_is_counted():
    count = Spy()
    allocate(blocks_of(200), 10_000, 0, count)
    allocate(blocks_of(203), 10_000, 0, count)
    assert len(count.asked) == 203


@pytest.mark.parametrize("budget", [400, 3_000, 100_000])
def test_the_tokenizer_is_asked_nothing_the_second_time_whatever_is_cut_or_compacted(tokenised, budget):
    def blocks():
        return [
            *blocks_of(30),
            Block("facts", 5, [BlockItem(f"passage {at} " * 9, rank=at + 1) for at in range(40)], cuttable=True),
            Block("summary", 7, "it was said. it was done. " * 200, cuttable=True),
            Block("recent", 8, [{"role": "user", "content": f"turn {at} " * 5} for at in range(40)], cuttable=True),
        ]

    first = allocate(blocks(), budget, 0)
    assert tokenised
    tokenised.clear()
    second = allocate(blocks(), budget, 0)
    assert (second.used, len(second.dropped)) == (first.used, len(first.dropped))
    tokenised.clear()
    third = allocate(blocks(), budget, 0)
    assert third.decisions
    assert tokenised == []


def test_a_megabyte_is_tokenised_once(tokenised):
    text = "one sentence after another. " * 38_000
    assert len(text) > 2**20
    block = Block("log", 5, text, cuttable=True)
    allocate([block], 2_000_000, 0)
    assert tokenised == [text]
    allocate([Block("log", 5, f"{text}", cuttable=True)], 2_000_000, 0)
    assert tokenised == [text]


def test_a_block_of_items_that_fits_is_one_count_of_its_joined_text():
    count = Spy()
    allocate([Block("recent", 8, [f"turn {at}" for at in range(50)], cuttable=True)], 1_000, 0, count)
    assert len(count.asked) == 1


def test_a_bound_method_is_the_same_count_each_time():
    counter = Spy()
    for _ in range(3):
        allocate(blocks_of(50), 10_000, 0, counter.count)
    assert len(counter.asked) == 50


def test_a_token_counters_own_method_is_remembered_and_says_how_far_it_can_be_trusted():
    exact = allocate(blocks_of(5), 1_000, 0, counter_for("gpt-4").count)
    assert (exact.method, exact.encoding) == ("exact", "cl100k_base")
    assert measure_for(counter_for("gpt-4").count).text("new") == 1
    assert allocate(blocks_of(5), 1_000, 0, counter_for("gpt-4").count).used == exact.used


def test_counts_are_made_anew_when_the_counter_says_so():
    counter = CalibratedCounter("some-model", counter_for())
    block = Block("facts", 5, "word " * 2_000, cuttable=True)
    before = allocate([block], 100_000, 0, counter.count)
    for _ in range(9):
        counter.observe(counted=before.used, billed=2 * before.used)
    after = allocate([block], 100_000, 0, counter.count)
    assert (before.method, after.method) == ("estimated", "calibrated")
    assert after.used > 1.5 * before.used
    # What was decided before stays as it was decided.
    assert sum(before.costs.values()) + before.separators + before.framing == before.used


def test_what_a_function_counted_is_forgotten_with_it_but_not_while_an_allocation_needs_it():
    gc.collect()
    before = len(measuring._callers_meters._meters)
    allocation = allocate(blocks_of(5), 5, 4, count=lambda text: 0)
    gc.collect()
    assert len(measuring._callers_meters._meters) == before + 1
    assert allocation.count("asked later") == 0
    assert len(allocation.decisions) == 5
    del allocation
    gc.collect()
    assert len(measuring._callers_meters._meters) == before


def test_two_counts_that_are_equal_are_told_apart():
    class Equal:
        def __init__(self, tokens):
            self.tokens = tokens

        def __eq__(self, other):
            return isinstance(other, Equal)

        def __hash__(self):
            return 1

        def __call__(self, text):
            return self.tokens

    one, two = Equal(1), Equal(2)
    block = Block("facts", 5, "text", cuttable=True)
    assert [allocate([block], 9, 0, count).used for count in (one, two, one)] == [1, 2, 1]


def test_a_count_says_itself_how_far_it_can_be_trusted():
    def count(text):
        return len(text)

    block = Block("facts", 5, "text", cuttable=True)
    assert allocate([block], 9, 0, count).method == "estimated"
    count.method = "exact"
    assert allocate([block], 9, 0, count).method == "exact"
    count.method = "certain"
    assert allocate([block], 9, 0, count).method == "estimated"
