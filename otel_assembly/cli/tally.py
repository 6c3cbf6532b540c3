"""What a replay adds up, by conversation and by chain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_assembly.assembler import Assembler
    from otel_assembly.assembly import Assembly
    from otel_assembly.tokens import TokenCounter


@dataclass(slots=True)
class Turn:
    """One assembly of a replayed conversation."""

    number: int
    assembly: Assembly
    #: False where what may not be dropped does not fit, so that nothing could have been sent.
    sent: bool
    #: What left the prompt: policy, reason, items, tokens.
    exits: list[tuple[str, str, int, int]]
    #: Messages that have lost the other half of their pair.
    orphans: int


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
    _reuse: list[float] = field(default_factory=list)

    def add_turn(self, turn: Turn) -> None:
        """Take in a turn."""
        totals = turn.assembly.totals
        self.turns += 1
        self.tokens_in += totals.tokens_in
        self.tokens_out += totals.tokens_out
        self.max_tokens_out = max(self.max_tokens_out, totals.tokens_out)
        self.dropped += sum(items for *_, items, _ in turn.exits)
        self.overflows += totals.overflowed
        self.orphans += turn.orphans
        reuse = turn.assembly.prefix.reuse
        if turn.sent and reuse is not None:
            self._reuse.append(reuse)

    def add(self, other: Tally) -> None:
        """Take in a conversation."""
        for name in ("conversations", "turns", "tokens_in", "tokens_out", "dropped", "overflows", "orphans"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_tokens_out = max(self.max_tokens_out, other.max_tokens_out)
        self._reuse += other._reuse

    @property
    def prefix_reuse(self) -> float:
        """The mean share of the previous prompt that a prompt begins with, first turns excluded; 0 where none is."""
        return round(sum(self._reuse) / len(self._reuse), 4) if self._reuse else 0.0

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


@dataclass(slots=True)
class Variant:
    """A chain to replay with."""

    name: str
    assembler: Assembler
    #: The tightest token limit of the chain.
    budget: int | None
    counter: TokenCounter
    total: Tally = field(default_factory=Tally)
