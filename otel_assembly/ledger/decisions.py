"""The decisions of an assembly: one for each change of an item's state since the ledger's previous assembly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.decision import Decision, DecisionOutcome, DecisionReason
from otel_assembly.ledger.record import departures_of
from otel_assembly.ledger.snapshot import item_text, lasting_exits, subtract_groups

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from otel_assembly.history.view import View
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import ItemGroup, NumberedHistory, Snapshot, Step


def exits_of(record: Record) -> Iterator[Decision]:
    """Yield a decision for each departure: an item that the previous prompt contained, or that is new, and left."""
    for index, groups in departures_of(record).now.items():
        yield from _exits(record, groups, record.steps[index])


def decisions_of(record: Record) -> Iterator[Decision]:
    """Yield a decision for each change of an item's state since the previous assembly; none if nothing is sent."""
    if record.error is not None:
        return
    last, sent = record.last, record.sent
    injected = _injected(record, last)
    for step in record.steps:
        exits_before = last.exits_of(step) if last is not None else ()
        yield from _exits(record, subtract_groups(lasting_exits(record.steps, step.index), exits_before), step)
        injected_items = {item for item in step.injected if injected.get(item) is step}
        for position in _positions_of(step.numbered_out, step.view_out, injected_items):
            yield _decision(record, step.numbered_out, position, DecisionOutcome.INJECTED, DecisionReason.POLICY, step)
    yield from _kept(record, last, injected)
    for step in record.steps:
        previous = last.step_like(step) if last is not None else None
        moved = set(step.moved).difference(previous.moved if previous is not None else ())
        for position in _positions_of(sent.numbered, sent.view, moved):
            yield _decision(record, sent.numbered, position, DecisionOutcome.REORDERED, DecisionReason.POLICY, step)


def _exits(record: Record, groups: Iterable[ItemGroup], step: Step) -> Iterator[Decision]:
    for group in groups:
        for position in group.view.positions():
            yield _decision(record, group.numbered, position, group.outcome, group.reason, step)


def _kept(record: Record, last: Snapshot | None, injected: Container[int]) -> Iterator[Decision]:
    """Yield a decision for each item that was not in the previous prompt, or that is pinned for another reason."""
    numbered, view = record.sent.numbered, record.sent.view
    pins = {item: (reason, step) for step in record.steps for item, reason in _pinned(step.pinned)}
    pins_before = dict(_pinned(group for step in last.steps for group in step.pinned)) if last is not None else {}
    pinned_items = {*pins, *pins_before}
    changed = {item for item in pinned_items if (pins[item][0] if item in pins else None) is not pins_before.get(item)}
    before = set(last.numbered.of(last.view)) if last is not None else set()
    returning, created = _returning(record, last), record.made
    for position in view.positions():
        item = numbered.item_ids.of(position)
        if (item not in before and item not in injected) or (item in changed and item not in created):
            reason, step = pins.get(item, (DecisionReason.FITS, returning.get(item)))
            yield _decision(record, numbered, position, DecisionOutcome.KEPT, reason, step)


def _injected(record: Record, last: Snapshot | None) -> dict[int, Step]:
    """Return the items that this assembly created for the first time, each with the last step that injected it.

    An item that the previous assembly created too is not injected again, but kept.
    """
    created = record.made - {item for _, item in last.created} if last is not None else record.made
    return {item: step for step in record.steps for item in step.injected if item in created}


def _returning(record: Record, last: Snapshot | None) -> dict[int, Step]:
    """Return the items that a step removed in the previous assembly, and not in this one, each with that step."""
    returning: dict[int, Step] = {}
    for step in record.steps:
        before = last.exits_of(step) if last is not None else ()
        for group in subtract_groups(before, lasting_exits(record.steps, step.index), tagged=False):
            returning.update(dict.fromkeys(group.numbered.of(group.view), step))
    return returning


def _pinned(groups: Iterable[ItemGroup]) -> Iterator[tuple[int, DecisionReason]]:
    return ((item, group.reason) for group in groups for item in group.numbered.of(group.view))


def _positions_of(numbered: NumberedHistory, view: View, items: AbstractSet[int]) -> Iterator[int]:
    """Yield the positions of these items in a view, in its order."""
    if items:
        yield from (position for position in view.positions() if numbered.item_ids.of(position) in items)


def _decision(
    record: Record,
    numbered: NumberedHistory,
    position: int,
    outcome: DecisionOutcome,
    reason: DecisionReason,
    step: Step | None,
) -> Decision:
    return Decision(
        item=item_text(numbered.item_ids.of(position)),
        kind=numbered.history.kind(position).value,
        tokens=numbered.history.table(record.meter).known(position),
        outcome=outcome,
        reason=reason,
        policy=step.policy if step is not None else None,
        index=step.index if step is not None else None,
        event=numbered.history.events[position],
    )
