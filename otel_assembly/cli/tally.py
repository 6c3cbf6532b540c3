"""The sums of a replay, by conversation and by chain."""

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

#: The share of the previous prompt from which on a prompt counts as cached.
STEADY = 0.9

_SUMS = ("conversations", "turns", "tokens_in", "tokens_out", "dropped", "overflows", "orphans")


class ReplayedExit(NamedTuple):
    """Items that were dropped or compacted in one turn, with the same policy, outcome, reason and kind."""

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
    #: False if the fixed content exceeds the budget, so that no prompt could be sent.
    sent: bool
    exits: list[ReplayedExit]
    #: Tool calls without their result, and results without their call.
    orphans: int
    #: Input cost of the prompt, and of the dropped and compacted items, in US dollars; None if the price is unknown.
    cost: float | None = None
    cost_avoided: float | None = None


@dataclass(slots=True)
class Tally:
    """The sums of one or all conversations with one chain."""

    conversations: int = 0
    turns: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    max_tokens_out: int = 0
    dropped: int = 0
    overflows: int = 0
    orphans: int = 0
    #: Tokens of all prompts inside their stable prefix.
    prefix_tokens: int = 0
    #: The sums over the turns; None if no turn has a price.
    cost: float | None = None
    cost_avoided: float | None = None
    #: Dropped and compacted items by outcome and kind, dropped items by reason, and tokens by outcome.
    exits: Counter[tuple[DecisionOutcome, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    exit_tokens: Counter[DecisionOutcome] = field(default_factory=Counter)
    #: Turns whose prompt does not begin with the whole previous prompt, by cause.
    breaks: Counter[str] = field(default_factory=Counter)
    _reuse: list[float] = field(default_factory=list)
    _used: list[float] = field(default_factory=list)
    #: The same, of turns whose input exceeded the budget.
    _used_full: list[float] = field(default_factory=list)

    def add_turn(self, turn: ReplayedTurn) -> None:
        """Add a turn."""
        totals = turn.assembly.totals
        self.turns += 1
        self.tokens_in += totals.tokens_in
        self.tokens_out += totals.tokens_out
        self.max_tokens_out = max(self.max_tokens_out, totals.tokens_out)
        self.overflows += totals.overflowed
        self.orphans += turn.orphans
        for exit_ in turn.exits:
            self.exits[exit_.outcome, exit_.kind] += exit_.items
            self.exit_tokens[exit_.outcome] += exit_.tokens
            if exit_.outcome is DecisionOutcome.DROPPED:
                self.dropped += exit_.items
                self.reasons[exit_.reason] += exit_.items
        if turn.sent:
            self._add_prompt(turn.assembly)
            self._add_cost(turn)

    def _add_cost(self, part: ReplayedTurn | Tally) -> None:
        if part.cost is not None:
            self.cost = (self.cost or 0.0) + part.cost
            self.cost_avoided = (self.cost_avoided or 0.0) + (part.cost_avoided or 0.0)

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
        """Add the sums of a conversation."""
        for name in (*_SUMS, "prefix_tokens", "exits", "reasons", "exit_tokens", "breaks"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_tokens_out = max(self.max_tokens_out, other.max_tokens_out)
        self._add_cost(other)
        self._reuse += other._reuse
        self._used += other._used
        self._used_full += other._used_full

    @property
    def prefix_reuse(self) -> float:
        """The mean share of the previous prompt that a prompt begins with, without first turns; 0 if there are none."""
        return round(_mean(self._reuse) or 0.0, 4)

    @property
    def steady(self) -> float | None:
        """The share of turns that begin with at least `STEADY` of the previous prompt, without first turns."""
        return _mean([reuse >= STEADY for reuse in self._reuse])

    @property
    def used(self) -> float | None:
        """The mean share of the budget that the prompts use; None if there is no budget."""
        return _mean(self._used)

    @property
    def used_full(self) -> float | None:
        """The same, of turns whose input exceeded the budget; only these show the unused budget of stepwise cutting."""
        return _mean(self._used_full)

    @property
    def compacted(self) -> int:
        """The number of items that were replaced by a shorter one."""
        return sum(count for (outcome, _), count in self.exits.items() if outcome is DecisionOutcome.COMPACTED)

    def as_json(self) -> dict[str, Any]:
        """Return the totals for JSON."""
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
    """A chain that conversations are replayed with, and its totals."""

    name: str
    #: Creates the assembler when the recorder is known, because the assembler logs problems with the chain's order.
    make_assembler: Callable[..., Assembler]
    #: The smallest token limit of the chain's policies; None if there is none.
    budget: int | None
    counter: TokenCounter
    total: Tally = field(default_factory=Tally)
    assembler: Assembler = field(init=False)
