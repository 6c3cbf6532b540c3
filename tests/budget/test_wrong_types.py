"""A value of the wrong type raises a typed error at each public entry point, and the error contains no content."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from otel_assembly import (
    Block,
    BlockItem,
    ConfigurationError,
    Context,
    ContextAssembler,
    ModelRequest,
    allocate,
    allocate_async,
)
from otel_assembly.budget import (
    CompactedBlock,
    ExtractiveCompactor,
    ModelCompactor,
    compact_history,
    leaf_ids,
    order_for_attention_and_cache,
    texts_of,
)
from otel_assembly.context_assembler import (
    Candidate,
    KnowledgeRecall,
    KnowledgeWriteGate,
    QueuedWriteGate,
    RetentionOutcome,
    Task,
)
from otel_assembly.knowledge import MemoryKnowledgeStore
from otel_assembly.tokens import counter_for

SECRET = "the patient's name"
CANDIDATE = Candidate("1", SECRET, "team")
TURN = ModelRequest(content=SECRET)
GATE = KnowledgeWriteGate(write=lambda proposal: None, accept=lambda proposal: True)
BLOCK = Block("a", 1, SECRET, cuttable=False)


def desk(**settings):
    return ContextAssembler(
        **{
            "system": "S",
            "window": 1_000,
            "output_reserve": 10,
            "scopes": lambda user, task: {"team"},
            "gate": GATE,
            **settings,
        }
    )


def retain(answer, candidates):
    async def proposed():
        return await (await desk().assemble(Task("q"), "user")).retain(answer, candidates)

    return asyncio.run(proposed())


def assemble(task, *context, **settings):
    return asyncio.run(desk(**settings).assemble(task, "user", *context))


def test_candidates_are_retained():
    (kept,) = retain("yes", [CANDIDATE])
    assert kept.outcome is RetentionOutcome.WRITTEN
    assert len(retain("yes", (item for item in [CANDIDATE, CANDIDATE]))) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: retain("yes", [SECRET]), r"candidates: item 0 must be a Candidate, got a text; give a list of Cand"),
        (lambda: retain("yes", SECRET), r"candidates must be a collection of Candidate, got a text"),
        (lambda: retain("yes", [CANDIDATE, {"id": SECRET}]), r"candidates: item 1 must be a Candidate, got a dict"),
        (lambda: retain("yes", CANDIDATE), r"candidates must be a collection of Candidate, got a Candidate"),
        (lambda: retain("yes", Candidate), r"candidates must be a collection of Candidate, got the class Candidate"),
        (lambda: retain("yes", None), r"candidates must be a collection of Candidate, got a NoneType"),
        (lambda: retain({"content": SECRET}, [CANDIDATE]), r"answer must be a text, got a dict"),
        (lambda: assemble(SECRET), r"task must be a Task, got a text"),
        (lambda: assemble({"query": SECRET}), r"task must be a Task, got a dict"),
        (lambda: assemble(Task), r"task is the class Task"),
        (lambda: assemble(Task("q"), SECRET), r"context must be a Context, got a text"),
        (lambda: assemble(Task("q"), Context), r"context is the class Context"),
        (lambda: desk(system=None), r"system must be a text, got a NoneType"),
        (lambda: desk(floors=[1]), r"floors must be a Mapping, got a list"),
        (lambda: desk(model=4), r"model must be a text, got a int"),
        (lambda: desk(recorder=SECRET), r"recorder str needs the methods of a Recorder"),
        (lambda: desk(rerank=SECRET), r"rerank must be a callable, got a text"),
        (lambda: Candidate("1", SECRET, "team", score=SECRET), r"score must be a number, got a str"),
        (lambda: Candidate("1", SECRET, "team", current="no"), r"current must be True or False"),
        (lambda: allocate([SECRET], 100, 10), r"blocks must be Block objects, got a str"),
        (lambda: allocate([{"name": SECRET}], 100, 10), r"blocks must be Block objects, got a dict"),
        (lambda: allocate([Block], 100, 10), r"blocks must be Block objects, got a type"),
        (lambda: asyncio.run(allocate_async([BLOCK, None], 100, 10)), r"blocks must be Block objects, got a NoneType"),
        (lambda: allocate([BLOCK], 100, 10, model=4), r"model must be a text"),
        (lambda: Block("a", 1, ["x"], cuttable=False, separator=3), r"its separator must be a text"),
        (lambda: Block("a", 1, ["x"], cuttable=False, restated=3), r"restated must be a text"),
        (
            lambda: allocate([Block("a", 5, [BlockItem(SECRET, id=[1]), BlockItem("y", id=[1])], True)], 100, 10),
            r"block 'a': the id of an item must be a text, got a list",
        ),
        (lambda: order_for_attention_and_cache(SECRET), r"blocks must be a collection of Block, got a text"),
        (lambda: order_for_attention_and_cache([SECRET]), r"blocks: item 0 must be a Block, got a text"),
        (lambda: order_for_attention_and_cache(BLOCK), r"blocks must be a collection of Block, got a Block"),
        (lambda: compact_history(None, 10), r"turns must be a sequence of events, got a NoneType"),
        (lambda: compact_history(SECRET, 10), r"turns must be a sequence of events, got a str"),
        (lambda: compact_history({"role": "user", "content": SECRET}, 10), r"turns must be a sequence of events"),
        (lambda: compact_history([TURN], 10, count=SECRET), r"count must be a callable"),
        (lambda: compact_history([TURN], 10, summaries=[SECRET]), r"summaries must be a Mapping, got a list"),
        (lambda: leaf_ids(SECRET), r"provenance must be a collection of text, got a text"),
        (lambda: leaf_ids(["a"], ["b"]), r"summaries must be a Mapping"),
        (lambda: texts_of(SECRET), r"item must be a BlockItem, got a text"),
        (lambda: ExtractiveCompactor(SECRET), r"count must be a callable"),
        (lambda: ExtractiveCompactor()(4, 10), r"text must be a text, got a int"),
        (lambda: ExtractiveCompactor()(SECRET, "10"), r"target_tokens must be a whole number, got a str"),
        (lambda: ModelCompactor(SECRET), r"call must be a callable"),
        (lambda: ModelCompactor(print, instructions=3), r"instructions must be a text"),
        (lambda: KnowledgeRecall(SECRET), r"store str needs an async 'list' and 'read'"),
        (lambda: KnowledgeWriteGate(SECRET, accept=bool), r"store str needs an async 'write'"),
        (lambda: KnowledgeWriteGate(write=SECRET, accept=bool), r"write must be a callable"),
        (lambda: KnowledgeWriteGate(write=print, accept=SECRET), r"accept must be a callable"),
        (lambda: asyncio.run(GATE.offer([CANDIDATE])), r"proposals: item 0 must be a Proposal, got a Candidate"),
        (lambda: asyncio.run(QueuedWriteGate(GATE).offer(SECRET)), r"proposals must be a collection of Proposal"),
        (
            lambda: asyncio.run(KnowledgeRecall(MemoryKnowledgeStore()).search("q", scopes="team", k=3)),
            r"scopes must be a collection of text, got a text",
        ),
        (lambda: counter_for(4), r"model must be a text, got a int"),
    ],
)
def test_a_wrong_type_is_refused(call, message):
    with pytest.raises(ConfigurationError, match=message) as refused:
        call()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "call", [lambda: Task(3), lambda: Task("q", recent=SECRET), lambda: CompactedBlock("s", SECRET, (0, 1))]
)
def test_a_field_of_a_wrong_type_is_refused_without_its_content(call):
    with pytest.raises(ValidationError) as refused:
        call()
    assert SECRET not in str(refused.value)
