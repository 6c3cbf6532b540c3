"""The CLEAR pass: from a task to the prompt that is sent, with the reasons beside it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from assembling import SpyCounter
from clearing import SYSTEM, Source, contents, desk, passage, sent, why
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from recount import count, event_tokens

from otel_assembly import (
    ConfigurationError,
    Context,
    ContextAssembler,
    ContextOverflowError,
    ModelRequest,
    ModelResponse,
    Task,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.budget import CompactedBlock
from otel_assembly.context_assembler import Candidate
from otel_assembly.testing import RecordedTelemetry

ASKED = "Why was I billed twice?"


def recounted(messages) -> int:
    """What a list of messages costs, worked out anew."""
    texts = sum(4 + count(m["content"]) for m in messages if isinstance(m, dict) and m["role"] == "system")
    return 3 + texts + sum(event_tokens(m) for m in messages if not (isinstance(m, dict) and m["role"] == "system"))


async def test_a_task_becomes_a_prompt_in_the_seeds_order():
    recall = Source("memory", [Candidate("m1", "Is on the pro plan.", "public", profile=True)])
    assembler = desk(
        Source(brings=[passage(n) for n in (1, 2, 3)]),
        recall=recall,
        state=lambda task, scopes: {"case": task.entity, "open": True},
        examples=["Q: hi", "A: hello"],
    )
    recent = [ModelRequest(content="hello"), ModelResponse(content="hi there")]
    task = Task(
        ASKED,
        output_schema={"type": "object", "required": ["answer"]},
        key_instruction="Answer in one sentence.",
        entity="c-17",
        summary="They asked about a bill.",
        recent=recent,
        older=["An old turn."],
    )
    context = await assembler.assemble(task, user="ada")
    assert contents(context) == [
        SYSTEM,
        '{"required":["answer"],"type":"object"}',
        "Q: hi\n\nA: hello",
        "Passage 1 says what it says.",
        "Is on the pro plan.",
        "Passage 3 says what it says.",
        "They asked about a bill.",
        "An old turn.",
        "Passage 2 says what it says.",
        '{"case":"c-17","open":true}',
        "hello",
        "hi there",
        f"{ASKED}\n\nAnswer in one sentence.",
    ]
    assert [message for message in context.messages if not isinstance(message, dict)] == recent
    assert context.prompt.boundary == 3


async def test_a_bare_task_is_instructions_and_a_question():
    context = await desk().assemble(Task(ASKED), user=None)
    assert context.messages == [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]


async def test_everything_may_be_async():
    async def scopes(user, task):
        return ["public"]

    async def state(task, scopes):
        return "plan: pro"

    async def rerank(query, candidates):
        return candidates[::-1]

    assembler = desk(Source(brings=[passage(1), passage(2)]), scopes=scopes, state=state, rerank=rerank)
    context = await assembler.assemble(Task(ASKED), user=None)
    assert contents(context)[1:4] == ["Passage 2 says what it says.", "Passage 1 says what it says.", "plan: pro"]


async def test_evidence_of_several_retrievers_is_ranked_together():
    slow = Source("slow", [passage("a"), passage("b", rank=5)])
    quick = Source("quick", [passage("c"), passage("d")])
    context = await desk(slow, quick).assemble(Task(ASKED), user=None)
    held = [item.id for item in context.allocation.decisions[2].block.items]
    assert held == ["doc-a", "doc-c", "doc-d", "doc-b"]


async def test_what_does_not_fit_is_cut_from_the_tail_and_says_so():
    long = [passage(n, f"Passage {n}. " + "It goes on and on. " * 20) for n in range(1, 10)]
    context = await desk(Source(brings=long), window=600, output_reserve=100).assemble(Task(ASKED), user=None)
    assert "Passage 1." in sent(context)
    assert why(context, "Passage 1.") == [("kept", "fits")]
    assert why(context, "Passage 9.") == [("dropped", "low_rank")]
    assert context.allocation.used <= 500


async def test_a_profile_is_kept_when_other_memories_are_cut():
    memories = [
        Candidate("m1", "Talked about tea. " * 30, "public", score=0.9),
        Candidate("m2", "Is Korean. " * 5, "public", score=0.1, profile=True),
    ]
    assembler = desk(recall=Source("memory", memories), window=200, output_reserve=50, floors={})
    context = await assembler.assemble(Task(ASKED), user=None)
    assert why(context, "Is Korean.") == [("kept", "fits")]
    assert why(context, "Talked about tea.") == [("dropped", "low_rank")]


# Duplicates and versions


async def test_of_two_versions_the_newest_stands_and_the_other_is_stale(recorder):
    found = [passage(1, "The fee is 5.", version=1), passage(1, "The fee is 7.", version=2), passage(2)]
    context = await desk(Source(brings=found)).assemble(Task(ASKED), user=None)
    assert "The fee is 7." in sent(context)
    assert "The fee is 5." not in sent(context)
    assert why(context, "The fee is 5.") == [("dropped", "stale")]
    (stale,) = (item for item in context.allocation.items if item.reason == "stale")
    assert context.allocation.decisions[2].block.items[stale.winner[1]].content == "The fee is 7."
    ordinal = next(decision.item for decision in context.decisions if decision.reason == "stale")
    assert recorder.span("apply_policy allocator").dropped_reasons == {ordinal: "stale"}


async def test_what_is_no_longer_current_is_stale_even_if_nothing_stands_for_it(recorder):
    memory = Source("memory", [Candidate("m", "Lives in Seoul.", "public", current=False)])
    found = [passage(1, "The fee was 3.", current=False), passage(2)]
    context = await desk(Source(brings=found), recall=memory).assemble(Task(ASKED), user=None)
    assert why(context, "The fee was 3.") == [("dropped", "stale")]
    assert why(context, "Lives in Seoul.") == [("dropped", "stale")]
    assert set(recorder.span("apply_policy allocator").dropped_reasons.values()) == {"stale"}
    assert "Seoul" not in sent(context)


async def test_what_two_retrievers_both_bring_stands_once(recorder):
    one, other = Source("one", [passage(1, "The very same.")]), Source("two", [passage(7, "The  very same.")])
    context = await desk(one, other).assemble(Task(ASKED), user=None)
    assert sent(context).count("same.") == 1
    assert sorted(why(context, "same.")) == [("dropped", "duplicate"), ("kept", "fits")]
    assert "duplicate" in recorder.span("apply_policy allocator").dropped_reasons.values()


async def test_versions_that_cannot_be_compared_are_named_with_the_mend():
    found = [
        passage(1, "The fee is 5.", version=1),
        passage(1, "The fee is 7.", version=datetime(2026, 1, 1, tzinfo=UTC)),
    ]
    with pytest.raises(ConfigurationError, match="block 'evidence': two versions of one item cannot be compared"):
        await desk(Source(brings=found)).assemble(Task(ASKED), user=None)


# What it costs


async def test_the_numbers_are_those_of_the_rendered_prompt(recorder):
    tools = [{"type": "function", "function": {"name": "refund", "description": "Pays back.", "parameters": {}}}]
    call = ToolCallEvent(id="1", name="find", arguments='{"id": 17}')
    turns = [
        ModelRequest(content="Find my bill."),
        ModelResponse(content="", tool_calls=(call,)),
        ToolResultEvent(parent_id="1", name="find", content="Bill 17: 9 EUR."),
    ]
    assembler = desk(Source(brings=[passage(n) for n in range(9)]))
    bare = await assembler.assemble(Task(ASKED, recent=turns), user=None)
    context = await assembler.assemble(Task(ASKED, recent=turns), None, Context(tools=tools))
    totals = context.assembly.totals
    assert bare.assembly.totals.tokens_out == bare.allocation.used == recounted(bare.messages)
    schemas = context.assembly.kinds["tool_schemas"]
    assert totals.tokens_out == context.allocation.used == recounted(context.messages) + schemas
    span = recorder.span("assemble_context")
    assert span.attributes["assembly.tokens.out"] == totals.tokens_out
    assert sum(span.attributes["assembly.kind.tokens"]) == totals.tokens_out
    assert totals.estimated_in == 0


texts = st.text(alphabet=st.sampled_from("abc défg한국 \n<|>.0"), min_size=1, max_size=200).filter(str.strip)
candidates = st.lists(
    st.builds(
        Candidate,
        id=st.sampled_from("abcdef"),
        content=texts,
        scope=st.sampled_from(["public", "secret"]),
        score=st.none() | st.floats(0, 1),
        rank=st.none() | st.integers(1, 9),
        version=st.none() | st.integers(0, 3),
        source=st.none() | st.just("wiki"),
        current=st.booleans(),
        profile=st.booleans(),
    ),
    max_size=12,
)
turns = st.lists(
    st.one_of(texts, texts.map(lambda t: ModelRequest(content=t)), texts.map(lambda t: {"role": "user", "content": t})),
    max_size=6,
)
tasks = st.builds(
    Task,
    query=texts,
    key_instruction=st.sampled_from(["", "Be brief."]),
    summary=st.none() | texts,
    recent=turns,
    older=turns,
)


@settings(deadline=None, max_examples=50)
@given(tasks, candidates, candidates, st.integers(0, 600), st.integers(0, 300))
async def test_any_task_is_never_over_budget_and_every_item_has_one_fate(task, found, memories, room, target):
    telemetry = RecordedTelemetry()
    probe = desk(window=100_000, output_reserve=0, floors={})
    bare = Task(task.query, key_instruction=task.key_instruction)
    fixed = (await probe.assemble(bare, None)).allocation.used
    assembler = desk(
        Source(brings=found),
        recall=Source("memory", memories),
        window=fixed + 1 + room,
        output_reserve=0,
        floors={"evidence": min(target, room)},
        recorder=telemetry.recorder,
    )
    conversation = Context()
    for asked in (task, task, bare):
        context = await assembler.assemble(asked, None, conversation)
        totals = context.assembly.totals
        assert recounted(context.messages) == context.allocation.used == totals.tokens_out <= fixed + 1 + room
        assert totals.events_in + totals.events_injected == totals.events_out + totals.dropped + totals.compacted
        span = telemetry.span("assemble_context")
        assert len(span.kept) == totals.events_out
    assert telemetry.violations() == []


async def test_a_second_turn_tokenises_what_is_new_and_nothing_else():
    counter = SpyCounter()
    assembler = desk(
        Source(brings=[passage(n) for n in range(20)]), window=200, output_reserve=50, floors={}, counter=counter
    )
    conversation = Context()
    await assembler.assemble(Task(ASKED, recent=["hello"]), None, conversation)
    counter.asked.clear()
    await assembler.assemble(Task("And now?", recent=["hello"]), None, conversation)
    assert counter.asked == ["And now?"]


async def test_what_has_nothing_to_say_is_no_candidate():
    context = await desk(Source(brings=[passage(1, "  \n"), passage(2)])).assemble(Task(ASKED), None)
    assert contents(context) == [SYSTEM, "Passage 2 says what it says.", ASKED]


async def test_too_much_that_may_not_be_cut_raises_before_anything_is_compacted(recorder):
    def compact(text, target_tokens):
        raise AssertionError("nobody should have asked")

    assembler = desk(
        Source(brings=[passage(1, "Long. " * 400)]), window=60, output_reserve=10, floors={}, compact=compact
    )
    with pytest.raises(ContextOverflowError) as raised:
        await assembler.assemble(Task("Why? " * 60), user=None)
    assert raised.value.costs.keys() == {"system", "query", "reply_priming"}
    assert raised.value.costs["reply_priming"] == 3
    schemas = [{"type": "function", "function": {"name": "pay", "parameters": {"type": "object", "properties": {}}}}]
    with pytest.raises(ContextOverflowError) as with_tools:
        await assembler.assemble(Task("Why? " * 60), user=None, context=Context(tools=schemas))
    costs = with_tools.value.costs
    assert costs == {**raised.value.costs, "tool_schemas": with_tools.value.needed - raised.value.needed}
    assert recorder.span("assemble_context").attributes["assembly.overflow.cause"] == "fixed"
    assert recorder.span("allocate_budget").status == "ERROR"


async def test_a_summary_is_compacted_before_it_is_dropped_and_the_spans_say_so(recorder):
    said = CompactedBlock("They asked for a refund. It was refused. " * 20, ("t1", "t2"), (0, 1))
    assembler = desk(window=200, output_reserve=50, floors={})
    context = await assembler.assemble(Task(ASKED, summary=said), user=None)
    (block,) = (block for block in context.allocation.blocks if block.name == "summary")
    assert block.lossy
    assert block.content.provenance == ("t1", "t2")
    assert context.assembly.totals.compacted == 1
    assert context.assembly.totals.tokens_out == recounted(context.messages)
    assert recorder.span("compact_block summary").attributes["assembly.compaction.outcome"] == "compacted"


# Turn by turn


async def test_a_second_question_brings_one_item_and_keeps_the_prefix(recorder):
    assembler = desk(Source(brings=[passage(1), passage(2)]), state=lambda task, scopes: "plan: pro")
    conversation = Context()
    await assembler.assemble(Task(ASKED), None, conversation)
    context = await assembler.assemble(Task("And when do I get it back?"), None, conversation)
    span = recorder.span("assemble_context")
    assert [arrived.kind for arrived in span.arrived.values()] == ["query"]
    assert len(span.offered) == len(span.kept) == 5
    assert span.attributes["assembly.turn"] == 1
    assert context.assembly.prefix.events == 4
    assert context.assembly.prefix.bytes / context.assembly.prefix.previous_bytes > 0.8


async def test_an_item_is_the_same_one_wherever_it_stands_and_whoever_ranks_it():
    docs = Source(brings=[passage(1), passage(2), passage(3), passage(4)])
    assembler, conversation = desk(docs), Context()
    first = await assembler.assemble(Task(ASKED), None, conversation)
    docs.brings.reverse()
    second = await assembler.assemble(Task(ASKED), None, conversation)
    assert sorted(first.assembly.items) == sorted(second.assembly.items)
    assert {decision.outcome.value for decision in second.decisions} <= {"reordered"}


async def test_a_text_that_changed_under_its_id_is_another_item():
    docs = Source(brings=[passage(1, "The fee is 5.")])
    assembler, conversation = desk(docs), Context()
    await assembler.assemble(Task(ASKED), None, conversation)
    docs.brings[0] = passage(1, "The fee is 7.")
    context = await assembler.assemble(Task(ASKED), None, conversation)
    assert why(context, "The fee is 7.") == [("kept", "fits")]
    assert why(context, "The fee is 5.") == []
    assert "The fee is 5." not in sent(context)


async def test_a_turn_that_goes_from_recent_to_older_stays_the_same_item():
    one, two = ModelRequest(content="hello"), ModelResponse(content="hi there")
    assembler, conversation = desk(), Context()
    first = await assembler.assemble(Task(ASKED, recent=[one, two]), None, conversation)
    second = await assembler.assemble(Task(ASKED, older=[one], recent=[two]), None, conversation)
    assert set(first.assembly.items) == set(second.assembly.items)


async def test_a_turn_stays_the_same_item_if_a_passage_moves_in_front_of_it():
    docs = Source()
    assembler, conversation = desk(docs), Context()
    turns = [{"role": "user", "content": text} for text in ("hello 0", "hello 1", "hello 2")]
    for number, brings in enumerate(([], [passage(2), passage(3)], [passage(3)])):
        docs.brings = brings
        task = Task(ASKED, older=turns[:number], recent=turns[number : number + 1])
        context = await assembler.assemble(task, None, conversation)
        kept = [decision for decision in context.decisions if decision.outcome.value == "kept"]
        assert [decision.kind for decision in kept].count("request") == 1


async def test_conversations_of_one_assembler_do_not_mix():
    assembler = desk(Source(brings=[passage(1)]))
    for name in ("a", "b"):
        context = await assembler.assemble(Task(ASKED), None, Context(conversation_id=name))
        assert context.assembly.turn == 0


async def test_a_clock_or_an_order_of_keys_in_the_state_changes_nothing_before_the_boundary():
    states = iter(
        [{"a": 1, "now": "09:00"}, {"now": "09:01", "a": 1}, {"now": "09:01", "a": 1}, {"a": 1, "now": "09:01"}]
    )
    assembler = desk(state=lambda task, scopes: next(states))
    seen = [
        await assembler.assemble(Task(ASKED, output_schema=form), None) for form in ({"x": 1, "y": 2}, {"y": 2, "x": 1})
    ]
    assert seen[0].prompt.prefix_hash == seen[1].prompt.prefix_hash
    assert seen[0].messages[:2] == seen[1].messages[:2]
    third, fourth = [await assembler.assemble(Task(ASKED), None) for _ in range(2)]
    assert third.messages == fourth.messages


# What cannot work


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"window": 0}, "output_reserve"),
        ({"window": True}, "window"),
        ({"output_reserve": 4_000}, "leaves nothing of the window"),
        ({"k": 0}, "k must be"),
        ({"deadline": 0}, "deadline"),
        ({"floors": {"evidense": 3}}, "did you mean 'evidence'"),
        ({"floors": {"evidence": 9_000}}, "block 'evidence'"),
        ({"on_retriever_error": "ignore"}, "on_retriever_error"),
        ({"scopes": {"public"}}, "scopes must be a callable"),
        ({"retrievers": [object()]}, "needs an async 'search'"),
        ({"recall": object()}, "needs an async 'recall'"),
        ({"gate": object()}, "needs an async 'offer'"),
        ({"state": "plan"}, "state must be a callable"),
    ],
)
def test_a_setting_that_cannot_work_is_named(setting, said):
    with pytest.raises(ConfigurationError, match=said):
        desk(**setting)


async def test_a_state_that_is_no_json_is_a_typed_error_without_its_content():
    with pytest.raises(ConfigurationError) as raised:
        await desk(state=lambda task, scopes: {"secret-canary": object()}).assemble(Task(ASKED), None)
    assert "canary" not in str(raised.value)


def test_a_task_is_frozen_and_says_nothing_of_what_was_wrong_in_it():
    task = Task(ASKED, recent=[ModelRequest(content="hello")])
    with pytest.raises(AttributeError):
        task.query = "other"
    with pytest.raises(ValidationError) as raised:
        Task(ASKED, recent="canary")
    assert "canary" not in str(raised.value)


def test_the_assembler_is_told_by_keyword_only():
    with pytest.raises(TypeError):
        ContextAssembler(SYSTEM, 4_000, 500)  # type: ignore[call-arg,misc]


async def test_the_policys_settings_are_numbers(recorder):
    await desk().assemble(Task(ASKED), None)
    config = json.loads(recorder.span("apply_policy allocator").attributes["assembly.policy.config"])
    assert config == {"window": 4_000, "output_reserve": 500}
