"""What cannot work is refused where it is given, and the message says the mend: not at the first turn of an agent."""

from __future__ import annotations

import pytest

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    Context,
    ContextAssembler,
    ConversationPolicy,
    EventFacts,
    History,
    ModelRequest,
    OpenTelemetryRecorder,
    TokenBudgetPolicy,
    allocate,
    attach,
    describe,
)
from otel_assembly.budget import CompactedBlock, Compactors, ExtractiveCompactor, ModelCompactor, compact_history
from otel_assembly.context_assembler import KnowledgeRecall, KnowledgeWriteGate, QueuedWriteGate
from otel_assembly.knowledge import (
    ConversationSummaryAggregate,
    KnowledgeStore,
    MemoryKnowledgeStore,
    WorkingMemoryAggregate,
)
from otel_assembly.runtime import LoopDetector, Stream, TokenMonitor
from otel_assembly.tokens import MessageFraming, TiktokenCounter


class Wiki:
    """A retriever and a recall."""

    async def search(self, query, *, scopes, k):
        return []

    async def recall(self, query, *, user, scopes, k):
        return []

    async def __call__(self, *given):
        return []


class Unfinished:
    name = "unfinished"
    apply = "later"


class Ours:
    name = "ours"

    async def apply(self, prompts, events, context):
        return prompts, events


def desk(**settings):
    return ContextAssembler(
        **{"system": "S", "window": 1_000, "output_reserve": 10, "scopes": lambda user, task: set(), **settings}
    )


@pytest.mark.parametrize(
    ("make", "what", "mend"),
    [
        (lambda: Assembler([BudgetPolicy]), "policy at index 0 is the class BudgetPolicy", "BudgetPolicy(…)"),
        (lambda: Assembler([AlertPolicy(), Ours]), "policy at index 1 is the class Ours", "Ours(…)"),
        (lambda: Assembler(BudgetPolicy), "policies is the class BudgetPolicy", "[BudgetPolicy(…)]"),
        (lambda: Assembler([], counter=TiktokenCounter), "counter is the class TiktokenCounter", "TiktokenCounter(…)"),
        (lambda: Assembler([], framing=MessageFraming), "framing is the class MessageFraming", "MessageFraming(…)"),
        (
            lambda: Assembler([], recorder=OpenTelemetryRecorder),
            "recorder is the class OpenTelemetryRecorder",
            "OpenTelemetryRecorder(…)",
        ),
        (lambda: BudgetPolicy(100, 10, compact=ModelCompactor), "compact is the class ModelCompactor", "(…)"),
        (lambda: BudgetPolicy(100, 10, compact=ExtractiveCompactor), "compact is the class Extractive", "(…)"),
        (lambda: BudgetPolicy(100, 10, compact=Compactors), "compact is the class Compactors", "Compactors(…)"),
        (lambda: Compactors(ModelCompactor), "compact is the class ModelCompactor", "ModelCompactor(…)"),
        (lambda: Compactors(None, fallback=ModelCompactor), "fallback is the class ModelCompactor", "(…)"),
        (lambda: allocate([], 100, 10, compact=ModelCompactor), "compact is the class ModelCompactor", "(…)"),
        (lambda: allocate([], 100, 10, compact=Compactors), "compact is the class Compactors", "Compactors(…)"),
        (
            lambda: compact_history([ModelRequest(content="hi")], 10, ModelCompactor),
            "summarizer is the class ModelCompactor",
            "(…)",
        ),
        (lambda: attach(Stream(), [TokenMonitor]), "observer at index 0 is the class TokenMonitor", "TokenMonitor(…)"),
        (lambda: attach(Stream(), TokenMonitor), "observers is the class TokenMonitor", "[TokenMonitor(…)]"),
        (lambda: attach(Stream, [LoopDetector()]), "stream is the class Stream", "Stream(…)"),
        (lambda: attach(Stream(), [LoopDetector()], Context), "context is the class Context", "Context(…)"),
        (
            lambda: Context(dependencies={KnowledgeStore: MemoryKnowledgeStore}),
            "dependency KnowledgeStore is the class MemoryKnowledgeStore",
            "MemoryKnowledgeStore(…)",
        ),
        (lambda: Context(stream=Stream), "stream is the class Stream", "Stream(…)"),
        (lambda: KnowledgeRecall(MemoryKnowledgeStore), "store is the class MemoryKnowledgeStore", "(…)"),
        (
            lambda: KnowledgeWriteGate(MemoryKnowledgeStore, accept=lambda value: True),
            "store is the class MemoryKnowledgeStore",
            "(…)",
        ),
        (lambda: QueuedWriteGate(KnowledgeWriteGate), "gate is the class KnowledgeWriteGate", "(…)"),
        (lambda: desk(retrievers=[Wiki]), "retriever at index 0 is the class Wiki", "Wiki(…)"),
        (lambda: desk(retrievers=Wiki), "retrievers is the class Wiki", "[Wiki(…)]"),
        (lambda: desk(recall=KnowledgeRecall), "recall is the class KnowledgeRecall", "KnowledgeRecall(…)"),
        (lambda: desk(gate=KnowledgeWriteGate), "gate is the class KnowledgeWriteGate", "(…)"),
        (lambda: desk(scopes=Wiki), "scopes is the class Wiki", "Wiki(…)"),
        (lambda: desk(rerank=Wiki), "rerank is the class Wiki", "Wiki(…)"),
        (lambda: desk(state=Wiki), "state is the class Wiki", "Wiki(…)"),
        (lambda: desk(compact=Compactors), "compact is the class Compactors", "Compactors(…)"),
        (lambda: desk(counter=TiktokenCounter), "counter is the class TiktokenCounter", "TiktokenCounter(…)"),
        (lambda: ConversationSummaryAggregate(Wiki), "summarize is the class Wiki", "Wiki(…)"),
        (lambda: WorkingMemoryAggregate(Wiki), "summarize is the class Wiki", "Wiki(…)"),
    ],
)
def test_a_class_in_place_of_an_instance_is_refused_at_once(make, what, mend):
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert what in str(refused.value)
    assert mend in str(refused.value)


async def test_a_class_in_place_of_a_context_is_refused_at_once():
    with pytest.raises(ConfigurationError, match=r"context is the class Context; .*Context\(…\)"):
        await Assembler([]).assemble([], [], Context)


async def test_a_dict_in_place_of_a_context_is_refused_with_what_to_write():
    with pytest.raises(
        ConfigurationError, match=r"context must be a Context, got a dict; give Context\(conversation_id="
    ):
        await Assembler([]).assemble([], [], {"conversation_id": "c"})


async def test_a_class_in_place_of_the_store_of_an_aggregate_is_refused_at_once():
    aggregate = WorkingMemoryAggregate(lambda prompt: "remembered")
    with pytest.raises(ConfigurationError, match=r"store is the class MemoryKnowledgeStore"):
        await aggregate.aggregate([ModelRequest(content="hi")], Context(), MemoryKnowledgeStore)


@pytest.mark.parametrize(
    ("make", "what", "mend"),
    [
        (lambda: Assembler(AlertPolicy()), "policies is one AlertPolicy", "put it into a list"),
        (lambda: Assembler("budget"), "policies is the text 'budget'", "Assembler.from_config"),
        (lambda: Assembler(["alert"]), "policy at index 0 is the text 'alert'", "Assembler.from_config"),
        (lambda: Assembler(None), "policies is one NoneType", "list"),
        (lambda: Assembler([AlertPolicy(), None]), "policy at index 1 (NoneType)", "needs a 'name'"),
        (
            lambda: Assembler([Unfinished()]),
            "policy at index 0 (Unfinished)",
            "async 'apply(prompts, events, context)'",
        ),
        (lambda: Assembler([], counter=len), "counter (builtin_function_or_method)", "count(text)"),
        (lambda: attach(Stream(), LoopDetector()), "observers is one LoopDetector", "put it into a list"),
        (lambda: attach(Stream(), [Ours()]), "Ours is not an observer", "it has no 'watches'"),
        (lambda: desk(retrievers=Wiki()), "retrievers is one Wiki", "put it into a list"),
        (lambda: desk(counter="o200k_base"), "counter (str)", "count(text)"),
    ],
)
def test_what_is_no_list_or_holds_no_policies_is_refused_with_its_mend(make, what, mend):
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert what in str(refused.value)
    assert mend in str(refused.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda value: Assembler([], on_policy_error=value),
        lambda value: TokenBudgetPolicy(100, on_overflow=value),
        lambda value: BudgetPolicy(100, 10, on_overflow=value),
        lambda value: BudgetPolicy(100, 10, compact=value) if isinstance(value, str) else Compactors(value),
        lambda value: desk(on_retriever_error=value),
        lambda value: TokenMonitor(warn_severity=value),
        lambda value: LoopDetector(severity=value),
    ],
)
@pytest.mark.parametrize("value", ["ignore", "", 1, ["raise"]])
def test_a_value_outside_of_a_closed_set_is_refused(make, value):
    with pytest.raises(ConfigurationError, match=r"'|callable"):
        make(value)


def test_what_may_be_a_class_still_may():
    """A type among the dependencies that is looked up as a type; a namespace of functions; a class that is called."""

    class Answer:
        """A dependency that is itself a class."""

    Context(dependencies={"answer_type": Answer, type: Answer})

    class Found(list):
        """What a rerank gives; its class is callable, and what it makes is not."""

    desk(rerank=Found)


def test_sequences_of_any_kind_are_chains():
    chain = (AlertPolicy(), ConversationPolicy())
    assert Assembler(iter(chain)).policies == chain
    assert Assembler(chain).policies == chain


def test_what_compaction_made_is_no_compactor():
    with pytest.raises(ConfigurationError, match="compact is a CompactedBlock; give a callable"):
        Compactors(CompactedBlock("s", ("a",), (0, 0)))


class Note:
    """A message of a user's own type."""


@describe.register
def _(note: Note) -> EventFacts:
    return EventFacts(kind="requets", text="hello")  # type: ignore[arg-type]


def test_a_kind_of_event_that_is_none_is_refused_with_the_nearest_that_is():
    with pytest.raises(ConfigurationError, match=r"unknown kind of event 'requets'; did you mean 'request'"):
        History([Note()])
