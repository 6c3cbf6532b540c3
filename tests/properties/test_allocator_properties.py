"""What no set of blocks may make the allocator do: checked on random ones, against `recount` and what would be sent."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recount import count, event_tokens, pair
from strategies import TEXTS, conversations

from otel_assembly import Block, BlockItem, ContextOverflowError, allocate, describe
from otel_assembly.budget import CompactedBlock, Compactors, Cut, order_for_attention_and_cache
from otel_assembly.messages import broken_pairs
from otel_assembly.testing import RecordedTelemetry

QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
LONG = settings(QUICK, max_examples=10_000, derandomize=False)

texts = st.one_of(
    st.sampled_from(TEXTS),
    st.sampled_from(["a b c d e f", "one. two. three. four. five. six. " * 8, "{[(<>)]}", "\n\n\n x"]),
    st.text(max_size=40),
)


def words(text):
    return len(text.split())


def letters(text):
    return len(text)


def more_together(text):
    """A counter that finds more in a joined text than in its parts."""
    return len(text.split()) + len(text) ** 2 // 500


def no_answer(text, target_tokens):
    return ""


def too_long(text, target_tokens):
    return text


def broken(text, target_tokens):
    raise RuntimeError("down")


def first_words(text, target_tokens):
    return " ".join(text.split()[: max(1, target_tokens // 2)])


counts = st.sampled_from([None, None, words, letters, more_together])
compactors = st.sampled_from(
    [
        None,
        None,
        Compactors(no_answer, fallback=None),
        Compactors(too_long, fallback=None),
        Compactors(broken),
        Compactors(first_words, fallback=None),
    ]
)
items = st.builds(
    BlockItem,
    st.one_of(texts, texts.map(lambda text: CompactedBlock(text, ("leaf-1", "leaf-2"), (0, 1)))),
    id=st.sampled_from([None, None, "1", "2"]),
    rank=st.one_of(st.none(), st.integers(1, 4)),
    score=st.one_of(st.none(), st.integers(0, 3)),
    version=st.sampled_from([None, 1, 2]),
    profile=st.booleans(),
    group=st.sampled_from([None, None, None, "g", "h"]),
    current=st.sampled_from([True, True, True, False]),
)
grouped_events = st.tuples(conversations(max_blocks=5), st.sampled_from([None, "g"]), st.integers(0, 12)).map(
    lambda drawn: [
        BlockItem(event, group=drawn[1]) if at in (drawn[2], drawn[2] + 2) else event
        for at, event in enumerate(drawn[0])
    ]
)
contents = st.one_of(
    texts,
    texts.map(lambda text: CompactedBlock(text, ("leaf",), (0, 0))),
    st.lists(items, max_size=6),
    grouped_events,
    st.tuples(grouped_events, st.lists(texts, max_size=2)).map(lambda both: [*both[1], *both[0], *both[1]]),
)


@st.composite
def block_sets(draw):
    names = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6))
    return [
        Block(
            name,
            draw(st.integers(1, 9)),
            draw(contents),
            cuttable=draw(st.integers(0, 3)) > 0,
            min_tokens=draw(st.sampled_from([0, 0, 5, 30])),
            rank=draw(st.sampled_from([None, 1, 2])),
            cut=draw(st.sampled_from([None, None, *Cut])),
            stable=draw(st.sampled_from([None, None, True])),
            separator=draw(st.sampled_from(["\n\n", "\n", "", " ", ")"])),
            restated=draw(st.sampled_from(["", "", "Answer in one line."])),
        )
        for name in names
    ]


budgets = st.one_of(st.integers(1, 80), st.integers(1, 900))


def sent(blocks):
    return order_for_attention_and_cache(blocks).messages


def is_text_of_ours(message, blocks):
    return not any(message is item.content for block in blocks for item in block.items)


def recounted(blocks, counted_by):
    """What these blocks take as they are sent; each message is counted afresh, by a tokenizer of the test's own."""
    tokens = 0
    for message in sent(blocks):
        if is_text_of_ours(message, blocks):
            tokens += 4 + count(message["content"]) if counted_by is None else counted_by(message["content"])
        elif counted_by is None:
            tokens += event_tokens(message)
        else:
            tokens += sum(map(counted_by, describe(message).texts))
    return tokens


def allocated(blocks, budget, counted_by, compact):
    """The allocation; None where it says that the budget cannot hold, after that was checked."""
    try:
        return allocate(blocks, budget + 40, 40, counted_by, compact)
    except ContextOverflowError as overflow:
        explains_itself(overflow, blocks, budget)
        return None


def explains_itself(overflow, blocks, budget):
    assert overflow.budget == budget < overflow.needed == sum(overflow.costs.values())
    named = set(overflow.costs) - {"reply_priming", "pending_tool_calls"}
    assert named == {block.name for block in blocks if not block.cuttable}


def holds(blocks, budget, counted_by, compact):
    allocation = allocated(blocks, budget, counted_by, compact)
    if allocation is None:
        return
    priming = 3 if counted_by is None else 0
    used = recounted(allocation.blocks, counted_by) + priming
    assert used == allocation.used <= budget
    assert sum(allocation.costs.values()) + allocation.separators + allocation.framing == used
    nothing_is_lost(blocks, allocation)
    floors_are_honoured(allocation)
    no_pair_is_parted(allocation)
    survivors_are_the_best(allocation)
    no_older_turn_stays_without_a_newer_one(allocation)


def nothing_is_lost(blocks, allocation):
    assert {decision.block.name for decision in allocation.decisions} == {block.name for block in blocks}
    for decision in allocation.decisions:
        assert [item.item for item in decision.items] == list(decision.block.items)
        kept = [item for item in decision.items if item.outcome == "kept"]
        compacted = [item for item in decision.items if item.outcome == "compacted"]
        shown = decision.result.items if decision.result is not None else ()
        assert len(shown) == len(kept) + (decision.made is not None)
        assert bool(compacted) == (decision.made is not None)
        assert all(item.outcome in ("kept", "compacted", "dropped") for item in decision.items)
        if not decision.block.cuttable:
            assert {item.reason.value for item in decision.items if item.outcome != "kept"} <= {
                "duplicate",
                "stale",
                "orphaned_tool_call",
                "orphaned_tool_result",
            }


def floors_are_honoured(allocation):
    for decision in allocation.decisions:
        block = decision.block
        if not block.cuttable or decision.outcome != "kept":
            continue
        if {item.reason.value for item in decision.items if item.outcome == "kept"} == {"pending_tool_call"}:
            continue  # fixed, whatever the floor of the rest
        # With less than its floor, it is all there is of it.
        whole = all(
            item.outcome == "kept"
            or item.reason.value in ("duplicate", "stale", "orphaned_tool_call", "orphaned_tool_result")
            for item in decision.items
        )
        assert whole or decision.tokens_out + decision.separators_out >= min(
            block.min_tokens, decision.tokens_in + decision.separators_in
        )


def no_pair_is_parted(allocation):
    messages = sent(allocation.blocks)
    assert broken_pairs([describe(message) for message in messages]) == []
    again = pair(messages)
    assert not again.orphans
    assert not again.dead_calls()
    for decision in allocation.decisions:
        outcomes = {}
        for item in decision.items:
            if item.reason.value not in ("duplicate", "stale", "orphaned_tool_call", "orphaned_tool_result"):
                outcomes.setdefault(item.atom, set()).add(item.outcome)
        if not any(item.item.group for item in decision.items):
            assert all(len(found) == 1 for found in outcomes.values())


def survivors_are_the_best(allocation):
    """Of texts of one block, none that is ranked worse survives one that is ranked better."""
    for decision in allocation.decisions:
        block = decision.block
        plain = all(isinstance(item.item.content, str) and item.item.group is None for item in decision.items)
        if block.cut is Cut.TAIL and plain:
            ranks = {
                outcome: [item.item.rank or 99 for item in decision.items if (item.outcome, item.reason) == outcome]
                for outcome in {(item.outcome, item.reason) for item in decision.items}
            }
            kept = [rank for (outcome, _), found in ranks.items() for rank in found if outcome == "kept"]
            cut = [rank for (_, reason), found in ranks.items() for rank in found if reason == "low_rank"]
            assert not kept or not cut or max(kept) <= min(cut)


def no_older_turn_stays_without_a_newer_one(allocation):
    """Once a turn is dropped for lack of room, nothing of a block of older turns stays but what may not be dropped."""
    dropped = False
    for decision in allocation.decisions:
        if not decision.block.cuttable or decision.block.priority < 8:
            continue
        if dropped:
            assert {item.reason.value for item in decision.items if item.outcome != "dropped"} <= {"pending_tool_call"}
        limits = {"over_budget", "below_floor", "low_rank"}
        dropped |= any(item.outcome == "dropped" and item.reason.value in limits for item in decision.items)


@QUICK
@given(block_sets(), budgets, counts, compactors)
def test_any_blocks_fit_their_budget_and_every_item_is_accounted_for(blocks, budget, counted_by, compact):
    holds(blocks, budget, counted_by, compact)


@pytest.mark.slow
@LONG
@given(block_sets(), budgets, counts, compactors)
def test_ten_thousand_sets_of_blocks_fit_their_budget(blocks, budget, counted_by, compact):
    holds(blocks, budget, counted_by, compact)


def told(allocation):
    return [
        (
            decision.block.name,
            decision.outcome,
            decision.reason,
            decision.room,
            decision.tokens_in,
            decision.tokens_out,
            [(item.outcome, item.reason, item.winner, item.atom, item.tokens) for item in decision.items],
            decision.made,
        )
        for decision in allocation.decisions
    ]


@settings(QUICK, max_examples=40)
@given(block_sets(), budgets, counts, compactors, st.randoms(use_true_random=False))
def test_the_order_in_which_blocks_are_given_changes_nothing(blocks, budget, counted_by, compact, chance):
    first = allocated(blocks, budget, counted_by, compact)
    chance.shuffle(blocks)
    second = allocated(blocks, budget, counted_by, compact)
    assert (first is None) == (second is None)
    if first is not None:
        assert told(first) == told(second)
        assert [block.name for block in first.blocks] == [block.name for block in second.blocks]


@settings(QUICK, max_examples=40)
@given(block_sets(), budgets, counts, compactors)
def test_what_was_allocated_once_is_kept_as_it_is(blocks, budget, counted_by, compact):
    first = allocated(blocks, budget, counted_by, compact)
    if first is not None:
        again = allocate(first.blocks, budget + 40, 40, counted_by, compact)
        assert again.used == first.used
        assert list(map(id, again.blocks)) == list(map(id, first.blocks))
        assert not again.dropped
        assert not again.compacted


def payload_adds_up(blocks, budget, counted_by, compact):
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        allocation = allocated(blocks, budget, counted_by, compact)
    assert telemetry.violations() == []
    span = telemetry.span("allocate_budget")
    if allocation is None:
        assert span.attributes["assembly.overflowed"] is True
        assert span.attributes["assembly.budget.used"] == 0
        return
    assert span.attributes["assembly.budget.used"] == allocation.used
    assert span.attributes["assembly.budget.fixed"] == allocation.fixed
    assert span.attributes["assembly.budget.remaining"] == budget - allocation.used
    assert sum(span.attributes.get("assembly.kind.tokens", ())) == allocation.used
    lines = [child for child in span.children if child.name.startswith("allocate_block ")]
    assert [line.attributes["assembly.block.name"] for line in lines] == [d.block.name for d in allocation.decisions]
    dropped, compacted, injected = {}, [], []
    for line, decision in zip(lines, allocation.decisions, strict=True):
        held = line.attributes
        assert held["assembly.tokens.in"] == decision.tokens_in + decision.separators_in
        assert held["assembly.tokens.out"] == decision.tokens_out + decision.separators_out
        assert held["assembly.decision.outcome"] == decision.outcome.value
        assert held["assembly.decision.reason"] == decision.reason.value
        assert held["assembly.budget.remaining"] == decision.room
        leaves = len(line.dropped_reasons) + len(line.compacted)
        assert held["assembly.items.in"] + held["assembly.items.injected"] == held["assembly.items.out"] + leaves
        dropped |= line.dropped_reasons
        compacted += line.compacted
        injected += line.injected
    assert 3 * (counted_by is None) + sum(line.attributes["assembly.tokens.out"] for line in lines) == allocation.used
    arrived = span.arrived
    given_items = [item for item in arrived if item not in injected]
    gone = Counter(span.kept) + Counter(dropped.keys()) + Counter(compacted) - Counter(injected)
    assert gone == Counter(given_items)
    assert len(given_items) == sum(len(block.items) for block in blocks)
    assert sorted(dropped.values()) == sorted(item.reason.value for item in allocation.dropped)
    assert [arrived[item].tokens for item in given_items] == [item.tokens for item in allocation.items]
    attempts = [child for child in span.children if child.name.startswith("compact_block ")]
    assert len(attempts) == sum(len(decision.attempts) for decision in allocation.decisions)


@settings(QUICK, max_examples=40)
@given(block_sets(), budgets, counts, compactors)
def test_the_payload_alone_says_what_became_of_every_item(blocks, budget, counted_by, compact):
    payload_adds_up(blocks, budget, counted_by, compact)


@pytest.mark.slow
@settings(LONG, max_examples=2_000)
@given(block_sets(), budgets, counts, compactors)
def test_two_thousand_payloads_say_what_became_of_every_item(blocks, budget, counted_by, compact):
    payload_adds_up(blocks, budget, counted_by, compact)


@settings(QUICK, max_examples=40)
@given(st.lists(texts, max_size=6), st.integers(1, 5), st.integers(20, 200))
def test_an_older_models_tokenizer_counts_as_exactly(said, priority, budget):
    blocks = [Block("some", priority + 4, said, cuttable=True), Block("query", 3, "Why?", cuttable=False)]
    allocation = allocate(blocks, budget, 0, model="gpt-4")
    sent_texts = [message["content"] for message in sent(allocation.blocks)]
    assert 3 + sum(4 + count(text, "cl100k_base") for text in sent_texts) == allocation.used <= budget
    assert (allocation.method, allocation.encoding) == ("exact", "cl100k_base")


@settings(QUICK, max_examples=40)
@given(st.permutations(range(1, 10)), st.integers(40, 120))
def test_nine_passages_in_any_order_are_cut_and_placed_alike(order, budget):
    def prompt(ranks):
        evidence = [BlockItem(f"passage number {rank}", id=str(rank), rank=rank) for rank in ranks]
        blocks = [
            Block("system", 1, "Be brief.", cuttable=False),
            Block("query", 3, "Why?", cuttable=False),
            *(Block(f"evidence {item.rank}", 5, [item], cuttable=True, rank=item.rank) for item in evidence),
        ]
        return order_for_attention_and_cache(allocate(blocks, budget, 0).blocks).text

    assert prompt(order) == prompt(random.Random(0).sample(range(1, 10), 9))
