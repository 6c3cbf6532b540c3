"""Random blocks, what the spans of their allocation tell, and the truth by allocating again."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from strategies import TEXTS, conversations

from otel_assembly import Block, BlockItem, ContextOverflowError, allocate
from otel_assembly.budget import CompactedBlock, Compactors, Cut
from otel_assembly.explain import Explainer
from otel_assembly.telemetry import read_ledgers
from otel_assembly.testing import RecordedTelemetry

RESERVE = 40


def words(text):
    return len(text.split())


def letters(text):
    return len(text)


def more_together(text):
    """A counter that finds more in a joined text than in its parts."""
    return len(text.split()) + len(text) ** 2 // 500


def no_answer(text, target_tokens):
    return ""


def broken(text, target_tokens):
    raise RuntimeError("down")


def first_words(text, target_tokens):
    return " ".join(text.split()[: max(1, target_tokens // 2)])


def whims(text, target_tokens):
    """A compactor that now fails, and now makes more or less of what it is given."""
    return " ".join(text.split()[: target_tokens * 7 % 11])


counts = st.sampled_from([None, None, None, words, letters, more_together])
compactors = st.sampled_from(
    [
        None,
        None,
        Compactors(no_answer, fallback=None),
        Compactors(broken),
        Compactors(first_words, fallback=None),
        Compactors(whims, fallback=None),
    ]
)
SAYINGS = ["a b c d e f", "one. two. three. four. five. six. " * 6, "{[(<>)]}", "\n\n\n x", "the flight was moved " * 3]
texts = st.one_of(st.sampled_from(TEXTS), st.sampled_from(SAYINGS), st.sampled_from(SAYINGS), st.text(max_size=40))
items = st.builds(
    BlockItem,
    st.one_of(texts, texts, texts.map(lambda text: CompactedBlock(text, ("leaf-1", "leaf-2"), (0, 1)))),
    id=st.sampled_from([None, None, None, "1", "2"]),
    rank=st.one_of(st.none(), st.integers(1, 4)),
    score=st.one_of(st.none(), st.integers(0, 3)),
    version=st.sampled_from([None, 1, 2]),
    profile=st.booleans(),
    group=st.sampled_from([None, None, None, "g", "h"]),
    current=st.sampled_from([True, True, True, False]),
)
events = conversations(max_blocks=5)
contents = st.one_of(
    texts,
    st.lists(items, max_size=6),
    st.lists(items, min_size=2, max_size=6),
    events,
    st.tuples(events, st.lists(texts, max_size=2)).map(lambda both: [*both[1], *both[0], *both[1]]),
)


@st.composite
def block_sets(draw):
    names = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1, max_size=6))
    return [
        Block(
            name,
            draw(st.integers(1, 9)),
            draw(contents),
            cuttable=draw(st.integers(0, 4)) > 0,
            min_tokens=draw(st.sampled_from([0, 0, 5, 12, 30])),
            rank=draw(st.sampled_from([None, 1, 2])),
            cut=draw(st.sampled_from([None, None, *Cut])),
            stable=draw(st.sampled_from([None, None, True])),
            separator=draw(st.sampled_from(["\n\n", "\n\n", "\n", "", " ", ")"])),
            restated=draw(st.sampled_from(["", "", "", "Answer in one line."])),
        )
        for name in names
    ]


budgets = st.one_of(st.integers(10, 80), st.integers(10, 500))


@dataclass
class Allocated:
    """Blocks that were allocated once, recorded."""

    blocks: list
    window: int
    counted_by: object = None
    compact: object = None
    spans: list = field(default_factory=list)
    allocation: object = None

    def __post_init__(self):
        telemetry = RecordedTelemetry()
        with telemetry.as_default():
            self.allocation = self.with_window(self.window)
        self.spans = telemetry.spans
        telemetry.shutdown()

    def with_window(self, window):
        try:
            return allocate(self.blocks, window, RESERVE, self.counted_by, self.compact)
        except ContextOverflowError:
            return None

    @property
    def ledger(self):
        (ledger,) = read_ledgers(self.spans, allocations=True).values()
        return ledger

    def kept(self, window):
        """The ids of the items that are in the prompt as they are."""
        allocation = self.with_window(window)
        if allocation is None:
            return set()
        return {str(at) for at, item in enumerate(allocation.items) if item.outcome == "kept"}

    def answers(self):
        """Every item that is out, with what is said of it."""
        ledger = self.ledger
        assert ledger.problems == []
        explainer = Explainer(ledger, 0)
        for item in ledger.exits(0):
            yield item, explainer.explain(item)
