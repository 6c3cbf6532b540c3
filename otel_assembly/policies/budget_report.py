"""How a `BudgetPolicy` gave its budget out, block by block, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_assembly.decision import BudgetEntry, BudgetReport, DecisionOutcome, DecisionReason
from otel_assembly.messages.describe import EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.decision import Compaction, Overflow
    from otel_assembly.history.view import View
    from otel_assembly.policies.budget import BudgetPolicy
    from otel_assembly.policies.budget_plan import BudgetPlan

_PRIORITIES: Final = {
    EventKind.SYSTEM: 1,
    EventKind.SCHEMA: 2,
    EventKind.QUERY: 3,
    EventKind.STATE: 4,
    EventKind.SUMMARY: 7,
    EventKind.RECENT: 8,
    EventKind.OLDER: 9,
}


def report_of(
    policy: BudgetPolicy,
    fill: BudgetPlan,
    view: View,
    kept: View | None,
    overflow: Overflow | None,
    summary: Compaction | None = None,
) -> BudgetReport:
    """The allocation in numbers.

    Args:
        policy: Whose budget it is.
        fill: How it filled up.
        view: What came in.
        kept: What stays; None where nothing is sent, and each block says what it would take.
        overflow: The limit that could not hold.
        summary: What stands for events that were cut.
    """
    made = fill.meter.event(describe(summary.into)) if summary is not None and summary.into is not None else 0
    used = 0 if kept is None else fill.around + fill.sum(kept) + made
    entries = tuple(_entries(policy, fill, view, kept, summary if made else None, made))
    return BudgetReport(policy.window, policy.output_reserve, fill.fixed, used, entries, overflow)


def _entries(
    policy: BudgetPolicy, fill: BudgetPlan, view: View, kept: View | None, summary: Compaction | None, made: int
) -> Iterator[BudgetEntry]:
    costs, sent = fill.costs, kept is not None
    system = costs.get("leading_system", 0) + sum(
        tokens for name, tokens in costs.items() if name.startswith("prompt[")
    )
    for kind, tokens, items in (
        (EventKind.SYSTEM, system, fill.first),
        (EventKind.SCHEMA, costs.get("tool_schemas", 0), 0),
        (EventKind.QUERY, costs.get("newest_request", 0), len(fill.request)),
        (EventKind.STATE, costs.get("pending_tool_calls", 0), len(fill.awaiting)),
    ):
        if tokens:
            yield _entry(kind, tokens, items, policy.max_tokens, placed=sent, cuttable=False)
    room = max(0, policy.max_tokens - fill.fixed)
    newest = [*fill.newest, *fill.left_out]
    if newest:
        placed = sent and not fill.left_out
        short = sum(position in fill.instead for position in newest)
        yield _entry(
            EventKind.RECENT,
            fill.newest_tokens,
            len(newest),
            room,
            placed=placed,
            cuttable=policy.on_overflow == "drop",
            whole=fill.whole_tokens(newest),
            short=short,
        )
        room -= fill.newest_tokens if placed else 0
    summaries = fill.sum(view.pick_positions(fill.summaries)) if fill.summaries else 0
    if summaries:
        yield _entry(EventKind.SUMMARY, summaries, len(fill.summaries), room, placed=sent, cuttable=True)
        room -= summaries
    yield from _older(fill, view, kept, max(0, room), summary, made, policy.reserved(fill, view) if made else 0)


def _entry(
    kind: EventKind,
    tokens: int,
    items: int,
    room: int,
    *,
    placed: bool,
    cuttable: bool,
    whole: int | None = None,
    short: int = 0,
) -> BudgetEntry:
    outcome = DecisionOutcome.KEPT if placed else DecisionOutcome.DROPPED
    reason = DecisionReason.FITS if cuttable else DecisionReason.PINNED
    if placed and short:
        outcome, reason = DecisionOutcome.COMPACTED, DecisionReason.COMPACTED
    return BudgetEntry(
        name=kind.value,
        kind=kind.value,
        priority=_PRIORITIES[kind],
        cuttable=cuttable,
        min_tokens=0,
        tokens_in=tokens if whole is None else whole,
        tokens_out=tokens if placed else 0,
        outcome=outcome,
        reason=reason if placed else DecisionReason.OVER_BUDGET,
        room=room,
        items_in=items,
        items_out=items if placed else 0,
        items_injected=short if placed else 0,
        compacted=short if placed else 0,
    )


def _older(
    fill: BudgetPlan, view: View, kept: View | None, room: int, summary: Compaction | None, made: int, reserved: int
) -> Iterator[BudgetEntry]:
    """All the rest: the turns that the cut goes through; its floor is what is kept free for their summary."""
    held = {*fill.pinned, *fill.newest, *fill.left_out, *fill.summaries}
    items_in = len(view) - fill.first - len(held)
    if items_in <= 0:
        return
    leading = fill.costs.get("leading_system", 0)
    around = fill.sum(view.pick_positions(held)) + leading
    items_out = tokens_out = 0
    if kept is not None:
        stayed = view.pick_positions(held - fill.left_out)
        items_out = len(kept) - fill.first - len(stayed)
        tokens_out = fill.sum(kept) - fill.sum(stayed) - leading
    outcome, reason = DecisionOutcome.KEPT, DecisionReason.FITS
    if summary is not None:
        outcome, reason = DecisionOutcome.COMPACTED, DecisionReason.COMPACTED
    elif items_out < items_in:
        outcome = DecisionOutcome.KEPT if items_out else DecisionOutcome.DROPPED
        reason = DecisionReason.OVER_BUDGET
    yield BudgetEntry(
        name=EventKind.OLDER.value,
        kind=EventKind.OLDER.value,
        priority=_PRIORITIES[EventKind.OLDER],
        cuttable=True,
        min_tokens=reserved,
        tokens_in=fill.sum(view) - around,
        tokens_out=tokens_out + made,
        outcome=outcome,
        reason=reason,
        room=room,
        items_in=items_in,
        items_out=items_out + int(summary is not None),
        items_injected=int(summary is not None),
        compacted=len(summary.events) if summary is not None else 0,
    )
