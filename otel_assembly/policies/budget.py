"""`BudgetPolicy`: the allocator inside a chain, on any framework's events; the reducer to start with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.decision import (
    BudgetLine,
    BudgetSheet,
    DecisionOutcome,
    DecisionReason,
    Outcome,
    Overflow,
    OverflowCause,
)
from otel_assembly.errors import ConfigurationError, ContextOverflowError
from otel_assembly.facts import EventKind
from otel_assembly.policies.base import DecidingPolicy, as_view, at_least
from otel_assembly.policies.fill import Fill

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.view import View


class BudgetPolicy(DecidingPolicy):
    """Keeps the rendered prompt within ``window − output_reserve`` tokens: the allocator, as a policy (seed 004).

    Prompts and history are blocks by kind: instructions, tool schemas, the newest user request and calls that await an
    approval are fixed; then come the newest tool call with its results, or the newest message; then summaries; then
    older turns, from the newest backwards. The order of events never changes.

    The cut through older turns moves in steps, so that for most turns the prompt begins as it did before and is read
    from the provider's cache. What that costs is up to `step_tokens` of the budget now and then: the span's
    ``assembly.budget.utilization`` tells.

    Args:
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        step_tokens: How far the cut moves at a time: only to atoms that begin in another cell of ``4 × step_tokens``
            bytes than the atom before them; 0 moves it to any atom.
        on_overflow: What to do where the newest atom does not fit although the fixed content does: ``raise`` or
            ``drop``, which leaves it out whole, reason ``over_budget``.

    Raises:
        ConfigurationError: A number cannot work.
    """

    name: ClassVar[str] = "budget"

    def __init__(self, window: int, output_reserve: int, step_tokens: int = 2_000, on_overflow: str = "raise") -> None:
        self.window = at_least(self.name, "window", window)
        self.output_reserve = at_least(self.name, "output_reserve", output_reserve, least=0)
        if output_reserve >= window:
            raise ConfigurationError(
                f"{self.name}: output_reserve ({output_reserve}) leaves nothing of the window ({window}); it must be "
                "smaller"
            )
        self.step_tokens = at_least(self.name, "step_tokens", step_tokens, least=0)
        if on_overflow not in ("raise", "drop"):
            raise ConfigurationError(f"{self.name}: on_overflow must be 'raise' or 'drop', got {on_overflow!r}")
        self.on_overflow = on_overflow

    @property
    def max_tokens(self) -> int:
        """The most tokens that the rendered prompt may take."""
        return self.window - self.output_reserve

    @property
    def config(self) -> Mapping[str, int | float | bool | str | None]:
        """The settings as given."""
        return {
            "window": self.window,
            "output_reserve": self.output_reserve,
            "step_tokens": self.step_tokens,
            "on_overflow": self.on_overflow,
        }

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return what fits.

        Raises:
            ContextOverflowError: The fixed content alone is over the budget; or the newest atom does not fit beside it
                and `on_overflow` is ``raise``.
        """
        view, budget = as_view(events), self.max_tokens
        fill = Fill(view, context.meter, prompts, context)
        try:
            if fill.fixed > budget:
                raise ContextOverflowError(budget, fill.fixed, fill.costs, policy=self.name)
            overflow = fill.place_newest(budget, self.on_overflow, self.name)
        except ContextOverflowError as error:
            if context.listening:
                error.sheet = self._sheet(fill, view, None, Overflow(budget, error.needed, OverflowCause(error.cause)))
            raise
        fill.place_summaries(budget)
        kept, verdicts = fill.selected(fill.cut(budget, self.step_tokens))
        sheet = self._sheet(fill, view, kept, overflow) if context.listening else None
        return Outcome(prompts, kept, verdicts, budget=budget, fixed=fill.fixed, overflow=overflow, sheet=sheet)

    def _sheet(self, fill: Fill, view: View, kept: View | None, overflow: Overflow | None) -> BudgetSheet:
        """The allocation in numbers, block by block; where nothing is sent, what each would take."""
        used = 0 if kept is None else fill.around + fill.sum(kept)
        lines = tuple(self._lines(fill, view, kept))
        return BudgetSheet(self.window, self.output_reserve, fill.fixed, used, lines, overflow)

    def _lines(self, fill: Fill, view: View, kept: View | None) -> Iterator[BudgetLine]:
        room = self.max_tokens - fill.fixed
        costs = fill.costs
        system = costs.get("leading_system", 0) + sum(
            tokens for name, tokens in costs.items() if name.startswith("prompt[")
        )
        for kind, tokens, items in (
            (EventKind.SYSTEM, system, fill.first),
            (EventKind.SCHEMA, costs.get("tool_schemas", 0), 0),
            (EventKind.QUERY, costs.get("newest_request", 0), int(fill.request >= 0)),
            (EventKind.STATE, costs.get("pending_tool_calls", 0), len(fill.awaiting)),
        ):
            if tokens:
                yield _line(kind, tokens, items, self.max_tokens, kept is not None)
        newest = len(fill.newest) + len(fill.left_out)
        if newest:
            placed = kept is not None and not fill.left_out
            yield _line(EventKind.RECENT, fill.newest_tokens, newest, room, placed, self.on_overflow == "drop")
            room -= fill.newest_tokens if placed else 0
        summaries = fill.sum(view.pick_positions(fill.summaries)) if fill.summaries else 0
        if summaries:
            yield _line(EventKind.SUMMARY, summaries, len(fill.summaries), room, kept is not None, True)
            room -= summaries
        held = {*fill.pinned, *fill.newest, *fill.left_out, *fill.summaries}
        items_in = len(view) - fill.first - len(held)
        if items_in <= 0:
            return
        around = fill.sum(view.pick_positions(held)) + costs.get("leading_system", 0)
        items_out = 0 if kept is None else len(kept) - fill.first - len(held - fill.left_out)
        tokens_out = 0 if kept is None else fill.sum(kept) - (around - fill.sum(view.pick_positions(fill.left_out)))
        outcome, reason = DecisionOutcome.KEPT, DecisionReason.FITS
        if items_out < items_in:
            outcome = DecisionOutcome.KEPT if items_out else DecisionOutcome.DROPPED
            reason = DecisionReason.OVER_BUDGET
        yield BudgetLine(
            name=EventKind.OLDER.value,
            kind=EventKind.OLDER.value,
            priority=9,
            cuttable=True,
            min_tokens=0,
            tokens_in=fill.sum(view) - around,
            tokens_out=tokens_out,
            outcome=outcome,
            reason=reason,
            room=max(0, room),
            items_in=items_in,
            items_out=items_out,
        )


_PRIORITIES = {
    EventKind.SYSTEM: 1,
    EventKind.SCHEMA: 2,
    EventKind.QUERY: 3,
    EventKind.STATE: 4,
    EventKind.SUMMARY: 7,
    EventKind.RECENT: 8,
}


def _line(kind: EventKind, tokens: int, items: int, room: int, placed: bool, cuttable: bool = False) -> BudgetLine:
    kept = DecisionReason.FITS if cuttable else DecisionReason.PINNED
    return BudgetLine(
        name=kind.value,
        kind=kind.value,
        priority=_PRIORITIES[kind],
        cuttable=cuttable,
        min_tokens=0,
        tokens_in=tokens,
        tokens_out=tokens if placed else 0,
        outcome=DecisionOutcome.KEPT if placed else DecisionOutcome.DROPPED,
        reason=kept if placed else DecisionReason.OVER_BUDGET,
        room=room,
        items_in=items,
        items_out=items if placed else 0,
    )
