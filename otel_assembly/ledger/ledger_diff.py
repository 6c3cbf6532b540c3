"""What an assembly did that an earlier one of its ledger had not done: arrivals, exits, returns, injections.

Items are compared as intervals over the columns of their history, so that finding a difference costs what changed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.intervals import Run, difference, is_in, merged, to_runs
from otel_assembly.decision import DecisionOutcome
from otel_assembly.history.view import Column, View
from otel_assembly.ledger.snapshot import ItemGroup, item_id_runs, item_id_runs_backward

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly.decision import DecisionReason
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import Departure, NumberedHistory, Snapshot, Step

    Tag = tuple[DecisionOutcome, DecisionReason]

#: So many runs of what it dropped a step lists.
MAX_RUNS: Final = 64
#: A view of more segments is better searched as a set.
_FEW: Final = 8


Place = tuple["NumberedHistory", int]


@dataclass(slots=True)
class Arrival:
    """An item at first sight."""

    item: int
    kind: str
    tokens: int
    bytes: int
    atom: int
    calls: int
    numbered: NumberedHistory
    position: int
    #: Whether the tokens are an estimate.
    estimated: bool


def arrivals(record: Record, since: Snapshot | None) -> list[Arrival]:
    """The items that no assembly up to then had: those that came in, and those that policies made."""
    numbered, end = record.ledger_input.numbered, record.ledger_input.view.end
    made_before = {item for made in since.created for _, item in made} if since is not None else set()
    if since is not None and since.source is numbered:
        new: Iterable[int] = range(since.seen, end)
        if made_before:
            new = [position for position in new if numbered.item_ids.of(position) not in made_before]
    else:
        known = set() if since is None else set(islice(since.source.item_ids.all(), since.seen))
        known |= made_before
        new = (position for position, item in enumerate(islice(numbered.item_ids.all(), end)) if item not in known)
    found = [_arrival(record, numbered, position) for position in new]
    for step in record.steps:
        made = set(_injected(step, since)) if step.created else set()
        for (_, item), position in zip(step.created, step.created_positions, strict=True):
            if item in made:
                found.append(_arrival(record, step.numbered_out, position))
    return found


def _arrival(record: Record, numbered: NumberedHistory, position: int) -> Arrival:
    history = numbered.history
    table = history.table(record.meter)
    return Arrival(
        item=numbered.item_ids.of(position),
        kind=history.kind(position).value,
        tokens=table.known(position),
        bytes=history.size(position),
        atom=numbered.item_ids.of(history.atom(position)),
        calls=history.calls(position),
        numbered=numbered,
        position=position,
        estimated=is_in(table.estimated, position),
    )


def offered_no_more(record: Record, since: Snapshot | None) -> list[Place]:
    """Positions in the baseline's input whose items are missing from this one."""
    if since is None or record.unknown:
        return []
    numbered, end = record.ledger_input.numbered, record.ledger_input.view.end
    if since.source is numbered:
        return [(numbered, position) for position in range(end, since.end)]
    now = set(islice(numbered.item_ids.all(), end))
    then = enumerate(islice(since.source.item_ids.all(), since.end))
    gone = [(since.source, position) for position, item in then if item not in now]
    if not (gone and record.observed):
        return gone
    # What a step had taken out is not there because the reduced history came in: its policy and reason stand.
    out = {item for groups in since.exits for group in groups for item in group.numbered.of(group.view)}
    out.update(departures(record, since))
    return [(source, position) for source, position in gone if source.item_ids.of(position) not in out]


def made_no_more(record: Record, since: Snapshot | None) -> list[tuple[Any, int, int]]:
    """Items of the baseline's prompt whose step is not in this chain: the event, the item id and the step's place.

    A framework's chain is not the same in each turn, and what a step makes it makes anew: no step is here to say that
    these are gone.
    """
    if since is None or record.unknown:
        return []
    here = {step.index for step in record.steps if since.did(step.index, step.policy)}
    made = [(*one, index) for index, some in enumerate(since.created) if index not in here for one in some]
    if not made:
        return []
    items = {item for _, item, _ in made}.intersection(since.numbered.of(since.kept))
    items.difference_update(item for step in record.steps for item in step.injected)
    numbered, end = record.ledger_input.numbered, record.ledger_input.view.end
    items.difference_update(numbered.item_ids.of(at) for at in numbered.item_ids.find(sorted(items)) if at < end)
    return [one for one in made if one[1] in items]


def withdrawn_items(record: Record) -> list[int]:
    """Item ids that the caller offers no more, or that no step makes any more, since the baseline."""
    offered = [numbered.item_ids.of(position) for numbered, position in offered_no_more(record, record.baseline)]
    return offered + [item for _, item, _ in made_no_more(record, record.baseline)]


def departures(record: Record, since: Snapshot | None) -> dict[int, Departure]:
    """What a step took out in an assembly that was not recorded, that a reader knows of, and that came in no more.

    Those alone whose step stands in this assembly too, so that it can tell of them.
    """
    if not record.departed or since is None:
        return {}
    known = {*islice(since.source.item_ids.all(), since.seen), *(item for made in since.created for _, item in made)}
    told = {item: group.tag for groups in since.exits for group in groups for item in group.numbered.of(group.view)}
    steps = {(step.index, step.policy) for step in record.steps}
    return {
        item: one
        for item, one in record.departed.items()
        if item in known and (one.index, one.policy) in steps and told.get(item) != (one.outcome, one.reason)
    }


def counted(record: Record, since: Snapshot | None, arrived: list[Arrival]) -> list[tuple[int, int]]:
    """Items that had arrived before, and their tokens, where those are other ones: corrected, or another meter's."""
    if since is None:
        return []
    numbered, seen = record.ledger_input.numbered, record.ledger_input.view.end
    table = numbered.history.table(record.meter)
    positions: Iterable[int] = range(seen)
    if since.source is numbered:
        seen = max(seen, since.seen)
        positions = table.corrected[since.counted : record.counts] if since.table is table else range(seen)
    new = {arrival.item for arrival in arrived}
    return sorted(
        (item_id, tokens)
        for position in positions
        if position < seen
        and (item_id := numbered.item_ids.of(position)) not in new
        and (tokens := table.known(position)) != numbered.reported.get(item_id)
    )


@dataclass(slots=True)
class StepDelta:
    """What one policy did that it had not done before."""

    exits: list[ItemGroup]
    returned: list[int]
    injected: list[int]
    withdrawn: list[int]
    #: Items that left in an assembly whose span was not recorded, and were not offered since.
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
        returned=still_in(left, record.view_out, record.numbered_out) if left else [],
        injected=_injected(step, since),
        withdrawn=_no_longer_made(record, step, since, departed) if same else [],
        departed={item: one for item, one in departed.items() if (one.index, one.policy) == (step.index, step.policy)},
    )


def _no_longer_made(record: Record, step: Step, since: Snapshot, departed: Mapping[int, Departure]) -> list[int]:
    if not since.created[step.index]:
        return []
    made = {item_id for _, item_id in since.created[step.index]}.difference(step.injected)
    if made and record.observed:
        numbered, end = record.ledger_input.numbered, record.ledger_input.view.end
        came = {numbered.item_ids.of(position) for position in numbered.item_ids.find(made) if position < end}
        made -= came | departed.keys()
    return sorted(made)


def _injected(step: Step, since: Snapshot | None) -> list[int]:
    if not step.created:
        return []
    before = set()
    if since is not None and since.did(step.index, step.policy):
        before = {item_id for _, item_id in since.created[step.index]}
    return sorted(item_id for item_id in step.injected if item_id not in before)


def exits_from_the_prompt(record: Record, step: Step) -> list[ItemGroup]:
    """What was in the previous prompt, or is new, and left by this step: what a counter counts."""
    last = record.last
    if last is None or not step.exits:
        return list(step.exits)
    out = [group for groups in last.exits for group in groups]
    return entered(step.exits, out, tagged=False)


def dropped_new(record: Record, step: Step, *, net: bool = False) -> int:
    """How many items a step dropped that were in the previous prompt, or are new; net: that no step made."""
    if record.error is not None:
        return 0
    groups = [group for group in exits_from_the_prompt(record, step) if group.outcome is DecisionOutcome.DROPPED]
    if net and not record.pure:
        made = {item for one in record.steps for item in one.injected}
        return sum(item not in made for group in groups for item in group.numbered.of(group.view))
    return sum(len(group.view) for group in groups)


def listed_exits(record: Record, step: Step) -> tuple[list[tuple[Tag, list[Run]]], list[str]]:
    """What a step keeps out in this turn, as runs of item ids by outcome and reason; and the reasons of the rest.

    Of what it dropped at most `MAX_RUNS` runs: first what is new, or left by another rule than in the last assembly,
    then the newest.
    """
    dropped = [group for group in step.exits if group.outcome is DecisionOutcome.DROPPED]
    gone = [group for group in step.exits if group.outcome is not DecisionOutcome.DROPPED]
    compacted = [(group.tag, item_id_runs(group.view, group.numbered)) for group in gone]
    chosen = _newest(dropped, MAX_RUNS + 1)
    rest: list[str] = []
    if len(chosen) > MAX_RUNS:
        last = record.last
        before = last.exits[step.index] if last is not None and last.did(step.index, step.policy) else ()
        new = entered(dropped, before) if before else dropped
        chosen = _newest(new, MAX_RUNS)
        chosen += _newest(entered(dropped, new, tagged=False), MAX_RUNS - len(chosen)) if before else []
        left = Counter({group.reason.value: 0 for group in dropped})
        for group in dropped:
            left[group.reason.value] += len(group.view)
        for _, tag, (first, last_id) in chosen:
            left[tag[1].value] -= last_id - first + 1
        rest = [reason for reason, count in left.items() if count]
    listed: dict[Tag, list[Run]] = {}
    for _, tag, (first, last_id) in sorted(chosen, key=itemgetter(0)):
        runs = listed.setdefault(tag, [])
        if runs and runs[-1][1] + 1 == first:
            runs[-1] = (runs[-1][0], last_id)
        else:
            runs.append((first, last_id))
    return [*listed.items(), *compacted], rest


def _newest(groups: Sequence[ItemGroup], count: int) -> list[tuple[int, Tag, Run]]:
    """The newest runs of these groups, each with its position and what its group says."""
    found = [
        (position, group.tag, (first, last))
        for group in groups
        for position, first, last in islice(item_id_runs_backward(group.view, group.numbered), count)
    ]
    return sorted(found, key=itemgetter(0))[-count:] if count else []


def entered(new: Sequence[ItemGroup], old: Sequence[ItemGroup], *, tagged: bool = True) -> list[ItemGroup]:
    """The items of `new` that are not in `old`; with `tagged`, also those whose outcome or reason was another."""
    if not old or not new:
        return list(new)
    if not _comparable(new, old):
        return _by_item_id(new, old, tagged=tagged)
    held: dict[tuple[int, Tag | None], list[Run]] = {}
    for group in old:
        for column, start, stop in group.view.segments:
            held.setdefault((id(column), group.tag if tagged else None), []).append((start, stop))
    held = {key: merged(runs) for key, runs in held.items()}
    found: list[ItemGroup] = []
    for group in new:
        segments = [
            (column, low, high)
            for column, start, stop in group.view.segments
            for low, high in difference([(start, stop)], held.get((id(column), group.tag if tagged else None), ()))
        ]
        if segments:
            view = View(group.view.history, segments)
            found.append(ItemGroup(view, group.numbered, group.outcome, group.reason))
    return found


def _comparable(new: Sequence[ItemGroup], old: Sequence[ItemGroup]) -> bool:
    """Whether no item can stand in two of the columns that these groups name."""
    first: Column | None = None
    for group in (*new, *old):
        for column, _, _ in group.view.segments:
            if first is None:
                first = column
            elif column is not first and (
                column.history is not first.history or (type(column) is Column) is not (type(first) is Column)
            ):
                return False
    return True


def _by_item_id(new: Sequence[ItemGroup], old: Sequence[ItemGroup], *, tagged: bool) -> list[ItemGroup]:
    held: dict[int, Tag] = {item_id: group.tag for group in old for item_id in group.numbered.of(group.view)}
    found: list[ItemGroup] = []
    for group in new:
        tag = group.tag
        runs = to_runs(
            index
            for index, item_id in enumerate(group.numbered.of(group.view))
            if item_id not in held or (tagged and held[item_id] != tag)
        )
        if runs:
            found.append(ItemGroup(group.view.pick(runs), group.numbered, group.outcome, group.reason))
    return found


def still_in(groups: Iterable[ItemGroup], view: View, numbered: NumberedHistory) -> list[int]:
    """The item ids, of items that these groups held, that stand in a view now."""
    found: list[int] = []
    kept: set[int] | None = None
    for group in groups:
        if group.view.history is view.history and len(view.segments) <= _FEW:
            found += (group.numbered.item_ids.of(p) for p in group.view.positions() if view.holds(p))
            continue
        if kept is None:
            kept = set(numbered.of(view))
        found += (item_id for item_id in group.numbered.of(group.view) if item_id in kept)
    return sorted(found)
