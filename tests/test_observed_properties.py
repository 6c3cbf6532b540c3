"""Random reducers over growing conversations: what is read back from the spans is what truly happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from assembling import Coin
from counting import WordCounter
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_assembly import DecisionReason, ModelRequest
from otel_assembly.observe import ObservedAssembler
from otel_assembly.telemetry import read_ledgers
from otel_assembly.testing import RecordedTelemetry

OUT = ("dropped", "outside_window")
COMPACTED = ("compacted", "compacted")


@dataclass
class World:
    """Makes messages, each of which is known by a label that its copies share."""

    ours: bool
    with_ids: bool
    #: Whether all that comes in says the same; only ids tell it apart.
    alike: bool = False
    count: int = 0
    labels: dict = field(default_factory=dict)
    held: list = field(default_factory=list)

    def new(self, *, comes_in=False):
        self.count += 1
        label = f"m{self.count}"
        text = "ok and ok" if comes_in and self.alike and self.with_ids else f"text of {label}"
        if self.ours:
            event = ModelRequest(content=text, **({"id": label} if self.with_ids else {}))
        else:
            event = {"role": "user", "content": text, **({"id": label} if self.with_ids else {})}
        return self.mark(event, label)

    def mark(self, event, label):
        self.labels[id(event)] = label
        self.held.append(event)
        return event

    def copy(self, event):
        made = dict(event) if isinstance(event, dict) else event.model_copy()
        return self.mark(made, self.labels[id(event)])

    def of(self, events):
        return [self.labels[id(event)] for event in events]


def window(world, events, n, turn):
    return events[-n:], {}


def every_other(world, events, n, turn):
    return events[n % 2 :: 2], {}


def copies(world, events, n, turn):
    return [world.copy(event) for event in events], {}


def head_and_tail(world, events, n, turn):
    return (events, {}) if len(events) <= 2 * n else (events[:n] + events[-n:], {})


def replaces(world, events, n, turn):
    if len(events) <= n:
        return events, {}
    return [*events[: n - 1], world.new(), *events[n:]], dict.fromkeys(world.of(events[n - 1 : n]), COMPACTED)


def summarises(world, events, n, turn):
    if len(events) <= n + 1:
        return events, {}
    return [world.new(), *events[-n:]], dict.fromkeys(world.of(events[:-n]), COMPACTED)


def newest_first(world, events, n, turn):
    return [*events[-1:], *events[:-1]], {}


def reminds(world, events, n, turn):
    return [*events, world.new()], {}


def nothing(world, events, n, turn):
    return list(events), {}


REDUCERS = [window, every_other, copies, head_and_tail, replaces, summarises, newest_first, reminds, nothing]


@dataclass
class Truth:
    """What became of every item, by what was done to it."""

    exits: dict = field(default_factory=dict)
    made: dict = field(default_factory=dict)

    def step(self, index, before, after, why):
        policy = f"step{index}"
        for label in before:
            if label not in after:
                self.exits[label] = (*why.get(label, OUT), policy, index)
        made = [label for label in after if label not in before]
        for label in made:
            self.made[label] = index
        return made

    def end(self, offered, made, kept):
        for label, index in list(self.made.items()):
            if label in offered or label in self.exits:
                del self.made[label]
            elif label not in made:
                self.exits[label] = ("dropped", "withdrawn", f"step{index}", index)
                del self.made[label]
        for label in kept:
            self.exits.pop(label, None)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_the_ledger_read_back_is_the_truth(data):
    world = World(*(data.draw(st.booleans()) for _ in range(3)))
    chain = data.draw(st.lists(st.tuples(st.sampled_from(REDUCERS), st.integers(1, 4)), min_size=1, max_size=3))
    turns = data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=7))
    sampled = data.draw(st.lists(st.booleans(), min_size=len(turns), max_size=len(turns)))
    persistent, stored = data.draw(st.booleans()), data.draw(st.booleans())
    telemetry = RecordedTelemetry(sampler=Coin(sampled))
    observed = ObservedAssembler("peer", recorder=telemetry.recorder, counter=WordCounter())
    truth, state, expected = Truth(), [world.new(comes_in=True)], {}
    for number, grown in enumerate(turns):
        if stored:  # every turn brings other objects of what was there before
            state = [world.copy(event) for event in state]
        state = [*state, *(world.new(comes_in=True) for _ in range(grown))]
        assembly = observed.begin("c", state)
        events, made = state, set()
        for index, (reduce, n) in enumerate(chain):
            with assembly.step(f"step{index}") as step:
                result, why = reduce(world, events, n, number)
                step.out(result, reason=DecisionReason.OUTSIDE_WINDOW)
            made.update(truth.step(index, world.of(events), world.of(result), why))
            events = result
        assembly.end()
        truth.end(world.of(state), made, world.of(events))
        expected[number] = (world.of(events), dict(truth.exits))
        if persistent:
            state = events
    assert telemetry.violations() == []
    if not any(sampled):
        assert telemetry.spans == []
        return
    (ledger,) = read_ledgers(telemetry.spans).values()
    assert ledger.problems == []
    ordinals: dict = {}
    for told in ledger.turns:
        kept, exits = expected[told.number]
        assert len(kept) == len(told.kept)
        for label, item in zip(kept, told.kept, strict=True):
            assert ordinals.setdefault(label, item) == item
        assert len(set(ordinals.values())) == len(ordinals)
        read = ledger.exits(told.number)
        for label, item in ordinals.items():
            if label in kept:
                assert item not in read
            elif told.lists(item):
                exit_ = read[item]
                assert (exit_.outcome, exit_.reason, exit_.policy, exit_.index) == exits[label], label
        for item in told.kept:
            assert ledger.tokens(told.number, item) == 4 + 3
    telemetry.shutdown()
