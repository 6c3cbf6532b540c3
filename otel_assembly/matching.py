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


class Matcher:
    """Finds events of one sequence in another; each is found at most once."""

    def __init__(self, events: Sequence[Any]) -> None:
        self._events = list(events)
        self._by_identity: dict[int, list[int]] = {}
        for index in range(len(self._events) - 1, -1, -1):
            self._by_identity.setdefault(id(self._events[index]), []).append(index)

    def match(self, events: Sequence[Any]) -> list[int | None]:
        """For each event, the index of the event that it is or stands for; None where there is none."""
        found: list[int | None] = []
        for event in events:
            indexes = self._by_identity.get(id(event))
            found.append(indexes.pop() if indexes else None)
        if None in found:
            self._by_id(events, found)
        if None in found:
            self._by_equality(events, found)
        return found

    def _by_id(self, events: Sequence[Any], found: list[int | None]) -> None:
        free = _free(len(self._events), found)
        by_id: dict[str | None, list[int]] = {}
        for index in reversed(free):
            name = _id(self._events[index])
            if name is not None:
                by_id.setdefault(name, []).append(index)
        for place, event in enumerate(events):
            if found[place] is None and by_id:
                indexes = by_id.get(_id(event))
                if indexes and type(self._events[indexes[-1]]) is type(event):
                    found[place] = indexes.pop()

    def _by_equality(self, events: Sequence[Any], found: list[int | None]) -> None:
        """In order: between two matched neighbours, only what stood between them is compared."""
        alike: dict[int, list[int]] = {}
        for index in _free(len(self._events), found):
            alike.setdefault(_likeness(self._events[index]), []).append(index)
        at = 0
        for place, event in enumerate(events):
            matched = found[place]
            if matched is not None:
                at = max(at, matched + 1)
                continue
            candidates = alike.get(_likeness(event), [])
            for candidate in candidates[bisect_left(candidates, at) :]:
                if _equal(self._events[candidate], event):
                    candidates.remove(candidate)
                    found[place] = candidate
                    at = candidate + 1
                    break


def _free(length: int, found: list[int | None]) -> list[int]:
    taken = set(found)
    return [index for index in range(length) if index not in taken]


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
