"""Runs a function that may hang in a thread of its own, for so long and no longer.

A thread cannot be stopped from outside. One that is late is left behind: it is a daemon, so the interpreter's exit does
not wait for it, and while too many of them still hang no further one is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.forks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable

#: Threads of this process that may hang past their deadline before no further one is started.
MAX_HANGING: Final = 16
_MAX_NAMES: Final = 64

_log = logging.getLogger("otel_assembly")
_lock = new_lock()
_hanging: list[threading.Thread] = []
_told: set[str] = set()


class DeadlinePassed(Exception):  # noqa: N818  # caught beside this file, never seen by a user
    """The function did not return in time."""


class TooManyHang(Exception):  # noqa: N818  # caught beside this file, never seen by a user
    """So many threads still hang that none was started."""


def hanging() -> int:
    """How many threads have been left behind and still run."""
    with _lock:
        # Asked of the threads themselves: that is also right in a forked child, which has none of them.
        _hanging[:] = [thread for thread in _hanging if thread.is_alive()]
        return len(_hanging)


def call_within(call: Callable[[], Any], deadline: float, name: str) -> Any:
    """What `call` returns or raises.

    Args:
        call: Runs in the caller's context variables.
        deadline: Seconds.
        name: Who is called, for the log.

    Raises:
        DeadlinePassed: It did not return in time.
        TooManyHang: It was not called.
    """
    finished = threading.Event()
    work = _Work(call, finished.set)
    work.start(bounded=True)
    try:
        if not finished.wait(deadline):
            _tell(name, deadline)
            raise DeadlinePassed
    finally:
        if not finished.is_set():
            work.leave()
    return work.outcome()


async def acall_within(call: Callable[[], Any], deadline: float | None, name: str) -> Any:
    """As `call_within`, without blocking the loop; a cancelled caller leaves the thread behind.

    With no deadline, `call` is one that cannot hang: it is called in any case, and not counted among those that do.
    """
    loop = asyncio.get_running_loop()
    finished = asyncio.Event()

    def finish() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, so nobody waits
            loop.call_soon_threadsafe(finished.set)

    work = _Work(call, finish)
    work.start(bounded=deadline is not None)
    try:
        async with asyncio.timeout(deadline):
            await finished.wait()
    except TimeoutError:
        _tell(name, deadline or 0.0)
        raise DeadlinePassed from None
    finally:
        if deadline is not None and not finished.is_set():
            work.leave()
    return work.outcome()


def _tell(name: str, deadline: float) -> None:
    with _lock:
        if name in _told or len(_told) >= _MAX_NAMES:
            return
        _told.add(name)
    _log.warning(
        "the compactor %s did not return within %g seconds, and a thread cannot be stopped: it is left behind. Give "
        "the compactor a timeout of its own. This is said once.",
        name,
        deadline,
    )


class _Work:
    __slots__ = ("_call", "_context", "_error", "_finish", "_result", "_thread")

    def __init__(self, call: Callable[[], Any], finish: Callable[[], Any]) -> None:
        self._call = call
        self._context = contextvars.copy_context()
        self._finish = finish
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="otel-assembly-compactor", daemon=True)

    def start(self, *, bounded: bool) -> None:
        if bounded and hanging() >= MAX_HANGING:
            raise TooManyHang
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._context.run(self._call)
        except BaseException as error:  # noqa: BLE001  # raised again where the caller waits
            self._error = error
        finally:
            self._finish()

    def leave(self) -> None:
        with _lock:
            _hanging.append(self._thread)

    def outcome(self) -> Any:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result
