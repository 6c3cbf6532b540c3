"""What a replay adds up, by conversation and by chain."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_assembly.decision import DecisionOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.assembler import Assembler
    from otel_assembly.assembly import Assembly
    from otel_assembly.tokens import TokenCounter

#: A prompt that begins with so much of the one before is as good as cached.
STEADY = 0.9

_SUMS = ("conversations", "turns", "tokens_in", "tokens_out", "dropped", "overflows", "orphans")


class ReplayedExit(NamedTuple):
    """Items that left the prompt in one turn, alike in all of this."""

    policy: str
    outcome: DecisionOutcome
    reason: str
    kind: str
    items: int
    tokens: int


@dataclass(slots=True)
class ReplayedTurn:
    """One assembly of a replayed conversation."""

    number: int
    assembly: Assembly
    #: False where what may not be dropped does not fit, so that nothing could have been sent.
    sent: bool
    exits: list[ReplayedExit]
    #: Messages that have lost the other half of their pair.
    orphans: int
    #: What the prompt costs as input, in US dollars, and what the items that left would have cost; None where nobody
    #: knows the model's price.
    cost: float | None = None
    cost_avoided: float | None = None


@dataclass(slots=True)
class Tally:
    """The numbers of a conversation, or of all of them, under one chain."""

    conversations: int = 0
    turns: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    max_tokens_out: int = 0
    dropped: int = 0
    overflows: int = 0
    orphans: int = 0
    #: Tokens of prompts that stand in the stable prefix: a provider that caches prompts has read them before.
    prefix_tokens: int = 0
    #: As of the turns; None where no turn has a price.
    cost: float | None = None
    cost_avoided: float | None = None
    #: Items that left, by what happened to them and by kind, by rule, and their tokens.
    exits: Counter[tuple[DecisionOutcome, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    exit_tokens: Counter[DecisionOutcome] = field(default_factory=Counter)
    #: Turns whose prompt does not begin with the whole of the one before, by cause.
    breaks: Counter[str] = field(default_factory=Counter)
    _reuse: list[float] = field(default_factory=list)
    _used: list[float] = field(default_factory=list)
    #: The same of turns where more came in than fits.
    _used_full: list[float] = field(default_factory=list)

    def add_turn(self, turn: ReplayedTurn) -> None:
        """Take in a turn."""
        totals = turn.assembly.totals
        self.turns += 1
        self.tokens_in += totals.tokens_in
        self.tokens_out += totals.tokens_out
        self.max_tokens_out = max(self.max_tokens_out, totals.tokens_out)
        self.overflows += totals.overflowed
        self.orphans += turn.orphans
        for one in turn.exits:
            self.exits[one.outcome, one.kind] += one.items
            self.exit_tokens[one.outcome] += one.tokens
            if one.outcome is DecisionOutcome.DROPPED:
                self.dropped += one.items
                self.reasons[one.reason] += one.items
        if turn.sent:
            self._add_prompt(turn.assembly)
            self._add_cost(turn)

    def _add_cost(self, one: ReplayedTurn | Tally) -> None:
        if one.cost is not None:
            self.cost = (self.cost or 0.0) + one.cost
            self.cost_avoided = (self.cost_avoided or 0.0) + (one.cost_avoided or 0.0)

    def _add_prompt(self, assembly: Assembly) -> None:
        totals, prefix = assembly.totals, assembly.prefix
        if totals.utilization is not None and totals.budget is not None:
            self._used.append(totals.utilization)
            if totals.tokens_in > totals.budget:
                self._used_full.append(totals.utilization)
        if prefix.reuse is None:
            return
        self._reuse.append(prefix.reuse)
        self.prefix_tokens += prefix.tokens
        if prefix.cause is not None:
            self.breaks[prefix.cause] += 1

    def add(self, other: Tally) -> None:
        """Take in a conversation."""
        for name in (*_SUMS, "prefix_tokens", "exits", "reasons", "exit_tokens", "breaks"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_tokens_out = max(self.max_tokens_out, other.max_tokens_out)
        self._add_cost(other)
        self._reuse += other._reuse
        self._used += other._used
        self._used_full += other._used_full

    @property
    def prefix_reuse(self) -> float:
        """The mean share of the previous prompt that a prompt begins with, first turns excluded; 0 where none is."""
        return round(_mean(self._reuse) or 0.0, 4)

    @property
    def steady(self) -> float | None:
        """The share of turns that begin with at least `STEADY` of the previous prompt, first turns excluded."""
        return _mean([reuse >= STEADY for reuse in self._reuse])

    @property
    def used(self) -> float | None:
        """The mean share of the budget that the prompts take; None where there is no budget."""
        return _mean(self._used)

    @property
    def used_full(self) -> float | None:
        """The same of the turns where more came in than fits: what stepwise cutting costs shows here alone."""
        return _mean(self._used_full)

    @property
    def compacted(self) -> int:
        """Items for which a shorter one stands now."""
        return sum(count for (outcome, _), count in self.exits.items() if outcome is DecisionOutcome.COMPACTED)

    def as_json(self) -> dict[str, Any]:
        """The totals by the names of the contract."""
        return {
            name: getattr(self, name)
            for name in (
                "conversations",
                "turns",
                "tokens_in",
                "tokens_out",
                "max_tokens_out",
                "dropped",
                "overflows",
                "orphans",
                "prefix_reuse",
            )
        }


def _mean(values: list[float] | list[bool]) -> float | None:
    return sum(values) / len(values) if values else None


@dataclass(slots=True)
class Variant:
    """A chain to replay with."""

    name: str
    #: Makes the assembler, once the recorder is known: it logs what is wrong with the order of the chain.
    make_assembler: Callable[..., Assembler]
    #: The tightest token limit of the chain.
    budget: int | None
    counter: TokenCounter
    total: Tally = field(default_factory=Tally)
    assembler: Assembler = field(init=False)
