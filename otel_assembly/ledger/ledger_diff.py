"""What an assembly tells of items: those that arrive, what each step keeps out, and what is new of that.

Items are compared as intervals over the columns of their history, so that finding a difference costs what changed.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from otel_assembly._internal.slices import LISTED
from otel_assembly.decision import DecisionOutcome
from otel_assembly.history.view import Column, Run, View, difference, is_in, merged, to_runs
from otel_assembly.ledger.snapshot import ItemGroup, gone, item_id_runs, item_id_runs_backward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly._internal.slices import Slices
    from otel_assembly.decision import DecisionReason
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import NumberedHistory, Step

    Tag = tuple[DecisionOutcome, DecisionReason]

#: So many runs of what it dropped a step lists.
MAX_RUNS: Final = 64


#: An item at first sight: its id, its history with the ids there, and its position.
Arrival: TypeAlias = "tuple[int, NumberedHistory, int]"


def arrivals(record: Record) -> Slices[list[Arrival]]:
    """The items that no recorded assembly has told of as they are: those that came in, and those that steps made."""
    numbered, view, told = record.ledger_input.numbered, record.ledger_input.view, record.told
    new = difference(merged((first, last + 1) for first, last in item_id_runs(view, numbered)), told)
    item_id = numbered.item_ids.of
    positions = numbered.item_ids.find(item for run in new for item in range(*run))
    found: dict[int, tuple[NumberedHistory, int]] = {}
    while some := list(islice(positions, LISTED)):
        found.update((item_id(position), (numbered, position)) for position in some if view.holds(position))
        if len(some) == LISTED:
            yield
    for step in record.steps:
        for (_, item), position in zip(step.created, step.created_positions, strict=True):
            if not is_in(told, item):
                found.setdefault(item, (step.numbered_out, position))
    return [(item, *place) for item, place in found.items()]


def exits_from_the_prompt(record: Record, step: Step) -> Sequence[ItemGroup]:
    """What was in the previous prompt, or arrived since, and left by this step: what a counter counts."""
    if not step.exits:
        return ()
    if step.index not in record.left:
        last, left = record.last, record.gone(step)
        record.left[step.index] = left if last is None else entered(left, list(last.gone), tagged=False)
    return record.left[step.index]


def dropped_new(record: Record, step: Step, *, net: bool = False) -> int:
    """How many items a step dropped that were in the previous prompt, or are new; net: that no step made."""
    if record.error is not None:
        return 0
    groups = [group for group in exits_from_the_prompt(record, step) if group.outcome is DecisionOutcome.DROPPED]
    if net and not record.pure:
        made = record.made
        return sum(item not in made for group in groups for item in group.numbered.of(group.view))
    return sum(len(group.view) for group in groups)


def listed_exits(record: Record, step: Step) -> tuple[list[tuple[Tag, list[Run]]], list[str]]:
    """What a step keeps out in this turn, as runs of item ids by outcome and reason; and the reasons of the rest.

    Of what it dropped at most `MAX_RUNS` runs are listed.
    """
    if not step.exits:
        return [], []
    dropped = [group for group in step.exits if group.outcome is DecisionOutcome.DROPPED]
    others = [group for group in step.exits if group.outcome is not DecisionOutcome.DROPPED]
    compacted = [(group.tag, item_id_runs(group.view, group.numbered)) for group in others]
    chosen = _newest(dropped, MAX_RUNS + 1)
    rest: list[str] = []
    if len(chosen) > MAX_RUNS:
        chosen = _most_telling(record, step, dropped)
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


def _most_telling(record: Record, step: Step, dropped: Sequence[ItemGroup]) -> list[tuple[int, Tag, Run]]:
    """The runs to list: first what another rule left out in the last assembly, then what is new, then the newest.

    Who reads a later turn that does not list an item goes back to one that does: a change must not be missing there.
    """
    last = record.last
    if last is None:
        return _newest(dropped, MAX_RUNS)
    new = entered(dropped, gone(last.steps, step.index) if last.did(step.index, step.policy) else ())
    fresh = entered(new, list(last.gone), tagged=False)
    chosen: list[tuple[int, Tag, Run]] = []
    for groups in (entered(new, fresh, tagged=False), fresh, entered(dropped, new, tagged=False)):
        chosen += _newest(groups, MAX_RUNS - len(chosen))
    return chosen


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
    if len(new) == len(old) == 1 and (not tagged or new[0].tag == old[0].tag):
        (group,), (before,) = new, old
        view = group.view.beyond(before.view)
        if view is not None:
            return [ItemGroup(view, group.numbered, group.outcome, group.reason)] if view else []
    if not _comparable(new, old):
        return _by_item_id(new, old, tagged=tagged)
    held: dict[tuple[int, Tag | None], list[Run]] = {}
    for group in old:
        for column, start, stop in group.view.current:
            held.setdefault((id(column), group.tag if tagged else None), []).append((start, stop))
    held = {key: merged(runs) for key, runs in held.items()}
    found: list[ItemGroup] = []
    for group in new:
        segments = [
            (column, low, high)
            for column, start, stop in group.view.current
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
        for column, _, _ in group.view.current:
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
