"""Whether an event still says what it said when it was read: found for whole lists at the speed of comparing them.

Where a framework persists a conversation, every turn brings fresh objects of the messages that were there before. What
was read of a message holds for a fresh object of it too, as long as that says the same. So what ``describe()`` reads an
event's facts from is copied when it is read, and compared: an event that says something else is read anew, whatever its
id is, and however it came to say it.
"""

from __future__ import annotations

from copy import copy
from enum import Enum
from functools import singledispatch
from itertools import compress
from operator import attrgetter, call, ne
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.messages.event_facts import NO_ID, EventFacts, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

#: Messages that are remembered beyond those of the conversation itself.
_SPARE: Final = 1_024
#: So deep inside a content a change in place is seen.
_DEEPEST: Final = 32
#: What cannot be changed in place.
_FIXED: Final = (str, bytes, int, float, type, Enum, EventFacts)
_PLAIN: Final = frozenset({str, bytes, int, float, bool, type(None)})
#: So many contents of one message are remembered: what it says, and what a reducer made of it.
_VERSIONS: Final = 2


def _whole(event: Any) -> Any:
    return event


_contents_of = singledispatch(_whole)


def read_from(event_type: type, *attributes: str) -> None:
    """Say what the ``describe()`` row of a type reads, so that a fresh object of a known message is not read anew.

    Args:
        event_type: The type; its subclasses are read from the same attributes, unless they have a row of their own.
        attributes: Every attribute that the row reads, and the framework's id.
    """
    read_as(event_type, attrgetter(*attributes))


def read_as(event_type: type, content: Callable[[Any], Any]) -> None:
    """Say it by a function that gives what the row reads, where that is less than what the attributes hold.

    Args:
        event_type: The type, and its subclasses, as for `read_from`.
        content: Gives the same for two events of which the row says the same, and for no others.
    """
    _contents_of.register(event_type, content)


_contents_of.register(dict, _whole)

#: Types of messages that their framework writes on after they were sent.
_WRITTEN_ON: Final[set[type]] = set()


def written_on(*event_types: type) -> None:
    """Say that a framework goes on to write on messages of exactly these types: the very objects are then compared."""
    _WRITTEN_ON.update(event_types)


def may_change(events: Iterable[Any]) -> bool:
    """Whether one of these events is known to be written on after it was sent."""
    return bool(_WRITTEN_ON) and not _WRITTEN_ON.isdisjoint(map(type, events))


def _getter(event_type: type) -> Callable[[Any], Any] | None:
    """How the content of a type is got; None where a subclass's own row may read more than is known of here."""
    for base in event_type.__mro__:
        if base in _contents_of.registry and base is not object:
            return _contents_of.registry[base]
        if base in describe.registry:
            return None
    return None


def readable(events: Sequence[Any]) -> bool:
    """Whether it is known of all of these events what their facts are read from."""
    return None not in map(_getter, set(map(type, events)))


def contents(events: Sequence[Any]) -> Sequence[Any]:
    """What the facts of these events are read from, alive: themselves, where that is not known."""
    types = list(map(type, events))
    getters = {one: _getter(one) or _whole for one in set(types)}
    several = set(getters.values())
    try:
        if len(several) > 1:
            return list(map(call, map(getters.__getitem__, types), events))
        getter = several.pop() if several else _whole
        return events if getter is _whole else list(map(getter, events))
    except AttributeError:
        return [_content(getters[type(event)], event) for event in events]


def _content(getter: Callable[[Any], Any], event: Any) -> Any:
    """The content of an event; of a malformed one, which cannot be described either, the event itself."""
    try:
        return getter(event)
    except AttributeError:
        return event


def copied(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """A content with what can be changed in it copied, so that a change in place shows.

    What contains itself is copied once, and what is nested without end only so deep.
    """
    if value is None or isinstance(value, _FIXED) or id(value) in inside or len(inside) == _DEEPEST:
        return value
    inside = (*inside, id(value))
    if isinstance(value, dict):
        return {key: part if type(part) in _PLAIN else copied(part, inside) for key, part in value.items()}
    if isinstance(value, list):
        return [part if type(part) in _PLAIN else copied(part, inside) for part in value]
    if type(value) is tuple:
        return tuple([copied(part, inside) for part in value])
    return _cloned(value, inside)


def _cloned(value: Any, inside: tuple[int, ...]) -> Any:
    """An object of a framework's, such as a tool's result in a message, if its type says what makes two equal.

    One that cannot be copied is then equal to nothing, so that its event is read again.
    """
    own_equality: Any = type(value).__eq__
    if own_equality is object.__eq__:
        return value
    try:
        clone = copy(value)
        for name in _attributes(value):
            object.__setattr__(clone, name, copied(getattr(value, name), inside))
    except Exception:  # noqa: BLE001  # a type of somebody else's
        return object()
    return clone


def _attributes(value: Any) -> Iterator[str]:
    """The names of what an object holds."""
    yield from getattr(value, "__dict__", ())
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                yield name


class DescribedEvent(NamedTuple):
    """An event as it was read.

    Attributes:
        content: What its facts were read from, copied; the event itself where that is not known.
        facts: What ``describe()`` said of it.
    """

    content: Any
    facts: EventFacts


class DescribedEvents:
    """What was read of one conversation's messages, by their framework's ids: a fresh object is not read anew."""

    __slots__ = ("_held", "_most")

    def __init__(self) -> None:
        self._held: dict[tuple[type, Any], tuple[DescribedEvent, ...]] = {}
        self._most = _SPARE

    def serve(self, events: int) -> None:
        """Remember what a conversation of so many events needs."""
        self._most = _VERSIONS * events + _SPARE

    def of(self, event: Any) -> DescribedEvent:
        """What an event says.

        Raises:
            DescribeError: It cannot be read.
        """
        getter = _getter(type(event))
        if getter is None:
            facts = describe(event)
            return DescribedEvent(copied(event) if isinstance(event, dict) else event, facts)
        content = _content(getter, event)
        name = event.get("id") if isinstance(event, dict) else getattr(event, "__dict__", _NOTHING).get("id")
        # Of what has no id, the object is known again; should another one have its place, it says something else.
        key = type(event), name if isinstance(name, str) and name != NO_ID else id(event)
        held = self._held.get(key, ())
        for one in held:
            if equal(one.content, content):
                return one
        facts = describe(event)
        read = DescribedEvent(copied(content), facts)
        self._held[key] = (read, *held[: _VERSIONS - 1])
        while len(self._held) > self._most:
            del self._held[next(iter(self._held))]
        return read


_NOTHING: Final[Mapping[str, Any]] = {}


def changed(before: Sequence[Any], now: Sequence[Any]) -> Iterator[int]:
    """Where contents are not what they were when they were read; those that are pass at the speed of C."""
    return compress(range(len(before)), map(ne, before, now))


def says_the_same(then: DescribedEvent, now: DescribedEvent) -> bool:
    """Whether two are one message that says the same; an id that one of them lacks makes no other of it."""
    one, other = then.facts, now.facts
    if (
        have_different_ids(one, other)
        or comparison_key(one) != comparison_key(other)
        or [*one.awaiting] != [*other.awaiting]
    ):
        return False
    return not one.media_tokens or _same_parts(then.content, now.content)


def have_different_ids(one: EventFacts, other: EventFacts) -> bool:
    """Whether two events are two by their ids: each was given one, and they are not the same."""
    return one.id != other.id and None not in {one.id, other.id} and one.id_given and other.id_given


def comparison_key(facts: EventFacts) -> tuple[Any, ...]:
    """What the model reads of an event, and the calls that it belongs to."""
    return str(facts.kind), facts.texts, (*facts.opens,), (*facts.closes,), facts.media_tokens


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same; by identity first, so that lists are compared at the speed of C."""
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  # a foreign type's comparison is not ours to trust
        return False


def _same_parts(one: Any, other: Any) -> bool:
    """Whether two contents hold the same, down to parts whose type does not say what makes two of them equal."""
    if equal(one, other):
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same_parts, one, other))
    held, others = getattr(one, "__dict__", _NOTHING), getattr(other, "__dict__", _NOTHING)
    return bool(held) and held.keys() == others.keys() and all(_same_parts(held[name], others[name]) for name in held)
