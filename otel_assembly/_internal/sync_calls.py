"""Run coroutines for a synchronous caller: in place if they wait for nothing, or else on an event loop of their own."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

T = TypeVar("T")


def run_in_place(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing to its end, without an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("a coroutine that was run in place waited for an event loop")


def run_blocking(awaitable: Awaitable[T]) -> T:
    """Run an awaitable to its end on a new event loop, and return its result. The caller's thread blocks until then.

    The new loop runs in the caller's thread. If that thread runs an event loop already, the new loop runs in a daemon
    thread, because a thread has at most one running loop. The caller's loop is then blocked, too: its other tasks run
    again when this function returns. The awaitable must not wait for one of them, or both wait forever.

    The awaitable runs in a copy of the caller's context variables. An interrupt (Ctrl-C) cancels the awaitable, and is
    raised when the awaitable has ended; a second interrupt is raised immediately.
    """
    loop = asyncio.new_event_loop()
    # With a factory, the runner does not change the thread's default event loop, which belongs to the program.
    runner = asyncio.Runner(loop_factory=lambda: loop)
    if not _runs_event_loop():
        with runner:
            return runner.run(_awaited(awaitable))
    ended: Future[T] = Future()
    context = contextvars.copy_context()

    def run_in_thread() -> None:
        try:
            with runner:
                result = runner.run(_awaited(awaitable), context=context)
        except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
            ended.set_exception(error)
        else:
            ended.set_result(result)

    thread = threading.Thread(target=run_in_thread, name="otel-assembly-sync", daemon=True)
    try:
        thread.start()
        return ended.result()
    except BaseException:
        if not ended.done():
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(_cancel_all, loop)
            if thread.is_alive():  # else it could not be started
                wait([ended])
        raise


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


def _runs_event_loop() -> bool:
    """Return whether this thread runs an event loop of asyncio, or of another library (trio)."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return True
    sniffio = sys.modules.get("sniffio")
    return sniffio is not None and sniffio.thread_local.name is not None
