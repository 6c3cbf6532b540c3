"""What an allocation outside of any chain tells: every number, every item and every attempt, and no content."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from contextlib import suppress

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

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
from otel_assembly.budget import CompactedBlock, Compactors
from otel_assembly.errors import TokenizerError
from otel_assembly.telemetry import ContentCapture, TelemetrySettings
from otel_assembly.testing import RecordedTelemetry

CANARY = "canary"


@pytest.fixture
def telemetry():
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        yield telemetry
    assert telemetry.violations() == []


def words(text):
    return len(text.split())


def say(number, word="w"):
    return " ".join([word] * number)


def first_words(text, target_tokens):
    return " ".join(text.split()[:target_tokens])


def block_spans(span):
    return [child for child in span.children if child.name.startswith("allocate_block ")]


def gone(span):
    """Each item that left, with its reason; from what stands under one allocation's span, wherever it stands."""
    found = dict(span.dropped_reasons)
    for child in block_spans(span):
        found |= child.dropped_reasons
    return found


def shortened(span):
    return sorted([*span.compacted, *(item for child in block_spans(span) for item in child.compacted)])


def made(span):
    return sorted([*span.injected, *(item for child in block_spans(span) for item in child.injected)])


def test_each_block_is_a_span_in_the_order_in_which_it_was_decided(telemetry):
    blocks = [
        Block("old", 9, say(50), cuttable=True, cut="whole"),
        Block("facts", 5, [say(3, "a"), say(3, "b"), say(30, "c")], cuttable=True, min_tokens=2),
        Block("system", 1, say(4), cuttable=False),
        Block("summary", 7, say(90), cuttable=True),
    ]
    with telemetry.tracer().start_as_current_span("my turn"):
        allocation = allocate(blocks, 35, 15, words, first_words)
    assert telemetry.tree().splitlines() == [
        "my turn",
        "  allocate_budget",
        "    allocate_block system",
        "    allocate_block evidence",
        "    allocate_block summary",
        "    allocate_block older",
        "    compact_block summary",
    ]
    span = telemetry.span("allocate_budget")
    held = span.attributes
    assert (held["assembly.budget.window"], held["assembly.budget.output_reserve"]) == (35, 15)
    assert (held["assembly.budget.limit"], held["assembly.budget.fixed"]) == (20, 4)
    assert (held["assembly.budget.used"], held["assembly.budget.remaining"]) == (allocation.used, 0)
    assert held["assembly.budget.utilization"] == 1.0
    assert [held[f"assembly.blocks.{state}"] for state in ("kept", "compacted", "dropped")] == [2, 1, 1]
    assert (held["assembly.tokens.method"], held["assembly.tokens.encoding"]) == ("estimated", "words")
    kinds = dict(zip(held["assembly.kind.names"], held["assembly.kind.tokens"], strict=True))
    assert kinds == {"system": 4, "evidence": 6, "summary": 10}
    facts = telemetry.span("allocate_block evidence").attributes
    assert facts["assembly.block.name"] == "facts"
    assert (facts["assembly.block.priority"], facts["assembly.block.cuttable"]) == (5, True)
    assert (facts["assembly.tokens.in"], facts["assembly.tokens.out"]) == (36, 6)
    assert (facts["assembly.budget.remaining"], facts["assembly.block.min_tokens"]) == (16, 2)
    assert (facts["assembly.items.in"], facts["assembly.items.out"]) == (3, 2)
    assert (facts["assembly.decision.outcome"], facts["assembly.decision.reason"]) == ("kept", "low_rank")


def test_an_overflow_is_an_error_on_the_span_with_what_each_block_would_take(telemetry):
    blocks = [Block("system", 1, say(6), cuttable=False), Block("facts", 5, say(9), cuttable=True)]
    with pytest.raises(ContextOverflowError):
        allocate(blocks, 5, 0, words, first_words)
    span = telemetry.span("allocate_budget")
    assert (span.status, span.attributes["error.type"]) == ("ERROR", "context_overflow")
    assert span.attributes["assembly.overflowed"] is True
    assert span.attributes["assembly.overflow.tokens"] == 1
    assert span.attributes["assembly.overflow.cause"] == "fixed"
    assert len(span.events_named("assembly.overflow")) == 1
    assert span.attributes["assembly.budget.used"] == 0
    assert [child.attributes["assembly.tokens.in"] for child in block_spans(span)] == [6, 9]
    assert telemetry.metric("assembly.budget.overflows") == 1
    assert telemetry.metric("assembly.budget.fixed_utilization").max == pytest.approx(6 / 5)
    telemetry.clear()
    allocate(blocks, 6, 0, words, first_words)
    span = telemetry.span("allocate_budget")
    assert (span.status, span.attributes["assembly.overflowed"]) == ("UNSET", False)
    assert not span.events


def test_each_attempt_to_compact_is_a_span_whatever_became_of_it(telemetry):
    hangs = threading.Event()

    def hanging(text, target_tokens):
        hangs.wait(500)

    def failing(text, target_tokens):
        raise RuntimeError(CANARY)

    block = Block("facts", 5, say(40), cuttable=True)
    compactors = {
        "raised": failing,
        "timed_out": hanging,
        "empty": lambda text, target_tokens: "",
        "error_text": lambda text, target_tokens: "Error: rate limit exceeded",
        "too_long": lambda text, target_tokens: text,
    }
    try:
        for outcome, compact in compactors.items():
            telemetry.clear()
            allocation = allocate([block], 10, 0, words, Compactors(compact, attempts=1, deadline=0.05))
            first, second = telemetry.spans_named("compact_block evidence")
            assert first.parent == second.parent == telemetry.span("allocate_budget")
            assert first.attributes["assembly.compaction.outcome"] == outcome
            assert (first.status, second.status) == ("ERROR", "UNSET")
            assert "assembly.compaction.result" not in first.attributes
            # The fallback came to something: it stands for item 0, and is item 1.
            assert second.attributes["assembly.compaction.outcome"] == "compacted"
            assert second.attributes["assembly.compaction.provenance"] == ["0"]
            assert second.attributes["assembly.compaction.result"] == "m0"
            assert (first.attributes["assembly.tokens.in"], first.attributes["assembly.compaction.target_tokens"]) == (
                40,
                10,
            )
            assert allocation.compacted[0].item.content == block.content
    finally:
        hangs.set()


def test_what_a_compactor_calls_is_called_inside_its_span(telemetry):
    def compact(text, target_tokens):
        with telemetry.tracer().start_as_current_span("chat"):
            return "short"

    allocate([Block("facts", 5, say(40), cuttable=True)], 10, 0, words, compact)
    assert telemetry.span("chat").parent == telemetry.span("compact_block evidence")


def test_no_room_left_is_no_attempt(telemetry):
    blocks = [Block("system", 1, say(10), cuttable=False), Block("facts", 5, say(9), cuttable=True)]
    allocate(blocks, 10, 0, words, first_words)
    assert not telemetry.spans_named("compact_block evidence")


def test_five_thousand_dropped_items_of_one_block_are_told_each_with_its_reason(telemetry):
    passages = [BlockItem(f"passage number {at}", rank=at + 1) for at in range(5_010)]
    allocate([Block("facts", 5, passages, cuttable=True)], 10 * 3, 0, words)
    span = telemetry.span("allocate_budget")
    assert span.kept == list(map(str, range(10)))
    assert gone(span) == dict.fromkeys(map(str, range(10, 5_010)), "low_rank")
    assert len(span.arrived) == 5_010
    assert all(item.tokens == 3 for item in span.arrived.values())


def test_five_thousand_dropped_items_of_as_many_blocks_are_told_by_128_spans_and_lists(telemetry):
    blocks = [Block(f"b{at:04}", 5, say(3, f"w{at}"), cuttable=True, cut="whole") for at in range(5_000)]
    allocation = allocate([Block("system", 1, say(9), cuttable=False), *blocks], 10, 0, words)
    span = telemetry.span("allocate_budget")
    assert len(block_spans(span)) == 128
    assert span.kept == ["0"]
    assert gone(span) == dict.fromkeys(map(str, range(1, 5_001)), "over_budget")
    lists = span.whole
    named = {child.attributes["assembly.block.name"] for child in block_spans(span)}
    assert {*named, *lists["assembly.blocks.names"]} == {"system", *(block.name for block in blocks)}
    assert Counter(lists["assembly.blocks.outcomes"]) == {"kept": 1, "dropped": 4_872}
    assert len(allocation.dropped) == 5_000
    for item in telemetry.spans:
        arrays = {name: value for name, value in item.attributes.items() if isinstance(value, list)}
        assert sum(len(str(entry)) for array in arrays.values() for entry in array) <= 16 * 1024


def test_of_a_thousand_blocks_those_that_were_not_simply_kept_have_the_spans(telemetry):
    kept = [Block(f"k{at:03}", 5, say(2, f"w{at}"), cuttable=True) for at in range(950)]
    cut = [Block(f"c{at:03}", 9, say(2_000, f"w{at}"), cuttable=True, cut="whole") for at in range(50)]
    allocation = allocate([*cut, *kept], 2_000, 0, words)
    span = telemetry.span("allocate_budget")
    spans = block_spans(span)
    assert len(spans) == 128
    assert {block.name for block in cut} < {span.attributes["assembly.block.name"] for span in spans}
    lists = span.whole
    assert len(lists["assembly.blocks.names"]) == 1_000 - 128
    assert set(lists["assembly.blocks.outcomes"]) == {"kept"}
    assert set(lists["assembly.blocks.reasons"]) == {"fits"}
    shown = sum(span.attributes["assembly.tokens.out"] for span in spans)
    assert shown + sum(lists["assembly.blocks.tokens"]) == allocation.used


def test_the_payload_alone_says_what_every_item_became_also_where_many_were_compacted(telemetry):
    blocks = [
        Block(f"b{at:03}", 5, [BlockItem(say(4, f"w{at}a")), BlockItem(say(9, f"w{at}b"))], cuttable=True, min_tokens=6)
        for at in range(200)
    ]
    allocation = allocate(blocks, 6 * 200, 0, words, first_words)
    span = telemetry.span("allocate_budget")
    items = [item for item in span.arrived if item not in made(span)]
    assert len(items) == 400
    standing = [item for item in span.kept if item not in made(span)]
    assert sorted([*standing, *gone(span), *shortened(span)]) == sorted(items)
    assert len(made(span)) == len(shortened(span)) == len(allocation.compacted) > 128
    assert sum(value.tokens for item, value in span.arrived.items() if item in span.kept) == allocation.used


def test_a_tool_call_and_its_results_are_one_atom_by_one_id(telemetry):
    calls = tuple(ToolCallEvent(id=letter, name="find", arguments="{}") for letter in "123")
    turns = [ModelRequest(content="go"), ModelResponse(content="", tool_calls=calls)]
    turns += [ToolResultEvent(parent_id=letter, name="find", content=say(9)) for letter in "123"]
    allocate([Block("recent", 8, turns, cuttable=True)], 30, 0)
    span = telemetry.span("allocate_budget")
    assert [item.atom for item in span.arrived.values()] == ["0", "1", "1", "1", "1"]
    assert [fact.kind for fact in span.arrived.values()] == ["request", "response", *["tool_result"] * 3]
    assert gone(span) == dict.fromkeys(map(str, range(5)), "over_budget")


def test_a_summary_of_a_summary_names_its_leaves(telemetry):
    summary = CompactedBlock(say(40), ("turn-1", "turn-2"), (0, 1))
    allocation = allocate([Block("summary", 7, summary, cuttable=True)], 10, 0, words, first_words)
    assert allocation.blocks[0].content.provenance == ("turn-1", "turn-2")
    assert telemetry.span("compact_block summary").attributes["assembly.compaction.provenance"] == ["0"]


# What goes wrong while it runs


def test_a_counter_that_fails_is_told_without_its_message(telemetry):
    def count(text):
        raise ValueError(CANARY)

    with pytest.raises(TokenizerError):
        allocate([Block("facts", 5, CANARY, cuttable=True)], 10, 0, count)
    span = telemetry.span("allocate_budget")
    assert (span.status, span.attributes["error.type"]) == ("ERROR", "otel_assembly.errors.TokenizerError")
    assert (span.attributes["assembly.budget.window"], span.attributes["assembly.budget.used"]) == (10, 0)
    assert CANARY not in everything_of(telemetry)


def test_what_is_wrong_before_anything_ran_is_an_error_and_no_span(telemetry):
    with pytest.raises(ConfigurationError):
        allocate([Block("facts", 5, "x", cuttable=True)], 5, 5)
    assert telemetry.spans == []


def test_a_halt_ends_every_span(telemetry):
    def halting(text, target_tokens):
        raise HaltedError("stop", "guard")

    with pytest.raises(HaltedError):
        allocate([Block("facts", 5, say(40), cuttable=True)], 10, 0, words, halting)
    span = telemetry.span("allocate_budget")
    assert (span.status, span.attributes["error.type"]) == ("ERROR", "assembly_halt")
    assert telemetry.span("compact_block evidence").parent == span


async def test_a_cancelled_allocation_ends_every_span(telemetry):
    started = asyncio.Event()

    async def compact(text, target_tokens):
        started.set()
        await asyncio.Event().wait()

    block = Block("facts", 5, say(40), cuttable=True)
    task = asyncio.create_task(allocate_async([block], 10, 0, words, compact))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    span = telemetry.span("allocate_budget")
    assert span.status == "ERROR"
    assert telemetry.span("compact_block evidence").parent == span


async def test_allocations_at_once_never_share_a_span(telemetry):
    async def compact(text, target_tokens):
        await asyncio.sleep(0)
        return first_words(text, target_tokens)

    def blocks(number):
        return [Block(f"b{number}", 5, say(40, f"w{number}"), cuttable=True)]

    async def turn(number):
        with telemetry.tracer().start_as_current_span(f"turn {number}"):
            return await allocate_async(blocks(number), 10, 0, words, compact)

    await asyncio.gather(*map(turn, range(20)))
    for span in telemetry.spans_named("allocate_budget"):
        (block,) = block_spans(span)
        assert span.parent.name == f"turn {block.attributes['assembly.block.name'][1:]}"
        assert len([child for child in span.children if child.name == "compact_block evidence"]) == 1


def test_a_redaction_hook_that_fails_changes_no_allocation():
    def redact(text):
        raise RuntimeError(CANARY)

    settings = TelemetrySettings(content=ContentCapture.SPAN_ONLY, redact=redact)
    telemetry = RecordedTelemetry(settings=settings)
    block = Block("facts", 5, [CANARY, "other"], cuttable=True)
    with telemetry.as_default():
        allocation = allocate([block], 100, 0)
    assert allocation.blocks == allocate([block], 100, 0).blocks
    assert CANARY not in everything_of(telemetry)


# Content


def everything_of(telemetry):
    spans = [(span.name, span.attributes, [(e.name, e.attributes) for e in span.events]) for span in telemetry.spans]
    logs = [(log.name, log.attributes, log.body) for log in telemetry.logs]
    status = [span.status_description for span in telemetry.spans if hasattr(span, "status_description")]
    return json.dumps([spans, logs, status, list(telemetry.metrics), str(telemetry.metrics)], default=str)


def telling_blocks():
    call = ModelResponse(
        content=f"{CANARY} said",
        tool_calls=(ToolCallEvent(id=f"{CANARY}-call", name=f"{CANARY}-tool", arguments=f'{{"q": "{CANARY}"}}'),),
    )
    turns = [ModelRequest(content=f"{CANARY} asked"), call, ToolResultEvent(parent_id=f"{CANARY}-call", content=CANARY)]
    memories = [
        BlockItem(f"{CANARY} memory {at} {say(9)}", id=f"{CANARY}-{at}", source=f"/home/{CANARY}", version=at)
        for at in range(3)
    ]
    return [
        Block("system", 1, f"{CANARY} instructions", cuttable=False),
        Block("query", 3, f"{CANARY}?", cuttable=False, restated=f"{CANARY}!"),
        Block("facts", 5, [*memories, memories[0]], cuttable=True, separator=CANARY),
        Block("summary", 7, CompactedBlock(say(60, CANARY), (f"{CANARY}-leaf",), (0, 0)), cuttable=True),
        Block("recent", 8, turns, cuttable=True),
    ]


def test_no_byte_of_content_is_in_anything_that_is_exported(telemetry, caplog):
    def failing(text, target_tokens):
        raise RuntimeError(text)

    for window in (60, 90, 120, 300, 2_000):
        for compact in (None, failing, lambda text, target_tokens: text):
            with suppress(ContextOverflowError):
                allocate(telling_blocks(), window, 10, None, compact)
    assert telemetry.spans_named("compact_block summary")
    assert CANARY not in everything_of(telemetry)
    assert CANARY not in caplog.text


def test_an_overflows_message_names_blocks_and_numbers_and_quotes_nothing(telemetry):
    with pytest.raises(ContextOverflowError) as caught:
        allocate(telling_blocks(), 12, 10)
    assert "system" in str(caught.value)
    assert CANARY not in str(caught.value)


def test_with_capture_on_each_item_carries_its_text_as_the_redaction_hook_let_it_through():
    settings = TelemetrySettings(content=ContentCapture.SPAN_ONLY, redact=lambda text: text.replace("secret", "***"))
    telemetry = RecordedTelemetry(settings=settings)
    blocks = [
        Block("facts", 5, ["a secret fact", "another"], cuttable=True),
        Block("summary", 7, say(60, "secret"), cuttable=True),
    ]
    with telemetry.as_default():
        allocate(blocks, 20, 0, words, first_words)
    assert telemetry.violations() == []
    contents = telemetry.span("allocate_budget").contents
    assert [contents["0"], contents["1"]] == ["a *** fact", "another"]
    assert contents["2"] == say(60, "***")
    assert contents["m0"] == say(16, "***")


# Metrics


def test_metrics_say_how_full_the_budget_was_and_what_left_it(telemetry):
    blocks = [
        Block("system", 1, say(5), cuttable=False),
        Block("facts", 5, [say(5, "a"), say(7, "b"), say(9, "c")], cuttable=True),
        Block("old", 9, say(50), cuttable=True, cut="whole"),
    ]
    allocate(blocks, 22, 2, words)
    assert telemetry.metric("assembly.budget.utilization").sum == pytest.approx(17 / 20)
    assert telemetry.metric("assembly.budget.fixed_utilization").sum == pytest.approx(5 / 20)
    assert telemetry.metric("assembly.items.dropped", policy_name="allocator") == 2
    assert telemetry.metric("assembly.tokens.dropped", policy_name="allocator") == 59
    reasons = {point.attributes["assembly.decision.reason"] for point in telemetry.metrics["assembly.items.dropped"]}
    assert reasons == {"low_rank", "over_budget"}


def test_the_counter_of_overflows_starts_at_nought_so_that_the_first_one_is_an_increase(telemetry):
    allocate([Block("system", 1, say(5), cuttable=False)], 22, 2, words)
    assert telemetry.metric("assembly.budget.overflows") == 0
    with pytest.raises(ContextOverflowError):
        allocate([Block("system", 1, say(5), cuttable=False)], 4, 0, words)
    assert telemetry.metric("assembly.budget.overflows") == 1


def test_metrics_belong_to_the_agent_whose_run_it_is(telemetry):
    with telemetry.recorder.invoke_agent("desk", framework="ag2"):
        allocate([Block("system", 1, say(5), cuttable=False)], 10, 0, words)
    assert telemetry.metric("assembly.budget.utilization", agent_name="desk").count == 1
    assert telemetry.metric("assembly.budget.overflows", agent_name="desk") == 0


def test_metrics_do_not_depend_on_sampling():
    telemetry = RecordedTelemetry(sampler=ALWAYS_OFF)
    with telemetry.as_default():
        allocate([Block("facts", 5, say(50), cuttable=True, cut="whole")], 10, 0, words)
    assert telemetry.spans == []
    assert telemetry.metric("assembly.items.dropped", policy_name="allocator") == 1


def test_who_counted_is_told():
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        for model in (None, "gpt-4", "claude-sonnet-4"):
            allocate([Block("facts", 5, "some text", cuttable=True)], 100, 0, model=model)
    said = [
        (span.attributes["assembly.tokens.method"], span.attributes["assembly.tokens.encoding"])
        for span in telemetry.spans_named("allocate_budget")
    ]
    assert said == [("estimated", "o200k_base"), ("exact", "cl100k_base"), ("estimated", "o200k_base")]
