"""What a forked child cannot take over from its parent as it is: locks, and the state that stands behind them.

A fork copies all memory and one thread, the one that forks. What another thread held is held in the child for ever, and
what it was changing stays half changed. So every lock of this package comes from `new_lock`, and who keeps what belongs
to one process alone (the ledger of a conversation, an open file, a queue) begins it anew by `in_child`.
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

    #: What `new_lock` gives.
    Lock: TypeAlias = threading.RLock

#: Seconds that a fork waits for whoever must not be interrupted by it.
PATIENCE: Final = 1.0

Owner = TypeVar("Owner")
Key = TypeVar("Key")
T = TypeVar("T")

logger = logging.getLogger("otel_assembly")

#: Whoever has to put right what each guards, and how.
_locks: dict[ref[Lock], tuple[ref[Any], Callable[[Any], None]] | None] = {}
_children: dict[int, tuple[ref[Any], Callable[[Any], None]]] = {}
_numbers = count()
_awaited: dict[ref[Lock], None] = {}
#: The locks that a thread took before it forks.
_taken: dict[int, list[Lock]] = {}


def new_lock(owner: Owner | None = None, mend: Callable[[Owner], None] | None = None, *, awaited: bool = False) -> Lock:
    """A lock that is free in a forked child, unless the very thread that forked holds it: that one lets go itself.

    It is re-entrant, for that is how a lock knows who holds it. It costs what any other lock costs.

    Args:
        owner: Whose lock it is.
        mend: Called with the owner in a child if another thread held the lock as the process forked: puts right what
            that thread may have left half changed.
        awaited: Whether a fork waits for the lock, for a moment at most: for what must not be caught half way, such as
            a call into a library with locks of its own. Only for locks under which no other one is taken.
    """
    lock = threading.RLock()
    # A WeakMethod would say the same, and take longer than all the rest; a history is made for many an assembly.
    _locks[ref(lock, _locks.pop)] = (ref(owner), mend) if mend is not None else None
    if awaited:
        _awaited[ref(lock, _awaited.pop)] = None
    return lock


def in_child(begin: Callable[[], None]) -> None:
    """Have a method called in every forked child, for as long as its object lives."""
    key = next(_numbers)
    owner, method = begin.__self__, begin.__func__  # type: ignore[attr-defined]  # it is a method
    # Bound to what it calls: as the interpreter ends, the names of a module are gone before its objects.
    _children[key] = ref(owner, partial(_forget, _children, key)), method


def _forget(held: dict[Key, Any], key: Key, _: object) -> None:
    held.pop(key, None)


def _entries(held: dict[Key, T]) -> list[tuple[Key, T]]:
    """What a dictionary holds, from which the garbage collector may take entries away while it is listed."""
    while True:
        try:
            return list(held.items())
        except RuntimeError:  # it changed its size: what was collected is gone by now
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


class worked_out_once(Generic[Owner, T]):  # noqa: N801  # used as a decorator
    """A property that is worked out when it is first asked for, and kept in the object's ``__dict__``.

    As `functools.cached_property`, but that one, until Python 3.12, works under a lock that all objects of a class
    share, and that a fork leaves locked. Two threads that ask at once may both work it out; one answer is kept.
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
