"""Detects changed messages by comparing them with copies.

If a framework stores a conversation, each turn creates new objects for the same messages. The facts that ``describe()``
returned for a message are also valid for another object with equal content. Therefore the content that ``describe()``
reads is copied and compared. A message is read again only if its content has changed, regardless of its id.
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

#: How many messages are cached in addition to those of the conversation itself.
_SPARE: Final = 1_024
#: Changes in place are detected up to this depth of nesting.
_DEEPEST: Final = 32
#: Types that are not copied, because they are immutable.
_FIXED: Final = (str, bytes, int, float, type, Enum, EventFacts)
_PLAIN: Final = frozenset({str, bytes, int, float, bool, type(None)})
#: How many versions of one message are cached: the original, and one that a framework's reducer changed.
_VERSIONS: Final = 2


def _whole(event: Any) -> Any:
    return event


_contents_of = singledispatch(_whole)


def read_from(event_type: type, *attributes: str) -> None:
    """Register which attributes ``describe()`` reads of events of a type, so that changes of an event are noticed.

    `contents` returns the values of these attributes. While they stay equal, the result of ``describe()`` is cached.

    Args:
        event_type: The type. The attributes also apply to subclasses without their own ``describe()`` function.
        attributes: Every attribute that ``describe()`` reads, and the attribute with the framework's id.
    """
    read_as(event_type, attrgetter(*attributes))


#: For a function that `read_as` registered: the function that does the same for a sequence of events.
_CONTENTS_OF_ALL: Final[dict[Callable[[Any], Any], Callable[[Sequence[Any]], Sequence[Any]]]] = {}


def read_as(
    event_type: type,
    content: Callable[[Any], Any],
    contents_of_all: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> None:
    """Register, as `read_from` does, what ``describe()`` reads of events of a type, but as a function.

    Use it instead of `read_from` if ``describe()`` reads only a part of an attribute's value.

    Args:
        event_type: The type of the events. The function also applies to subclasses without their own ``describe()``
            function.
        content: Takes an event, and returns the values that ``describe()`` reads. For two events, the values must be
            equal exactly if ``describe()`` returns equal results.
        contents_of_all: Takes a sequence of events, and returns the same values for each of them. It runs over the
            whole conversation at each model call, so it should call no Python function per event.
    """
    _contents_of.register(event_type, content)
    if contents_of_all is not None:
        _CONTENTS_OF_ALL[content] = contents_of_all


_contents_of.register(dict, _whole)

#: The message types that `written_on` registered.
_WRITTEN_ON: Final[set[type]] = set()


def written_on(*event_types: type) -> None:
    """Register message types (without subclasses) whose objects a framework modifies after it sent them."""
    _WRITTEN_ON.update(event_types)


def may_change(events: Iterable[Any]) -> bool:
    """Return True if a framework may modify one of these events after it sent them (see `written_on`)."""
    return bool(_WRITTEN_ON) and not _WRITTEN_ON.isdisjoint(map(type, events))


def _getter(event_type: type) -> Callable[[Any], Any] | None:
    """Return the function that `read_from` or `read_as` registered for a type or its base class.

    None if there is none, or if the type has its own ``describe()`` function, which may read other content.
    """
    for base in event_type.__mro__:
        if base in _contents_of.registry and base is not object:
            return _contents_of.registry[base]
        if base in describe.registry:
            return None
    return None


def readable(events: Sequence[Any]) -> bool:
    """Return True if it is known which content ``describe()`` reads of all these events."""
    return None not in map(_getter, set(map(type, events)))


def contents(events: Sequence[Any]) -> Sequence[Any]:
    """Return the content that ``describe()`` reads of each event, not copied; the event itself if it is unknown."""
    types = list(map(type, events))
    getters = {event_type: _getter(event_type) or _whole for event_type in set(types)}
    distinct = set(getters.values())
    try:
        if len(distinct) > 1:
            return list(map(call, map(getters.__getitem__, types), events))
        getter = distinct.pop() if distinct else _whole
        if getter is _whole:
            return events
        contents_of_all = _CONTENTS_OF_ALL.get(getter)
        return list(map(getter, events)) if contents_of_all is None else contents_of_all(events)
    except AttributeError:
        return [_content(getters[type(event)], event) for event in events]


def _content(getter: Callable[[Any], Any], event: Any) -> Any:
    """Return the content of an event; the event itself if an attribute is missing."""
    try:
        return getter(event)
    except AttributeError:
        return event


def copied(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """Return a deep copy of a value, with which a later change in place can be detected.

    Circular references are not followed. Values that are nested more than 32 levels deep are not copied.

    Args:
        value: The value.
        inside: The ids of the containers around the value; empty for callers.
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
    """Return a copy of a framework's object, such as a tool result; the object itself if its type has no ``__eq__``.

    If copying fails, return an object that is unequal to every other, so that the event is read again.
    """
    own_equality: Any = type(value).__eq__
    if own_equality is object.__eq__:
        return value
    try:
        clone = copy(value)
        for name in _attributes(value):
            object.__setattr__(clone, name, copied(getattr(value, name), inside))
    except Exception:  # noqa: BLE001  # a framework's code can raise any exception
        return object()
    return clone


def _attributes(value: Any) -> Iterator[str]:
    """Yield the names of an object's attributes, also of those in ``__slots__``."""
    yield from getattr(value, "__dict__", ())
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                yield name


class DescribedEvent(NamedTuple):
    """An event's content and its `EventFacts`, at the time when ``describe()`` read the event.

    Attributes:
        content: A copy of the content that ``describe()`` read; the event itself if that content is unknown.
        facts: The return value of ``describe()``.
    """

    content: Any
    facts: EventFacts


class DescribedEvents:
    """A cache of the `EventFacts` of a conversation's messages, by the ids that the framework gave the messages."""

    __slots__ = ("_cache", "_max_size")

    def __init__(self) -> None:
        self._cache: dict[tuple[type, Any], tuple[DescribedEvent, ...]] = {}
        self._max_size = _SPARE

    def serve(self, events: int) -> None:
        """Set the maximum size of the cache for a conversation with `events` events."""
        self._max_size = _VERSIONS * events + _SPARE

    def of(self, event: Any) -> DescribedEvent:
        """Return the content and facts of an event, from the cache if its content has not changed.

        Raises:
            DescribeError: ``describe()`` failed.
        """
        getter = _getter(type(event))
        if getter is None:
            facts = describe(event)
            return DescribedEvent(copied(event) if isinstance(event, dict) else event, facts)
        content = _content(getter, event)
        name = event.get("id") if isinstance(event, dict) else getattr(event, "__dict__", _NOTHING).get("id")
        # Events without an id are found by ``id()``. If Python reuses that number, comparing the contents detects it.
        key = type(event), name if isinstance(name, str) and name != NO_ID else id(event)
        versions = self._cache.get(key, ())
        for version in versions:
            if equal(version.content, content):
                return version
        facts = describe(event)
        described = DescribedEvent(copied(content), facts)
        self._cache[key] = (described, *versions[: _VERSIONS - 1])
        while len(self._cache) > self._max_size:
            del self._cache[next(iter(self._cache))]
        return described


_NOTHING: Final[Mapping[str, Any]] = {}


def changed(before: Sequence[Any], now: Sequence[Any]) -> Iterator[int]:
    """Yield the indexes at which two lists of contents differ. The comparison runs in C."""
    return compress(range(len(before)), map(ne, before, now))


def says_the_same(then: DescribedEvent, now: DescribedEvent) -> bool:
    """Return True if two events are the same message with equal content. A missing id matches any id.

    Args:
        then: The event as it was read earlier.
        now: The event as it was read now.
    """
    before, after = then.facts, now.facts
    if (
        have_different_ids(before, after)
        or comparison_key(before) != comparison_key(after)
        or [*before.awaiting] != [*after.awaiting]
    ):
        return False
    return not before.media_tokens or _same_parts(then.content, now.content)


def have_different_ids(left: EventFacts, right: EventFacts) -> bool:
    """Return True if both events have an id that identifies them (`EventFacts.id_given`) and the ids differ."""
    return left.id != right.id and None not in {left.id, right.id} and left.id_given and right.id_given


def comparison_key(facts: EventFacts) -> tuple[Any, ...]:
    """Return the properties by which two events are compared: what the model reads, and the ids of calls."""
    return str(facts.kind), facts.texts, (*facts.opens,), (*facts.closes,), facts.media_tokens


def equal(left: Any, right: Any) -> bool:
    """Return True if two values are equal. A comparison that fails counts as unequal."""
    try:
        return bool(left == right)
    except Exception:  # noqa: BLE001  # a framework's code can raise any exception
        return False


def _same_parts(left: Any, right: Any) -> bool:
    """Return True if two contents are equal. Objects without ``__eq__`` are compared by their attributes."""
    if equal(left, right):
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_same_parts, left, right))
    values, others = getattr(left, "__dict__", _NOTHING), getattr(right, "__dict__", _NOTHING)
    if not values or values.keys() != others.keys():
        return False
    return all(_same_parts(value, others[name]) for name, value in values.items())
