"""Counters of change do not depend on how many processes serve a conversation, or on how often an assembler is made.

Each recorder stands for a process: assemblers that record elsewhere share nothing.
"""

from __future__ import annotations

import random

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
)
from otel_assembly.observe import ObservedAssembler
from otel_assembly.testing import RecordedTelemetry


class EveryThird:
    """Drops every third message but the newest."""

    name = "every_third"

    async def apply(self, prompts, events, context):
        return prompts, [event for at, event in enumerate(events) if at % 3 or at == len(events) - 1]


CHAINS = {
    "window": [ConversationPolicy(), SlidingWindowPolicy(20)],
    "budget": [TokenBudgetPolicy(300)],
    "scattered": [EveryThird()],
}


def dicts(rows):
    return [{"role": role, "content": text} for role, text in rows]


def history(rows):
    made = History()
    made.extend([(ModelRequest if role == "user" else ModelResponse)(content=text) for role, text in rows])
    return made


async def serve(workers, chain, load, words, *, conversations=2, turns=40, observed=False):
    """Serve conversations with so many processes; return their counts together, and how many prompts are 'first'."""
    rng, telemetries = random.Random(7), [RecordedTelemetry() for _ in range(workers)]
    observers = [ObservedAssembler("peer", recorder=telemetry.recorder, counter=words) for telemetry in telemetries]
    new = first = 0
    for conversation in range(conversations):
        rows = []
        for turn in range(turns):
            rows.append(("user", f"{conversation} {turn} question"))
            worker = rng.randrange(workers)
            telemetry, name = telemetries[worker], f"c{conversation}"
            if observed:
                assembly = observers[worker].begin(name, load(rows), conversation_id=name)
                with assembly.step("trim") as step:
                    step.out(assembly.events[-20:])
                assembly.end()
            else:
                assembler = Assembler(CHAINS[chain], counter=words, recorder=telemetry.recorder)
                await assembler.assemble(["be kind"], load(rows), Context(agent_name="a", conversation_id=name))
            (span,) = telemetry.spans_named("assemble_context")
            telemetry.clear()
            new += span.attributes["assembly.newly_dropped.count"]
            first += span.attributes.get("assembly.prefix.break") == "first"
            rows.append(("assistant", f"{conversation} {turn} answer"))
    counted = sum(
        telemetry.metric("assembly.items.dropped")
        for telemetry in telemetries
        if "assembly.items.dropped" in telemetry.metrics
    )
    assert counted == new
    for item in telemetries:
        assert item.violations() == []
        item.shutdown()
    return new, first


@pytest.mark.parametrize("load", [pytest.param(dicts, marks=pytest.mark.slow), history], ids=["list", "history"])
@pytest.mark.parametrize("chain", CHAINS)
async def test_the_number_of_processes_does_not_multiply_the_counters(chain, load, words):
    truth, first = await serve(1, chain, load, words)
    assert first == 2
    for workers in (2, 8):
        counted, first = await serve(workers, chain, load, words)
        assert 0.7 * truth <= counted <= 1.1 * truth, workers
        assert first == 2


async def test_forty_processes_count_a_long_conversation_once(words):
    truth, _ = await serve(1, "window", dicts, words, conversations=1, turns=150)
    counted, _ = await serve(40, "window", dicts, words, conversations=1, turns=150)
    assert 0.8 * truth <= counted <= 1.1 * truth


async def test_forty_processes_count_what_an_observed_framework_drops_once(words):
    truth, _ = await serve(1, "", dicts, words, conversations=1, turns=150, observed=True)
    counted, _ = await serve(40, "", dicts, words, conversations=1, turns=150, observed=True)
    assert 0.8 * truth <= counted <= 1.1 * truth
