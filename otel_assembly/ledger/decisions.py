"""The decisions of an assembly: one for every change of an item's state since the assembly before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.decision import Decision, DecisionOutcome, DecisionReason
from otel_assembly.ledger.record import exits_from_the_prompt
from otel_assembly.ledger.snapshot import entered, gone, item_text

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from otel_assembly.history.view import View
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import ItemGroup, NumberedHistory, Snapshot, Step


def exits_of(record: Record) -> Iterator[Decision]:
    """One decision for every item that was in the previous prompt, or is new, and left."""
    for step in record.steps if record.error is None else ():
        yield from _exits(record, exits_from_the_prompt(record, step), step)


def decisions_of(record: Record) -> Iterator[Decision]:
    """One decision for every change of an item's state since the assembly before."""
    if record.error is not None:
        return
    since = record.last
    injected = _injected(record, since)
    for step in record.steps:
        same = since if since is not None and since.did(step.index, step.policy) else None
        yield from _exits(record, entered(record.gone(step), gone(same.steps, step.index) if same else ()), step)
        put_in = {item for item in step.injected if injected.get(item) is step}
        for position in _places(step.numbered_out, step.view_out, put_in):
            yield _decision(record, step.numbered_out, position, DecisionOutcome.INJECTED, DecisionReason.POLICY, step)
    yield from _kept(record, since, injected)
    for step in record.steps:
        same = since if since is not None and since.did(step.index, step.policy) else None
        moved = set(step.moved).difference(same.steps[step.index].moved if same else ())
        for position in _places(record.numbered_out, record.view_out, moved):
            yield _decision(
                record, record.numbered_out, position, DecisionOutcome.REORDERED, DecisionReason.POLICY, step
            )


def _exits(record: Record, groups: Iterable[ItemGroup], step: Step) -> Iterator[Decision]:
    for group in groups:
        for position in group.view.positions():
            yield _decision(record, group.numbered, position, group.outcome, group.reason, step)


def _kept(record: Record, since: Snapshot | None, injected: Container[int]) -> Iterator[Decision]:
    """What is in the prompt and was not, and what is there by another rule than before."""
    numbered, view = record.numbered_out, record.view_out
    why = {item: (reason, step) for step in record.steps for item, reason in _pinned(step.pinned)}
    was = dict(_pinned(group for step in since.steps for group in step.pinned)) if since is not None else {}
    changed = {item for item in {*why, *was} if (why[item][0] if item in why else None) is not was.get(item)}
    before = set(since.numbered.of(since.kept)) if since is not None else set()
    back, made = _back(record, since), record.made
    for position in view.positions():
        item = numbered.item_ids.of(position)
        if (item not in before and item not in injected) or (item in changed and item not in made):
            reason, step = why.get(item, (DecisionReason.FITS, back.get(item)))
            yield _decision(record, numbered, position, DecisionOutcome.KEPT, reason, step)


def _injected(record: Record, since: Snapshot | None) -> dict[int, Step]:
    """The items that are made in this assembly for the first time, with the step that put them in: of several the last.

    Not what was made in the assembly before too: where a step had taken that out, it is kept again.
    """
    made = record.made - {item for _, item in since.created} if since is not None else record.made
    return {item: step for step in record.steps for item in step.injected if item in made}


def _back(record: Record, since: Snapshot | None) -> dict[int, Step]:
    """The items that a step left out of the last assembly, and of this one no more, with that step."""
    if since is None:
        return {}
    steps = [step for step in record.steps if since.did(step.index, step.policy)]
    left = ((step, entered(gone(since.steps, step.index), record.gone(step), tagged=False)) for step in steps)
    return {item: step for step, groups in left for group in groups for item in group.numbered.of(group.view)}


def _pinned(groups: Iterable[ItemGroup]) -> Iterator[tuple[int, DecisionReason]]:
    return ((item, group.reason) for group in groups for item in group.numbered.of(group.view))


def _places(numbered: NumberedHistory, view: View, items: AbstractSet[int]) -> Iterator[int]:
    """Where these items stand in a view, in its order."""
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
        event=numbered.history.event(position),
    )
