"""Which of the events that came back are those that went in: by identity, else by their id, else by equality in order.

A policy of the user's, or a framework's reducer, may return copies, replacements and inventions. What can be matched
keeps its place in the ledger; a replacement without a match stands for what it replaced, which is then *compacted*.
Two events that were given different ids are two, whatever they say.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import DescribeError
from otel_assembly.messages.content_snapshot import comparison_key, equal, have_different_ids
from otel_assembly.messages.event_facts import EventFacts, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    #: What is known of an event; None where it cannot be read.
    Read = Callable[[Any], EventFacts | None]


def facts_of(event: Any) -> EventFacts | None:
    """What ``describe()`` says of an event; None where it cannot be read."""
    try:
        return describe(event)
    except DescribeError:
        return None


_ID: Final = attrgetter("id")


def _key_hash(facts: EventFacts) -> int:
    return hash(comparison_key(facts))


class _Places:
    """Where events of a sequence stand, by a key that is read from their facts; it is read on as the sequence grows."""

    __slots__ = ("_by_key", "_key_of", "_upto")

    def __init__(self, key_of: Callable[[EventFacts], Any]) -> None:
        self._key_of = key_of
        self._by_key: dict[Any, list[int]] = {}
        self._upto = 0

    def of(self, key: Any, index: EventIndex) -> Sequence[int]:
        """The places of a key in the sequence of an index, ascending."""
        for place in range(self._upto, len(index.events)):
            facts = index.facts(place)
            found = None if facts is None else self._key_of(facts)
            if found is not None:
                self._by_key.setdefault(found, []).append(place)
        self._upto = len(index.events)
        return self._by_key.get(key, ())


class EventIndex:
    """Where the events of a sequence stand, by what they are found by; it is read on as the sequence grows.

    Each kind of key is read only once somebody asks for it.

    Args:
        events: The sequence.
        facts: What is known of the event at a place.
    """

    __slots__ = ("_by_id", "_by_identity", "_by_identity_upto", "_by_key_hash", "_repeated", "events", "facts")

    def __init__(self, events: Sequence[Any], facts: Callable[[int], EventFacts | None]) -> None:
        self.events = events
        self.facts = facts
        self._by_identity: dict[int, int] = {}
        #: Every place of an object that stands in several.
        self._repeated: dict[int, list[int]] = {}
        self._by_identity_upto = 0
        self._by_id = _Places(_ID)
        self._by_key_hash = _Places(_key_hash)

    def renewed(self) -> None:
        """The sequence holds other objects of the same events."""
        self._by_identity, self._repeated, self._by_identity_upto = {}, {}, 0

    def _read_on(self) -> None:
        """Take down which objects stand where, as far as nobody has."""
        start, stop = self._by_identity_upto, len(self.events)
        if start < stop:
            self._by_identity_upto = stop
            names = list(map(id, self.events[start:stop]))
            places = dict(zip(names, range(start, stop), strict=True))
            if len(places) == len(names) and self._by_identity.keys().isdisjoint(places):
                self._by_identity.update(places)
            else:
                for name, place in zip(names, range(start, stop), strict=True):
                    first = self._by_identity.setdefault(name, place)
                    if first != place:
                        self._repeated.setdefault(name, [first]).append(place)

    def of_object(self, event: Any) -> Sequence[int]:
        """Where this very object stands."""
        self._read_on()
        found = self._by_identity.get(id(event))
        if found is None:
            return ()
        return self._repeated.get(id(event), (found,)) if self._repeated else (found,)

    def places_of(self, events: Sequence[Any]) -> list[int | None] | None:
        """Where each of these very objects stands, at the speed of C; None where one stands in several places."""
        self._read_on()
        names = list(map(id, events))
        return None if self._repeated or len(set(names)) < len(names) else list(map(self._by_identity.get, names))

    def of_id(self, name: str) -> Sequence[int]:
        """Where events stand that the framework gave this id."""
        return self._by_id.of(name, self)

    def like(self, facts: EventFacts) -> Sequence[int]:
        """Where events stand that read as this one does, and perhaps some others."""
        return self._by_key_hash.of(_key_hash(facts), self)

    def copies_of(self, event: Any, facts: EventFacts) -> list[int]:
        """Return the places of events that this event is a copy of: of its type and text, and with no other id."""
        return [at for at in self.like(facts) if self.is_copy(event, facts, at)]

    def is_copy(self, event: Any, facts: EventFacts, at: int, *, by_id: bool = True) -> bool:
        """Return True if the event at a place has the type and text of this event, and, `by_id`, no other id."""
        known, other = self.facts(at), self.events[at]
        if known is None or type(other) is not type(event) or (by_id and have_different_ids(known, facts)):
            return False
        return comparison_key(known) == comparison_key(facts) and (not facts.media_tokens or equal(other, event))


class EventMatcher:
    """Finds events of one sequence in another; each is found at most once.

    Args:
        events: Where to look.
        start: From here on.
        stop: Up to here.
        index: Where they stand, if that is remembered.
        read: How an event is read.
        by_id: Whether ids tell events apart. False for what one step makes again and again: a reminder that is made
            with a new id each time is the same one for as long as it says the same, and with an id of its own another
            one once it says something else.
        rereads: Whether an event that is found by its id, but says something else, is a new one in the place of that.
        by_identity: Whether an object that stands there is found, wherever it is.
    """

    def __init__(
        self,
        events: Sequence[Any],
        start: int = 0,
        stop: int | None = None,
        index: EventIndex | None = None,
        *,
        read: Read = facts_of,
        by_id: bool = True,
        rereads: bool = False,
        by_identity: bool = True,
    ) -> None:
        #: What was found by identity, and is looked for no more.
        self._found: set[int] = set()
        own = EventIndex(events, lambda place: None if place in self._found else read(events[place]))
        self._index = own if index is None else index
        self._events = self._index.events
        self._start, self._stop = start, len(events) if stop is None else stop
        self._read = read
        self._by_id = by_id
        self._rereads = rereads
        self._by_identity = by_identity

    def match(self, events: Sequence[Any]) -> list[int | None]:
        """For each event, the index of the event that it is or stands for; None where there is none."""
        found = self._index.places_of(events) if self._start == 0 and self._stop == len(self._events) else None
        taken: set[int] = set()
        if not self._by_identity:
            found = [None] * len(events)
        elif found is None:
            found = [self._take(self._index.of_object(event), self._start, taken) for event in events]
        else:
            taken.update(at for at in found if at is not None)
        self._found.update(taken)
        unknown = {place: self._read(events[place]) for place, at in enumerate(found) if at is None}
        if unknown and self._by_id:
            self._match_ids(events, unknown, found, taken)
        if unknown:
            self._match_equals(events, unknown, found, taken)
        return found

    def _take(
        self, indexes: Sequence[int], start: int, taken: set[int], is_it: Callable[[int], bool] = lambda _: True
    ) -> int | None:
        """The first of ascending indexes, from `start` on, that nobody has taken and that is the one; now it is."""
        for place in range(bisect_left(indexes, start), len(indexes)):
            index = indexes[place]
            if index >= self._stop:
                break
            if index not in taken and is_it(index):
                taken.add(index)
                return index
        return None

    def _match_ids(
        self,
        events: Sequence[Any],
        unknown: dict[int, EventFacts | None],
        found: list[int | None],
        taken: set[int],
    ) -> None:
        for place, facts in list(unknown.items()):
            if facts is None or facts.id is None:
                continue
            is_of_type = partial(self._is_of_type, type(events[place]))
            index = self._take(self._index.of_id(facts.id), self._start, taken, is_of_type)
            if index is None:
                continue
            del unknown[place]
            known = self._index.facts(index)
            if not self._rereads or (known is not None and comparison_key(known) == comparison_key(facts)):
                found[place] = index

    def _match_equals(
        self,
        events: Sequence[Any],
        unknown: dict[int, EventFacts | None],
        found: list[int | None],
        taken: set[int],
    ) -> None:
        """In order: between two matched neighbours, only what stood between them is compared."""
        at = self._start
        for place, event in enumerate(events[: max(unknown) + 1] if unknown else ()):
            index, facts = found[place], unknown.get(place)
            if index is None and facts is not None:
                index = found[place] = self._take(
                    self._index.like(facts), at, taken, partial(self._is_same, event, facts)
                )
            if index is not None:
                at = max(at, index + 1)

    def _is_of_type(self, event_type: type, index: int) -> bool:
        return type(self._events[index]) is event_type

    def _is_same(self, event: Any, facts: EventFacts, index: int) -> bool:
        """Whether two events that read alike are one."""
        return self._index.is_copy(event, facts, index, by_id=self._by_id)


def moved(indexes: Sequence[int]) -> set[int]:
    """Of indexes in their new order, those that no longer stand in the order they had: as few as explain it."""
    tails: list[int] = []
    tail_places: list[int] = []
    before: list[int] = []
    for place, index in enumerate(indexes):
        length = bisect_left(tails, index)
        before.append(tail_places[length - 1] if length else -1)
        tails[length : length + 1] = [index]
        tail_places[length : length + 1] = [place]
    stays: set[int] = set()
    place = tail_places[-1] if tail_places else -1
    while place >= 0:
        stays.add(indexes[place])
        place = before[place]
    return set(indexes) - stays
