"""Fork safety: locks that are free in a forked child, and state that the child resets.

A fork copies all memory but only the thread that forks. A lock of another thread is never released in the child, and
the data that it protects may be half changed. Therefore each lock of this package comes from `new_lock`, and objects
with state of one process (the ledger of a conversation, an open file, a queue) reset it in a method registered by
`after_fork_in_child`.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, TypeAlias

    #: The type of `new_lock`.
    Lock: TypeAlias = threading.RLock

#: The seconds that a fork waits for an awaited lock.
PATIENCE: Final = 1.0

Owner = TypeVar("Owner")
Key = TypeVar("Key")
T = TypeVar("T")

logger = logging.getLogger("otel_assembly")

#: The owner of each lock, with the method that repairs its state.
_locks: dict[ref[Lock], tuple[ref[Any], Callable[[Any], None]] | None] = {}
_children: dict[int, tuple[ref[Any], Callable[[Any], None]]] = {}
_numbers = count()
_awaited: dict[ref[Lock], None] = {}
#: The locks that a thread took before it forks.
_taken: dict[int, list[Lock]] = {}


def new_lock(
    owner: Owner | None = None, repair: Callable[[Owner], None] | None = None, *, awaited: bool = False
) -> Lock:
    """Return a lock that is free in a forked child, unless the forking thread holds it and releases it itself.

    The lock is re-entrant, because only such a lock knows its holder.

    Args:
        owner: The object that the lock protects.
        repair: Called with the owner in a child if another thread held the lock during the fork, to repair state that
            this thread may have left half changed.
        awaited: Whether a fork waits up to `PATIENCE` for the lock, for example during a call into a library with locks
            of its own. Only for locks under which no other lock is taken.
    """
    lock = threading.RLock()
    # A WeakMethod would do the same but is slower than the rest of this function, which runs for many assemblies.
    _locks[ref(lock, _locks.pop)] = (ref(owner), repair) if repair is not None else None
    if awaited:
        _awaited[ref(lock, _awaited.pop)] = None
    return lock


def after_fork_in_child(begin: Callable[[], None]) -> None:
    """Call a method in each forked child, as long as its object lives."""
    key = next(_numbers)
    owner, method = begin.__self__, begin.__func__  # type: ignore[attr-defined]  # it is a method
    # Bound early: when the interpreter ends, a module's names are deleted before its objects.
    _children[key] = ref(owner, partial(_forget, _children, key)), method


def _forget(entries: dict[Key, Any], key: Key, _: object) -> None:
    entries.pop(key, None)


def _entries(entries: dict[Key, T]) -> list[tuple[Key, T]]:
    """Return the entries of a dictionary from which the garbage collector may remove entries meanwhile."""
    while True:
        try:
            return list(entries.items())
        except RuntimeError:  # the garbage collector removed an entry
            continue


def _before() -> None:
    patience = monotonic() + PATIENCE
    taken = _taken[threading.get_ident()] = []
    for reference, _ in _entries(_awaited):
        lock = reference()
        if lock is not None and lock.acquire(timeout=max(0.0, patience - monotonic())):
            taken.append(lock)


def _release() -> None:
    for lock in _taken.pop(threading.get_ident(), ()):
        lock.release()


def _in_child() -> None:
    _release()
    _taken.clear()  # of threads that forked at the same time
    calls: list[Callable[[], None]] = []
    for reference, mend in _entries(_locks):
        lock = reference()
        if lock is None:
            continue
        if lock.acquire(blocking=False):
            lock.release()  # free, or held by the thread that forked
            continue
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001  # as the standard library does with its own
        if mend is not None and (owner := mend[0]()) is not None:
            calls.append(partial(mend[1], owner))
    calls += [partial(begin, held) for _, (owner, begin) in _entries(_children) if (held := owner()) is not None]
    for call in calls:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # the others have to be put right as well
            logger.warning("%s could not be put right after a fork: %s", call, type(error).__name__)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)


class lazy_property(Generic[Owner, T]):  # noqa: N801  # used as a decorator
    """A property that is computed on first use and kept in the object's ``__dict__``.

    It replaces `functools.cached_property`, which uses one lock for all objects of a class before Python 3.12: a fork
    can leave that lock locked. Two concurrent threads may both compute the value; one result is kept.
    """

    def __init__(self, work: Callable[[Owner], T]) -> None:
        self._work = work
        self.__doc__ = work.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Owner, owner: type) -> T: ...
    def __get__(self, instance: Owner | None, owner: type) -> Self | T:
        if instance is None:
            return self
        answer: T = instance.__dict__.setdefault(self._name, self._work(instance))
        return answer
