"""A bounded cache, for example by conversation or model, that keeps no key alive."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import KeyedRef, ref

from otel_assembly._internal.fork_safety import after_fork_in_child, new_lock

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
    """Values by key, at most `limit`; the least recently used value is removed first.

    Keys that are texts, tuples or None are compared by value. Other keys are compared by identity and referenced
    weakly: their values are removed when the key is garbage collected.

    Args:
        limit: The maximum number of values.
        clear_after_fork: Whether a forked child starts without values, because they belong to its parent.
    """

    __slots__ = ("__weakref__", "_entries", "_limit", "_lock", "_on_collected", "_weight")

    def __init__(self, limit: int, *, clear_after_fork: bool = False) -> None:
        self._limit = limit
        self._lock = new_lock()
        self._on_collected = partial(_forget_dead, ref(self))
        self.clear()
        if clear_after_fork:
            after_fork_in_child(self.clear)

    def clear(self) -> None:
        """Remove all values."""
        self._entries: OrderedDict[Any, _Entry[V]] = OrderedDict()
        self._weight = 0

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        with self._lock:
            name = _name(key)
            entry = self._entries.get(name)
            if entry is None or (entry.reference is not None and entry.reference() is not key):
                return None
            self._entries.move_to_end(name)
            return entry.value

    def of(self, key: K, new: Callable[[], V]) -> V:
        """Return the value of a key; create it if there is none."""
        with self._lock:
            value = self.get(key)
            return self.put(key, new()) if value is None else value

    def put(self, key: K, value: V) -> V:
        """Set the value of a key, and return it."""
        name = _name(key)
        with self._lock:
            self._forget(name)
            reference = None if name is key else KeyedRef(key, self._on_collected, name)
            self._entries[name] = _Entry(value, reference)
            while len(self._entries) > self._limit:
                self._forget(next(iter(self._entries)))
        return value

    def weigh(self, key: K, weight: int, most: int) -> None:
        """Set the weight of a value, and remove the least recently used values while the sum is above a limit.

        Args:
            key: The key of the value. The last used value is never removed because of its weight.
            weight: The weight of the value.
            most: The maximum sum of all weights.
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
