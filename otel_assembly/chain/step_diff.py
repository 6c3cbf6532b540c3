"""Compare the output of a user's policy or a framework's reducer with its input, to find out what the step did."""

from __future__ import annotations

from itertools import chain
from operator import is_, lt
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason
from otel_assembly.history.history import ListHistory
from otel_assembly.history.tool_pairs import echoes_stand
from otel_assembly.history.view import Run, View, difference, intersection, is_in, merged, to_runs
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


def record_matches(
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
    """Match a step's output events with its input events, and record the difference in `step`.

    Args:
        step: The step.
        inputs: The input events.
        events: The output events; they may be the input objects, copies, replacements or new events.
        verdicts: Reasons for changes. A verdict that the output contradicts is ignored.
        ledger: The conversation's ledger.
        otherwise: The reason for events that left without a verdict.
        rereads: Whether an output event with the id of an input event, but other content, replaces that event.
        stands_in: Whether events that left were compacted if new events are in their place. If not, they were dropped.
        index: Returns an index of the input events; None: one is created if needed.
    """
    view = step.view_in
    diff = diff_sequences(inputs, events, index, read=ledger.facts_of, rereads=rereads)
    kept = diff.kept
    part = _slice_of(view, kept) if diff.in_order else None
    if part is not None and _are_identical(inputs, events, diff) and (ledger.observed or all(map(is_, events, part))):
        step.view_out = part
    else:
        _write_new_history(step, inputs, events, diff, ledger)
        indexes = [at for at in diff.middle if at is not None]
        step.moved = tuple(sorted(step.numbered_in.item_ids.of(view.position(at)) for at in moved(indexes)))
    replaced = diff.replaced() if stands_in and None in diff.middle else []
    tags = _tags(inputs, difference([(0, diff.length)], kept), replaced, verdicts, otherwise, index)
    _write_groups(step, tags)
    if replaced:
        step.provenance = _provenance(step, diff, dict(tags).get(_COMPACTED, []), ledger)


def _provenance(step: Step, diff: SequenceDiff, compacted: Sequence[Run], ledger: Ledger) -> dict[int, Sequence[Run]]:
    """Return the leaf items that each new event replaces, by the item id of the new event.

    If as many events were compacted in one place as are new there, each new event replaces one of them, in order. Else
    the first new event replaces all of them.
    """
    created = iter(item for _, item in step.created)
    provenance: dict[int, Sequence[Run]] = {}
    low, new = diff.front, list[int]()
    for at in (*diff.middle, diff.length - diff.back):
        if at is None:
            new.append(next(created))
            continue
        replaced = intersection([(low, at)], compacted) if low < at else []
        indexes = [index for run in replaced for index in range(*run)] if len(new) > 1 else []
        if new and replaced:
            parts = [[(index, index + 1)] for index in indexes] if len(indexes) == len(new) else [replaced]
            for item, part in zip(new, parts, strict=False):
                provenance[item] = ledger.leaves.of(item_id_runs(step.view_in.pick(part), step.numbered_in))
        low, new = max(low, at + 1), []
    return provenance


def record_part(step: Step, part: View, verdicts: Sequence[Verdict]) -> bool | None:
    """Record in `step` an output that is a part of its input, in the same order, with the verdicts that are true.

    Returns:
        Whether all verdicts are true. None if the output has another order, or events that the input does not have;
        then nothing is recorded.
    """
    view = step.view_in
    indexes = [view.index_of(position) for position in part.positions()]
    if -1 in indexes or not all(map(lt, indexes, indexes[1:])):
        return None
    inputs, removed = list(view), difference([(0, len(view))], to_runs(indexes))
    _write_groups(step, _tags(inputs, removed, (), verdicts, DecisionReason.POLICY, None))
    step.view_out = part
    tagged = {id(inputs[at]) for at in _true_verdicts(inputs, verdicts, removed, None)}
    return all(id(event) in tagged for verdict in verdicts for event in verdict.events)


def _write_groups(step: Step, tags: Sequence[tuple[Tag, list[Run]]]) -> None:
    groups = [ItemGroup(step.view_in.pick(runs), step.numbered_in, *tag) for tag, runs in tags]
    step.exits = tuple(group for group in groups if group.outcome in EXITS)
    step.pinned = tuple(group for group in groups if group.outcome not in EXITS)


def _are_identical(inputs: Sequence[Any], events: Sequence[Any], diff: SequenceDiff) -> bool:
    """Return True if the output events between front and back, which all match inputs, are the input objects.

    In front and back, some may be equal objects. That is sufficient for an observed framework, which sends its own.
    """
    out = events[diff.front : len(events) - diff.back]
    return all(map(is_, out, map(inputs.__getitem__, diff.middle)))  # type: ignore[arg-type]  # none is None


def _slice_of(view: View, kept: Sequence[Run]) -> View | None:
    """Return a part of a view, marked as a slice, because it may contain a tool call without its result.

    None if the part has an event that restates another one, and that other one is not in the part: without it, the
    restatement is read as an original event, so that the part needs a separate history.
    """
    picked = view.pick(kept)
    if len(picked) == len(view):
        return view
    part, history = View(view.history, view.column, picked.runs, is_slice=True), view.history
    if history.echoes and not echoes_stand(part):
        return None
    return part


def _tags(
    inputs: Sequence[Any],
    removed: Sequence[Run],
    replaced: Sequence[Run],
    verdicts: Sequence[Verdict],
    otherwise: DecisionReason,
    index: Callable[[], EventIndex] | None,
) -> list[tuple[Tag, list[Run]]]:
    """Return the inputs that left, and those that a verdict pinned, as runs of indexes by outcome and reason."""
    tag_of = _true_verdicts(inputs, verdicts, removed, index) if verdicts else {}
    untagged = difference(removed, to_runs(sorted(tag_of)))
    without_verdict = {
        _COMPACTED: intersection(untagged, replaced),
        (DecisionOutcome.DROPPED, otherwise): difference(untagged, replaced),
    }
    tags: dict[Tag, list[Run]] = {tag: runs for tag, runs in without_verdict.items() if runs}
    if tag_of:
        by_tag: dict[Tag, list[int]] = {}
        for at in sorted(tag_of):
            by_tag.setdefault(tag_of[at], []).append(at)
        for tag, indexes in by_tag.items():
            tags[tag] = merged([*tags.get(tag, ()), *to_runs(indexes)])
    return sorted(tags.items(), key=lambda item: item[1][0])


def _true_verdicts(
    inputs: Sequence[Any], verdicts: Sequence[Verdict], removed: Sequence[Run], index: Callable[[], EventIndex] | None
) -> dict[int, Tag]:
    """Return outcome and reason of the first true verdict on each input, by the index of the input.

    A verdict is true if the event left and the outcome is an exit, or if the event is in the output and it is not.
    """
    wanted = {id(event) for verdict in verdicts for event in verdict.events}
    places: dict[int, list[int]] = {}
    if index is not None:
        input_index = index()
        places = {id(event): list(input_index.of_object(event)) for verdict in verdicts for event in verdict.events}
    else:
        for at, event in enumerate(inputs):
            if id(event) in wanted:
                places.setdefault(id(event), []).append(at)
    tags: dict[int, Tag] = {}
    for verdict in verdicts:
        exits = verdict.outcome in EXITS
        for event in verdict.events:
            for at in places.get(id(event), ()):
                if at not in tags and at < len(inputs) and is_in(removed, at) is exits:
                    tags[at] = verdict.outcome, verdict.reason
    return tags


def _write_new_history(
    step: Step, inputs: Sequence[Any], events: Sequence[Any], diff: SequenceDiff, ledger: Ledger
) -> None:
    """Record the output in `step` as a new history. Input events, and those created before, keep their item ids.

    If an observed step only appended events to its previous output, that output's history is extended instead.
    """
    created, item_ids = _number(step, events, diff, ledger)
    numbered = ledger.step_outputs.get(step.index) if ledger.observed else None
    known = len(numbered.history) if numbered is not None else 0
    if numbered is None or not _is_extended(numbered, step, events, item_ids):
        numbered, known = NumberedHistory(ListHistory(), ItemIds(), step_input=step.numbered_in), 0
    numbered.list_history.renew(events[:known])
    numbered.list_history.take(events[known:], _facts_of_output(step, inputs, events, diff, ledger, known))
    for start, (first, last) in item_ids:
        if (skip := max(0, known - start)) <= last - first:
            numbered.item_ids.extend(last - first + 1 - skip, first + skip)
    if ledger.observed:
        ledger.step_outputs[step.index] = numbered
    step.numbered_out, step.view_out = numbered, numbered.history.view()
    step.created = tuple((events[at], item_id) for at, item_id in created)
    step.created_positions = tuple(at for at, _ in created)


def _is_extended(
    numbered: NumberedHistory, step: Step, events: Sequence[Any], item_ids: Sequence[tuple[int, Run]]
) -> bool:
    """Return True if the output is the step's previous output, `numbered`, with events appended.

    It is sufficient to compare item ids: events of the same input history have not changed, and a created event with
    other content gets another id. Histories with dicts are excluded, because dicts can change in place.
    """
    history = numbered.history
    return (
        numbered.step_input is step.numbered_in
        and 0 < len(history) <= len(events)
        and not history.of_dicts
        and _starts_with(item_ids, numbered.item_ids)
    )


def _facts_of_output(
    step: Step, inputs: Sequence[Any], events: Sequence[Any], diff: SequenceDiff, ledger: Ledger, start: int
) -> Iterator[EventFacts]:
    """Yield the facts of the output events from place `start` on; those of input objects were read with the input."""
    history, position = step.view_in.history, step.view_in.position
    matches = diff.found()
    for place in range(start, len(events)):
        event, at = events[place], matches[place]
        if at is not None and inputs[at] is event:
            yield history.facts(position(at))
        else:
            yield ledger.facts(event)


def _starts_with(item_ids: Sequence[tuple[int, Run]], previous: ItemIds) -> bool:
    """Return True if the first item ids are the previous ones."""
    stop = len(previous)
    return all(
        previous.spans(start, min(stop, start + last - first + 1)) == [(first, min(last, first + stop - start - 1))]
        for start, (first, last) in item_ids
        if start < stop
    )


def _number(
    step: Step, events: Sequence[Any], diff: SequenceDiff, ledger: Ledger
) -> tuple[list[tuple[int, int]], list[tuple[int, Run]]]:
    """Give each output event an item id: that of its input event, a restored one, the previous turn's, or a new one.

    Returns:
        The place and item id of each event that is not in the input; and the item ids of all events as runs, each with
        the place of its first event.
    """
    view, numbered = step.view_in, step.numbered_in
    new = [events[diff.front + n] for n, at in enumerate(diff.middle) if at is None]
    used: set[int] = set()
    restored = find_restored(step, new, used)
    previous = ledger.created_by(step)
    matcher = EventMatcher([event for event, _ in previous], read=ledger.facts_of, by_id=False)
    matched: list[int | None] = matcher.match(new) if previous else [None] * len(new)
    unknown = [event for event, at in zip(new, matched, strict=True) if at is None and not restored.get(id(event))]
    for identity, copies in find_restored(step, unknown, used, ledger.facts_of).items():
        restored.setdefault(identity, []).extend(copies)
    matches = iter(matched)
    created: list[tuple[int, int]] = []
    middle: list[Run] = []
    for place, at in enumerate(diff.middle, diff.front):
        if at is None:
            match_at, event = next(matches), events[place]
            if items := restored.get(id(event)):
                item_id = items.pop(0)
            else:
                item_id = previous[match_at][1] if match_at is not None else ledger.new_created_id()
            created.append((place, item_id))
        else:
            item_id = numbered.item_ids.of(view.position(at))
        middle.append((item_id, item_id))
    front = item_id_runs(view.part(0, diff.front), numbered)
    back = item_id_runs(view.part(diff.length - diff.back, diff.length), numbered)
    runs: list[tuple[int, Run]] = []
    place = 0
    for run in chain(front, middle, back):
        runs.append((place, run))
        place += run[1] - run[0] + 1
    return created, _joined(runs)


def find_restored(
    step: Step, events: Sequence[Any], used: set[int], read: Callable[[Any], EventFacts | None] | None = None
) -> dict[int, list[int]]:
    """Find output events that an earlier step of this assembly removed and this step restored.

    Args:
        step: The step. Restored items of the assembly's input are appended to its `restored_items`.
        events: The output events that are not in the step's input.
        used: The items that were found before. Items that are found now are added.
        read: Reads an event, to find copies by id or text. None: only the same objects are found.

    Returns:
        The item ids by the `id()` of the event, one for each time that the event is restored.
    """
    if not (events and any(earlier.exits for earlier in step.earlier)):
        return {}
    first, item_ids, restored = step.earlier[0], step.numbered_in.item_ids, dict[int, list[int]]()
    input_index = first.numbered_in.event_index()
    created = [pair for earlier in step.earlier for pair in earlier.created]
    created_by_identity = {id(event): item for event, item in created}
    creations = EventIndex([event for event, _ in created], lambda at: read(created[at][0]) if read else None)
    for event in events:
        if read is None:
            positions = input_index.of_object(event)
            created_items = [created_by_identity[id(event)]] if id(event) in created_by_identity else []
        else:
            facts = read(event)
            positions = input_index.copies_of(event, facts) if facts is not None else ()
            created_items = [created[at][1] for at in creations.copies_of(event, facts)] if facts is not None else []
        input_items = [first.numbered_in.item_ids.of(at) for at in positions if first.view_in.holds(at)]
        for item in (*input_items, *created_items):
            if item not in used and not any(map(step.view_in.holds, item_ids.find([item]))):
                used.add(item)
                restored.setdefault(id(event), []).append(item)
                step.restored_items = (*step.restored_items, item) if item in input_items else step.restored_items
                break
    return restored


def _joined(runs: Sequence[tuple[int, Run]]) -> list[tuple[int, Run]]:
    """Return runs of item ids with their places; a run that continues the previous one is appended to it."""
    joined: list[tuple[int, Run]] = []
    for place, (first, last) in runs:
        if joined and joined[-1][1][1] + 1 == first:
            joined[-1] = (joined[-1][0], (joined[-1][1][0], last))
        else:
            joined.append((place, (first, last)))
    return joined
