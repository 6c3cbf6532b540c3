"""Whatever is done to a list between two turns, under any chain and any sampling, each turn is told as it was."""

from __future__ import annotations

import asyncio
import random
from copy import copy
from itertools import count

import pytest
from assembling import Coin, Custom, requests, user
from telemetry.turn_checks import Ledger, adds_up, recounted, turns_of

from otel_assembly import (
    Assembler,
    AssemblyError,
    BudgetPolicy,
    Context,
    ModelResponse,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
)
from otel_assembly.events import CompactionSummary
from otel_assembly.observe import ObservedAssembler
from otel_assembly.testing import RecordedTelemetry


class Edits:
    """A list as a caller might change it from turn to turn."""

    def __init__(self, r, numbers):
        self.r, self.numbers, self.events, self.withdrawn = r, numbers, [], []

    def fresh(self):
        text = f"text {next(self.numbers)} " + "word " * self.r.randint(0, 6)
        return self.r.choice([user(text), *requests(text), ModelResponse(content=text)])

    def withdraw(self):
        if self.events:
            self.withdrawn.append(self.events.pop(self.r.randrange(len(self.events))))

    def offer_again(self):
        if self.withdrawn:
            self.events.insert(self.r.randint(0, len(self.events)), self.withdrawn.pop())

    def rotate(self):
        at = self.r.randint(0, len(self.events))
        self.events = self.events[at:] + self.events[:at]

    def shuffle(self):
        self.r.shuffle(self.events)

    def double(self):
        self.events += self.r.sample(self.events, min(1, len(self.events)))

    def copy(self):
        self.events = list(map(copy, self.events))

    def change(self):
        for event in self.r.sample(self.events, min(1, len(self.events))):
            if isinstance(event, dict):
                event["content"] += " more"

    def empty(self):
        self.events = []

    def turn(self):
        """What comes in next."""
        edits = (self.withdraw, self.offer_again, self.rotate, self.shuffle, self.double, self.copy, self.change)
        for edit in self.r.sample((*edits, self.empty), self.r.choice((0, 1, 1))):
            edit()
        self.events = [*self.events, *(self.fresh() for _ in range(self.r.choice((0, 1, 1, 2, 3))))]
        return self.events


def reducers(r, numbers):
    """Functions from events to events: they take, put back, make, stand in, and fail."""
    held = []

    def takes(events):
        gone = [r.random() < 0.3 for _ in events]
        held[:] = [event for event, is_gone in zip(events, gone, strict=True) if is_gone]
        return [event for event, is_gone in zip(events, gone, strict=True) if not is_gone]

    def fails(events):
        if r.random() < 0.3:
            raise RuntimeError("no luck")
        return events[1:]

    return {
        "takes": takes,
        "gives": lambda events: [*events, *held[: r.randint(0, len(held))]],
        "fails": fails,
        "halves": lambda events: events[::2],
        "makes": lambda events: [*events, user(f"made {next(numbers)}")],
        "reminds": lambda events: [*events, user("be kind")],
        "sums up": lambda events: [CompactionSummary(summary="s"), *events[-2:]] if len(events) > 4 else events,
        "turns": lambda events: [*events[-1:], *events[:-1]],
    }


def recording(r):
    often = r.choice((1, 1, 0.3))
    return RecordedTelemetry(sampler=Coin(r.random() < often for _ in count()))


async def assembled(r, telemetry):
    numbers, ledger, context = count(), Ledger(), Context()
    drops = {"on_overflow": r.choice(("drop", "raise"))}
    ours = (
        SlidingWindowPolicy(r.randint(1, 8)),
        TokenBudgetPolicy(r.randint(20, 120), **drops),
        BudgetPolicy(r.randint(20, 120), 0, r.choice((0, 20)), **drops),
    )
    theirs = [Custom(lambda p, e, f=f: (p, f(e)), name) for name, f in reducers(r, numbers).items()]
    chain = r.choices((*theirs, *ours), k=r.randint(1, 4))
    assembler = Assembler(chain, recorder=telemetry.recorder, on_policy_error=r.choice(("skip", "raise")))
    edits, models = Edits(r, numbers), r.choice([["gpt-4o"], ["gpt-4o"], ["gpt-4o", "gpt-4"]])
    for _ in range(r.randint(2, 9)):
        given, context.model = list(edits.turn()), r.choice(models)
        try:
            sent = (await assembler.assemble([], edits.events, context)).events
        except AssemblyError:
            sent = None
        for turn in turns_of(telemetry):
            tells(turn, ledger, given, sent, turn.attributes["assembly.tokens.encoding"])
        telemetry.clear()


def observed(r, telemetry):
    numbers, ledger = count(), Ledger()
    assembler, edits = ObservedAssembler("peer", recorder=telemetry.recorder), Edits(r, numbers)
    chain, fed = r.choices(list(reducers(r, numbers).items()), k=r.randint(1, 4)), r.random() < 0.5
    for _ in range(r.randint(2, 9)):
        events, unknown = list(edits.turn()), r.random() < 0.1
        given = list(map(copy, events))
        assembly = assembler.begin("thread", events, unknown_input=unknown)
        for name, reduces in chain:
            with assembly.step(name) as step:
                try:
                    events = reduces(events)
                except RuntimeError:
                    continue
                finally:
                    step.out(events)
        error = RuntimeError("no luck") if r.random() < 0.1 else None
        assembly.end(error)
        for turn in turns_of(telemetry):
            tells(turn, ledger, given, None if unknown or error else events)
        telemetry.clear()
        edits.events = events if fed and error is None else edits.events


def tells(turn, ledger, given, sent, encoding="o200k_base"):
    if sent is not None:
        recounted(turn, ledger, given, sent, encoding)
    adds_up(turn)
    ledger.take(turn)


@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(40, 100))])
def test_every_recorded_turn_is_told_as_it_was(seed):
    r = random.Random(f"edits {seed}")
    for run in (lambda telemetry: asyncio.run(assembled(r, telemetry)), lambda telemetry: observed(r, telemetry)):
        telemetry = recording(r)
        run(telemetry)
        assert telemetry.violations() == []
        telemetry.shutdown()
