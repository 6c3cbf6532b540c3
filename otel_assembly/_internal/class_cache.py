"""A cache of values by class that keeps no class alive."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def cached_by_class(function: Callable[[type], T]) -> Callable[[type], T]:
    """Call a function once for each class.

    `functools.cache` would keep classes alive that programs make in functions, with all that they refer to.
    """
    values: WeakKeyDictionary[type, T] = WeakKeyDictionary()

    @wraps(function)
    def cached(kind: type) -> T:
        try:
            return values[kind]
        except KeyError:
            value = values[kind] = function(kind)
            return value

    return cached
