"""What an assembly did that an earlier one of its ledger had not done: arrivals, exits, returns, injections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_assembly.changes import entered, still_in
from otel_assembly.decision import Decision, DecisionOutcome, DecisionReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.ledger import Frame, Group, Snapshot
    from otel_assembly.record import Record, Step


@dataclass(frozen=True, slots=True)
class Arrival:
    """An item at first sight; `tokens` is −1 until it is counted."""

    item: int
    kind: str
    tokens: int
    bytes: int
    atom: int
    frame: Frame
    position: int


def arrivals(record: Record, since: Snapshot | None) -> list[Arrival]:
    """The items that the ledger has given an ordinal since then: those that came in, and those that policies made."""
    first = 0 if since is None else since.next_ordinal
    opening = record.opening
    frame = opening.frame
    start = since.seen if since is not None and since.source is frame else 0
    found = [
        _arrival(record, frame, position)
        for position in range(start, opening.view.end)
        if frame.ordinals.of(position) >= first
    ]
    for step in record.steps:
        made = {ordinal for ordinal in step.injected if ordinal >= first}
        if made:
            found += (
                _arrival(record, step.frame_out, position)
                for position in step.view_out.positions()
                if step.frame_out.ordinals.of(position) in made
            )
    return found


def _arrival(record: Record, frame: Frame, position: int) -> Arrival:
    history = frame.history
    return Arrival(
        item=frame.ordinals.of(position),
        kind=history.kind(position).value,
        tokens=history.table(record.meter).known(position),
        bytes=history.size(position),
        atom=frame.ordinals.of(history.atom(position)),
        frame=frame,
        position=position,
    )


def counted(record: Record, since: Snapshot | None, arrived: list[Arrival]) -> list[tuple[int, int]]:
    """Items, with their tokens, that were counted since then and had arrived before it."""
    frame = record.opening.frame
    table = frame.history.table(record.meter)
    start = 0
    if since is not None and since.source is frame and since.meter.key == record.meter.key:
        start = since.counted
    new = {arrival.item for arrival in arrived}
    end = record.opening.view.end
    return sorted(
        (ordinal, tokens)
        for position in table.order[start:]
        if position < end
        and (ordinal := frame.ordinals.of(position)) not in new
        and (tokens := table.known(position)) != frame.announced.get(ordinal, -1)
    )


@dataclass(frozen=True, slots=True)
class StepDelta:
    """What one policy did that it had not done before."""

    exits: list[Group]
    returned: list[int]
    injected: list[int]
    withdrawn: list[int]


def step_delta(record: Record, step: Step, since: Snapshot | None) -> StepDelta:
    """Compare one step with the same step of an earlier assembly."""
    if since is None or step.index >= len(since.groups):
        return StepDelta(list(step.groups), [], list(step.injected), [])
    before = since.groups[step.index]
    left = entered(before, step.groups, tagged=False)
    injected_before = set(since.injected[step.index])
    injected = set(step.injected)
    return StepDelta(
        exits=entered(step.groups, before),
        returned=still_in(left, record.view_out, record.frame_out) if left else [],
        injected=sorted(injected - injected_before),
        withdrawn=sorted(injected_before - injected),
    )


def exits_from_the_prompt(record: Record, step: Step) -> list[Group]:
    """What was in the previous prompt, or is new, and left by this step: what a counter counts."""
    last = record.last
    if last is None or not step.groups:
        return list(step.groups)
    out = [group for groups in last.groups for group in groups]
    return entered(step.groups, out, tagged=False)


def decisions_of(record: Record) -> Iterator[Decision]:
    """One decision for every change of an item's state since the assembly before."""
    if record.error is not None:
        return
    since = record.last
    left: set[int] = set()
    for step in record.steps:
        delta = step_delta(record, step, since)
        for group in delta.exits:
            for position in group.view.positions():
                left.add(group.frame.ordinals.of(position))
                yield _decision(record, group.frame, position, group.outcome, group.reason, step)
        yield from _of_ordinals(record, step, delta.returned, DecisionOutcome.KEPT, DecisionReason.FITS)
        yield from _of_ordinals(record, step, delta.injected, DecisionOutcome.INJECTED, DecisionReason.POLICY)
        yield from _of_ordinals(record, step, list(step.moved), DecisionOutcome.REORDERED, DecisionReason.POLICY)
        for item in delta.withdrawn:
            yield Decision(
                item, "other", None, DecisionOutcome.DROPPED, DecisionReason.WITHDRAWN, step.policy, step.index
            )
    for item in record.opening.withdrawn:
        yield Decision(item, "other", None, DecisionOutcome.DROPPED, DecisionReason.WITHDRAWN)
    yield from _kept(record, left)


def _kept(record: Record, left: set[int]) -> Iterator[Decision]:
    made = {ordinal for step in record.steps for ordinal in step.injected}
    why = {
        group.frame.ordinals.of(position): (group.reason, step)
        for step in record.steps
        for group in step.held
        for position in group.view.positions()
    }
    for arrival in arrivals(record, record.last):
        if arrival.item in left or arrival.item in made:
            continue
        reason, step = why.pop(arrival.item, (DecisionReason.FITS, None))
        yield _decision(record, arrival.frame, arrival.position, DecisionOutcome.KEPT, reason, step)


def _of_ordinals(
    record: Record, step: Step, ordinals: list[int], outcome: DecisionOutcome, reason: DecisionReason
) -> Iterator[Decision]:
    if not ordinals:
        return
    wanted = set(ordinals)
    frame, view = (
        (step.frame_out, step.view_out)
        if outcome is not DecisionOutcome.KEPT
        else (
            record.frame_out,
            record.view_out,
        )
    )
    for position in view.positions():
        if frame.ordinals.of(position) in wanted:
            yield _decision(record, frame, position, outcome, reason, step)


def _decision(
    record: Record, frame: Frame, position: int, outcome: DecisionOutcome, reason: DecisionReason, step: Step | None
) -> Decision:
    tokens = frame.history.table(record.meter).known(position)
    return Decision(
        item=frame.ordinals.of(position),
        kind=frame.history.kind(position).value,
        tokens=tokens if tokens >= 0 else None,
        outcome=outcome,
        reason=reason,
        policy=step.policy if step is not None else None,
        index=step.index if step is not None else None,
        event=frame.history.event(position),
    )
