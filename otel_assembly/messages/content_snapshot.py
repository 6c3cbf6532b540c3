"""Detection of changed messages, by comparing them with copies.

If a framework persists a conversation, each turn creates new objects for the same messages. The facts of a message stay
valid for a new object with equal content. So the content that ``describe()`` reads is copied and compared. A message is
described again only if its content has changed, regardless of its id.
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

#: Messages that are cached in addition to those of the conversation itself.
_SPARE: Final = 1_024
#: Changes in place are detected up to this depth of nesting.
_DEEPEST: Final = 32
#: Immutable types, which are not copied.
_FIXED: Final = (str, bytes, int, float, type, Enum, EventFacts)
_PLAIN: Final = frozenset({str, bytes, int, float, bool, type(None)})
#: Versions of one message that are cached: the original, and one that a reducer changed.
_VERSIONS: Final = 2


def _whole(event: Any) -> Any:
    return event


_contents_of = singledispatch(_whole)


def read_from(event_type: type, *attributes: str) -> None:
    """Register the attributes that ``describe()`` reads of a type, so that equal objects share their facts.

    Args:
        event_type: The type. The attributes also apply to subclasses without their own ``describe()`` function.
        attributes: Every attribute that ``describe()`` reads, and the framework's id.
    """
    read_as(event_type, attrgetter(*attributes))


def read_as(event_type: type, content: Callable[[Any], Any]) -> None:
    """Register a function that returns the content that ``describe()`` reads of a type.

    Use it instead of `read_from` if ``describe()`` reads only a part of the attributes.

    Args:
        event_type: The type, and its subclasses, as for `read_from`.
        content: Returns equal values for two events exactly if their facts are equal.
    """
    _contents_of.register(event_type, content)


_contents_of.register(dict, _whole)

#: Message types that a framework modifies after sending.
_WRITTEN_ON: Final[set[type]] = set()


def written_on(*event_types: type) -> None:
    """Register message types (without subclasses) that a framework modifies after sending."""
    _WRITTEN_ON.update(event_types)


def may_change(events: Iterable[Any]) -> bool:
    """Return True if a framework may modify one of these events after sending."""
    return bool(_WRITTEN_ON) and not _WRITTEN_ON.isdisjoint(map(type, events))


def _getter(event_type: type) -> Callable[[Any], Any] | None:
    """Return the function that reads a type's content.

    None if the content is unknown, because a subclass has its own ``describe()`` function.
    """
    for base in event_type.__mro__:
        if base in _contents_of.registry and base is not object:
            return _contents_of.registry[base]
        if base in describe.registry:
            return None
    return None


def readable(events: Sequence[Any]) -> bool:
    """Return True if the content of all these events is known."""
    return None not in map(_getter, set(map(type, events)))


def contents(events: Sequence[Any]) -> Sequence[Any]:
    """Return the content of each event, not copied. If it is unknown, the event itself."""
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
    """Return the content of an event; for a malformed event, the event itself."""
    try:
        return getter(event)
    except AttributeError:
        return event


def copied(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """Return a copy of a content, so that a later change in place can be detected.

    Circular references are not followed. Nesting is copied up to a depth of 32.
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
    """Return a copy of a framework's object, such as a tool result, if its type defines ``__eq__``.

    If the copy fails, return an object that equals nothing, so that the event is described again.
    """
    own_equality: Any = type(value).__eq__
    if own_equality is object.__eq__:
        return value
    try:
        clone = copy(value)
        for name in _attributes(value):
            object.__setattr__(clone, name, copied(getattr(value, name), inside))
    except Exception:  # noqa: BLE001  # foreign code can raise anything
        return object()
    return clone


def _attributes(value: Any) -> Iterator[str]:
    """Yield the names of an object's attributes."""
    yield from getattr(value, "__dict__", ())
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                yield name


class DescribedEvent(NamedTuple):
    """An event's content and facts.

    Attributes:
        content: A copy of the content that ``describe()`` read. If the content is unknown, the event itself.
        facts: The return value of ``describe()``.
    """

    content: Any
    facts: EventFacts


class DescribedEvents:
    """A cache of the facts of a conversation's messages, by the ids of their framework."""

    __slots__ = ("_held", "_most")

    def __init__(self) -> None:
        self._held: dict[tuple[type, Any], tuple[DescribedEvent, ...]] = {}
        self._most = _SPARE

    def serve(self, events: int) -> None:
        """Set the size of the cache for a conversation of this many events."""
        self._most = _VERSIONS * events + _SPARE

    def of(self, event: Any) -> DescribedEvent:
        """Return the content and facts of an event.

        Raises:
            DescribeError: ``describe()`` failed.
        """
        getter = _getter(type(event))
        if getter is None:
            facts = describe(event)
            return DescribedEvent(copied(event) if isinstance(event, dict) else event, facts)
        content = _content(getter, event)
        name = event.get("id") if isinstance(event, dict) else getattr(event, "__dict__", _NOTHING).get("id")
        # Events without an id are found by identity. If Python reuses an identity, comparing the contents detects it.
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
    """Yield the indexes at which the contents differ. The comparison runs in C."""
    return compress(range(len(before)), map(ne, before, now))


def says_the_same(then: DescribedEvent, now: DescribedEvent) -> bool:
    """Return True if two events are the same message with equal content. A missing id matches any id."""
    one, other = then.facts, now.facts
    if (
        have_different_ids(one, other)
        or comparison_key(one) != comparison_key(other)
        or [*one.awaiting] != [*other.awaiting]
    ):
        return False
    return not one.media_tokens or _same_parts(then.content, now.content)


def have_different_ids(one: EventFacts, other: EventFacts) -> bool:
    """Return True if both events have an assigned id and the ids differ."""
    return one.id != other.id and None not in {one.id, other.id} and one.id_given and other.id_given


def comparison_key(facts: EventFacts) -> tuple[Any, ...]:
    """Return the parts of an event's facts that the model reads, and the ids of its calls."""
    return str(facts.kind), facts.texts, (*facts.opens,), (*facts.closes,), facts.media_tokens


def equal(one: Any, other: Any) -> bool:
    """Return True if two values are equal. A comparison that fails counts as unequal."""
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  # foreign code can raise anything
        return False


def _same_parts(one: Any, other: Any) -> bool:
    """Return True if two contents are equal. Objects without ``__eq__`` are compared by their attributes."""
    if equal(one, other):
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same_parts, one, other))
    held, others = getattr(one, "__dict__", _NOTHING), getattr(other, "__dict__", _NOTHING)
    return bool(held) and held.keys() == others.keys() and all(_same_parts(held[name], others[name]) for name in held)
