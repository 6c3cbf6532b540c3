"""Number input lists that are not the previous list with events appended.

They can contain other objects of the same events, another order, or events that were changed in place. An event that
the previous list contained keeps its item id at any position.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter, is_, lt
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.history.read_events import ReadEvents, ReadHistory
from otel_assembly.history.view import difference, intersection, to_runs
from otel_assembly.ledger.made_items import changed_created_items, created_ids
from otel_assembly.ledger.snapshot import InputList, ItemIds
from otel_assembly.matching.event_index import EventMatcher
from otel_assembly.matching.sequence_diff import diff_sequences
from otel_assembly.messages.content_snapshot import DescribedEvent, changed, contents, equal, readable, says_the_same

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly._internal.slices import Slices
    from otel_assembly.history.view import Run
    from otel_assembly.ledger.made_items import Read
    from otel_assembly.ledger.snapshot import NumberedHistory, Snapshot
    from otel_assembly.messages.content_snapshot import DescribedEvents

_FACTS: Final = attrgetter("facts")
#: The number of messages whose contents are compared in one slice.
_COMPARED: Final = 2_048
#: The number of events of a shared part that are compared: the first and the last.
_ENDS: Final = 2


def replace_copies(known: InputList, events: list[Any], described: DescribedEvents) -> Slices[bool]:
    """Replace the messages of the last list by those that a list begins with, if each has the content of its original.

    The lists of contents are compared first. Only messages whose contents differ are read, because another attribute
    than the text, such as an id that a framework added, may have changed.

    Returns:
        Whether the messages were replaced.
    """
    history, old_contents = known.history, known.contents
    length = len(history.events)
    first = events[:length]
    if len(first) < length or not all(map(is_, map(type, history.events), map(type, first))) or not readable(first):
        return False
    new_contents, reread = contents(first), dict[int, DescribedEvent]()
    for start in range(0, length, _COMPARED):
        if start:
            yield
        old_part, part = old_contents[start : start + _COMPARED], new_contents[start : start + _COMPARED]
        if equal(old_part, part):
            continue
        try:
            for at in map(start.__add__, changed(old_part, part)):
                reread[at] = described.of(events[at])
                facts = history.facts(at)
                if facts.name != reread[at].facts.name:  # a name has tokens, and a framework may add it later
                    return False
                if not says_the_same(DescribedEvent(old_contents[at], facts), reread[at]):
                    return False
        except Exception:  # noqa: BLE001  # the ``__eq__`` of a framework's type can raise any exception
            return False
    for at, event in reread.items():
        old_contents[at] = event.content
    known.renew(first, {at: event.facts for at, event in reread.items() if event.facts.id != history.facts(at).id})
    known.objects = events
    return True


def known_ids(old: NumberedHistory, events: list[Any], sent: Snapshot | None, read: Read) -> list[int | None]:
    """Return the item id of each event that the input `old` or a previous output contained; None for other events.

    `sent` is the last assembly if its output can be this input, as with an observed framework; else None.
    """
    item_ids: list[int | None] = [None] * len(events)
    if sent is not None and sent.numbered is not old:
        ids = list(sent.numbered.of(sent.view))
        matches = diff_sequences(list(sent.view), events, read=read).found()
        item_ids = [None if at is None else ids[at] for at in matches]
    created = sent.created if sent is not None else ()
    for find_ids in (partial(_input_ids, old), partial(created_ids, created, old)):
        if None in item_ids:
            used = set(item_ids)
            places = [place for place, item_id in enumerate(item_ids) if item_id is None]
            for place, item_id in zip(places, find_ids([events[place] for place in places], read), strict=True):
                item_ids[place] = None if item_id in used else item_id
    return item_ids


def _input_ids(old: NumberedHistory, events: list[Any], read: Read) -> list[int | None]:
    """Return the item id of each event that the previous input contained; None for other events."""
    matches = diff_sequences(old.history.events, events, old.event_index, read=read).found()
    return [None if at is None else old.item_ids.of(at) for at in matches]


def unchanged_exported(
    exported: Sequence[Run], last: Snapshot | None, old: NumberedHistory, new: NumberedHistory
) -> list[Run]:
    """Return the exported items that are in a new input, or that the last assembly created, with the exported content.

    Contents are compared if the old and the new input are lists.
    """
    places = dict(zip(new.item_ids.all(), range(new.item_ids.end), strict=True))
    present = {*places, *(item for _, item in (last.created if last is not None else ()))}
    exported = intersection(exported, to_runs(sorted(present)))
    if not (isinstance(old, InputList) and isinstance(new, InputList)):
        return exported
    changed_items = [
        item
        for at, item in enumerate(old.item_ids.all())
        if item in places and not _is_unchanged(old, at, new, places[item])
    ]
    exported = difference(exported, to_runs(sorted(changed_items)))
    return difference(exported, changed_created_items(last, new, places))


def _is_unchanged(old: InputList, at: int, new: InputList, place: int) -> bool:
    """Return True if an item has the same content and calls at both positions, and belongs to the same atom."""
    old_history, history = old.history, new.history
    old_facts, facts = old_history.facts(at), history.facts(place)
    return (
        (
            old_facts is facts  # read once, because the content did not change
            or says_the_same(DescribedEvent(old.contents[at], old_facts), DescribedEvent(new.contents[place], facts))
        )
        and old_history.calls(at) == history.calls(place)
        and old.item_ids.of(old_history.pairing.atoms[at]) == new.item_ids.of(history.pairing.atoms[place])
    )


def number_read_events(
    old: NumberedHistory | None, events: ReadEvents, new_item_ids: Callable[[int], int]
) -> InputList:
    """Number events that were read before the assembly. The cost depends on the number of new events.

    That is possible because events of the previous turn, which had the input `old`, are the same objects, mostly in
    parts of the same lists. `new_item_ids` reserves a number of new item ids, and returns the first of them.
    """
    read_only: Any = events  # it is used like a list, but never changed
    numbered = InputList(ReadHistory(events), ItemIds(), objects=read_only, contents=read_only)
    before: Sequence[Any] = old.history.events if old is not None else ()
    shared = _shared_parts(before, events) if isinstance(before, ReadEvents) else []
    runs = _match_turns(before, events, shared)
    for at, count in _match_turns(before, events, []) or () if runs is None else runs:
        if at is None or old is None:
            numbered.item_ids.extend(count, new_item_ids(count))
        else:
            numbered.item_ids.extend_from(old.item_ids, at, at + count)
    return numbered


def _shared_parts(before: ReadEvents, events: ReadEvents) -> list[tuple[int, int, int]]:
    """Return the parts of more than two events that two turns share, each as its place before and now, and its length.

    A list with several parts in a turn is left out, because an event of it can move from one part to another.
    """
    (old_parts, parts), shared = (_single_parts(before), _single_parts(events)), list[tuple[int, int, int]]()
    for list_id, (place, start, stop) in parts.items():
        at, start_before, stop_before = old_parts.get(list_id, (0, -1, 0))
        count = min(stop, stop_before) - start
        if start == start_before and count > _ENDS and (not shared or at > shared[-1][0]):
            shared.append((at, place, count))
    return shared


def _single_parts(events: ReadEvents) -> dict[int, tuple[int, int, int]]:
    """Return the place, the start and the stop of each part whose list has no other part, by the `id()` of the list."""
    lists = [id(part) for part, _, _ in events.parts]
    places = zip(lists, events.starts, events.parts, strict=False)
    return {part: (place, start, stop) for part, place, (_, start, stop) in places if lists.count(part) == 1}


def _match_turns(
    before: Sequence[Any], events: Sequence[Any], shared: Sequence[tuple[int, int, int]]
) -> list[tuple[int | None, int]] | None:
    """Return runs of events that are consecutive in two turns; of a shared part, only the first and last are compared.

    A run is the place of its first event in the previous turn, or None if its events are new, and its length. The
    result is None if a shared part was not found as a whole, so that all events have to be compared.
    """
    old, old_places = _ends_only(before, [(at, count) for at, _, count in shared])
    new, new_places = _ends_only(events, [(place, count) for _, place, count in shared])
    diff = diff_sequences(old, new, read=_FACTS)
    matches = diff.found()
    middle = [at for at in diff.middle if at is not None]
    if not all(map(lt, middle, middle[1:])):  # in another order, equal events without an id are matched by neighbors
        matches = EventMatcher(old, read=_FACTS, by_identity=False).match(new)
    parts = {place: (at, count) for at, place, count in shared}
    ends = {place + count - 1: at + count - 1 for at, place, count in shared}
    runs: list[tuple[int | None, int]] = []
    newest = -1
    for place, match in zip(new_places, matches, strict=True):
        at = None if match is None else old_places[match]
        expected, count = parts.get(place, (ends.get(place, at), 1))
        # Equal events are searched only after the last match, so that a part before it is not found as a whole.
        if at != expected or (place in parts and at is not None and newest > at):
            return None
        newest = max(newest, -1 if at is None else at)
        first, length = runs[-1] if runs else (None, 0)
        if place in ends:  # the run of its part includes it
            continue
        if length and (at is None if first is None else at == first + length):
            runs[-1] = first, length + count
        else:
            runs.append((at, count))
    return runs


def _ends_only(events: Sequence[Any], parts: Sequence[tuple[int, int]]) -> tuple[list[Any], list[int]]:
    """Return the events without those between the ends of some parts, and the place of each returned event."""
    rest: list[Any] = []
    places: list[int] = []
    at = 0
    for first, count in (*parts, (len(events) - 1, 1)):
        rest += events[at : first + 1]
        places += range(at, first + 1)
        at = first + count - 1
    return rest, places
