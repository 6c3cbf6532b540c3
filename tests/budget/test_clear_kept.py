"""What compaction made is kept from turn to turn: the compactor's calls are counted."""

from __future__ import annotations

import gc

import pytest
from assembling import SpyCounter
from clearing import Source, desk, passage, sent
from recount import count

from otel_assembly import Context, ContextOverflowError, Task
from otel_assembly.budget import CompactedBlock, Compactors
from otel_assembly.context_assembler.compaction_cache import CompactionResults
from otel_assembly.testing import RecordedTelemetry

ASKED = "Why was I billed twice?"
LONG = "They asked for a refund, and it was refused. " * 30


class Compacting:
    """A compactor that says something else each time, and notes what it was asked."""

    def __init__(self, *answers):
        self.calls = []
        self.answers = list(answers)

    def __call__(self, text, target_tokens):
        self.calls.append((text, target_tokens))
        answer = self.answers.pop(0) if self.answers else f"Summary {len(self.calls)}."
        if isinstance(answer, Exception):
            raise answer
        return answer


def compacting(*answers, window=200, **settings):
    compactor = Compacting(*answers)
    compactors = Compactors(compactor, fallback=None, attempts=1)
    settings = {"window": window, "output_reserve": 50, "floors": {}, "compact": compactors, **settings}
    return compactor, desk(**settings)


def summary_of(context):
    (held,) = (block.items for block in context.allocation.blocks if block.name == "summary")
    return held[0].content


async def test_a_summary_is_compacted_once_for_as_long_as_it_says_the_same(recorder):
    compactor, assembler = compacting()
    conversation = Context()
    said = CompactedBlock(LONG, ("t1", "t2"), (0, 1))
    made = []
    for turn in range(5):
        context = await assembler.assemble(Task(f"Question {turn}?", summary=said), None, conversation)
        made.append(summary_of(context))
        spans = [span.name for span in recorder.spans if span.name.startswith("compact_block")]
        assert spans == ["compact_block summary"]
        (decision,) = (decision for decision in context.allocation.decisions if decision.block.name == "summary")
        assert len(decision.attempts) == (turn == 0)
        assert context.assembly.totals.compacted == 1
    assert made == [CompactedBlock("Summary 1.", ("t1", "t2"), (0, 0))] * 5
    assert len(compactor.calls) == 1
    assert recorder.violations() == []


async def test_what_was_kept_is_the_same_item_of_the_ledger():
    _, assembler = compacting()
    conversation = Context()
    first = await assembler.assemble(Task(ASKED, summary=LONG), None, conversation)
    second = await assembler.assemble(Task(ASKED, summary=LONG), None, conversation)
    assert first.assembly.items == second.assembly.items
    assert second.decisions == ()
    assert second.assembly.prefix.bytes == second.assembly.prefix.previous_bytes


async def test_an_original_that_grew_is_compacted_anew():
    compactor, assembler = compacting()
    conversation = Context()
    for said in (LONG, LONG + "Then they went.", LONG + "Then they went."):
        context = await assembler.assemble(Task(ASKED, summary=said), None, conversation)
    assert [text for text, _ in compactor.calls] == [LONG, LONG + "Then they went."]
    assert summary_of(context).summary == "Summary 2."


@pytest.mark.parametrize(
    ("words", "calls"),
    [
        (80, 1),  # less room, in which what there is still fits
        (50, 1),  # not so much more room that it would be worth it
        (10, 2),  # far more
        (95, 2),  # less than what there is takes
    ],
)
async def test_it_is_made_anew_where_it_does_not_fit_any_more_or_could_say_much_more(words, calls):
    thirty = "one two three " * 10
    compactor, assembler = compacting(thirty, "Short.")
    conversation = Context()
    tokens = []
    for asked in (70, words):
        context = await assembler.assemble(Task("why " * asked, summary=LONG), None, conversation)
        tokens.append(count(summary_of(context).summary))
        assert context.allocation.used <= 150
    assert len(compactor.calls) == calls
    first = compactor.calls[0][1]
    if calls == 2:
        second = compactor.calls[1][1]
        assert second < tokens[0] or second > 1.5 * first


async def test_a_compaction_that_failed_is_not_tried_again_for_the_same_text_and_target():
    compactor, assembler = compacting(*[ValueError()] * 3, "At last.")
    conversation = Context()

    async def turn(query, summary=LONG):
        return await assembler.assemble(Task(query, summary=summary), None, conversation)

    for _ in range(3):
        context = await turn(ASKED)
        assert [item.reason for item in context.allocation.dropped] == ["over_budget"]
    assert len(compactor.calls) == 1
    await turn(f"{ASKED} Tell me.")
    await turn(f"{ASKED} Tell me.", LONG + "More.")
    assert len(compactor.calls) == 3
    context = await turn("Why?")
    assert summary_of(context).summary == "At last."


async def test_what_passes_through_a_compactor_is_no_failure_of_it():
    _, assembler = compacting(ContextOverflowError(1, 2, {}))
    conversation = Context()
    with pytest.raises(ContextOverflowError):
        await assembler.assemble(Task(ASKED, summary=LONG), None, conversation)
    context = await assembler.assemble(Task(ASKED, summary=LONG), None, conversation)
    assert summary_of(context).summary == "Summary 2."


async def test_a_passage_that_is_shortened_stays_as_it_was():
    compactor, assembler = compacting(retrievers=[Source(brings=[passage(1, LONG), passage(2, LONG * 2)])])
    conversation = Context()
    prompts = {
        sent(await assembler.assemble(Task(ASKED, key_instruction="Be brief."), None, conversation)) for _ in "abc"
    }
    assert len(prompts) == len(compactor.calls) == 1


async def test_conversations_do_not_share_what_was_made_but_a_conversation_id_does():
    compactor, assembler = compacting()
    for _ in range(2):
        await assembler.assemble(Task(ASKED, summary=LONG), None, Context())
        await assembler.assemble(Task(ASKED, summary=LONG), None)
    assert len(compactor.calls) == 4
    for _ in range(2):
        await assembler.assemble(Task(ASKED, summary=LONG), None, Context(conversation_id="c"))
    assert len(compactor.calls) == 5


async def test_what_is_kept_is_bounded():
    compactor, assembler = compacting()
    conversation = Context()
    for turn in range(100):
        await assembler.assemble(Task(ASKED, summary=f"{turn} {LONG}"), None, conversation)
    await assembler.assemble(Task(ASKED, summary=f"99 {LONG}"), None, conversation)
    assert len(compactor.calls) == 100
    await assembler.assemble(Task(ASKED, summary=f"0 {LONG}"), None, conversation)
    assert len(compactor.calls) == 101


def kept_in_memory():
    gc.collect()
    return sum(isinstance(candidate, CompactionResults) for candidate in gc.get_objects())


async def test_what_is_kept_goes_with_its_conversation():
    _, assembler = compacting()
    before = kept_in_memory()
    for _ in range(20):
        await assembler.assemble(Task(ASKED, summary=LONG), None, Context())
    assert kept_in_memory() <= before + 1


async def test_the_telemetry_of_a_turn_that_kept_its_summary_is_whole():
    telemetry = RecordedTelemetry()
    _, assembler = compacting(recorder=telemetry.recorder)
    conversation = Context()
    for _ in range(3):
        context = await assembler.assemble(Task(ASKED, summary=LONG, older=["An old turn."]), None, conversation)
        totals = context.assembly.totals
        assert totals.events_in + totals.events_injected == totals.events_out + totals.dropped + totals.compacted
    assert telemetry.violations() == []


# Long texts


async def test_a_joined_text_of_megabytes_is_counted_once():
    counter = SpyCounter()
    pages = [passage(n, f"{n} " + "word " * 30_000) for n in range(4)]
    assembler = desk(Source(brings=pages), window=2_000_000, output_reserve=10, floors={}, counter=counter, k=4)
    conversation = Context()
    await assembler.assemble(Task(ASKED), None, conversation)
    assert max(map(len, counter.asked)) > 262_144
    counter.asked.clear()
    await assembler.assemble(Task("And now?"), None, conversation)
    assert counter.asked == ["And now?"]
