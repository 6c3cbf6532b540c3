"""Finds the messages of one list in another, and edits lists at the positions found.

Messages are compared by identity first. Stores return copies, so messages that are not found are then compared by
their content, in order.
"""

from __future__ import annotations

from itertools import compress, count, islice, pairwise, repeat
from operator import eq, is_
from typing import TYPE_CHECKING, Any, Final, cast

from otel_assembly.errors import DescribeError
from otel_assembly.messages.content_snapshot import comparison_key, contents, equal, have_different_ids
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_EMPTY: Final[Mapping[str, Any]] = {}


def same_objects(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Return whether two lists contain the identical objects in the same order."""
    return len(left) == len(right) and all(map(is_, left, right))


def identity_keys(messages: Sequence[Any]) -> set[Any]:
    """Return the keys that identify messages: the `id()` of each object, and the message ids that the framework set.

    Two lists have a message in common if their keys overlap.
    """
    # `getattr` for a missing attribute is slow for some types, such as pydantic models: it runs their `__getattr__`.
    with_class_attribute = {cls for cls in set(map(type, messages)) if any("id" in vars(base) for base in cls.__mro__)}
    message_ids = [
        getattr(message, "id", None)
        if type(message) in with_class_attribute
        else getattr(message, "__dict__", _EMPTY).get("id")
        for message in messages
    ]
    return {*map(id, messages), *filter(None, message_ids)}


def same_content(left: Any, right: Any) -> bool:
    """Return whether two messages are one object, or have the same type and the content that `describe` reads."""
    return left is right or (type(left) is type(right) and equal(contents([left])[0], contents([right])[0]))


def _all_same_content(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Return whether two lists of the same length have pairwise the same content.

    The first pair is compared alone, because most lists that differ already differ there.
    """
    copies = [pair for pair in zip(left, right, strict=True) if pair[0] is not pair[1]]
    if not copies:
        return True
    left_copies, right_copies = zip(*copies, strict=True)
    return (
        same_content(*copies[0])
        and list(map(type, left_copies)) == list(map(type, right_copies))
        and (len(copies) == 1 or equal(contents(left_copies), contents(right_copies)))
    )


def same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Return whether a model cannot tell two lists of messages apart."""
    return len(left) == len(right) and (_all_same_content(left, right) or all(map(_same_facts, left, right)))


def _same_facts(left: Any, right: Any) -> bool:
    if same_content(left, right):
        return True
    if type(left) is not type(right):
        return False
    try:
        left_facts, right_facts = describe(left), describe(right)
    except DescribeError:
        return False
    return not have_different_ids(left_facts, right_facts) and comparison_key(left_facts) == comparison_key(right_facts)


def locate(whole: Sequence[Any], part: Sequence[Any]) -> Sequence[int] | None:
    """Return the positions of the messages of `part` in the list `whole`; None if a message is not found."""
    if same_objects(whole, part):
        return range(len(whole))
    position_of = dict(zip(map(id, whole), count()))
    positions = list(map(position_of.get, map(id, part)))
    if None in positions:
        return _locate_in_order(_content_keys(whole), _content_keys(part))
    has_duplicates = len(position_of) < len(whole)
    in_order = _locate_in_order(list(map(id, whole)), list(map(id, part))) if has_duplicates else None
    return in_order or cast("list[int]", positions)


def _content_keys(messages: Sequence[Any]) -> list[Any]:
    """Return a key for each message. Messages with equal keys have the same content; see `same_content`."""
    return list(zip(map(type, messages), contents(messages), strict=True))


def _locate_in_order(whole: list[Any], part: list[Any]) -> list[int] | None:
    """Return the positions of keys in a list, each after the one before; None if a key is not found.

    Runs of equal keys are compared as lists, because a Python loop over a long conversation takes milliseconds. The
    length of the compared run doubles after a match and is halved after a difference; one key alone is searched.
    """
    positions: list[int] = []
    start, run = 0, len(part)
    while len(positions) < len(part):
        found = len(positions)
        run = min(run, len(part) - found)
        if equal(whole[start : start + run], part[found : found + run]):
            positions += range(start, start + run)
            start, run = start + run, 2 * run
        elif run > 1:
            run //= 2
        else:
            position = _index(whole, part[found], start)
            if position is None:
                return None
            positions.append(position)
            start = position + 1
    return positions


def _index(keys: list[Any], key: Any, start: int) -> int | None:
    """Return the first position of a key in a list, from a start position on; None if the key is not found."""
    try:
        return next(compress(count(start), map(eq, islice(keys, start, None), repeat(key))), None)
    except Exception:  # noqa: BLE001  # a framework's comparison failed, so the two messages are unequal
        return next((position for position in range(start, len(keys)) if equal(keys[position], key)), None)


def locate_each(whole: Sequence[Any], part: Sequence[Any]) -> Iterator[int]:
    """Yield the first position of each message of one list in another list; messages that are not found are skipped."""
    position_of, whole_keys = dict[int, int](), _content_keys(whole)
    for position, message in enumerate(whole):
        position_of.setdefault(id(message), position)
    for message, key in zip(part, _content_keys(part), strict=True):
        found = position_of.get(id(message))
        if found is None:
            found = _index(whole_keys, key, 0)
        if found is not None:
            yield found


def replace_at(whole: Sequence[Any], positions: Sequence[int], replacements: Sequence[Any]) -> list[Any]:
    """Return the messages after a reducer that received only those at some positions: its output replaces them.

    The replacements are at the first of the positions; without any positions, they are at the end. Their number may be
    another one: of ``[a, b, c, d]``, the positions 1 and 3 and the replacement ``s`` give ``[a, s, c]``.
    """
    if not positions:
        return [*whole, *replacements]
    removed = set(positions)
    first, end = min(removed), max(removed) + 1
    # The messages around the positions are copied by slices, because most reducers change one range of a conversation.
    between = range(first, end) if end - first > len(removed) else ()
    kept = [whole[position] for position in between if position not in removed]
    return [*whole[:first], *replacements, *kept, *whole[end:]]


def restore_removed(earlier: Sequence[Any], now: Sequence[Any]) -> Sequence[Any]:
    """Return the list `now` with the messages of `earlier` that were removed from it, in their former order.

    A new message may be a copy of an earlier one, which then does not count as removed. The result is the list itself
    if nothing was removed.
    """
    now_ids, earlier_ids = set(map(id, now)), set(map(id, earlier))
    new = [message for message in now if id(message) not in earlier_ids]
    removed = {id(message) for message in earlier if id(message) not in now_ids and locate(new, [message]) is None}
    if not removed:
        return now
    restored: list[Any] = []
    start, last_position_of = 0, dict(zip(map(id, now), count()))
    for message in earlier:
        if id(message) in removed:
            restored.append(message)
        end = last_position_of.get(id(message), -1) + 1
        restored += now[start:end]  # this message, and the new ones before it
        start = max(start, end)
    return [*restored, *now[start:]]


def find_gaps(whole: Sequence[Any], part: Sequence[Any]) -> list[list[Any]] | None:
    """Return the messages before, between and after those of a part: one list more than the part has messages.

    `ModelCall` inserts them with `insert_gaps` into the steps of reducers that received only the part. The result is
    None if the part is empty, or if `whole` does not contain all its messages in their order.
    """
    places = locate(whole, part) if part else None
    if places is None or any(place >= next_place for place, next_place in pairwise(places)):
        return None
    return [list(whole[start + 1 : end]) for start, end in pairwise((-1, *places, len(whole)))]


def insert_gaps(events: Sequence[Any], reduced: Sequence[Any], gaps: Sequence[list[Any]]) -> list[Any]:
    """Return the messages of an earlier step with those that its reducer did not receive.

    A reducer may get only a part of the framework's messages. The others become known when the client is called.
    `events` are the messages at some step of a model call, and `reduced` those that its last step returned. `gaps` is
    the result of `find_gaps` for `reduced`. A gap is inserted before the next message of `reduced` that `events`
    contains.
    """
    event_ids = set(map(id, events))
    inserted_before: dict[int, list[Any]] = {}
    pending: list[Any] = []
    for message, gap in zip(reduced[1:], gaps[1:], strict=False):
        pending = [*pending, *gap]
        if id(message) in event_ids:
            inserted_before[id(message)], pending = pending, []
    inside = [message for event in events for message in (*inserted_before.get(id(event), ()), event)]
    return [*gaps[0], *inside, *pending, *gaps[-1]]
