"""Conversations played under a chain, what the spans tell of them, and the truth by playing a turn again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

from otel_assembly import Assembler, AssemblyError, Context, History
from otel_assembly.chain import chain_from_config
from otel_assembly.telemetry import read_ledgers
from otel_assembly.testing import RecordedTelemetry

REAL_DATA = Path(__file__).parents[3] / "shared" / "data" / "airline_support_dev.jsonl"
PROMPTS = ("be kind and brief",)


@dataclass
class Played:
    """A conversation whose turns were assembled one after the other.

    What a chain sends on a turn when it is played again is remembered, for many items ask for the same.
    """

    chain: list
    events: list
    cuts: list
    spans: list
    prompts: tuple = PROMPTS
    _sent: dict = field(default_factory=dict)

    @property
    def ledger(self):
        return as_ledger(self.spans)

    @property
    def pairing(self):
        """Which result truly answers which call."""
        return History(self.events).pairing

    def again(self, turn, raises=(), less=0):
        """The items that a fresh assembler sends on that turn with raised limits; the last one by `less` less."""
        chain = list(self.chain)
        for number, raised in enumerate(raises):
            off = less if number == len(raises) - 1 else 0
            chain[raised.index] = {
                raised.policy: {**chain[raised.index][raised.policy], raised.parameter: raised.to - off}
            }
        return self._sends(chain, turn)

    def without_limits(self, turn):
        """What a fresh assembler sends where everything fits every limit."""
        return self._sends(list(map(_wide, self.chain)), turn)

    def _sends(self, chain, turn):
        played = json.dumps(chain), turn
        if played not in self._sent:
            self._sent[played] = sent(chain, self.events[: self.cuts[turn]], self.prompts)
        return self._sent[played]


def _wide(entry):
    if not isinstance(entry, dict):
        return entry
    ((name, settings),) = entry.items()
    parameter = {
        "sliding_window": "max_events",
        "head_and_tail": "tail",
        "token_budget": "max_tokens",
        "budget": "window",
    }[name]
    return {name: {**settings, parameter: 100_000}}


def as_ledger(spans):
    ledgers = list(read_ledgers(spans).values())
    assert len(ledgers) <= 1
    return ledgers[0] if ledgers else None


def sent(chain, events, prompts=PROMPTS):
    assembler = Assembler(chain_from_config({"policies": chain}).policies)
    return asyncio.run(assembler.assemble(prompts, History(events), Context())).items


def play(chain, events, cuts=None, *, prompts=PROMPTS, policies=None, settings=None, sampler=None, context=None):
    """Assemble the conversation's first events, then some more of them, and so on; `policies` in the chain's place."""
    cuts = list(cuts) if cuts is not None else [len(events)]
    telemetry = RecordedTelemetry(settings=settings, sampler=sampler)
    if policies is None:
        policies = chain_from_config({"policies": chain}).policies
    assembler = Assembler(policies, recorder=telemetry.recorder)
    history, context = History(), context if context is not None else Context()

    async def turns():
        for cut in cuts:
            history.extend(events[len(history) : cut])
            try:
                await assembler.assemble(prompts, history, context)
            except AssemblyError:
                continue

    asyncio.run(turns())
    spans = telemetry.spans
    telemetry.shutdown()
    return Played(chain, events, cuts, spans, prompts)
