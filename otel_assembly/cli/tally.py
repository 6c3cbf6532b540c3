"""The sums of a replay, such as tokens and dropped items, for each conversation and each policy chain."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_assembly.decision import DecisionOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.assembler import Assembler
    from otel_assembly.assembly import Assembly
    from otel_assembly.cli.replay_turns import ReplayAssembler
    from otel_assembly.tokens import TokenCounter
    from otel_assembly.transcripts import Transcript

#: A turn is steady if its prompt begins with at least this share of the previous prompt.
STEADY = 0.9

_SUMS = ("conversations", "turns", "tokens_in", "tokens_out", "dropped", "overflows", "orphans")


class ReplayedExit(NamedTuple):
    """The items of one kind that one policy dropped, or compacted, on a turn for the same reason.

    Attributes:
        policy: The policy's name.
        outcome: ``dropped`` or ``compacted``.
        reason: The reason of the outcome.
        kind: The kind of the items.
        items: The number of the items.
        tokens: The number of the items' tokens.
    """

    policy: str
    outcome: DecisionOutcome
    reason: str
    kind: str
    items: int
    tokens: int


@dataclass(slots=True)
class ReplayedTurn:
    """The result of one turn of a replay: the context that was assembled for one response of the model."""

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
    #: The numbers of the provider's edits of the request, by the type of the edit.
    edits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """The sums of all turns of one conversation, or of all conversations, replayed with one policy chain."""

    conversations: int = 0
    turns: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    max_tokens_out: int = 0
    dropped: int = 0
    overflows: int = 0
    orphans: int = 0
    #: The tokens in the stable prefixes of all prompts, which are equal to the beginning of the previous prompt.
    prefix_tokens: int = 0
    #: The sums of the turns' costs, in US dollars; None if no turn has a price.
    cost: float | None = None
    cost_avoided: float | None = None
    #: Dropped and compacted items by outcome and kind, dropped items by reason, and tokens by outcome.
    exits: Counter[tuple[DecisionOutcome, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    exit_tokens: Counter[DecisionOutcome] = field(default_factory=Counter)
    #: Turns whose prompt does not begin with the whole previous prompt, by cause.
    breaks: Counter[str] = field(default_factory=Counter)
    _reuse: list[float] = field(default_factory=list)
    #: The share of the budget that each prompt used; then the same for turns whose input exceeded the budget.
    _used: list[float] = field(default_factory=list)
    _used_full: list[float] = field(default_factory=list)

    def add_turn(self, turn: ReplayedTurn) -> None:
        """Add the numbers of one turn to the sums."""
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

    def add(self, tally: Tally) -> None:
        """Add the sums of one conversation to these sums."""
        for name in (*_SUMS, "prefix_tokens", "exits", "reasons", "exit_tokens", "breaks"):
            setattr(self, name, getattr(self, name) + getattr(tally, name))
        self.max_tokens_out = max(self.max_tokens_out, tally.max_tokens_out)
        self._add_cost(tally)
        self._reuse += tally._reuse
        self._used += tally._used
        self._used_full += tally._used_full

    @property
    def prefix_reuse(self) -> float:
        """The mean share of the previous prompt that a prompt repeats at its beginning; 0 if there is none.

        First turns do not count, because they have no previous prompt.
        """
        return round(_mean(self._reuse) or 0.0, 4)

    @property
    def steady_share(self) -> float | None:
        """The share of turns whose prompt repeats at least `STEADY` of the previous prompt, without first turns."""
        return _mean([reuse >= STEADY for reuse in self._reuse])

    @property
    def mean_utilization(self) -> float | None:
        """The mean share of the budget that the prompts use; None if there is no budget."""
        return _mean(self._used)

    @property
    def mean_utilization_of_exceeding(self) -> float | None:
        """The mean share of the budget that prompts use on turns whose input exceeded it; None if there are none.

        On these turns, an unused rest of the budget shows that the policies dropped more than necessary.
        """
        return _mean(self._used_full)

    @property
    def compacted(self) -> int:
        """The number of compacted items, each of which was replaced by a shorter item."""
        return sum(count for (outcome, _), count in self.exits.items() if outcome is DecisionOutcome.COMPACTED)

    def as_json(self) -> dict[str, Any]:
        """Return the totals that ``replay --json`` prints."""
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
class Gaps:
    """The parts of prompts that transcripts do not contain, and what was not understood in them."""

    unknown: set[str] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, transcript: Transcript) -> None:
        """Add the gaps of one transcript."""
        self.unknown.update(transcript.unknown)
        self.skipped.update({f"{transcript.path}: {what}": count for what, count in transcript.skipped.items()})

    @property
    def unknown_parts(self) -> list[str]:
        """The names of the parts, sorted."""
        return sorted(self.unknown)

    @property
    def problems(self) -> list[str]:
        """One line for each kind of content that was not understood."""
        return [f"{what} ({count:,} times)" if count > 1 else what for what, count in self.skipped.items()]


@dataclass(slots=True)
class Variant:
    """A policy chain with which the conversations are replayed, and the totals of all conversations."""

    name: str
    #: Creates the assembler, which needs the recorder to report problems with the order of its policies.
    make_assembler: Callable[..., ReplayAssembler]
    #: The smallest token limit of the chain's policies; None if there is none.
    budget: int | None
    counter: TokenCounter
    #: True if no chain was chosen: prompts that a log states are then replayed without any policy.
    keeps_logged_prompts: bool = False
    total: Tally = field(default_factory=Tally)
    assembler: ReplayAssembler = field(init=False)

    def assembler_for(self, transcript: Transcript) -> Assembler:
        """Return the assembler with which a transcript is replayed."""
        is_unchanged = self.keeps_logged_prompts and transcript.calls is not None
        return self.assembler.without_policies() if is_unchanged else self.assembler
