"""Lists that are not what they were with more behind it: fresh objects, another order, events changed in place.

What stood there before keeps its item id, wherever it stands now.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter, is_, lt
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.history.read_events import ReadEvent, ReadEvents, ReadHistory
from otel_assembly.history.view import difference, intersection, to_runs
from otel_assembly.ledger.made_items import changed_since_made, made_before
from otel_assembly.ledger.snapshot import ItemIds, NumberedHistory
from otel_assembly.matching.event_index import EventMatcher
from otel_assembly.matching.sequence_diff import diff_sequences
from otel_assembly.messages.content_snapshot import DescribedEvent, changed, contents, readable, says_the_same

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.history.view import Run
    from otel_assembly.ledger.made_items import Read
    from otel_assembly.ledger.snapshot import Snapshot
    from otel_assembly.messages.content_snapshot import DescribedEvents

    #: A list with its item ids, and what each of its events said when it was read.
    Said = tuple[NumberedHistory, Sequence[Any]]

_FACTS: Final = attrgetter("facts")
#: The ends of a part that two turns share, which are compared.
_ENDS: Final = 2


def renewed(numbered: NumberedHistory, fresh: Sequence[Any], said: list[Any], described: DescribedEvents) -> bool:
    """Take fresh objects of the events that a list held, if each says what it said; whether that is so.

    They are compared as lists; one by one only those that are not the same to the last attribute.

    Args:
        numbered: The list as it was.
        fresh: What stands there now.
        said: What each of its events said when it was read.
        described: What was read of the conversation's events.
    """
    held, history = numbered.history.events, numbered.history
    if len(fresh) < len(history) or not all(map(is_, map(type, held), map(type, fresh))) or not readable(fresh):
        return False
    read: dict[int, DescribedEvent] = {}
    try:
        for at in changed(said, contents(fresh)):
            read[at] = described.of(fresh[at])
            was = history.facts(at)
            if was.name != read[at].facts.name:  # which is counted, and may be given to a message later
                return False
            if not says_the_same(DescribedEvent(said[at], was), read[at]):
                return False
    except Exception:  # noqa: BLE001  # a foreign type's comparison is not ours to trust
        return False
    for at, one in read.items():
        said[at] = one.content
    numbered.renew(fresh, {at: one.facts for at, one in read.items() if one.facts.id != history.facts(at).id})
    return True


def recognised(old: NumberedHistory, events: list[Any], sent: Snapshot | None, read: Read) -> list[int | None]:
    """The item ids of those events that came in, or were sent, before.

    Args:
        old: What came in before.
        events: What comes in now.
        sent: The last assembly, where its output may be this input.
        read: What is known of an event.
    """
    item_ids: list[int | None] = [None] * len(events)
    if sent is not None and sent.numbered is not old:
        ids = list(sent.numbered.of(sent.kept))
        found = diff_sequences(list(sent.kept), events, read=read).found()
        item_ids = [None if at is None else ids[at] for at in found]
    made = sent.created if sent is not None else ()
    for known in (partial(_came_before, old), partial(made_before, made, old)):
        if None in item_ids:
            taken = set(item_ids)
            places = [place for place, item_id in enumerate(item_ids) if item_id is None]
            for place, item_id in zip(places, known([events[place] for place in places], read), strict=True):
                item_ids[place] = None if item_id in taken else item_id
    return item_ids


def _came_before(old: NumberedHistory, events: list[Any], read: Read) -> list[int | None]:
    found = diff_sequences(old.history.events, events, old.places, read=read).found()
    return [None if at is None else old.item_ids.of(at) for at in found]


def still_told(told: Sequence[Run], last: Snapshot | None, before: Said, now: Said) -> list[Run]:
    """Of the items that a reader was told of, those that are here still, and say what they said."""
    (old, said), (new, says) = before, now
    here = dict(zip(new.item_ids.all(), range(len(new.item_ids)), strict=True))
    stays = {*here, *(item for _, item in (last.created if last is not None else ()))}
    gone = {
        item
        for at, item in enumerate(old.item_ids.all())
        if item in here and not _is_as_it_was((old, said), at, (new, says), here[item])
    }
    gone.update(changed_since_made(last, new, here))
    return difference(intersection(told, to_runs(sorted(stays))), to_runs(sorted(gone)))


def _is_as_it_was(before: Said, at: int, now: Said, place: int) -> bool:
    (old, contents_then), (new, contents_now) = before, now
    was, history = old.history, new.history
    said, says = contents_then[at], contents_now[place]
    return (
        (
            (said is says and isinstance(said, ReadEvent))
            or says_the_same(DescribedEvent(said, was.facts(at)), DescribedEvent(says, history.facts(place)))
        )
        and was.calls(at) == history.calls(place)
        and old.item_ids.of(was.atom(at)) == new.item_ids.of(history.atom(place))
    )


def numbered_read(old: NumberedHistory | None, events: ReadEvents, take: Callable[[int], int]) -> NumberedHistory:
    """Events that were laid out, and read, before the assembly begins, with their item ids.

    It costs what is new, for the rest are the very objects that stood there before.

    Args:
        old: What stood there before.
        events: What stands there now.
        take: Gives so many new item ids; it returns the first of them.
    """
    numbered = NumberedHistory(ReadHistory(events), ItemIds())
    if old is None:
        numbered.item_ids.extend(len(events), take(len(events)))
        return numbered
    before: Sequence[Any] = old.history.events
    shared = _shared_parts(before, events) if isinstance(before, ReadEvents) else []
    found = _found_between(before, events, shared)
    if found is None:
        found = _found_between(before, events, []) or []
    for at, count in found:
        if at is None:
            numbered.item_ids.extend(count, take(count))
        else:
            numbered.item_ids.extend_from(old.item_ids, at, at + count)
    return numbered


def _shared_parts(before: ReadEvents, events: ReadEvents) -> list[tuple[int, int, int]]:
    """The long parts that two turns share: where each begins before and now, and its length.

    A list of which a turn has several parts is not shared: events go over from one part to the other.
    """
    (known, places), shared = (_single_parts(before), _single_parts(events)), list[tuple[int, int, int]]()
    for name, (place, start, stop) in places.items():
        at, start_before, stop_before = known.get(name, (0, -1, 0))
        count = min(stop, stop_before) - start
        if start == start_before and count > _ENDS and (not shared or at > shared[-1][0]):
            shared.append((at, place, count))
    return shared


def _single_parts(events: ReadEvents) -> dict[int, tuple[int, int, int]]:
    """The place, the start and the stop of each part whose list has no other part, by the identity of the list."""
    lists = [id(part) for part, _, _ in events.parts]
    return {
        name: (place, start, stop)
        for name, place, (_, start, stop) in zip(lists, events.starts, events.parts, strict=False)
        if lists.count(name) == 1
    }


def _found_between(
    before: Sequence[Any], events: Sequence[Any], shared: Sequence[tuple[int, int, int]]
) -> list[tuple[int | None, int]] | None:
    """Find events among those of the turn before, and compare only the ends of the parts that both share.

    Returns:
        Runs of events that follow each other in both, each with the place of its first event before, or None if its
        events are new, and its length. None if a part between its ends may not be found where it was.
    """
    old, old_places = _ends_only(before, [(at, count) for at, _, count in shared])
    new, new_places = _ends_only(events, [(place, count) for _, place, count in shared])
    diff = diff_sequences(old, new, read=_FACTS)
    found = diff.found()
    middle = [at for at in diff.middle if at is not None]
    if not all(map(lt, middle, middle[1:])):  # what has no id is known by what stands around it
        found = EventMatcher(old, read=_FACTS, by_identity=False).match(new)
    parts = {place: (at, count) for at, place, count in shared}
    ends = {place + count - 1: at + count - 1 for at, place, count in shared}
    runs: list[tuple[int | None, int]] = []
    newest = -1
    for place, found_at in zip(new_places, found, strict=True):
        at = None if found_at is None else old_places[found_at]
        expected, count = parts.get(place, (ends.get(place, at), 1))
        # Matching goes on behind what was matched: a part in front of that is not found as a whole.
        if at != expected or (place in parts and at is not None and newest > at):
            return None
        newest = max(newest, -1 if at is None else at)
        first, length = runs[-1] if runs else (None, 0)
        if place in ends:  # it is in the run of its part
            continue
        if length and (at is None if first is None else at == first + length):
            runs[-1] = first, length + count
        else:
            runs.append((at, count))
    return runs


def _ends_only(events: Sequence[Any], parts: Sequence[tuple[int, int]]) -> tuple[list[Any], list[int]]:
    """Return events without those between the first and the last event of some parts; and the place of each."""
    left: list[Any] = []
    places: list[int] = []
    at = 0
    for first, count in (*parts, (len(events) - 1, 1)):
        left += events[at : first + 1]
        places += range(at, first + 1)
        at = first + count - 1
    return left, places
