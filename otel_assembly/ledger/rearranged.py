"""Lists that are not what they were with more behind it: fresh objects, another order, events changed in place.

What stood there before keeps its item id, wherever it stands now.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter, is_, lt
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.history.read_events import ReadEvent, ReadHistory
from otel_assembly.history.view import difference, intersection, to_runs
from otel_assembly.ledger.made_items import changed_since_made, made_before
from otel_assembly.ledger.snapshot import ItemIds, NumberedHistory
from otel_assembly.matching.event_index import EventMatcher
from otel_assembly.matching.sequence_diff import SequenceDiff, diff_sequences
from otel_assembly.messages.content_snapshot import DescribedEvent, changed, contents, readable, says_the_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_assembly.history.read_events import ReadEvents
    from otel_assembly.history.view import Run
    from otel_assembly.ledger.made_items import Read
    from otel_assembly.ledger.snapshot import Snapshot
    from otel_assembly.messages.content_snapshot import DescribedEvents

    #: A list with its item ids, and what each of its events said when it was read.
    Said = tuple[NumberedHistory, Sequence[Any]]

_FACTS: Final = attrgetter("facts")


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
    diff = diff_sequences(old.history.events, events, read=_FACTS)
    found = [at for at in diff.middle if at is not None]
    if not all(map(lt, found, found[1:])):  # what has no id is known by what stands around it
        matcher = EventMatcher(old.history.events, read=_FACTS, by_identity=False)
        diff = SequenceDiff(diff.length, 0, 0, matcher.match(events))
    numbered.item_ids.extend_from(old.item_ids, 0, diff.front)
    for at, stop in _runs_of(diff.middle):
        if at is None:
            numbered.item_ids.extend(stop, take(stop))
        else:
            numbered.item_ids.extend_from(old.item_ids, at, stop)
    numbered.item_ids.extend_from(old.item_ids, diff.length - diff.back, diff.length)
    return numbered


def _runs_of(found: Sequence[int | None]) -> Iterator[tuple[int | None, int]]:
    """Places in a row as ``(first, stop)``; of what has none, None and how many."""
    at: int | None = None
    stop = 0
    for place in found:
        if stop and (place is None if at is None else place == stop):
            stop += 1
            continue
        if stop:
            yield at, stop
        at, stop = place, 1 if place is None else place + 1
    if stop:
        yield at, stop
