"""`Assembly`: the result of one run of a policy chain, with its decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.arguments import share as share_of_all
from otel_assembly._internal.fork_safety import lazy_property
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
    """The prompts and events to send, and the decisions about them.

    All properties other than `prompts` and `events` are computed on first use.
    """

    _record: Record

    @property
    def id(self) -> str:
        """The assembly's id, as on its span (``assembly.id``)."""
        return self._record.assembly_id

    @property
    def turn(self) -> int:
        """The index of this assembly among all assemblies of the same conversation and agent, from 0."""
        return self._record.turn

    @property
    def halt(self) -> HaltEvent | None:
        """The event that halted the conversation before this assembly ended; None if there was no halt."""
        return self._record.halt

    @lazy_property
    def prompts(self) -> list[str]:
        """The system-level texts to send, in order."""
        return list(self._record.sent.prompts)

    @lazy_property
    def events(self) -> list[Any]:
        """The events to send: the same objects as in the input, and events that policies made."""
        return self._record.events_out

    @lazy_property
    def items(self) -> list[str]:
        """The item ids of `events`, in the same order; ids of events that policies made begin with ``m``."""
        return list(map(item_text, self._record.sent.numbered.of(self._record.sent.view)))

    @lazy_property
    def decisions(self) -> tuple[Decision, ...]:
        """One decision for each change of an item's state since the conversation's previous assembly.

        The state is the outcome (kept, dropped, compacted, injected or reordered) with its reason. In the first
        assembly of a conversation, each item has at least one decision.
        """
        return tuple(decisions_of(self._record))

    @property
    def dropped(self) -> list[Decision]:
        """The decisions with the outcome ``dropped``.

        Each is about an item that is newly dropped, or about one that was dropped before for another reason.
        """
        return [decision for decision in self.decisions if decision.outcome is DecisionOutcome.DROPPED]

    @lazy_property
    def exits(self) -> tuple[Decision, ...]:
        """The decisions about items that left the prompt: newly dropped or compacted in this assembly.

        Each of these items was in the previous prompt, or is new in this turn.
        """
        return tuple(exits_of(self._record))

    @lazy_property
    def totals(self) -> Totals:
        """The numbers of events and tokens before and after the policies."""
        return totals_of(self._record)

    @lazy_property
    def kinds(self) -> dict[str, int]:
        """The tokens of the prompt by kind of content; the sum of all kinds is ``totals.tokens_out``."""
        return tokens_by_kind(self._record)

    @lazy_property
    def prefix(self) -> Prefix:
        """The stable prefix: the beginning that this prompt shares with the previous prompt of the conversation."""
        return prefix_of(self._record)

    @property
    def breakpoints(self) -> Breakpoints:
        """Where to set cache-control markers, for providers with explicit prompt caching such as Anthropic."""
        return breakpoints_of(self.prefix, len(self._record.sent.prompts), len(self._record.sent.view))

    def ratio_for_less(self, share: float = 0.8) -> float:
        """Return the `budget_ratio` for another assembly that uses at most `share` of this assembly's tokens.

        Use it after the provider refused the prompt as too long. The ratio is computed from the tokens of the prompt
        and not from the budget: a prompt can be much smaller than its budget, and a slightly smaller budget could then
        give the same prompt again. Without a budget, the result is `share`, which has no effect on the next assembly.

        Args:
            share: The part of this assembly's tokens, a ratio above 0 and at most 1.

        Raises:
            ConfigurationError: The share is not in this range.
        """
        share, totals = share_of_all("share", share), self.totals
        if not totals.budget or not totals.tokens_out:
            return share
        budget_ratio: float = getattr(self._record.context, "budget_ratio", 1.0)
        return min(1.0, share * budget_ratio * totals.tokens_out / totals.budget)

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield `prompts` and `events`, so that ``prompts, events = assembly`` works."""
        return iter((self.prompts, self.events))

    def __repr__(self) -> str:
        """Return one line with the numbers of events and tokens; the first call may have to count the tokens."""
        return line_of(self._record)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: tokens by kind of content and dropped items by reason, without message text."""
        return html_of(self._record)
