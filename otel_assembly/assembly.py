"""`Assembly`: what one run of the chain gives its caller, the answer first and the reasons beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.arguments import share as share_of_all
from otel_assembly._internal.forks import worked_out_once
from otel_assembly.decision import Decision, DecisionOutcome
from otel_assembly.ledger.decisions import decisions_of, exits_of
from otel_assembly.ledger.display import html_of, line_of
from otel_assembly.ledger.figures import Breakpoints, Prefix, Totals, breakpoints_of
from otel_assembly.ledger.record import prefix_of, tokens_by_kind, totals_of
from otel_assembly.ledger.snapshot import item_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.events import HaltEvent
    from otel_assembly.ledger.record import Record

__all__ = ["Assembly", "Breakpoints", "Prefix", "Totals"]


@dataclass(repr=False, eq=False)
class Assembly:
    """The prompts and events to send, and what was decided about them.

    Everything beside `prompts` and `events` is worked out when it is first asked for.
    """

    _record: Record

    @property
    def id(self) -> str:
        """The assembly's id, as on its span (``assembly.id``)."""
        return self._record.assembly_id

    @property
    def turn(self) -> int:
        """How many assemblies of this ledger came before."""
        return self._record.turn

    @property
    def halt(self) -> HaltEvent | None:
        """What halted the conversation before this assembly came to its end; None where nothing did."""
        return self._record.halt

    @worked_out_once
    def prompts(self) -> list[str]:
        """The system-level texts to send, in order."""
        return list(self._record.prompts_out)

    @worked_out_once
    def events(self) -> list[Any]:
        """The events to send: the very objects that came in, and those that policies made."""
        return self._record.events_out

    @worked_out_once
    def items(self) -> list[str]:
        """The item ids of `events`, in the same order: those that policies made begin with ``m``."""
        return list(map(item_text, self._record.numbered_out.of(self._record.view_out)))

    @worked_out_once
    def decisions(self) -> tuple[Decision, ...]:
        """One decision for every change of an item's state since the assembly before in this conversation."""
        return tuple(decisions_of(self._record))

    @property
    def dropped(self) -> list[Decision]:
        """The decisions by which items are out of the prompt that were not, or were for another reason."""
        return [decision for decision in self.decisions if decision.outcome is DecisionOutcome.DROPPED]

    @worked_out_once
    def exits(self) -> tuple[Decision, ...]:
        """The decisions by which items left: they were in the prompt before, or are new, and are not in this one."""
        return tuple(exits_of(self._record))

    @worked_out_once
    def totals(self) -> Totals:
        """The assembly in numbers."""
        return totals_of(self._record)

    @worked_out_once
    def kinds(self) -> dict[str, int]:
        """What fills the prompt, tokens by kind; they sum to ``totals.tokens_out``."""
        return tokens_by_kind(self._record)

    @worked_out_once
    def prefix(self) -> Prefix:
        """What this prompt begins with in common with the one before."""
        return prefix_of(self._record)

    @property
    def breakpoints(self) -> Breakpoints:
        """Where a marker of explicit cache control pays, for providers that want one."""
        return breakpoints_of(self.prefix, len(self._record.prompts_out), len(self._record.view_out))

    def ratio_for_less(self, share: float = 0.8) -> float:
        """The `budget_ratio` with which another assembly takes at most a share of the tokens that this one took.

        A budget whose cut moves in steps may be filled by far less than it allows, so that a share of the budget could
        be the same prompt once more. Where no policy holds a budget it is the share, and has no effect.

        Args:
            share: Above 0 and at most 1.

        Raises:
            ConfigurationError: It is not.
        """
        share, totals = share_of_all("share", share), self.totals
        if not totals.budget or not totals.tokens_out:
            return share
        held: float = getattr(self._record.context, "budget_ratio", 1.0)
        return min(1.0, share * held * totals.tokens_out / totals.budget)

    def __iter__(self) -> Iterator[list[Any]]:
        """``prompts, events = assembly``."""
        return iter((self.prompts, self.events))

    def __repr__(self) -> str:
        """One line of numbers; what is sent is counted now where nobody has asked for its tokens before."""
        return line_of(self._record)

    def _repr_html_(self) -> str:
        """What a notebook shows: what fills the prompt and what left by which rule; numbers and names, no content."""
        return html_of(self._record)
