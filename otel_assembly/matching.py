"""Which of the events that came back are those that went in: by identity, else by their id, else by equality in order.

A policy of the user's, or a framework's reducer, may return copies, replacements and inventions. What can be matched
keeps its place in the ledger; a replacement without a match stands for what it replaced, which is then *compacted*.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import DescribeError
from otel_assembly.facts import describe
from otel_assembly.history import text_digest

if TYPE_CHECKING:
    from collections.abc import Sequence


class Index:
    """Where the events of a sequence stand, by what they are found by; it is read on as the sequence grows.

    Each kind of key is read only once somebody asks for it.
    """

    __slots__ = ("_alike", "_alike_upto", "_by_id", "_by_id_upto", "_by_identity", "_by_identity_upto", "events")

    def __init__(self, events: Sequence[Any]) -> None:
        self.events = events
        self._by_identity: dict[int, list[int]] = {}
        self._by_id: dict[str, list[int]] = {}
        self._alike: dict[int, list[int]] = {}
        self._by_identity_upto = self._by_id_upto = self._alike_upto = 0

    def of_object(self, event: Any) -> Sequence[int]:
        """Where this very object stands."""
        for index in range(self._by_identity_upto, len(self.events)):
            self._by_identity.setdefault(id(self.events[index]), []).append(index)
        self._by_identity_upto = len(self.events)
        return self._by_identity.get(id(event), ())

    def of_id(self, name: str | None) -> Sequence[int]:
        """Where events stand that the framework gave this id."""
        for index in range(self._by_id_upto, len(self.events)):
            held = _id(self.events[index])
            if held is not None:
                self._by_id.setdefault(held, []).append(index)
        self._by_id_upto = len(self.events)
        return self._by_id.get(name, ()) if name is not None else ()

    def like(self, event: Any) -> Sequence[int]:
        """Where events stand that read as this one does."""
        for index in range(self._alike_upto, len(self.events)):
            self._alike.setdefault(_likeness(self.events[index]), []).append(index)
        self._alike_upto = len(self.events)
        return self._alike.get(_likeness(event), ())


class Matcher:
    """Finds events of one sequence in another; each is found at most once.

    Args:
        events: Where to look.
        start: From here on.
        stop: Up to here.
        index: Where they stand, if that is remembered.
    """

    def __init__(
        self, events: Sequence[Any], start: int = 0, stop: int | None = None, index: Index | None = None
    ) -> None:
        self._index = Index(events) if index is None else index
        self._events = self._index.events
        self._start, self._stop = start, len(events) if stop is None else stop

    def match(self, events: Sequence[Any]) -> list[int | None]:
        """For each event, the index of the event that it is or stands for; None where there is none."""
        taken: set[int] = set()
        found = [self._first(self._index.of_object(event), taken) for event in events]
        if None in found:
            self._match_ids(events, found, taken)
        if None in found:
            self._match_equals(events, found, taken)
        return found

    def _first(self, indexes: Sequence[int], taken: set[int]) -> int | None:
        for place in range(bisect_left(indexes, self._start), len(indexes)):
            index = indexes[place]
            if index >= self._stop:
                break
            if index not in taken:
                taken.add(index)
                return index
        return None

    def _match_ids(self, events: Sequence[Any], found: list[int | None], taken: set[int]) -> None:
        for place, event in enumerate(events):
            if found[place] is None and (name := _id(event)) is not None:
                indexes = self._index.of_id(name)
                free = next((i for i in indexes if self._start <= i < self._stop and i not in taken), None)
                if free is not None and type(self._events[free]) is type(event):
                    taken.add(free)
                    found[place] = free

    def _match_equals(self, events: Sequence[Any], found: list[int | None], taken: set[int]) -> None:
        """In order: between two matched neighbours, only what stood between them is compared."""
        at = self._start
        for place, event in enumerate(events):
            matched = found[place]
            if matched is not None:
                at = max(at, matched + 1)
                continue
            candidates = self._index.like(event)
            for candidate in candidates[bisect_left(candidates, at) :]:
                if candidate >= self._stop:
                    break
                if candidate not in taken and _equal(self._events[candidate], event):
                    taken.add(candidate)
                    found[place] = candidate
                    at = candidate + 1
                    break


def _id(event: Any) -> str | None:
    try:
        return describe(event).id
    except DescribeError:
        return None


def _likeness(event: Any) -> int:
    """A number that equal events share, so that few have to be compared."""
    try:
        facts = describe(event)
    except DescribeError:
        return 0
    return text_digest((facts.kind, *facts.texts, *facts.opens, *facts.closes))


def _equal(one: Any, other: Any) -> bool:
    """Whether two events that read alike are equal, but for an id that is made anew each time."""
    try:
        if type(one) is not type(other):
            return False
        if one == other:
            return True
    except Exception:  # noqa: BLE001  # a foreign type's comparison is not ours to trust
        return False
    first, second = describe(one), describe(other)
    return first.id != second.id and not first.media_tokens and not second.media_tokens


def reads_anew(original: Any, copy: Any) -> bool:
    """Whether what was matched by its id says something else than before."""
    return original is not copy and _likeness(original) != _likeness(copy)


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


def replaced(length: int, found: Sequence[int | None]) -> set[int]:
    """Of `length` inputs, the unmatched ones in whose place an unmatched output stands."""
    taken = {index for index in found if index is not None}
    gone: set[int] = set()
    low = 0
    invention = False
    for index in (*found, length):
        if index is None:
            invention = True
            continue
        if invention:
            gone.update(i for i in range(low, index) if i not in taken)
        low, invention = max(low, index + 1), False
    return gone
