"""Where one list of messages stands in another: by identity, then by equality in order, for stores return copies."""

from __future__ import annotations

from collections import deque
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import DescribeError
from otel_assembly.messages.content_snapshot import comparison_key, contents, equal, have_different_ids
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_NOTHING: Final[Mapping[str, Any]] = {}


def same_objects(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two lists hold the very same objects."""
    return len(one) == len(other) and all(map(is_, one, other))


def identity_keys(messages: Sequence[Any]) -> set[Any]:
    """What messages are known by: that they are the very objects, and their ids where the framework gives them any."""
    # Asked for what is not there, some types, as pydantic's, take longer than for all the rest.
    by_type = {kind for kind in set(map(type, messages)) if any("id" in vars(base) for base in kind.__mro__)}
    own = [
        getattr(one, "id", None) if type(one) in by_type else getattr(one, "__dict__", _NOTHING).get("id")
        for one in messages
    ]
    return {*map(id, messages), *filter(None, own)}


def same_content(one: Any, other: Any) -> bool:
    """Whether two messages are the same one, or a copy of it that says the same, by what its framework's row reads."""
    return one is other or (type(one) is type(other) and equal(contents([one])[0], contents([other])[0]))


def all_alike(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether each message of two lists of one length is the same, or such a copy; read at once where the first is."""
    copies = [pair for pair in zip(one, other, strict=True) if pair[0] is not pair[1]]
    if not copies:
        return True
    ones, others = zip(*copies, strict=True)
    return (
        same_content(*copies[0])
        and list(map(type, ones)) == list(map(type, others))
        and (len(copies) == 1 or equal(contents(ones), contents(others)))
    )


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two lists hold the same messages, as far as a model can tell."""
    return len(one) == len(other) and (all_alike(one, other) or all(map(_read_alike, one, other)))


def _read_alike(one: Any, other: Any) -> bool:
    if same_content(one, other):
        return True
    if type(one) is not type(other):
        return False
    try:
        facts, others = describe(one), describe(other)
    except DescribeError:
        return False
    return not have_different_ids(facts, others) and comparison_key(facts) == comparison_key(others)


def locate(whole: Sequence[Any], part: Sequence[Any]) -> list[int] | None:
    """The places in a list at which the messages of another stand; None where one of them stands nowhere."""
    at = {id(message): place for place, message in enumerate(whole)}
    places = [at.get(id(message)) for message in part]
    known = [place for place in places if place is not None]
    if len(known) < len(places):
        return _in_order(whole, part, same_content)
    stand_twice = len(at) < len(whole)
    return (_in_order(whole, part, is_) if stand_twice else None) or known


def _in_order(whole: Sequence[Any], part: Sequence[Any], matches: Callable[[Any, Any], bool]) -> list[int] | None:
    places: list[int] = []
    start = 0
    for message in part:
        place = next((place for place in range(start, len(whole)) if matches(whole[place], message)), None)
        if place is None:
            return None
        places.append(place)
        start = place + 1
    return places


def replace_at(whole: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """A list with others in the place of the messages at these places; at its end where there are none."""
    gone = set(places)
    first = min(gone, default=len(whole))
    # A list, and only of what follows: one call, whatever stands in front.
    rest = [message for place, message in enumerate(whole[first + 1 :], first + 1) if place not in gone]
    return [*whole[:first], *others, *rest]


def restore_removed(held: Sequence[Any], now: Sequence[Any]) -> Sequence[Any]:
    """A list as it would be with what it held before still in it; the list itself where nothing left.

    What has been put into it since may be a copy of what was held.
    """
    stays, were = set(map(id, now)), set(map(id, held))
    new = [one for one in now if id(one) not in were]
    gone = {id(one) for one in held if id(one) not in stays and locate(new, [one]) is None}
    if not gone:
        return now
    before: list[Any] = []
    rest = deque(now)
    for one in held:
        if id(one) in gone:
            before.append(one)
        while any(one is other for other in rest):
            before.append(rest.popleft())
    return [*before, *rest]


def insert_gaps(events: Sequence[Any], reduced: Sequence[Any], gaps: Sequence[list[Any]]) -> list[Any]:
    """Events with what stands in the gaps of those that were let out: around all, or in front of the next one here."""
    here = set(map(id, events))
    front: dict[int, list[Any]] = {}
    between: list[Any] = []
    for one, gap in zip(reduced[1:], gaps[1:], strict=False):
        between = [*between, *gap]
        if id(one) in here:
            front[id(one)], between = between, []
    inside = [message for event in events for message in (*front.get(id(event), ()), event)] if front else events
    return [*gaps[0], *inside, *between, *gaps[-1]]
