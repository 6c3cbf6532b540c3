"""Find the input events of a policy or reducer among its output events: by identity, else by id, else by equality.

A user's policy or a framework's reducer may return the input objects, copies of them, replacements and new events. An
output event with a match keeps the item id of its input in the ledger. If a new event replaces input events, these are
recorded as *compacted*. Events with different ids that identify them are different, even if their content is equal.
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

    #: Returns the facts of an event; None if it cannot be read.
    Read = Callable[[Any], EventFacts | None]


def facts_of(event: Any) -> EventFacts | None:
    """Return the facts of an event, as ``describe()`` returns them; None if it cannot be read."""
    try:
        return describe(event)
    except DescribeError:
        return None


_ID: Final = attrgetter("id")


def _key_hash(facts: EventFacts) -> int:
    return hash(comparison_key(facts))


class EventIndex:
    """The places (indexes) of a sequence's events, by identity, by id and by content.

    Each of the three is built on first use, and extended when the sequence has grown. The places are ascending.

    Args:
        events: The sequence; it may grow.
        facts: Returns the facts of the event at a place; None if it is not to be found by id or content.
    """

    __slots__ = ("_by_identity", "_by_key", "_identities_indexed", "_repeated", "events", "facts")

    def __init__(self, events: Sequence[Any], facts: Callable[[int], EventFacts | None]) -> None:
        self.events = events
        self.facts = facts
        #: By function that returns a key of an event's facts: the places by key, and the number of indexed events.
        self._by_key: dict[Callable[[EventFacts], Any], tuple[dict[Any, list[int]], int]] = {}
        self.renewed()

    def renewed(self) -> None:
        """Discard the index by identity, because the sequence has new objects for the same events."""
        self._by_identity: dict[int, int] = {}
        #: All places of each object that occurs more than once, by its `id`.
        self._repeated: dict[int, list[int]] = {}
        self._identities_indexed = 0

    def _index_new_objects(self) -> None:
        start, stop = self._identities_indexed, len(self.events)
        if start < stop:
            self._identities_indexed = stop
            keys = list(map(id, self.events[start:stop]))
            places = dict(zip(keys, range(start, stop), strict=True))
            if len(places) == len(keys) and self._by_identity.keys().isdisjoint(places):
                self._by_identity.update(places)
            else:
                for key, place in zip(keys, range(start, stop), strict=True):
                    first = self._by_identity.setdefault(key, place)
                    if first != place:
                        self._repeated.setdefault(key, [first]).append(place)

    def of_object(self, event: Any) -> Sequence[int]:
        """Return the places of this object."""
        self._index_new_objects()
        first = self._by_identity.get(id(event))
        return self._repeated.get(id(event), () if first is None else (first,))

    def places_of(self, events: Sequence[Any]) -> list[int | None] | None:
        """Return the place of each of these objects, or None for an object that is not in the sequence.

        The result is None if an object occurs more than once, here or in the sequence; use `of_object` then. This is
        faster than `of_object` for each of them.
        """
        self._index_new_objects()
        keys = list(map(id, events))
        return None if self._repeated or len(set(keys)) < len(keys) else list(map(self._by_identity.get, keys))

    def of_id(self, event_id: str) -> Sequence[int]:
        """Return the places of events with this framework id."""
        return self._with_key(_ID, event_id)

    def like(self, facts: EventFacts) -> Sequence[int]:
        """Return the places of events with equal facts. Hash collisions may add other events."""
        return self._with_key(_key_hash, _key_hash(facts))

    def _with_key(self, key_of: Callable[[EventFacts], Any], key: Any) -> Sequence[int]:
        """Return the places of events whose facts have this key, after indexing new events; None is no key."""
        places, start = self._by_key.get(key_of, ({}, 0))
        for place in range(start, len(self.events)):
            facts = self.facts(place)
            event_key = None if facts is None else key_of(facts)
            if event_key is not None:
                places.setdefault(event_key, []).append(place)
        self._by_key[key_of] = places, len(self.events)
        return places.get(key, ())

    def copies_of(self, event: Any, facts: EventFacts) -> list[int]:
        """Return the places of events that this event is a copy of (see `is_copy`)."""
        return [at for at in self.like(facts) if self.is_copy(event, facts, at)]

    def is_copy(self, event: Any, facts: EventFacts, at: int, *, by_id: bool = True) -> bool:
        """Return True if the event at a place has the type and content of this event.

        Events with media are compared as objects, because media have no comparable facts. With `by_id`, events with
        different ids are different.
        """
        known, original = self.facts(at), self.events[at]
        if known is None or type(original) is not type(event) or (by_id and have_different_ids(known, facts)):
            return False
        return comparison_key(known) == comparison_key(facts) and (not facts.media_tokens or equal(original, event))


class EventMatcher:
    """Finds the events of one sequence in another sequence, the inputs. Each input is matched at most once.

    Args:
        events: The inputs.
        start: The first index of the inputs to match.
        stop: The index after the last input to match; None for the end.
        index: An index of the inputs, if there is one.
        read: Returns the facts of an event; None if it cannot be read.
        by_id: Whether events are matched by id, and differ if their ids do. False for events that a step creates on
            every turn: a reminder with a new random id is the same event while its content is the same, and a reminder
            with a constant id is a new event if its content has changed.
        changed_is_new: Whether an event with the id of an input, but different content, is new. No event then has that
            input.
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
        changed_is_new: bool = False,
    ) -> None:
        #: The inputs that were matched by identity; their facts need not be read.
        self._identical: set[int] = set()
        new_index = EventIndex(events, lambda place: None if place in self._identical else read(events[place]))
        self._index = new_index if index is None else index
        self._start, self._stop = start, len(events) if stop is None else stop
        self._read = read
        self._by_id = by_id
        self._changed_is_new = changed_is_new

    def match(self, events: Sequence[Any], known: Sequence[int | None] | None = None) -> list[int | None]:
        """Return for each event the index of its input; None for a new event.

        `known` has the inputs that the caller found already, None for other events.
        """
        index, start, matched = self._index, self._start, set[int]()
        is_whole = start == 0 and self._stop == len(index.events)
        objects = index.places_of(events) if is_whole and known is None else None
        matches = list(known or objects or [None] * len(events))
        matched.update(at for at in matches if at is not None)
        for place, event in enumerate(events if objects is None else ()):
            if matches[place] is None:
                matches[place] = self._first(index.of_object(event), start, matched)
        self._identical.update(matched)
        unknown = {place: self._read(events[place]) for place, at in enumerate(matches) if at is None}
        for place, facts in list(unknown.items()) if self._by_id else ():
            if facts is None or facts.id is None:
                continue
            is_of_type = partial(self._is_of_type, type(events[place]))
            found = self._first(index.of_id(facts.id), start, matched, is_of_type)
            if found is not None:
                del unknown[place]
                before = index.facts(found) if self._changed_is_new else facts
                if before is not None and comparison_key(before) == comparison_key(facts):
                    matches[place] = found
        # Copies are matched in order: only inputs after the last matched one are compared.
        at = start
        for place, event in enumerate(events[: max(unknown, default=-1) + 1]):
            found, facts = matches[place], unknown.get(place)
            if found is None and facts is not None:
                is_copy = partial(index.is_copy, event, facts, by_id=self._by_id)
                found = matches[place] = self._first(index.like(facts), at, matched, is_copy)
            if found is not None:
                at = max(at, found + 1)
        return matches

    def _is_of_type(self, event_type: type, at: int) -> bool:
        return type(self._index.events[at]) is event_type

    def _first(
        self, indexes: Sequence[int], start: int, matched: set[int], accepts: Callable[[int], bool] = lambda _: True
    ) -> int | None:
        """Match the first unmatched and accepted one of ascending indexes, from `start` on, and return it."""
        for place in range(bisect_left(indexes, start), len(indexes)):
            index = indexes[place]
            if index >= self._stop:
                break
            if index not in matched and accepts(index):
                matched.add(index)
                return index
        return None


def moved(indexes: Sequence[int]) -> set[int]:
    """Return the smallest set of indexes without which the others are ascending: the moved ones.

    The others are a longest increasing subsequence.

    Args:
        indexes: The old index of each item, in the new order.

    Example:
        >>> moved([1, 2, 0])
        {0}
    """
    # By length, the smallest last index of an increasing subsequence, and its place; by place, the place before it.
    tails: list[int] = []
    tail_places: list[int] = []
    previous: list[int] = []
    for place, index in enumerate(indexes):
        length = bisect_left(tails, index)
        previous.append(tail_places[length - 1] if length else -1)
        tails[length : length + 1] = [index]
        tail_places[length : length + 1] = [place]
    unmoved: set[int] = set()
    place = tail_places[-1] if tail_places else -1
    while place >= 0:
        unmoved.add(indexes[place])
        place = previous[place]
    return set(indexes) - unmoved
