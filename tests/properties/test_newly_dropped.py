"""Newly dropped items are those of the last prompt, and those that arrived since, that are not in this prompt.

The model keeps plain lists of names. The engine runs built-in policies, custom policies, and the reducers of an
observed framework; each conversation is generated from a seed.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

import pytest

from otel_assembly import (
    Assembler,
    Context,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.observe import ObservedAssembler
from otel_assembly.testing import RecordedTelemetry
from otel_assembly.tokens import CharacterCounter

COUNTER = CharacterCounter(4)
TURNS = 8


def name_of(event):
    """The name that an event was generated with: its text, or the number of its tool call."""
    if isinstance(event, dict):
        return event["content"]
    if isinstance(event, ModelResponse) and event.tool_calls:
        return event.tool_calls[0].arguments
    return event.content


@dataclass
class Plain:
    """The model: which names the last prompt contained, and which names have been in an input."""

    prompt: set[str] = field(default_factory=set)
    offered: set[str] = field(default_factory=set)
    total: int = 0

    def turn(self, inputs, sent):
        """Return the names that this turn dropped and that no turn before it dropped."""
        inputs, sent = set(inputs), set(sent)
        dropped = (self.prompt | (inputs - self.offered)) & inputs - sent
        self.prompt, self.offered = sent, inputs
        self.total += len(dropped)
        return dropped


# --- Steps ------------------------------------------------------------------------------------------------------------


class Step:
    """A step that drops, reorders, adds or restores messages, as its seed says."""

    KINDS = (
        "scatter",
        "scatter",
        "hash",
        "hash",
        "head",
        "tail",
        "swap",
        "note",
        "same_note",
        "restore",
        "restore_copy",
    )

    def __init__(self, rng, number):
        self.rng, self.number = rng, number
        self.kind = rng.choice(self.KINDS)
        self.modulus, self.size = rng.randint(2, 4), rng.randint(2, 6)
        self.name = f"{self.kind}_{number}"
        self.notes = 0
        self.kept = None

    def change(self, events, before, make):
        """Return the messages that this step lets out; `before` is what earlier steps of this turn received."""
        rng, kind = self.rng, self.kind
        if kind == "scatter":
            return [event for event in events if rng.random() > 0.3]
        if kind == "hash":
            tail = len(events) - self.size
            return [e for at, e in enumerate(events) if at >= tail or sum(name_of(e).encode()) % self.modulus]
        if kind == "head":
            return events[: self.size]
        if kind == "tail":
            return events[-self.size :]
        if kind == "swap" and len(events) > 2:
            at = rng.randrange(1, len(events))
            return [*events[at:], *events[:at]]
        if kind == "note":
            self.notes += 1
            return [*events, make(f"note {self.number} {self.notes}")]
        if kind == "same_note":
            if self.kept is None:
                self.kept = make(f"note {self.number}")
            return [self.kept, *events]
        if kind.startswith("restore"):
            there = set(map(name_of, events))
            missing = {name_of(event): event for event in before if name_of(event) not in there}
            back = [event for event in missing.values() if rng.random() < 0.5]
            return [*events, *(map(copy.deepcopy, back) if kind == "restore_copy" else back)]
        return list(events)


class Custom:
    """A step as a custom policy."""

    def __init__(self, step, seen):
        self.step, self.seen, self.name = step, seen, step.name

    async def apply(self, prompts, events, context):
        before = list(self.seen)
        out = self.step.change(list(events), before, lambda text: ModelRequest(content=text))
        self.seen += [*events, *out]
        return prompts, out


class First:
    """Notes which messages the first step receives."""

    name = "first"

    def __init__(self, seen):
        self.seen = seen

    async def apply(self, prompts, events, context):
        self.seen[:] = list(events)
        return prompts, events


def grow(rng, events, number):
    """Append the messages of a turn, with texts that no other message has."""
    for _ in range(rng.randint(1, 5)):
        number += 1
        kind = rng.choice(["ask", "answer", "tool"])
        if kind == "ask":
            events.append(ModelRequest(content=f"ask {number}"))
        elif kind == "answer":
            events.append(ModelResponse(content=f"answer {number}"))
        else:
            events.append(ModelResponse(tool_calls=(ToolCallEvent(id=f"c{number}", name="f", arguments=f"{number}"),)))
            events.append(ToolResultEvent(parent_id=f"c{number}", content=f"result {number}"))
    return number


def chain_of(rng, seen):
    made = []
    for number in range(rng.randint(1, 4)):
        builtin = rng.random()
        if builtin < 0.1:
            made.append(SlidingWindowPolicy(rng.randint(3, 8)))
        elif builtin < 0.2:
            made.append(TokenBudgetPolicy(rng.randint(60, 200), on_overflow="drop"))
        elif builtin < 0.3:
            made.append(ConversationPolicy())
        else:
            made.append(Custom(Step(rng, number), seen))
    return [First(seen), *made]


def rearrange(rng, events):
    """Return the list as a program may rebuild it between turns."""
    how = rng.random()
    if how < 0.6 or len(events) < 3:
        return events
    if how < 0.7:
        return [copy.deepcopy(event) for event in events]
    if how < 0.8:
        at = rng.randrange(1, len(events))
        return [*events[at:], *events[:at]]
    if how < 0.9:
        return events[rng.randrange(1, 3) :]
    return list(events)


def counted(telemetry):
    """The counter of dropped items, over all policies and reasons."""
    return telemetry.metric("assembly.items.dropped") if "assembly.items.dropped" in telemetry.metrics else 0


async def check_policies(seed):
    rng, seen, number = random.Random(seed), [], 0
    history = rng.random() < 0.5
    events = History() if history else []
    telemetry = RecordedTelemetry()
    assembler = Assembler(chain_of(rng, seen), counter=COUNTER, recorder=telemetry.recorder)
    context, plain = Context(), Plain()
    for turn in range(TURNS):
        number = grow(rng, events, number)
        if not history:
            events = rearrange(rng, events)
        inputs = list(map(name_of, events))
        assembly = await assembler.assemble([], events, context)
        sent = list(map(name_of, assembly.events))
        expected = plain.turn(inputs, sent)
        (span,) = telemetry.spans_named("assemble_context")
        telemetry.clear()
        if turn == 0 and any(isinstance(event, ModelResponse) for event in events):  # the ledger resumes
            assert span.attributes.get("assembly.resumed.count", 0) == len(expected)
            expected = set()
        ids = {item: name_of(event) for item, event in zip(assembly.items, assembly.events, strict=True)}
        assert len(ids) == len(sent)
        left = [name_of(exit_.event) for exit_ in assembly.exits]
        assert sorted(name for name in left if name in inputs) == sorted(expected), (seed, turn, "exits")
        compacted = {name_of(exit_.event) for exit_ in assembly.exits if exit_.outcome == "compacted"}
        assert span.attributes["assembly.newly_dropped.count"] == len(expected - compacted), (seed, turn)
        injected = [name_of(decision.event) for decision in assembly.decisions if decision.outcome == "injected"]
        assert len(injected) == len(set(injected)), (seed, turn, "injected twice", injected)
        assert not set(left) & set(sent), (seed, turn, "left, and in the prompt", set(left) & set(sent))
        assert not set(injected) & set(inputs), (seed, turn, "injected, and in the input", set(injected) & set(inputs))
    telemetry.shutdown()


def check_observed(seed):
    rng, number, messages = random.Random(seed), 0, []
    telemetry = RecordedTelemetry()
    observed = ObservedAssembler("peer", recorder=telemetry.recorder, counter=COUNTER)
    steps = [Step(rng, number) for number in range(rng.randint(1, 4))]
    plain = Plain()
    dicts = rng.random() < 0.5
    make = (lambda text: {"role": "user", "content": text}) if dicts else (lambda text: ModelRequest(content=text))
    counter = 0
    for turn in range(TURNS):
        for _ in range(rng.randint(1, 30)):
            number += 1
            messages.append(make(f"message {number}"))
        messages = rearrange(rng, messages)
        inputs = list(map(name_of, messages))
        assembly = observed.begin("c", messages)
        events, seen = list(messages), []
        for step in steps:
            seen += events
            with assembly.step(step.name) as recorded:
                events = step.change(events, seen, make)
                recorded.out(events, stands_in=False)
        assembly.end()
        sent = list(map(name_of, events))
        expected = plain.turn(inputs, sent)
        (span,) = telemetry.spans_named("assemble_context")
        telemetry.clear()
        assert len(span.kept) == len(sent)
        assert span.attributes["assembly.newly_dropped.count"] == len(expected), (seed, turn)
        now = counted(telemetry)
        assert now - counter >= len(expected), (seed, turn)
        if not any("note" in step.kind for step in steps):
            assert now - counter == len(expected), (seed, turn)
        counter = now
    telemetry.shutdown()


SEEDS = [pytest.param(range(start, start + 50), marks=pytest.mark.slow if start else ()) for start in range(0, 400, 50)]


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
async def test_policies_count_what_leaves_as_a_plain_list_does(seeds):
    for seed in seeds:
        await check_policies(seed)


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_observed_reducers_count_what_leaves_as_a_plain_list_does(seeds):
    for seed in seeds:
        check_observed(seed)
