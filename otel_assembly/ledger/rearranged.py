"""Number input lists that are not the previous list with events appended.

They can contain other objects of the same events, another order, or events that were changed in place. An event that
the previous list contained keeps its item id at any position.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, compress, count, starmap
from operator import attrgetter, is_, ne
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.history.read_events import ReadEvents, ReadHistory
from otel_assembly.history.view import difference, intersection, merged, to_ranges
from otel_assembly.ledger.snapshot import NOTHING_SENT, InputList, ItemIds
from otel_assembly.matching.event_index import EventIndex, EventMatcher
from otel_assembly.matching.sequence_diff import diff_sequences
from otel_assembly.messages.content_snapshot import DescribedEvent, changed, contents, equal, readable, says_the_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from otel_assembly._internal.slices import Slices
    from otel_assembly.history.view import Range
    from otel_assembly.ledger.snapshot import NumberedHistory, Snapshot
    from otel_assembly.matching.event_index import Read
    from otel_assembly.messages.content_snapshot import DescribedEvents

_FACTS: Final = attrgetter("facts")
#: The number of messages whose contents are compared in one slice.
_COMPARED: Final = 2_048
#: The most differences between two lists after which they are compared further.
_DIFFERENCES: Final = 8


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


def unchanged_positions(last: InputList, events: list[Any]) -> list[int | None]:
    """Return for each message of a list the position in the last list of the same message, with unchanged content.

    A program may load its messages again before each turn, or only the newest ones, and may replace, insert or remove
    some, such as a system message with the time. The other messages need not be read again. The result has None for
    messages for which no position was found: for all if a type's content is unknown, or cannot be compared.
    """
    old, unknown = last.history.events, list[int | None]([None] * len(events))
    if not readable(events):
        return unknown
    try:
        found = _aligned(last.contents, contents(events))
    except Exception:  # noqa: BLE001  # the ``__eq__`` of a framework's type can raise any exception
        return unknown
    types, places = list(map(type, old)), dict(zip(map(id, old), range(len(old)), strict=True))
    for place, (at, event) in enumerate(zip(found, events, strict=True)):
        if at is not None and type(event) is not types[at]:
            found[place] = None
        elif at is not None and places.get(id(event), at) != at:
            return unknown  # of several messages with equal content, another one is in this place
    return found


def _aligned(before: Sequence[Any], now: Sequence[Any]) -> list[int | None]:
    """Return for each entry of `now` the position of an equal one in `before`, in the same order; None for the others.

    The lists are compared in C, from a difference on where they continue, up to `_DIFFERENCES` times.
    """
    found: list[int | None] = [None] * len(now)
    at = place = 0
    for _ in range(_DIFFERENCES):
        rest, new = before[at:], now[place:]
        same = next(compress(count(), map(ne, rest, new)), min(len(rest), len(new)))
        found[place : place + same] = range(at, at + same)
        at, place = at + same, place + same
        if at == len(before) or place == len(now):
            break
        if now[place] in rest[same + 1 :]:  # entries were removed
            at = before.index(now[place], at + 1)
        elif before[at] in new[same + 1 :]:  # entries were inserted
            place = now.index(before[at], place + 1)
        else:  # an entry was replaced
            at, place = at + 1, place + 1
    return found


def ids_with_unchanged(
    old: NumberedHistory, unchanged: Sequence[int | None], events: list[Any], read: Read
) -> list[int | None]:
    """Return the item id of each event that the previous input contained; None for other events.

    `unchanged` has the positions in `old` that `unchanged_positions` found.
    """
    history, found = old.history, set(unchanged)
    index = EventIndex(history.events, lambda at: None if at in found else history.facts(at))
    matches = EventMatcher(history.events, index=index, read=read).match(events, unchanged)
    return [None if at is None else old.item_ids.of(at) for at in matches]


def known_ids(old: NumberedHistory, events: list[Any], sent: Snapshot, read: Read) -> list[int | None]:
    """Return the item id of each event that the input `old` or the previous output `sent` contained; None for others.

    `sent` is `NOTHING_SENT` unless the output can be the next input, as with an observed framework.
    """
    item_ids: list[int | None] = [None] * len(events)
    if sent is not NOTHING_SENT and sent.numbered is not old:
        ids = list(sent.numbered.of(sent.view))
        matches = diff_sequences(list(sent.view), events, read=read).found()
        item_ids = [None if at is None else ids[at] for at in matches]
    for find_ids in (partial(_input_ids, old), partial(created_ids, sent.created, old)):
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
    exported: Sequence[Range], last: Snapshot, old: NumberedHistory, new: NumberedHistory
) -> list[Range]:
    """Return the exported items that are in a new input, or that the last assembly created, with the exported content.

    Contents are compared if the old and the new input are lists.
    """
    places = dict(zip(new.item_ids.all(), range(new.item_ids.end), strict=True))
    present = {*places, *(item for step in last.steps for item in step.created)}
    exported = intersection(exported, to_ranges(sorted(present)))
    if not (isinstance(old, InputList) and isinstance(new, InputList)):
        return exported
    changed_items = [
        item
        for at, item in enumerate(old.item_ids.all())
        if item in places and not _is_unchanged(old, at, new, places[item])
    ]
    exported = difference(exported, to_ranges(sorted(changed_items)))
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
    """Number events that were read before the assembly. An event of a list that both turns have keeps its item id.

    All other events are compared with the rest of the previous turn, which had the input `old`. `new_item_ids` reserves
    a number of new item ids, and returns the first of them.
    """
    read_only: Any = events  # it is used like a list, but never changed
    numbered = InputList(ReadHistory(events), ItemIds(), objects=read_only, contents=read_only)
    before: Any = old.history.events if old is not None else ()
    if not isinstance(before, ReadEvents):
        before = ReadEvents()
    shared = _shared_parts(before, events)
    rest_before = _rest(before, [(at, at + count) for at, _, count in shared])
    rest = _rest(events, [(place, place + count) for _, place, count in shared])
    matches = diff_sequences([before[at] for at in rest_before], [events[at] for at in rest], read=_FACTS).found()
    known = {place: (at, count) for at, place, count in shared}
    known |= {place: (rest_before[at], 1) for place, at in zip(rest, matches, strict=True) if at is not None}
    place = 0
    while place < len(events):
        at, count = known.get(place, (-1, 1))
        if at >= 0 and old is not None:
            numbered.item_ids.extend_from(old.item_ids, at, at + count)
        else:
            numbered.item_ids.extend(1, new_item_ids(1))
        place += count
    return numbered


def _shared_parts(before: ReadEvents, events: ReadEvents) -> list[tuple[int, int, int]]:
    """Return the parts of lists that two turns share: their place before and now, and their length."""
    shared: list[tuple[int, int, int]] = []
    for place, (events_list, start, stop) in zip(events.starts, events.parts, strict=False):
        for at, (other, old_start, old_stop) in zip(before.starts, before.parts, strict=False):
            first, end = max(start, old_start), min(stop, old_stop)
            if other is events_list and first < end:
                shared.append((at + first - old_start, place + first - start, end - first))
    return shared


def _rest(events: ReadEvents, ranges: Iterable[Range]) -> list[int]:
    """Return the places of the events that are not in these ranges."""
    return list(chain.from_iterable(starmap(range, difference([(0, len(events))], merged(ranges)))))


def created_ids(
    created: Sequence[tuple[Any, int]], numbered: NumberedHistory, events: Sequence[Any], read: Read
) -> list[int | None]:
    """Return the item id of each event that is one of the `created` events of the last assembly; None for others.

    Items that the input `numbered` has already are not matched again.
    """
    present = numbered.among(item for _, item in created)
    created = [(event, item) for event, item in created if item not in present]
    if not created:
        return [None] * len(events)
    matches = EventMatcher([event for event, _ in created], read=read).match(events)
    return [None if at is None else created[at][1] for at in matches]


def changed_created_items(last: Snapshot, numbered: NumberedHistory, places: Mapping[int, int]) -> list[Range]:
    """Return, as ranges, the items that the last assembly created and that have other texts in the input now.

    `places` has the positions in the input, by item id, of the items to check.
    """
    created = (pair for step in last.steps for pair in step.created_texts.items())
    facts = numbered.history.facts
    return to_ranges(sorted({item for item, texts in created if item in places and texts != facts(places[item]).texts}))
