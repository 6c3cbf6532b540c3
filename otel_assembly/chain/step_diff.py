"""What a step did whose output is known and nothing else: anybody's policy, a framework's own reducer."""

from __future__ import annotations

from itertools import chain
from operator import is_, lt
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason
from otel_assembly.history.broken_pairs import echoes_stand
from otel_assembly.history.history import ListHistory
from otel_assembly.history.view import Run, View, complement, difference, intersection, is_in, merged, runs_of, to_runs
from otel_assembly.ledger.snapshot import ItemGroup, ItemIds, NumberedHistory, item_id_runs
from otel_assembly.matching.event_index import EventIndex, EventMatcher, moved
from otel_assembly.matching.sequence_diff import diff_sequences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_assembly.decision import Verdict
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.matching.sequence_diff import SequenceDiff
    from otel_assembly.messages.event_facts import EventFacts

    Tag = tuple[DecisionOutcome, DecisionReason]

EXITS: Final = frozenset({DecisionOutcome.DROPPED, DecisionOutcome.COMPACTED})
_COMPACTED: Final = (DecisionOutcome.COMPACTED, DecisionReason.COMPACTED)


def match(
    step: Step,
    inputs: Sequence[Any],
    events: Sequence[Any],
    verdicts: Sequence[Verdict],
    ledger: Ledger,
    *,
    otherwise: DecisionReason = DecisionReason.POLICY,
    rereads: bool = False,
    stands_in: bool = True,
    index: Callable[[], EventIndex] | None = None,
) -> None:
    """Find out what was done by whoever returned events of any making, and write it down in `step`.

    Args:
        step: The step, whose input `inputs` are.
        inputs: What went in.
        events: What came out.
        verdicts: Why; heeded where they are true.
        ledger: The conversation's ledger.
        otherwise: Why an event left of which no verdict speaks.
        rereads: Whether a copy that has its original's id, but reads differently, is a replacement.
        stands_in: Whether what is new where something left stands in for it, so that it was compacted, not dropped.
        index: Where the inputs stand, if that is remembered.
    """
    view = step.view_in
    diff = diff_sequences(inputs, events, index, read=ledger.facts_of, rereads=rereads)
    kept = diff.kept
    part = _part(view, kept) if diff.in_order else None
    if part is not None and _the_very(inputs, events, diff) and (ledger.observed or all(map(is_, events, part))):
        step.view_out = part
    else:
        _reframe(step, inputs, events, diff, ledger)
        indexes = [at for at in diff.middle if at is not None]
        step.moved = tuple(sorted(step.numbered_in.item_ids.of(view.position(at)) for at in moved(indexes)))
    replaced = diff.replaced() if stands_in and None in diff.middle else []
    tags = _tags(inputs, complement(diff.length, kept), replaced, verdicts, otherwise, index)
    _write_groups(step, tags)
    if replaced:
        step.stands_for = _sources(step, diff, dict(tags).get(_COMPACTED, []), ledger)


def _sources(step: Step, diff: SequenceDiff, gone: Sequence[Run], ledger: Ledger) -> dict[int, Sequence[Run]]:
    """What each new event stands for: of as many as were replaced in its place the one, else the first for all."""
    made = iter(item for _, item in step.created)
    found: dict[int, Sequence[Run]] = {}
    low, new = diff.front, list[int]()
    for at in (*diff.middle, diff.length - diff.back):
        if at is None:
            new.append(next(made))
            continue
        left = intersection([(low, at)], gone) if low < at else []
        indexes = [index for run in left for index in range(*run)] if len(new) > 1 else []
        if new and left:
            parts = [[(one, one + 1)] for one in indexes] if len(indexes) == len(new) else [left]
            for item, part in zip(new, parts, strict=False):
                found[item] = ledger.leaves.of(item_id_runs(step.view_in.pick(part), step.numbered_in))
        low, new = max(low, at + 1), []
    return found


def match_part(step: Step, part: View, verdicts: Sequence[Verdict]) -> bool | None:
    """As `match`, of a part of what went in: whether all verdicts are true; None where it is no such part, in order."""
    view = step.view_in
    indexes = [view.index_of(position) for position in part.positions()]
    if -1 in indexes or not all(map(lt, indexes, indexes[1:])):
        return None
    inputs, gone = list(view), complement(len(view), to_runs(indexes))
    _write_groups(step, _tags(inputs, gone, (), verdicts, DecisionReason.POLICY, None))
    step.view_out = part
    said = {id(inputs[at]) for at in _said(inputs, verdicts, gone, None)}
    return all(id(event) in said for verdict in verdicts for event in verdict.events)


def _write_groups(step: Step, tags: Sequence[tuple[Tag, list[Run]]]) -> None:
    groups = [ItemGroup(step.view_in.pick(runs), step.numbered_in, *tag) for tag, runs in tags]
    step.exits = tuple(group for group in groups if group.outcome in EXITS)
    step.pinned = tuple(group for group in groups if group.outcome not in EXITS)


def _the_very(inputs: Sequence[Any], events: Sequence[Any], diff: SequenceDiff) -> bool:
    """Whether the outputs between front and back are the very objects that went in; all of them are inputs.

    In front and behind, some may be equal ones: that is enough where we only look on, and do not send them.
    """
    out = events[diff.front : len(events) - diff.back]
    return all(map(is_, out, map(inputs.__getitem__, diff.middle)))  # type: ignore[arg-type]  # none is None


def _part(view: View, kept: Sequence[Run]) -> View | None:
    """A part of a view, marked as a slice: what belongs together may be parted, and who comes next reads it anew.

    None where a restatement is in it of something that is not: there it is what it restated.
    """
    picked = view.pick(kept)
    if len(picked) == len(view):
        return view
    part, history = View(view.history, view.column, picked.runs, is_slice=True), view.history
    if history.echoes and not echoes_stand(history, runs_of(part)):
        return None
    return part


def _tags(
    inputs: Sequence[Any],
    gone: Sequence[Run],
    replaced: Sequence[Run],
    verdicts: Sequence[Verdict],
    otherwise: DecisionReason,
    index: Callable[[], EventIndex] | None,
) -> list[tuple[Tag, list[Run]]]:
    """Runs of what left, and of what a verdict says was kept, by outcome and reason."""
    said = _said(inputs, verdicts, gone, index) if verdicts else {}
    loose = difference(gone, to_runs(sorted(said)))
    found = {
        _COMPACTED: intersection(loose, replaced),
        (DecisionOutcome.DROPPED, otherwise): difference(loose, replaced),
    }
    tags: dict[Tag, list[Run]] = {tag: runs for tag, runs in found.items() if runs}
    if said:
        spoken: dict[Tag, list[int]] = {}
        for at in sorted(said):
            spoken.setdefault(said[at], []).append(at)
        for tag, indexes in spoken.items():
            tags[tag] = merged([*tags.get(tag, ()), *to_runs(indexes)])
    return sorted(tags.items(), key=lambda item: item[1][0])


def _said(
    inputs: Sequence[Any], verdicts: Sequence[Verdict], gone: Sequence[Run], index: Callable[[], EventIndex] | None
) -> dict[int, Tag]:
    """The true verdict on each input of which one speaks: the first."""
    wanted = {id(event) for verdict in verdicts for event in verdict.events}
    places: dict[int, list[int]] = {}
    if index is not None:
        where = index()
        places = {id(event): list(where.of_object(event)) for verdict in verdicts for event in verdict.events}
    else:
        for at, event in enumerate(inputs):
            if id(event) in wanted:
                places.setdefault(id(event), []).append(at)
    said: dict[int, Tag] = {}
    for verdict in verdicts:
        exits = verdict.outcome in EXITS
        for event in verdict.events:
            for at in places.get(id(event), ()):
                if at not in said and at < len(inputs) and is_in(gone, at) is exits:
                    said[at] = verdict.outcome, verdict.reason
    return said


def _reframe(step: Step, inputs: Sequence[Any], events: Sequence[Any], diff: SequenceDiff, ledger: Ledger) -> None:
    """The output as a history of its own, in which what came in, or was made before, keeps its item id."""
    made, item_ids = _made(step, events, diff, ledger)
    numbered = ledger.step_outputs.get(step.index) if ledger.observed else None
    known = len(numbered.history) if numbered is not None else 0
    if numbered is None or not _goes_on(numbered, step, events, item_ids):
        numbered, known = NumberedHistory(ListHistory(), ItemIds(), came_from=step.numbered_in), 0
    numbered.listed.renew(events[:known])
    numbered.listed.take(events[known:], _facts(step, inputs, events, diff, ledger, known))
    for start, (first, last) in item_ids:
        if (skip := max(0, known - start)) <= last - first:
            numbered.item_ids.extend(last - first + 1 - skip, first + skip)
    if ledger.observed:
        ledger.step_outputs[step.index] = numbered
    step.numbered_out, step.view_out = numbered, numbered.history.view()
    step.created = tuple((events[at], item_id) for at, item_id in made)
    step.created_positions = tuple(at for at, _ in made)


def _goes_on(numbered: NumberedHistory, step: Step, events: Sequence[Any], item_ids: Sequence[tuple[int, Run]]) -> bool:
    """Whether this output is the last one with something behind it.

    The same items in the same order say the same: what comes from the input is as it was for as long as the input's
    history is the same one, and a made item that says something else is another.
    """
    history = numbered.history
    return (
        numbered.came_from is step.numbered_in
        and 0 < len(history) <= len(events)
        and not history.of_dicts
        and _begins_with(item_ids, numbered.item_ids)
    )


def _facts(
    step: Step, inputs: Sequence[Any], events: Sequence[Any], diff: SequenceDiff, ledger: Ledger, start: int
) -> Iterator[EventFacts]:
    """What was read of the output's events from `start` on: of those that came in, already then."""
    history, position = step.view_in.history, step.view_in.position
    found = diff.found()
    for place in range(start, len(events)):
        event, at = events[place], found[place]
        if at is not None and inputs[at] is event:
            yield history.facts(position(at))
        else:
            yield ledger.facts(event)


def _begins_with(item_ids: Sequence[tuple[int, Run]], known: ItemIds) -> bool:
    """Whether the positions that are known already have the item ids that they had."""
    upto = len(known)
    return all(
        next(known.spans(start, min(upto, start + last - first + 1))) == (first, min(last, first + upto - start - 1))
        for start, (first, last) in item_ids
        if start < upto
    )


def _made(
    step: Step, events: Sequence[Any], diff: SequenceDiff, ledger: Ledger
) -> tuple[list[tuple[int, int]], list[tuple[int, Run]]]:
    """The places of the new events with their item ids, and all item ids: runs, each with the place it begins at."""
    view, numbered = step.view_in, step.numbered_in
    new = [events[diff.front + n] for n, at in enumerate(diff.middle) if at is None]
    taken: set[int] = set()
    returned = put_back(step, new, taken)
    known = ledger.made_by(step)
    earlier = EventMatcher([event for event, _ in known], read=ledger.facts_of, by_id=False)
    matched: list[int | None] = earlier.match(new) if known else [None] * len(new)
    unknown = [event for event, at in zip(new, matched, strict=True) if at is None and not returned.get(id(event))]
    for name, copies in put_back(step, unknown, taken, ledger.facts_of).items():
        returned.setdefault(name, []).extend(copies)
    again = iter(matched)
    made: list[tuple[int, int]] = []
    middle: list[Run] = []
    for place, at in enumerate(diff.middle, diff.front):
        if at is None:
            before, event = next(again), events[place]
            if items := returned.get(id(event)):
                item_id = items.pop(0)
            else:
                item_id = known[before][1] if before is not None else ledger.take_made()
            made.append((place, item_id))
        else:
            item_id = numbered.item_ids.of(view.position(at))
        middle.append((item_id, item_id))
    front = item_id_runs(view.pick([(0, diff.front)]), numbered)
    back = item_id_runs(view.pick([(diff.length - diff.back, diff.length)]), numbered)
    runs: list[tuple[int, Run]] = []
    place = 0
    for run in chain(front, middle, back):
        runs.append((place, run))
        place += run[1] - run[0] + 1
    return made, _joined(runs)


def put_back(
    step: Step, events: Sequence[Any], taken: set[int], read: Callable[[Any], EventFacts | None] | None = None
) -> dict[int, list[int]]:
    """Find the events that an earlier step of this assembly left out, among events that the step did not receive.

    Args:
        step: The step, whose `put_back` is extended by the items that came into the assembly.
        events: The events.
        taken: The items that were found before; those that are found now are added.
        read: How an event is read, to find copies by their id or text; None to find the very objects only.

    Returns:
        The item ids by the identity of the event: one for each time that the event is put back.
    """
    if not (events and any(earlier.exits for earlier in step.earlier)):
        return {}
    first, item_ids, found = step.earlier[0], step.numbered_in.item_ids, dict[int, list[int]]()
    places = first.numbered_in.places()
    made = [one for earlier in step.earlier for one in earlier.created]
    made_by_identity = {id(event): item for event, item in made}
    index = EventIndex([event for event, _ in made], lambda at: read(made[at][0]) if read else None)
    for event in events:
        if read is None:
            came_at = places.of_object(event)
            known = [made_by_identity[id(event)]] if id(event) in made_by_identity else []
        else:
            facts = read(event)
            came_at = places.copies_of(event, facts) if facts is not None else ()
            known = [made[at][1] for at in index.copies_of(event, facts)] if facts is not None else []
        came = [first.numbered_in.item_ids.of(at) for at in came_at if first.view_in.holds(at)]
        for item in (*came, *known):
            if item not in taken and not any(map(step.view_in.holds, item_ids.find([item]))):
                taken.add(item)
                found.setdefault(id(event), []).append(item)
                step.put_back = (*step.put_back, item) if item in came else step.put_back
                break
    return found


def _joined(runs: Sequence[tuple[int, Run]]) -> list[tuple[int, Run]]:
    joined: list[tuple[int, Run]] = []
    for place, (first, last) in runs:
        if joined and joined[-1][1][1] + 1 == first:
            joined[-1] = (joined[-1][0], (joined[-1][1][0], last))
        else:
            joined.append((place, (first, last)))
    return joined
