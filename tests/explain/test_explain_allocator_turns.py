"""Items of a context assembler's blocks, turn by turn: one ledger, and what would have kept them is true there too."""

from __future__ import annotations

import asyncio
from functools import cache

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_assembly import Context, ContextAssembler, ContextOverflowError, Task
from otel_assembly.budget import texts_of
from otel_assembly.context_assembler import Candidate
from otel_assembly.explain import Explainer, explain
from otel_assembly.telemetry import ContentCapture, TelemetrySettings, read_ledgers
from otel_assembly.testing import RecordedTelemetry, conversation
from otel_assembly.tokens import TiktokenCounter

MODEST = settings(
    max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
FLOORS = {"evidence": 40, "memory": 20, "summary": 20}


class Remembering(TiktokenCounter):
    """Counts each text once, however many assemblers ask."""

    count = cache(TiktokenCounter.count)


COUNTER = Remembering("o200k_base")


class Shelf:
    """A retriever and a recall that bring what they were given for a task."""

    name = "shelf"

    def __init__(self, brings):
        self.brings = brings

    async def search(self, query, *, scopes, k):
        return self.brings[query]

    async def recall(self, query, *, user, scopes, k):
        return self.brings[query]


class Desk:
    """A conversation of several tasks under one window, recorded with its content."""

    def __init__(self, turns, window, order="attention"):
        self.turns, self.window, self.order = turns, window, order
        telemetry = RecordedTelemetry(settings=TelemetrySettings(content=ContentCapture.SPAN_ONLY))
        context, assembler = Context(), self._assembler(window, telemetry.recorder)
        for task, _, _ in turns:
            try:
                asyncio.run(assembler.assemble(task, None, context))
            except ContextOverflowError:
                continue
        self.spans = telemetry.spans
        telemetry.shutdown()
        (self.ledger,) = read_ledgers(self.spans).values()
        #: What each item said, by the turn up to which that is known.
        self.texts, known = {}, {}
        for turn in self.ledger.turns:
            contents = turn.attributes.get("assembly.arrived.contents", ())
            known = self.texts[turn.number] = known | dict(zip(turn.arrived, contents, strict=False))

    def _assembler(self, window, recorder=None):
        return ContextAssembler(
            system="You are the support desk of a shop.",
            window=window,
            output_reserve=20,
            scopes=lambda user, task: {"public"},
            retrievers=[Shelf({task.query: passages for task, passages, _ in self.turns})],
            recall=Shelf({task.query: memories for task, _, memories in self.turns}),
            floors=FLOORS,
            order=self.order,
            step_tokens=40,
            counter=COUNTER,
            recorder=recorder,
        )

    @cache  # noqa: B019  # it lives for one example
    def kept(self, turn, window):
        """What the texts are of the items that are in the prompt as they are."""
        task, _, _ = self.turns[turn]
        context = asyncio.run(self._assembler(window).assemble(task, None, Context()))
        return {"\n".join(texts_of(item.item)) for item in context.allocation.items if item.outcome == "kept"}


def _round(text, calls):
    if not calls:
        return conversation("ask: " + text, "answer: " + text)
    return conversation("ask: " + text, "call a", "result a: " + text, "answer: " + text)


@st.composite
def turns(draw):
    said = st.sampled_from(["ok", "where is my bag", "the flight was moved to gate fourteen " * 2, "lorem ipsum " * 9])
    made = []
    for number in range(draw(st.integers(1, 3))):
        passages = [
            Candidate(f"doc-{at}", f"passage {at}: {draw(said)}", "public", version=draw(st.integers(1, 2)))
            for at in draw(st.lists(st.integers(0, 5), max_size=5))
        ]
        memories = [
            Candidate(f"m-{at}", f"memory {at}: {draw(said)}", "public", score=draw(st.integers(0, 3)))
            for at in draw(st.lists(st.integers(0, 3), unique=True, max_size=3))
        ]
        events = [event for _ in range(draw(st.integers(0, 4))) for event in _round(draw(said), draw(st.booleans()))]
        border = draw(st.integers(0, len(events)))
        summary = draw(st.sampled_from([None, "so far they have talked about bags and flights. " * 3]))
        task = Task(f"question {number}", summary=summary, older=events[:border], recent=events[border:])
        made.append((task, passages, memories))
    return made


@MODEST
@given(turns(), st.integers(90, 360))
def test_the_window_that_is_named_keeps_the_item_on_that_turn_and_a_smaller_one_does_not(turns, window):
    desk = Desk(turns, window)
    for turn in (turn for turn in desk.ledger.turns if turn.sent):
        explainer = Explainer(desk.ledger, turn.number)
        texts = desk.texts[turn.number]
        said = [texts[item] for item in (*desk.ledger.exits(turn.number), *turn.kept)]
        for item in desk.ledger.exits(turn.number):
            answer = explainer.explain(item)
            assert answer.raises or answer.never or answer.unknown
            assert not answer.unknown, answer
            text = texts[item]
            for change in answer.raises if said.count(text) == 1 else ():
                assert text in desk.kept(turn.number, change.to)
                if not change.at_most:
                    assert text not in desk.kept(turn.number, change.to - 1)


def test_in_the_order_for_the_cache_what_a_step_is_does_not_depend_on_the_window_that_is_named():
    said = [
        event for at in range(16) for event in conversation(f"ask: about bag {at} " * 3, f"answer: of bag {at} " * 3)
    ]
    desk = Desk([(Task("and now?", recent=said), [], [])], 240, "cache")
    answers = {item: explain(desk.ledger, 0, item) for item in desk.ledger.exits(0)}
    assert len(answers) > 12
    for item, answer in answers.items():
        (change,) = answer.raises
        assert desk.texts[0][item] in desk.kept(0, change.to)
        assert desk.texts[0][item] not in desk.kept(0, change.to - 1)
    assert len({answer.raises[0].to for answer in answers.values()}) < len(answers) / 2, "turns leave in steps"


def test_an_item_that_left_earlier_is_explained_by_the_turn_that_is_asked_about():
    passages = [Candidate(f"doc-{n}", f"passage {n} says " + "this " * 12, "public") for n in range(6)]
    made = [(Task("first question"), passages, []), (Task("second question"), passages, [])]
    desk = Desk(made, 130)
    (last,) = [item for item, text in desk.texts[1].items() if text.startswith("passage 5")]
    answer = explain(desk.ledger, 1, last)
    assert (answer.reason, answer.policy, answer.since, answer.block.name) == ("low_rank", "allocator", 0, "evidence")
    (change,) = answer.raises
    assert desk.texts[1][last] in desk.kept(1, change.to)
    assert desk.texts[1][last] not in desk.kept(1, change.to - 1)
    assert [span.name for span in answer.block.before] == ["system", "query"]


def test_where_what_may_not_be_cut_does_not_fit_the_window_that_holds_it_is_named():
    fits = (Task("question"), [], [])
    made = [fits, (Task("question " * 60), [], [])]
    desk = Desk(made, 60)
    answer = explain(desk.ledger, 1, "0")
    assert (answer.outcome, answer.policy, answer.reason) == ("not_sent", "allocator", "over_budget")
    (change,) = answer.unsent.raises
    assert Desk(made, change.to).ledger.turn(1).sent
    assert not Desk(made, change.to - 1).ledger.turn(1).sent
