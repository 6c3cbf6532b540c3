"""The decisions of an assembly: one for each change of an item's state since the ledger's previous assembly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_assembly.decision import Decision, DecisionOutcome, DecisionReason
from otel_assembly.ledger.record import departures_of
from otel_assembly.ledger.snapshot import item_text, lasting_exits, subtract_groups

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from otel_assembly.history.view import View
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import ItemGroup, NumberedHistory, Step


def exits_of(record: Record) -> Iterator[Decision]:
    """Yield a decision for each departure: an item that the previous prompt contained, or that is new, and left."""
    for index, groups in departures_of(record).now.items():
        yield from _exits(record, groups, record.steps[index])


def decisions_of(record: Record) -> Iterator[Decision]:
    """Yield a decision for each change of an item's state since the previous assembly; none if nothing is sent."""
    if record.error is not None:
        return
    steps, last, sent = record.steps, record.last, record.sent
    # An item that the previous assembly created, too, is not injected again, but kept.
    new = record.made.difference(item for step in last.steps for item in step.created)
    injected = {item: step for step in steps for item in step.created if item in new}
    for step in steps:
        exits = subtract_groups(lasting_exits(steps, step.index), last.exits_of(step))
        yield from _exits(record, exits, step)
        after, items = step.after, {item for item in step.created if injected.get(item) is step}
        for position in _positions_of(after.numbered, after.view, items):
            yield _decision(record, after.numbered, position, DecisionOutcome.INJECTED, DecisionReason.POLICY, step)
    yield from _kept(record, injected)
    for step in steps:
        previous = last.step_like(step)
        moved = set(step.moved).difference(previous.moved if previous is not None else ())
        for position in _positions_of(sent.numbered, sent.view, moved):
            yield _decision(record, sent.numbered, position, DecisionOutcome.REORDERED, DecisionReason.POLICY, step)


def _exits(record: Record, groups: Iterable[ItemGroup], step: Step) -> Iterator[Decision]:
    for group in groups:
        for position in group.view.positions():
            yield _decision(record, group.numbered, position, group.outcome, group.reason, step)


def _kept(record: Record, injected: Container[int]) -> Iterator[Decision]:
    """Yield a decision for each item that was not in the previous prompt, or whose pin changed since.

    A pin is the reason why a step kept an item as an exception to the policy's rule.
    """
    numbered, last = record.sent.numbered, record.last
    pins, pins_before = _pins(record.steps), _pins(last.steps)
    before, created = set(last.numbered.of(last.view)), record.made
    #: By item that a step removed in the previous assembly, and not in this one, that step.
    returning: dict[int, Step] = {}
    for step in record.steps:
        exits = lasting_exits(record.steps, step.index)
        for group in subtract_groups(last.exits_of(step), exits, tagged=False):
            returning.update(dict.fromkeys(group.numbered.of(group.view), step))
    for position in record.sent.view.positions():
        item = numbered.item_ids.of(position)
        (reason, step_of_pin), (reason_before, _) = pins.get(item, _NO_PIN), pins_before.get(item, _NO_PIN)
        is_new = item not in before and item not in injected
        if is_new or (reason is not reason_before and item not in created):
            of_step = step_of_pin or returning.get(item)
            yield _decision(record, numbered, position, DecisionOutcome.KEPT, reason or DecisionReason.FITS, of_step)


_NO_PIN: Final = None, None


def _pins(steps: Iterable[Step]) -> dict[int, tuple[DecisionReason, Step]]:
    """Return the items that the steps kept as an exception to the policy's rule, with the reason and the last step."""
    pinned = ((group, step) for step in steps for group in step.pinned)
    return {item: (group.reason, step) for group, step in pinned for item in group.numbered.of(group.view)}


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
