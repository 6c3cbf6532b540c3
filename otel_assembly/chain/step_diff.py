"""Compare the output of a user's policy or a framework's reducer with its input, to find out what the step did."""

from __future__ import annotations

from itertools import islice
from operator import is_, lt
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason
from otel_assembly.history.history import ListHistory
from otel_assembly.history.tool_pairs import echoes_stand
from otel_assembly.history.view import Range, View, difference, intersection, is_in, merged, to_ranges
from otel_assembly.ledger.snapshot import ItemGroup, ItemIds, NumberedHistory, StepCompaction, item_id_ranges
from otel_assembly.matching.event_index import EventIndex, EventMatcher, moved

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from otel_assembly.decision import Compaction, Verdict
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.matching.event_index import Read
    from otel_assembly.matching.sequence_diff import SequenceDiff

    Tag = tuple[DecisionOutcome, DecisionReason]

EXITS: Final = frozenset({DecisionOutcome.DROPPED, DecisionOutcome.COMPACTED})
_COMPACTED: Final = (DecisionOutcome.COMPACTED, DecisionReason.COMPACTED)


def write_difference(
    step: Step,
    inputs: Sequence[Any],
    events: Sequence[Any],
    diff: SequenceDiff,
    verdicts: Sequence[Verdict],
    ledger: Ledger,
    otherwise: DecisionReason = DecisionReason.POLICY,
    *,
    stands_in: bool = True,
    index: Callable[[], EventIndex] | None = None,
) -> None:
    """Write the difference between a step's output events and its input events to `step`.

    Args:
        step: The step.
        inputs: The input events.
        events: The output events.
        diff: The input of each output event.
        verdicts: Reasons for changes. A verdict that the output contradicts is ignored.
        ledger: The conversation's ledger.
        otherwise: The reason for events that left without a verdict.
        stands_in: Whether events that left were compacted if new events are in their place. If not, they were dropped.
        index: Returns an index of the input events, if there is one.
    """
    view, kept = step.before.view, diff.kept
    part = _part_of(view, kept, inputs, events, diff, ledger) if diff.in_order else None
    if part is not None:
        step.set_events(part)
    else:
        write_new_history(step, inputs, events, diff, ledger)
        indexes = [at for at in diff.middle if at is not None]
        step.moved = tuple(sorted(step.before.numbered.item_ids.of(view.position(at)) for at in moved(indexes)))
    removed = difference([(0, diff.length)], kept)
    replaced: list[Range] = []
    if stands_in and None in diff.middle:
        replaced = [(low, high) for low, high, _ in diff.gaps_with_new_events() if low < high]
    tag_of = _true_verdicts(inputs, verdicts, removed, index) if verdicts else {}
    ranges_by_tag = _write_groups(step, removed, replaced, tag_of, otherwise)
    if replaced:
        step.provenance = _provenance(step, diff, ranges_by_tag[_COMPACTED], ledger)


def write_part(step: Step, part: View, verdicts: Sequence[Verdict]) -> bool | None:
    """Write an output that is a part of the step's input, in the same order, with the verdicts that are true.

    Returns:
        Whether all verdicts are true. None if the output is no such part; then nothing is written.
    """
    view = step.before.view
    indexes = list(map(view.index_of, part.positions()))
    if -1 in indexes or not all(map(lt, indexes, indexes[1:])) or not echoes_stand_in(part):
        return None
    inputs, removed = list(view), difference([(0, view.length)], to_ranges(indexes))
    tag_of = _true_verdicts(inputs, verdicts, removed, None)
    _write_groups(step, removed, (), tag_of, DecisionReason.POLICY)
    step.set_events(part)
    tagged = {id(inputs[at]) for at in tag_of}
    return all(id(event) in tagged for verdict in verdicts for event in verdict.events)


def echoes_stand_in(view: View) -> bool:
    """Return True if the view has the original of each event that restates another one.

    Without its original, such an event is read differently, so that the view needs a history of its own.
    """
    return not view.is_slice or not view.history.echoes or echoes_stand(view)


def _part_of(
    view: View, kept: Sequence[Range], inputs: Sequence[Any], events: Sequence[Any], diff: SequenceDiff, ledger: Ledger
) -> View | None:
    """Return the output as a part of the input view, marked as a slice: it may have a tool call without its result.

    None if the part lacks the original of an event that restates it, or if an output event is a copy of its input. An
    observed framework sends its own objects, so that of its output only the events in the middle are compared.
    """
    picked = view.pick(kept)
    part = view if picked.length == view.length else View(view.history, view.column, picked.ranges, is_slice=True)
    if part is not view and not echoes_stand_in(part):
        return None
    if ledger.observed:
        middle = events[diff.front : len(events) - diff.back]
        return part if all(map(is_, middle, map(inputs.__getitem__, diff.middle))) else None  # type: ignore[arg-type]  # none is None
    return part if all(map(is_, events, part)) else None


def _provenance(
    step: Step, diff: SequenceDiff, compacted: Sequence[Range], ledger: Ledger
) -> dict[int, Sequence[Range]]:
    """Return the leaf items that each new event replaces, by the item id of the new event.

    If as many events were compacted in one place as are new there, each new event replaces one of them, in order. Else
    the first new event replaces all of them.
    """
    created = iter(step.created)  # in the order of the new events
    provenance: dict[int, Sequence[Range]] = {}
    for low, high, count in diff.gaps_with_new_events():
        new = list(islice(created, count))
        replaced = intersection([(low, high)], compacted) if low < high else []
        indexes = [index for start, stop in replaced for index in range(start, stop)] if count > 1 else []
        parts = [[(index, index + 1)] for index in indexes] if len(indexes) == count else [replaced]
        for item, part in zip(new, parts if replaced else (), strict=False):
            provenance[item] = ledger.leaves.of(item_id_ranges(step.before.view.pick(part), step.before.numbered))
    return provenance


def _write_groups(
    step: Step,
    removed: Sequence[Range],
    replaced: Sequence[Range],
    tag_of: Mapping[int, Tag],
    otherwise: DecisionReason,
) -> dict[Tag, list[Range]]:
    """Write the inputs that left, and those that a verdict pinned, to `step`; return them by outcome and reason."""
    untagged = difference(removed, to_ranges(sorted(tag_of)))
    ranges_by_tag = {
        _COMPACTED: intersection(untagged, replaced),
        (DecisionOutcome.DROPPED, otherwise): difference(untagged, replaced),
    }
    for at, tag in tag_of.items():
        ranges_by_tag.setdefault(tag, []).append((at, at + 1))
    ranges_by_tag = {tag: merged(ranges) for tag, ranges in ranges_by_tag.items()}
    tagged = sorted((ranges, tag) for tag, ranges in ranges_by_tag.items() if ranges)
    groups = [ItemGroup(step.before.view.pick(ranges), step.before.numbered, *tag) for ranges, tag in tagged]
    step.exits = tuple(group for group in groups if group.outcome in EXITS)
    step.pinned = tuple(group for group in groups if group.outcome not in EXITS)
    return ranges_by_tag


def _true_verdicts(
    inputs: Sequence[Any], verdicts: Sequence[Verdict], removed: Sequence[Range], index: Callable[[], EventIndex] | None
) -> dict[int, Tag]:
    """Return outcome and reason of the first true verdict on each input, by the index of the input.

    A verdict is true if the event left and the outcome is an exit, or if the event is in the output and it is not.
    """
    input_index = index() if index is not None else EventIndex(inputs, lambda _: None)
    tags: dict[int, Tag] = {}
    for verdict in verdicts:
        exits = verdict.outcome in EXITS
        for event in verdict.events:
            for at in input_index.of_object(event):
                if at not in tags and at < len(inputs) and is_in(removed, at) is exits:
                    tags[at] = verdict.outcome, verdict.reason
    return tags


def write_new_history(
    step: Step,
    inputs: Sequence[Any],
    events: Sequence[Any],
    diff: SequenceDiff,
    ledger: Ledger,
    *,
    has_copies: bool = True,
) -> None:
    """Write the output to `step` as a new history. Input events, and those created before, keep their item ids.

    With `has_copies`, a new event with the content of one that was created before is that event. If the step only
    appended events to its previous output, that output's history is extended, with all that policies keep for it.
    """
    view, source = step.before.view, step.before.numbered
    new = [place for place, at in enumerate(diff.middle, diff.front) if at is None]
    created = dict(zip(new, _number(step, [events[place] for place in new], ledger, has_copies), strict=True))
    item_ids = ItemIds()
    for start, stop in item_id_ranges(view.part(0, diff.front), source):
        item_ids.extend(stop - start, start)
    for place, at in enumerate(diff.middle, diff.front):
        item_ids.extend(1, created[place] if at is None else source.item_ids.of(view.position(at)))
    for start, stop in item_id_ranges(view.part(diff.length - diff.back, diff.length), source):
        item_ids.extend(stop - start, start)
    numbered = ledger.step_outputs.get(step.index)
    known = len(numbered.item_ids) if numbered is not None else 0
    if (
        numbered is None
        or numbered.step_input is not source
        or not 0 < known == len(numbered.history) <= len(events)
        or numbered.item_ids.ranges(0, known) != item_ids.ranges(0, known)
        or not _may_extend(numbered.history.events, events, created, ledger, of_dicts=numbered.history.of_dicts)
    ):
        numbered, known = NumberedHistory(ListHistory(), ItemIds(), step_input=source), 0
    if ledger.observed:
        numbered.list_history.renew(events[:known])
    facts = (
        view.history.facts(view.position(at)) if at is not None and inputs[at] is event else ledger.facts(event)
        for event, at in zip(events[known:], diff.found()[known:], strict=True)
    )
    numbered.list_history.take(events[known:], facts)
    numbered.item_ids.extend_from(item_ids, known, len(events))
    ledger.step_outputs[step.index] = numbered
    step.set_events(numbered.history.view(), numbered)
    step.created = {item: place for place, item in created.items()}


def _may_extend(
    before: Sequence[Any], events: Sequence[Any], created: Container[int], ledger: Ledger, *, of_dicts: bool
) -> bool:
    """Return whether an output with the item ids of the step's previous output, and more, may extend its history.

    Events of the same input history have not changed, and a created event with other content has another id. Own
    policies may create a new object with the same content each time; the first one is sent again. A framework sends its
    own objects, which then replace those of the history, and may have changed its dicts in place.
    """
    if ledger.observed:
        return not of_dicts
    return all(old is new or place in created for place, (old, new) in enumerate(zip(before, events, strict=False)))


def _number(step: Step, new: Sequence[Any], ledger: Ledger, has_copies: bool) -> list[int]:
    """Return an item id for each event that is not in the input: a restored one, the previous turn's, or a new one.

    An object that an earlier step removed is restored. An event is also that of the previous turn, or else a restored
    one, if it is a copy of it.
    """
    used: set[int] = set()
    read: Read = ledger.facts_of if has_copies else lambda _: None  # an event without facts has no copies
    items = _restored(step, new, used)
    if previous := _created_before(step, ledger):
        matched = EventMatcher([event for event, _ in previous], read=read, by_id=False).match(new)
        for place, at in enumerate(matched):
            if items[place] is None and at is not None:
                items[place] = previous[at][1]
    unknown = [place for place, item in enumerate(items) if item is None]
    for place, item in zip(unknown, _restored(step, [new[at] for at in unknown], used, read), strict=True):
        items[place] = item
    return [next(ledger.created_ids) if item is None else item for item in items]


def _created_before(step: Step, ledger: Ledger) -> Sequence[tuple[Any, int]]:
    """Return the events that this step created in the last assembly, with their item ids.

    Left out are dicts that changed in place since, and events that are in the step's input now. Of an observed step,
    also those in the assembly's input: the output of a framework's own code can be its next input.
    """
    before = ledger.last.step_like(step)
    if before is None or not before.created:
        return ()
    present = step.before.numbered.among(before.created).union(before.restored_items)  # those are matched as input
    if ledger.observed and step.earlier:
        present |= step.earlier[0].before.numbered.among(before.created)
    texts = before.created_texts

    def is_changed(event: Any, item: int) -> bool:
        return isinstance(event, dict) and ((facts := ledger.facts_of(event)) is None or facts.texts != texts[item])

    return [
        (event, item) for event, item in before.created_events if item not in present and not is_changed(event, item)
    ]


def _restored(step: Step, events: Sequence[Any], used: set[int], read: Read | None = None) -> list[int | None]:
    """Return for each new output event the item id of an event that an earlier step removed and this step restored.

    Restored items of the assembly's input are appended to `step.restored_items`. Items in `used` were found before;
    items that are found now are added to it. Without `read`, which reads an event to find copies, only the same objects
    are found.
    """
    items: list[int | None] = [None] * len(events)
    if not (events and any(earlier.exits for earlier in step.earlier)):
        return items
    source, item_ids = step.earlier[0].before, step.before.numbered.item_ids
    created = [pair for earlier in step.earlier for pair in earlier.created_events]
    inputs = source.numbered.event_index()
    creations = EventIndex([event for event, _ in created], lambda at: read(created[at][0]) if read else None)
    for place, event in enumerate(events):
        if read is None:
            positions, places = inputs.of_object(event), creations.of_object(event)
        elif (facts := read(event)) is not None:
            positions, places = inputs.copies_of(event, facts), creations.copies_of(event, facts)
        else:
            continue
        input_items = [source.numbered.item_ids.of(at) for at in positions if source.view.holds(at)]
        for item in (*input_items, *(created[at][1] for at in places)):
            if item not in used and not any(map(step.before.view.holds, item_ids.find([item]))):
                used.add(item)
                items[place] = item
                if item in input_items:
                    step.restored_items += (item,)
                break
    return items


def write_compactions(step: Step, compactions: Sequence[Compaction], ledger: Ledger) -> None:
    """Write the step's successful compactions to `step` by item id, and the items that each summary replaces."""
    created = {id(event): item_id for event, item_id in step.created_events}
    recorded: list[StepCompaction] = []
    for compaction in compactions:
        result, events = created.get(id(compaction.into)), compaction.events
        # A summary that was only used again is skipped: its provenance is known, and as long as the conversation.
        if result is not None and (compaction.attempts or result not in ledger.leaves):
            if not (isinstance(events, View) and events.history is step.before.view.history):
                wanted = set(map(id, events))
                events = step.before.view.pick(
                    to_ranges(index for index, event in enumerate(step.before.view) if id(event) in wanted)
                )
            provenance = tuple(item_id_ranges(events, step.before.numbered))
            ledger.leaves.remember(result, provenance)
            recorded.append(StepCompaction(provenance, result, tuple(compaction.attempts)))
    step.compactions = tuple(recorded)
