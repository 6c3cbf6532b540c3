"""What holds of every turn that is told, and what a reader who keeps arrivals knows of the items."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from recount import event_tokens, prompt_tokens
from telemetry.forty_lines import items, read, whole

from otel_assembly import Assembler, Context
from otel_assembly.telemetry import read_spans, span_tree

EQUATION = ("events.in", "events.injected", "events.out", "dropped.count", "compacted.count")
#: What a step lists, and how many that are.
LISTED = {"dropped": "dropped.count", "compacted": "compacted.count", "injected": "events.injected"}


class Ledger:
    """What a reader who keeps arrivals knows of the items."""

    def __init__(self):
        self.tokens, self.sources = {}, {}

    def take(self, turn):
        told = whole(turn)
        names = ("items", "tokens", "sources")
        for item, tokens, sources in zip(*(told.get(f"assembly.arrived.{n}", ()) for n in names), strict=True):
            self.tokens[item], self.sources[item] = tokens, sources


def in_file(path):
    """The assemblies in a file of spans, each with what stands below it."""

    spans = []

    def add(node):
        below = list(map(add, node.children))
        spans.append(SimpleNamespace(name=node.span.name, attributes=node.span.attributes, children=below))
        return spans[-1]

    for root in span_tree(read_spans(path)):
        add(root)
    return [span for span in spans if span.name == "assemble_context"]


def turns_of(telemetry):
    """The assemblies that are told, in the order in which they ended; an abandoned one says nothing."""
    return [turn for turn in telemetry.spans_named("assemble_context") if "assembly.id" in turn.attributes]


def steps_of(turn):
    return [child for child in turn.children if child.name.startswith("apply_policy")]


def last(telemetry):
    found = turns_of(telemetry)[-1]
    return found, read(found)


def check_counts(turn):
    """The equation, of the assembly and of each step; and a step lists as many items as it counts."""
    for span in (turn, *steps_of(turn)):
        n = {key: span.attributes[f"assembly.{key}"] for key in EQUATION}
        assert n["events.in"] + n["events.injected"] == n["events.out"] + n["dropped.count"] + n["compacted.count"]
        assert span.attributes["assembly.newly_dropped.count"] <= n["dropped.count"]
    for step in steps_of(turn):
        told, raised = whole(step), {"error.type"} <= turn.attributes.keys() & step.attributes.keys()
        for what, count in LISTED.items():
            listed = list(items(told.get(f"assembly.{what}.items", ())))
            assert len(set(listed)) == len(listed)
            if what == "dropped" and "assembly.dropped.unlisted_reasons" in told:
                assert len(listed) < told["assembly.dropped.count"]
            elif not raised:
                assert len(listed) == told[f"assembly.{count}"]


def adds_up(turn):
    """What the spans of one turn list is what they count, and nothing is both in the prompt and out of it."""
    offered, kept, out, unlisted = read(turn)
    told = turn.attributes
    if "assembly.input.unknown" in told:
        assert offered == []
        assert "assembly.dropped.count" not in told
        return
    check_counts(turn)
    assert len(offered) == len(set(offered)) == told["assembly.events.in"]
    assert len(kept) == len(set(kept)) == told["assembly.events.out"]
    if "error.type" in told and not kept:
        assert told["assembly.dropped.count"] == len(offered)
        return
    gone = [item for item in offered if item not in kept]
    assert set(gone) == {*out, *unlisted} & set(offered)
    assert not {*out, *unlisted} & set(kept)
    outcomes = Counter(out[item][0] if item in out else "dropped" for item in gone)
    assert outcomes["dropped"] == told["assembly.dropped.count"]
    assert outcomes["compacted"] == told["assembly.compacted.count"]
    assert len(set(kept) - set(offered)) == told["assembly.events.injected"]


def recounted(turn, ledger, given, sent, encoding="o200k_base"):
    """A turn's items, the tokens of each, and its totals are those of the objects that came in and were sent."""
    adds_up(turn)
    offered, kept, *_ = read(turn)
    ledger.take(turn)
    for item, event in (*zip(offered, given, strict=True), *zip(kept, sent, strict=True)):
        assert ledger.tokens[item] == event_tokens(event, encoding), item
    told = turn.attributes
    gone = sum(event_tokens(event, encoding) for item, event in zip(offered, given, strict=True) if item not in kept)
    assert gone == told["assembly.dropped.tokens"] + told["assembly.compacted.tokens"]
    assert told["assembly.tokens.in"] == prompt_tokens([], given, name=encoding)
    assert told["assembly.tokens.out"] == prompt_tokens([], sent, name=encoding)


class Talk:
    """A conversation, assembled turn by turn: each turn is recounted, and read from its spans alone."""

    def __init__(self, telemetry, *chain, **settings):
        self.telemetry, self.ledger, self.context = telemetry, Ledger(), Context()
        self.assembler = Assembler(chain, recorder=telemetry.recorder, **settings)

    async def turn(self, events, encoding="o200k_base"):
        """The turn's span; its items are what `read` says of it, and what was sent stands in `sent`."""
        given = list(events)
        assembly = await self.assembler.assemble([], events, self.context)
        self.sent = assembly.events
        turn = turns_of(self.telemetry)[-1]
        recounted(turn, self.ledger, given, self.sent, encoding)
        return turn


def bytes_of(turn):
    """Bytes of a turn's arrays: its own, its steps', and what did not fit."""
    spans = [turn, *turn.children, *(below for child in turn.children for below in child.children)]
    arrays = (value for span in spans for value in span.attributes.values() if isinstance(value, list))
    return sum(len(str(entry)) for array in arrays for entry in array)
