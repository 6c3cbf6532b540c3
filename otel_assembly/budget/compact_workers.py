"""Runs a function that may hang in a separate thread, with a deadline.

Python cannot stop a thread. If a function exceeds its deadline, its thread is abandoned: the caller no longer waits for
it. It is a daemon thread, so it does not delay the interpreter's exit. While too many abandoned threads still run, no
further thread is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.fork_safety import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable

#: If so many abandoned threads of this process still run, further calls are refused.
MAX_HANGING: Final = 16
_MAX_NAMES: Final = 64

_log = logging.getLogger("otel_assembly")
_lock = new_lock()
_hanging: list[threading.Thread] = []
_warned_names: set[str] = set()


class DeadlinePassed(Exception):  # noqa: N818  # caught by the compactors, never raised to users
    """Raised if the function did not return before its deadline."""


class TooManyHang(Exception):  # noqa: N818  # caught by the compactors, never raised to users
    """Raised instead of calling the function, if too many abandoned threads still run."""


def count_hanging() -> int:
    """Return the number of abandoned threads that still run."""
    with _lock:
        # In a forked child, none of these threads run, and `is_alive` returns False.
        _hanging[:] = [thread for thread in _hanging if thread.is_alive()]
        return len(_hanging)


def call_with_deadline(call: Callable[[], Any], deadline: float, name: str) -> Any:
    """Run `call` in a separate thread, and return its result or raise its error.

    Args:
        call: The function; it runs with a copy of the caller's context variables.
        deadline: The maximum time to wait, in seconds.
        name: The function's name, for the log.

    Raises:
        DeadlinePassed: The function did not return in time; its thread is abandoned.
        TooManyHang: Too many abandoned threads still run, so the function was not called.
    """
    finished = threading.Event()
    work = _Work(call, finished.set)
    work.start(refusable=True)
    try:
        if not finished.wait(deadline):
            _warn_late(name, deadline)
            raise DeadlinePassed
    finally:
        if not finished.is_set():
            work.abandon()
    return work.outcome()


async def call_with_deadline_async(call: Callable[[], Any], deadline: float | None, name: str) -> Any:
    """Run `call` in a separate thread as `call_with_deadline` does, without blocking the event loop.

    If the caller's task is canceled, the thread is abandoned. If `deadline` is None, `call` must be a function that
    cannot hang; it is called even if many abandoned threads still run.
    """
    loop = asyncio.get_running_loop()
    finished = asyncio.Event()

    def finish() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(finished.set)

    work = _Work(call, finish)
    work.start(refusable=deadline is not None)
    try:
        async with asyncio.timeout(deadline):
            await finished.wait()
    except TimeoutError:
        _warn_late(name, deadline or 0.0)
        raise DeadlinePassed from None
    finally:
        if deadline is not None and not finished.is_set():
            work.abandon()
    return work.outcome()


def _warn_late(name: str, deadline: float) -> None:
    with _lock:
        if name in _warned_names or len(_warned_names) >= _MAX_NAMES:
            return
        _warned_names.add(name)
    _log.warning(
        "the compactor %s did not return within %g seconds; its thread cannot be stopped and may still be running. "
        "Set a timeout inside the compactor. This is logged once.",
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

    def start(self, *, refusable: bool) -> None:
        if refusable and count_hanging() >= MAX_HANGING:
            raise TooManyHang
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._context.run(self._call)
        except BaseException as error:  # noqa: BLE001  # raised again where the caller waits
            self._error = error
        finally:
            self._finish()

    def abandon(self) -> None:
        with _lock:
            _hanging.append(self._thread)

    def outcome(self) -> Any:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result
