"""What is remembered by conversation, or by model: bounded, and never what keeps a conversation alive."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import KeyedRef, ref

from otel_assembly._internal.forks import in_child, new_lock

if TYPE_CHECKING:
    from collections.abc import Callable

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    reference: KeyedRef[Any, Any] | None
    weight: int = 0


class Registry(Generic[K, V]):
    """Values by key; past a limit, the value that was asked for least recently is forgotten.

    A text, a tuple or None is a key by its value. Any other key is an object known by its identity: it is referred to
    weakly, and its value is forgotten as soon as everybody else has let go of it.

    Args:
        limit: How many values are remembered.
        anew_in_child: Whether a forked child begins without any, because its parent goes on with them.
    """

    __slots__ = ("__weakref__", "_entries", "_gone", "_limit", "_lock", "_weight")

    def __init__(self, limit: int, *, anew_in_child: bool = False) -> None:
        self._limit = limit
        self._lock = new_lock()
        self._gone = partial(_forget_dead, ref(self))
        self.clear()
        if anew_in_child:
            in_child(self.clear)

    def clear(self) -> None:
        """Forget every value."""
        self._entries: OrderedDict[Any, _Entry[V]] = OrderedDict()
        self._weight = 0

    def get(self, key: K) -> V | None:
        """The value of a key; None where there is none."""
        with self._lock:
            name = _name(key)
            entry = self._entries.get(name)
            if entry is None or (entry.reference is not None and entry.reference() is not key):
                return None
            self._entries.move_to_end(name)
            return entry.value

    def of(self, key: K, new: Callable[[], V]) -> V:
        """The value of a key; where there is none, a new one."""
        with self._lock:
            value = self.get(key)
            return self.put(key, new()) if value is None else value

    def put(self, key: K, value: V) -> V:
        """Remember this value of a key; it is returned."""
        name = _name(key)
        with self._lock:
            self._forget(name)
            reference = None if name is key else KeyedRef(key, self._gone, name)
            self._entries[name] = _Entry(value, reference)
            while len(self._entries) > self._limit:
                self._forget(next(iter(self._entries)))
        return value

    def weigh(self, key: K, weight: int, most: int) -> None:
        """Note what a value weighs now; the least recently used ones make room where all together weigh too much.

        Args:
            key: Whose value it is; the one that was asked for last is never forgotten for its weight.
            weight: Its weight.
            most: What all values may weigh together.
        """
        with self._lock:
            entry = self._entries.get(_name(key))
            if entry is None:
                return
            self._weight += weight - entry.weight
            entry.weight = weight
            while self._weight > most and len(self._entries) > 1:
                self._forget(next(iter(self._entries)))

    def _forget(self, name: Any, reference: object = None) -> None:
        """Forget the entry of this name, if it is still that of this reference."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None and (reference is None or entry.reference is reference):
                del self._entries[name]
                self._weight -= entry.weight

    def __len__(self) -> int:
        return len(self._entries)


def _name(key: Any) -> Any:
    return key if key is None or isinstance(key, str | tuple) else id(key)


def _forget_dead(registry: ref[Registry[Any, Any]], reference: KeyedRef[Any, Any]) -> None:
    alive = registry()
    if alive is not None:
        alive._forget(reference.key, reference)  # noqa: SLF001  # of a class of this module
