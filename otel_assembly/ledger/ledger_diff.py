"""What an assembly did that an earlier one of its ledger had not done: arrivals, exits, returns, injections."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from otel_assembly.decision import Decision, DecisionOutcome, DecisionReason
from otel_assembly.ledger.interval_diff import entered, still_in
from otel_assembly.messages.describe import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import Departure, Group, NumberedHistory, Snapshot
    from otel_assembly.ledger.step import Step

Place = tuple["NumberedHistory", int]


@dataclass(slots=True)
class Arrival:
    """An item at first sight; `tokens` is −1 until it is counted."""

    item: int
    kind: str
    tokens: int
    bytes: int
    atom: int
    calls: int
    frame: NumberedHistory
    position: int


def arrivals(record: Record, since: Snapshot | None) -> list[Arrival]:
    """The items that no assembly up to then had: those that came in, and those that policies made."""
    frame, end = record.opening.frame, record.opening.view.end
    made_before = {item for made in since.created for _, item in made} if since is not None else set()
    if since is not None and since.source is frame:
        new: Iterable[int] = range(since.seen, end)
        if made_before:
            new = [position for position in new if frame.ordinals.of(position) not in made_before]
    else:
        known = set() if since is None else set(islice(since.source.ordinals.all(), since.seen))
        known |= made_before
        new = (position for position, item in enumerate(islice(frame.ordinals.all(), end)) if item not in known)
    found = [_arrival(record, frame, position) for position in new]
    for step in record.steps:
        made = set(_injected(step, since)) if step.created else set()
        for (_, item), position in zip(step.created, step.created_positions, strict=True):
            if item in made:
                step.frame_out.history.table(record.meter).tokens(position)
                found.append(_arrival(record, step.frame_out, position))
    return found


def _arrival(record: Record, frame: NumberedHistory, position: int) -> Arrival:
    history = frame.history
    return Arrival(
        item=frame.ordinals.of(position),
        kind=history.kind(position).value,
        tokens=history.table(record.meter).known(position),
        bytes=history.size(position),
        atom=frame.ordinals.of(history.atom(position)),
        calls=history.calls(position),
        frame=frame,
        position=position,
    )


def offered_no_more(record: Record, since: Snapshot | None) -> list[Place]:
    """What came in then and does not come in now, by its place in the input of then."""
    if since is None or record.unknown:
        return []
    frame, end = record.opening.frame, record.opening.view.end
    if since.source is frame:
        return [(frame, position) for position in range(end, since.end)]
    now = set(islice(frame.ordinals.all(), end))
    then = enumerate(islice(since.source.ordinals.all(), since.end))
    gone = [(since.source, position) for position, item in then if item not in now]
    if not (gone and record.observed):
        return gone
    # What a step had taken out is not there because the reduced history came in: its policy and reason stand.
    out = {item for groups in since.exits for group in groups for item in group.frame.of(group.view)}
    out.update(departures(record, since))
    return [(source, position) for source, position in gone if source.ordinals.of(position) not in out]


def made_no_more(record: Record, since: Snapshot | None) -> list[tuple[Any, int, int]]:
    """What steps made for the prompt of then that do not stand in this chain, by event, item and the step's place.

    A framework's chain is not the same in each turn, and what a step makes it makes anew: no step is here to say that
    these are gone.
    """
    if since is None or record.unknown:
        return []
    here = {step.index for step in record.steps if since.did(step.index, step.policy)}
    made = [(*one, index) for index, some in enumerate(since.created) if index not in here for one in some]
    if not made:
        return []
    items = {item for _, item, _ in made}.intersection(since.frame.of(since.kept))
    items.difference_update(item for step in record.steps for item in step.injected)
    frame, end = record.opening.frame, record.opening.view.end
    items.difference_update(frame.ordinals.of(at) for at in frame.ordinals.find(sorted(items)) if at < end)
    return [one for one in made if one[1] in items]


def departures(record: Record, since: Snapshot | None) -> dict[int, Departure]:
    """What a step took out in an assembly that was not recorded, that a reader knows of, and that came in no more.

    Those alone whose step stands in this assembly too, so that it can tell of them.
    """
    if not record.departed or since is None:
        return {}
    known = {*islice(since.source.ordinals.all(), since.seen), *(item for made in since.created for _, item in made)}
    told = {item: group.tag for groups in since.exits for group in groups for item in group.frame.of(group.view)}
    steps = {(step.index, step.policy) for step in record.steps}
    return {
        item: one
        for item, one in record.departed.items()
        if item in known and (one.index, one.policy) in steps and told.get(item) != (one.outcome, one.reason)
    }


def _offered_again(record: Record, since: Snapshot | None) -> range:
    """Positions that came in before then, not then, and now: where an assembly that began earlier ended later."""
    if since is None or since.source is not record.opening.frame:
        return range(0)
    return range(since.end, min(since.seen, record.opening.view.end))


def counted(record: Record, since: Snapshot | None, arrived: list[Arrival]) -> list[tuple[int, int]]:
    """Items, with their tokens, that were counted since then and had arrived before it."""
    frame, seen = record.opening.frame, record.opening.view.end
    table = frame.history.table(record.meter)
    start = 0
    if since is not None and since.source is frame:
        seen = max(seen, since.seen)
        start = since.counted if since.table is table else 0
    new = {arrival.item for arrival in arrived}
    return sorted(
        (ordinal, tokens)
        for position in table.order[start : record.counts]
        if position < seen
        and (ordinal := frame.ordinals.of(position)) not in new
        and (tokens := table.known(position)) != frame.told.get(ordinal, -1)
    )


@dataclass(slots=True)
class StepDelta:
    """What one policy did that it had not done before."""

    exits: list[Group]
    returned: list[int]
    injected: list[int]
    withdrawn: list[int]
    #: What left in an assembly that no reader was told of, and was not offered since.
    departed: dict[int, Departure]


def step_delta(record: Record, step: Step, since: Snapshot | None) -> StepDelta:
    """Compare one step with the same step of an earlier assembly."""
    if since is None:
        return StepDelta(list(step.exits), [], list(step.injected), [], {})
    same = since.did(step.index, step.policy)
    before = since.exits[step.index] if same else ()
    left = entered(before, step.exits, tagged=False) if before else []
    departed = departures(record, since)
    return StepDelta(
        exits=entered(step.exits, before),
        returned=still_in(left, record.view_out, record.frame_out) if left else [],
        injected=_injected(step, since),
        withdrawn=_no_longer_made(record, step, since, departed) if same else [],
        departed={item: one for item, one in departed.items() if (one.index, one.policy) == (step.index, step.policy)},
    )


def _no_longer_made(record: Record, step: Step, since: Snapshot, departed: Mapping[int, Departure]) -> list[int]:
    if not since.created[step.index]:
        return []
    made = {ordinal for _, ordinal in since.created[step.index]}.difference(step.injected)
    if made and record.observed:
        frame, end = record.opening.frame, record.opening.view.end
        came = {frame.ordinals.of(position) for position in frame.ordinals.find(made) if position < end}
        made -= came | departed.keys()
    return sorted(made)


def _injected(step: Step, since: Snapshot | None) -> list[int]:
    if not step.created:
        return []
    before = set()
    if since is not None and since.did(step.index, step.policy):
        before = {ordinal for _, ordinal in since.created[step.index]}
    return sorted(ordinal for ordinal in step.injected if ordinal not in before)


def exits_from_the_prompt(record: Record, step: Step) -> list[Group]:
    """What was in the previous prompt, or is new, and left by this step: what a counter counts."""
    last = record.last
    if last is None or not step.exits:
        return list(step.exits)
    out = [group for groups in last.exits for group in groups]
    return entered(step.exits, out, tagged=False)


def exits_of(record: Record) -> Iterator[Decision]:
    """One decision for every item that was in the previous prompt, or is new, and left."""
    if record.error is not None:
        return
    for step in record.steps:
        for group in exits_from_the_prompt(record, step):
            for position in group.view.positions():
                yield _decision(record, (group.frame, position), group.outcome, group.reason, step)


def decisions_of(record: Record) -> Iterator[Decision]:
    """One decision for every change of an item's state since the assembly before."""
    if record.error is not None:
        return
    since = record.last
    left: set[int] = set()
    back: dict[int, Step | None] = {
        record.opening.frame.ordinals.of(position): None for position in _offered_again(record, since)
    }
    for step in record.steps:
        delta = step_delta(record, step, since)
        for group in delta.exits:
            for position in group.view.positions():
                left.add(group.frame.ordinals.of(position))
                yield _decision(record, (group.frame, position), group.outcome, group.reason, step)
        back.update(dict.fromkeys(delta.returned, step))
        for place in _places(step.frame_out, step.view_out, set(delta.injected)):
            yield _decision(record, place, DecisionOutcome.INJECTED, DecisionReason.POLICY, step)
        if since is not None and delta.withdrawn and since.did(step.index, step.policy):
            yield from _withdrawn(step, since.created[step.index], set(delta.withdrawn))
    for place in offered_no_more(record, since):
        yield _decision(record, place, DecisionOutcome.DROPPED, DecisionReason.WITHDRAWN, None)
    for event, item, index in made_no_more(record, since):
        policy = since.policies[index] if since is not None else None
        yield _withdrawn_item(event, item, policy, index)
    yield from _kept(record, left, back)
    for step in record.steps:
        same = since is not None and since.did(step.index, step.policy)
        moved = set(step.moved).difference(since.moved[step.index] if since is not None and same else ())
        for place in _places(record.frame_out, record.view_out, moved):
            yield _decision(record, place, DecisionOutcome.REORDERED, DecisionReason.POLICY, step)


def _withdrawn(step: Step, made: Iterable[tuple[Any, int]], items: set[int]) -> Iterator[Decision]:
    for event, item in made:
        if item in items:
            yield _withdrawn_item(event, item, step.policy, step.index)


def _withdrawn_item(event: Any, item: int, policy: str | None, index: int) -> Decision:
    kind = str(describe(event).kind)
    return Decision(item, kind, None, DecisionOutcome.DROPPED, DecisionReason.WITHDRAWN, policy, index, event)


def _kept(record: Record, left: set[int], back: dict[int, Step | None]) -> Iterator[Decision]:
    """What is in the prompt and was not, and what is there by another rule than before."""
    since = record.last
    why = {item: (reason, step) for step in record.steps for item, reason in _held(step.pinned)}
    was = dict(_held(group for groups in since.pinned for group in groups)) if since is not None else {}
    made = {item for step in record.steps for item in step.injected}
    new = {arrival.item for arrival in arrivals(record, since)} - left - made
    changed = {item for item in {*why, *was} if (why[item][0] if item in why else None) is not was.get(item)}
    for place in _places(record.frame_out, record.view_out, new | back.keys() | changed - made):
        item = place[0].ordinals.of(place[1])
        reason, step = why.get(item, (DecisionReason.FITS, back.get(item)))
        yield _decision(record, place, DecisionOutcome.KEPT, reason, step)


def _held(groups: Iterable[Group]) -> Iterator[tuple[int, DecisionReason]]:
    return ((item, group.reason) for group in groups for item in group.frame.of(group.view))


def _places(frame: NumberedHistory, view: Any, items: set[int]) -> Iterator[Place]:
    """Where these items stand in a view, in its order."""
    if items:
        yield from ((frame, position) for position in view.positions() if frame.ordinals.of(position) in items)


def _decision(
    record: Record, place: Place, outcome: DecisionOutcome, reason: DecisionReason, step: Step | None
) -> Decision:
    frame, position = place
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
