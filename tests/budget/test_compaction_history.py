"""Summaries of turns, and where they came from."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import ValidationError

from otel_assembly import (
    ConfigurationError,
    History,
    ModelRequest,
    ModelResponse,
    ToolCallEvent,
    ToolResultEvent,
    describe,
)
from otel_assembly.budget import CompactedBlock, compact_history, compact_history_async, leaf_ids
from otel_assembly.errors import CompactionError, DescribeError
from otel_assembly.events import CompactionSummary, event_from_json, event_to_json
from otel_assembly.knowledge import render_events
from otel_assembly.messages import EventKind
from otel_assembly.tokens import counter_for

TRANSCRIPTS = Path(__file__).parents[3] / "shared" / "data" / "airline_support_dev.jsonl"


@dataclass
class Turn:
    """A turn as the seed has it."""

    event_id: str
    index: int
    text: str = ""


def short(turns, target_tokens):
    return f"{len(turns)} turns, in short"


def requests(*ids):
    return [ModelRequest(id=item_id, content=f"question {item_id}") for item_id in ids]


TURNS = [Turn("e7", 7, "a"), Turn("e8", 8, "b"), Turn("e9", 9, "c")]


def test_a_summary_keeps_the_ids_and_the_span_of_its_turns():
    block = compact_history(TURNS, 20, short)
    assert block == CompactedBlock("3 turns, in short", ("e7", "e8", "e9"), (7, 9))
    assert block.lossy is True


def test_the_summarizer_gets_the_very_turns_and_the_target_by_name():
    seen = []
    compact_history(TURNS, 20, lambda turns, *, target_tokens: seen.append((turns, target_tokens)) or "x")
    assert seen[0][0] is TURNS
    assert seen[0][1] == 20


async def test_an_async_summarizer_is_awaited():
    async def summarize(turns, target_tokens):
        await asyncio.sleep(0)
        return short(turns, target_tokens)

    assert await compact_history_async(TURNS, 20, summarize) == compact_history(TURNS, 20, short)
    with pytest.raises(ConfigurationError, match="compact_history_async"):
        compact_history(TURNS, 20, summarize)


def test_without_a_summarizer_the_turns_own_words_are_kept():
    turns = [
        ModelRequest(id="a", content="Please refund order 4411 to my card."),
        ModelResponse(
            id="b", content="", tool_calls=(ToolCallEvent(id="c", name="refund", arguments='{"order": 4411}'),)
        ),
        ToolResultEvent(id="d", parent_id="c", name="refund", content="refunded 50 EUR"),
        ModelResponse(id="e", content="Done. " + "Anything else I can do for you today? " * 30),
    ]
    block = compact_history(turns, 40)
    assert "refund order 4411" in block.summary
    assert counter_for().count(block.summary) <= 40
    assert (block.provenance, block.covers_turns) == (("a", "b", "d", "e"), (0, 3))


def failing(turns, target_tokens):
    raise ConnectionError(f"no route for {turns}")


@pytest.mark.parametrize("summarizer", [failing, lambda turns, target: "", lambda turns, target: "word " * 500])
def test_a_summarizer_that_fails_costs_nothing(summarizer):
    turns = requests("a", "b", "c")
    block = compact_history(turns, 12, summarizer)
    assert "question" in block.summary
    assert block.provenance == ("a", "b", "c")
    assert turns == requests("a", "b", "c")


def test_when_everything_fails_the_error_names_the_attempts_and_no_content():
    with pytest.raises(
        CompactionError, match=r"3 turns .* failing raised \(ConnectionError\), failing raised"
    ) as caught:
        compact_history(requests("a", "b", "c"), 12, failing, fallback=None)
    assert "question" not in str(caught.value)
    assert len(caught.value.attempts) == 2
    with pytest.raises(CompactionError):
        compact_history(TURNS, 12, failing)  # objects that only the summarizer can read


async def test_when_everything_fails_the_async_form_says_so_too():
    with pytest.raises(CompactionError):
        await compact_history_async(requests("a"), 12, failing, fallback=None)


def test_the_attempts_can_be_watched():
    seen = []

    @contextmanager
    def watch(attempt):
        yield
        seen.append((attempt.compactor, str(attempt.outcome)))

    compact_history(requests("a"), 12, failing, watch=watch)
    assert seen == [("failing", "raised"), ("failing", "raised"), ("ExtractiveCompactor", "compacted")]


@pytest.mark.parametrize("turns", [[], (), History()])
def test_no_turns_is_an_error(turns):
    with pytest.raises(ConfigurationError, match="turns is empty"):
        compact_history(turns, 10, short)


@pytest.mark.parametrize("target", [0, -1, 2.5, True, None])
def test_a_target_that_cannot_work_is_an_error(target):
    with pytest.raises(ConfigurationError, match="target_tokens"):
        compact_history(TURNS, target, short)


def test_turns_that_nobody_can_read_need_a_summarizer():
    with pytest.raises(DescribeError):
        compact_history(TURNS, 10)


def test_a_summary_of_summaries_resolves_to_its_leaves():
    first = compact_history(requests("a", "b"), 20, short)
    second = compact_history([first, *requests("c", "d")], 20, short)
    third = compact_history([second, *requests("e")], 20, short)
    assert third.provenance == ("a", "b", "c", "d", "e")
    assert third.covers_turns == (0, 4)


def test_a_missing_leaf_is_seen():
    whole = compact_history([compact_history(requests("a", "b", "c"), 20, short), *requests("d")], 20, short)
    for gone in "abcd":
        kept = [letter for letter in "abc" if letter != gone]
        less = compact_history(
            [compact_history(requests(*kept), 20, short), *requests(*(letter for letter in "d" if letter != gone))],
            20,
            short,
        )
        assert set(whole.provenance) - set(less.provenance) == {gone}


def test_summaries_that_stand_in_the_conversation_resolve_too():
    earlier = CompactionSummary(id="s1", summary="a and b", event_count=2, provenance=("a", "b"))
    later = CompactionSummary(id="s2", summary="all so far", event_count=3, provenance=("s1", "c", "s0"))
    block = compact_history([earlier, later, *requests("b", "d")], 20, short, summaries={"s0": earlier})
    assert block.provenance == ("a", "b", "c", "d")
    bare = CompactionSummary(id="s3", summary="from somewhere")
    assert compact_history([bare, *requests("d")], 20, short).provenance == ("s3", "d")


def test_a_block_becomes_an_event_and_back():
    block = compact_history(requests("a", "b"), 20, short)
    event = event_from_json(event_to_json(block.as_event()))
    assert (event.summary, event.event_count, event.provenance, event.lossy) == (block.summary, 2, ("a", "b"), True)
    again = compact_history([event, *requests("c")], 20, short)
    assert (again.provenance, again.covers_turns) == (("a", "b", "c"), (0, 2))


def test_parts_of_a_history_are_named_by_their_place_in_it():
    history = History({"role": "user", "content": f"question {number}"} for number in range(20))
    block = compact_history(history[5:9], 20, short)
    assert (block.provenance, block.covers_turns) == (("5", "6", "7", "8"), (5, 8))
    assert compact_history(history, 20, short).covers_turns == (0, 19)
    assert compact_history(list(history)[5:9], 20, short).provenance == ("0", "1", "2", "3")


@pytest.mark.realdata
def test_real_conversations_are_summarised_in_their_own_words():
    if not TRANSCRIPTS.exists():
        pytest.skip("the recorded transcripts are not beside this checkout")
    for line in TRANSCRIPTS.read_text(encoding="utf-8").splitlines()[:10]:
        messages = json.loads(line)["messages"][1:]
        before = json.dumps(messages)
        block = compact_history(messages, 300)
        assert 250 <= counter_for().count(block.summary) <= 300
        assert block.provenance == tuple(map(str, range(len(messages))))
        assert block.covers_turns == (0, len(messages) - 1)
        text = " ".join(render_events(messages).split())
        assert all(" ".join(part.split()) in text for part in block.summary.split("[…]"))
        assert json.dumps(messages) == before


def test_a_block_takes_lists_and_numbers_and_is_a_value():
    block = CompactedBlock(summary="s", provenance=["a", 4], covers_turns=[1, 2])
    assert block.provenance == ("a", "4")
    assert block == CompactedBlock("s", ("a", "4"), (1, 2), lossy=True)
    assert hash(block) == hash(CompactedBlock("s", ("a", "4"), (1, 2)))
    assert describe(block).kind == EventKind.SUMMARY
    with pytest.raises(AttributeError):
        block.summary = "other"


@pytest.mark.parametrize(
    "fields",
    [
        {"summary": None},
        {"provenance": "abc"},
        {"provenance": [None]},
        {"covers_turns": (2, 1)},
        {"covers_turns": (1,)},
        {"lossy": "perhaps"},
    ],
)
def test_a_block_that_says_nothing_sensible_is_refused_without_its_content(fields):
    with pytest.raises(ValidationError) as caught:
        CompactedBlock(**{"summary": "canary", "provenance": ["canary"], "covers_turns": (0, 1), **fields})
    assert "canary" not in str(caught.value)


def test_leaves_are_found_however_deep_and_each_once():
    def summary_of(*ids):
        return CompactionSummary(summary="s", provenance=ids)

    deep = {f"s{level}": summary_of(f"s{level - 1}", f"s{level - 1}", f"leaf {level}") for level in range(1, 2_000)}
    deep["s0"] = summary_of("leaf 0")
    assert leaf_ids(["s1999"], deep) == tuple(f"leaf {level}" for level in range(2_000))
    assert leaf_ids(["x", "s0", "x"], deep) == ("x", "leaf 0")
    assert leaf_ids(["loop"], {"loop": summary_of("loop", "a")}) == ("a",)
    assert leaf_ids(["a", "b"]) == ("a", "b")


def test_objects_of_the_users_own_are_named_by_their_id_or_else_by_their_place():
    class Note:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    assert compact_history([Note(id="n1"), Note(), "a line", Note(event_id=4)], 20, short).provenance == (
        "n1",
        "1",
        "2",
        "4",
    )
