"""A page that is updated while spans arrive shows what a page of all spans shows, in whatever order they arrive."""

from __future__ import annotations

import json
import random
from contextlib import suppress

import pytest
from page_runs import messages, play

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    SlidingWindowPolicy,
)
from otel_assembly.budget import Compactors
from otel_assembly.errors import ConfigurationError
from otel_assembly.page import LivePage, RowStore, page_model
from otel_assembly.telemetry import StoredEvent, StoredLogEvent


class Shown:
    """What the script of the page has, after patches."""

    def __init__(self):
        self.texts = {}
        self.ledgers = {}
        self.conversation_of = {}

    def apply(self, patch):
        if patch is None:
            return self
        patch = json.loads(patch)
        for key in patch.get("removed", ()):
            self.ledgers = {name: ledger for name, ledger in self.ledgers.items() if self.conversation_of[name] != key}
        self.texts |= patch.get("texts", {})
        for conversation in patch.get("conversations", ()):
            for raw in conversation["ledgers"]:
                ledger = self.ledgers.setdefault(raw["id"], {"turns": {}, "items": {}})
                self.conversation_of[raw["id"]] = conversation["key"]
                ledger |= {name: value for name, value in raw.items() if name not in ("turns", "items")}
                ledger["turns"] |= {turn["n"]: turn for turn in raw["turns"]}
                ledger["items"] |= {item["o"]: item for item in raw["items"]}
        for ledger, first in patch.get("trimmed", {}).items():
            turns = self.ledgers[ledger]["turns"]
            self.ledgers[ledger]["turns"] = {number: turn for number, turn in turns.items() if number >= first}
        return self


def whole(spans):
    """The rows of a page of all spans, in the form of `Shown.ledgers`, with texts in the place of their numbers."""
    model = page_model(spans, title="t")
    return {
        ledger["id"]: {name: value for name, value in ledger.items() if not name.startswith("problem")}
        | {
            "turns": {turn["n"]: with_texts(turn, model["texts"]) for turn in ledger["turns"]},
            "items": {item["o"]: with_texts(item, model["texts"]) for item in ledger["items"]},
        }
        for conversation in model["conversations"]
        for ledger in conversation["ledgers"]
    }


def with_texts(row, texts):
    row = {name: value for name, value in row.items() if name != "problems"}
    if "x" in row:
        row["x"] = texts[row["x"]]
    if "said" in row:
        row["said"] = [texts[number] for number in row["said"]]
    return row


def live(spans, *, size=7, page=None):
    """The rows that patches of so many spans each build."""
    page, shown = page or LivePage(RowStore()), Shown()
    for start in range(0, len(spans), size):
        shown.apply(page.add(spans[start : start + size]).patch)
    return rows_of(shown)


def rows_of(shown):
    texts = {int(number): entry for number, entry in shown.texts.items()}
    return {
        number: ledger
        | {name: {key: with_texts(row, texts) for key, row in ledger[name].items()} for name in ("turns", "items")}
        for number, ledger in shown.ledgers.items()
    }


@pytest.fixture
async def spans(capturing):
    """Conversations with dropped, compacted and overflowing turns, in the order in which their spans ended."""
    await play(capturing.recorder, messages(14), conversation="budget", budget=300)
    chain = [ConversationPolicy(), BudgetPolicy(420, 20, step_tokens=0, compact=Compactors(), summary_tokens=80)]
    await play(capturing.recorder, messages(14), chain, conversation="compaction")
    await play(capturing.recorder, messages(6), [ConversationPolicy(), SlidingWindowPolicy(3)], conversation="window")
    big = (ModelRequest(content="Why? " * 1200), ModelResponse(content="Because."))
    await play(capturing.recorder, [*messages(2), big, *messages(2)], conversation="overflow", budget=400)
    return list(capturing.spans)


def test_spans_in_order_build_the_page(spans):
    assert live(spans) == whole(spans)


@pytest.mark.parametrize("size", [1, 40, 10_000])
def test_the_size_of_the_exports_does_not_matter(spans, size):
    assert live(spans, size=size) == whole(spans)


@pytest.mark.parametrize("seed", range(8))
def test_late_duplicate_and_unordered_spans_change_nothing(spans, seed):
    chance = random.Random(seed)
    shuffled = spans + chance.sample(spans, len(spans) // 3)
    chance.shuffle(shuffled)
    assert live(shuffled, size=chance.choice([1, 3, 20])) == whole(spans)


def test_a_duplicate_after_its_spans_were_forgotten_changes_nothing(spans):
    rows = RowStore()
    before = live(spans, page=LivePage(rows))
    assert LivePage(rows).add([span for span in spans if span.name == "assemble_context"]).patch is None
    assert live([], page=LivePage(rows)) == {}
    shown = Shown()
    for patch in LivePage(rows).snapshot():
        shown.apply(patch)
    assert rows_of(shown) == before


async def test_a_span_that_never_arrives_marks_its_turn_as_incomplete(spans):
    lost = next(span for span in spans if span.name.startswith("apply_policy") and span.parent_id)
    ledgers = live([span for span in spans if span is not lost])
    partial = [turn for ledger in ledgers.values() for turn in ledger["turns"].values() if turn.get("partial")]
    assert [(turn["trace"], turn["span"]) for turn in partial] == [(lost.trace_id, lost.parent_id)]


def test_a_snapshot_is_the_page(spans):
    page = LivePage(RowStore())
    expected = live(spans, page=page)
    shown = Shown()
    for patch in page.snapshot():
        shown.apply(patch)
    assert rows_of(shown) == expected


def test_a_store_opens_again_with_its_turns_and_only_its_owner_reads_it(spans, tmp_path):
    path = tmp_path / "turns.db"
    rows = RowStore(path)
    expected = live(spans, page=LivePage(rows))
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigurationError, match="another process uses it"):
        RowStore(path)
    rows.close()
    again = RowStore(path)
    shown = Shown()
    for patch in LivePage(again).snapshot():
        shown.apply(patch)
    again.close()
    assert rows_of(shown) == expected


@pytest.mark.parametrize(
    "content", [b"not a database at all, but a file of the user", b"SQLite format 3\0" + bytes(84)]
)
def test_a_file_of_another_program_is_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"notes\.txt: cannot be opened"):
        RowStore(path)
    assert path.read_bytes() == content


async def test_the_oldest_conversations_go_first(recorder):
    page, shown = LivePage(RowStore(max_bytes=100_000)), Shown()
    for number in range(15):
        await play(recorder.recorder, messages(8), conversation=f"talk-{number}", budget=300)
        patch = page.add(recorder.spans).patch
        shown.apply(patch)
    kept = {shown.conversation_of[ledger] for ledger in shown.ledgers}
    assert 2 <= len(kept) < 15
    assert kept == {f"id talk-{number}" for number in range(15 - len(kept), 15)}
    snapshot = Shown()
    for patch in page.snapshot():
        snapshot.apply(patch)
    assert rows_of(snapshot) == rows_of(shown)


async def test_a_conversation_that_is_too_long_loses_its_oldest_turns(recorder):
    page, shown = LivePage(RowStore(max_bytes=100_000)), Shown()
    assembler = Assembler([ConversationPolicy(), SlidingWindowPolicy(4)], recorder=recorder.recorder)
    history, context = History(), Context(conversation_id="talk")
    for request, response in messages(120):
        history.append(request)
        await assembler.assemble([], history, context)
        history.append(response)
        shown.apply(page.add(recorder.spans[-8:]).patch)
    (ledger,) = shown.ledgers.values()
    numbers = sorted(ledger["turns"])
    assert numbers == list(range(numbers[0], 120))
    assert 0 < numbers[0] < 100


async def test_a_halt_outside_an_assembly_marks_the_newest_turn_of_its_trace(spans):
    page, shown = LivePage(RowStore()), Shown()
    newest = next(span for span in reversed(spans) if span.name == "assemble_context")
    shown.apply(page.add(spans).patch)
    halt = StoredEvent("assembly.halt", 1, {"assembly.halt.source": "guard", "assembly.halt.reason": "a loop"})
    shown.apply(page.add([], [StoredLogEvent(newest.trace_id, "1" * 16, halt)]).patch)
    turns = [turn for ledger in shown.ledgers.values() for turn in ledger["turns"].values()]
    (turn,) = [turn for turn in turns if any(signal["what"] == "halt" for signal in turn.get("signals", ()))]
    assert turn["span"] == newest.span_id
    assert page.add([], [StoredLogEvent(newest.trace_id, "1" * 16, halt)]).patch is None, "it is shown once"


async def test_a_halt_that_arrives_before_its_turn_is_kept(recorder):
    with suppress(ContextOverflowError):
        await play(recorder.recorder, messages(1))
    (newest,) = recorder.spans_named("assemble_context")
    halt = StoredEvent("assembly.halt", 1, {"assembly.halt.source": "guard"})
    page, shown = LivePage(RowStore()), Shown()
    assert page.add([], [StoredLogEvent(newest.trace_id, "1" * 16, halt)]).patch is None
    (ledger,) = shown.apply(page.add(recorder.spans).patch).ledgers.values()
    assert [signal["what"] for signal in ledger["turns"][0]["signals"]] == ["halt"]


async def test_a_halt_that_is_recorded_as_a_log_first_does_not_mark_the_turn_before(spans):
    """The log record of a halt in an assembly arrives before the spans of that assembly."""
    late = next(span for span in spans if span.name == "apply_policy token_budget")
    page, shown = LivePage(RowStore()), Shown()
    shown.apply(page.add([span for span in spans if span is not late]).patch)
    halt = StoredEvent("assembly.halt", 1, {"assembly.halt.source": "guard"})
    record = StoredLogEvent(late.trace_id, late.span_id, halt)
    shown.apply(page.add([], [record]).patch)
    shown.apply(page.add([late], [record]).patch)
    assert rows_of(shown) == whole(spans)


def test_a_turn_of_another_format_is_reported(spans):
    from dataclasses import replace

    turn = next(span for span in spans if span.name == "assemble_context")
    changed = replace(turn, attributes=turn.attributes | {"assembly.format.version": 99})
    update = LivePage(RowStore()).add([changed])
    assert update.patch is None
    assert len(update.problems) == 1
