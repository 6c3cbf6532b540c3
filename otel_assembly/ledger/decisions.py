"""The decisions of an assembly: one for every change of an item's state since the assembly before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.decision import Decision, DecisionOutcome, DecisionReason
from otel_assembly.ledger.ledger_diff import arrivals, exits_from_the_prompt, made_no_more, offered_no_more, step_delta
from otel_assembly.ledger.snapshot import item_text
from otel_assembly.messages.describe import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_assembly.ledger.ledger_diff import Place
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import ItemGroup, NumberedHistory, Snapshot, Step


def _offered_again(record: Record, since: Snapshot | None) -> range:
    """Positions that came in before then, not then, and now: where an assembly that began earlier ended later."""
    if since is None or since.source is not record.ledger_input.numbered:
        return range(0)
    return range(since.end, min(since.seen, record.ledger_input.view.end))


def exits_of(record: Record) -> Iterator[Decision]:
    """One decision for every item that was in the previous prompt, or is new, and left."""
    if record.error is not None:
        return
    for step in record.steps:
        for group in exits_from_the_prompt(record, step):
            for position in group.view.positions():
                yield _decision(record, (group.numbered, position), group.outcome, group.reason, step)


def decisions_of(record: Record) -> Iterator[Decision]:
    """One decision for every change of an item's state since the assembly before."""
    if record.error is not None:
        return
    since = record.last
    left: set[int] = set()
    back: dict[int, Step | None] = {
        record.ledger_input.numbered.item_ids.of(position): None for position in _offered_again(record, since)
    }
    for step in record.steps:
        delta = step_delta(record, step, since)
        for group in delta.exits:
            for position in group.view.positions():
                left.add(group.numbered.item_ids.of(position))
                yield _decision(record, (group.numbered, position), group.outcome, group.reason, step)
        back.update(dict.fromkeys(delta.returned, step))
        for place in _places(step.numbered_out, step.view_out, set(delta.injected)):
            yield _decision(record, place, DecisionOutcome.INJECTED, DecisionReason.POLICY, step)
        if since is not None and delta.withdrawn and since.did(step.index, step.policy):
            yield from _withdrawn(record, step, since.created[step.index], set(delta.withdrawn))
    for place in offered_no_more(record, since):
        yield _decision(record, place, DecisionOutcome.DROPPED, DecisionReason.WITHDRAWN, None)
    for event, item, index in made_no_more(record, since):
        policy = since.policies[index] if since is not None else None
        yield _withdrawn_item(record, event, item, policy, index)
    yield from _kept(record, left, back)
    for step in record.steps:
        same = since is not None and since.did(step.index, step.policy)
        moved = set(step.moved).difference(since.moved[step.index] if since is not None and same else ())
        for place in _places(record.numbered_out, record.view_out, moved):
            yield _decision(record, place, DecisionOutcome.REORDERED, DecisionReason.POLICY, step)


def _withdrawn(record: Record, step: Step, made: Iterable[tuple[Any, int]], items: set[int]) -> Iterator[Decision]:
    for event, item in made:
        if item in items:
            yield _withdrawn_item(record, event, item, step.policy, step.index)


def _withdrawn_item(record: Record, event: Any, item: int, policy: str | None, index: int) -> Decision:
    facts = describe(event)
    kind, tokens = str(facts.kind), record.meter.event(facts)
    return Decision(
        item_text(item), kind, tokens, DecisionOutcome.DROPPED, DecisionReason.WITHDRAWN, policy, index, event
    )


def _kept(record: Record, left: set[int], back: dict[int, Step | None]) -> Iterator[Decision]:
    """What is in the prompt and was not, and what is there by another rule than before."""
    since = record.last
    why = {item: (reason, step) for step in record.steps for item, reason in _held(step.pinned)}
    was = dict(_held(group for groups in since.pinned for group in groups)) if since is not None else {}
    made = {item for step in record.steps for item in step.injected}
    new = {arrival.item for arrival in arrivals(record, since)} - left - made
    changed = {item for item in {*why, *was} if (why[item][0] if item in why else None) is not was.get(item)}
    for place in _places(record.numbered_out, record.view_out, new | back.keys() | changed - made):
        item = place[0].item_ids.of(place[1])
        reason, step = why.get(item, (DecisionReason.FITS, back.get(item)))
        yield _decision(record, place, DecisionOutcome.KEPT, reason, step)


def _held(groups: Iterable[ItemGroup]) -> Iterator[tuple[int, DecisionReason]]:
    return ((item, group.reason) for group in groups for item in group.numbered.of(group.view))


def _places(numbered: NumberedHistory, view: Any, items: set[int]) -> Iterator[Place]:
    """Where these items stand in a view, in its order."""
    if items:
        yield from ((numbered, position) for position in view.positions() if numbered.item_ids.of(position) in items)


def _decision(
    record: Record, place: Place, outcome: DecisionOutcome, reason: DecisionReason, step: Step | None
) -> Decision:
    numbered, position = place
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
