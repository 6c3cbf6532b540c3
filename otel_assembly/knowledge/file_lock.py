"""A lock for a file of a knowledge store, for long read-modify-write operations.

The lock is a second file, with a random text of its holder. There is no heartbeat, and no clocks of machines are
compared: a waiting process measures how long the random text stays the same. The lock only avoids duplicate work; that
no update is lost is guaranteed by `ComparingKnowledgeStore.replace`, which writes the locked file.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from otel_assembly.errors import KnowledgeConflictError, KnowledgeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from otel_assembly.knowledge.store import ComparingKnowledgeStore

#: The longest wait for all holders of the lock together, as a multiple of the longest wait for one holder.
_HOLDERS: Final = 10

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5

_log = logging.getLogger("otel_assembly")


@asynccontextmanager
async def file_lock(store: ComparingKnowledgeStore, path: str, patience: float) -> AsyncIterator[None]:
    """Acquire the lock of a file, and release it at the end of the block.

    Args:
        store: The store of the file.
        path: The file; the lock file is ``{path}.lock``.
        patience: The seconds after which the holder of the lock is considered dead and loses the lock.

    Raises:
        KnowledgeConflictError: The wait exceeded ten times `patience`.
    """
    lock, token = f"{path}.lock", secrets.token_hex(16)
    try:
        await _acquire(store, lock, token, patience, path)
        yield
    finally:
        # Also after a cancelled wait, because the lock file may have been written. If the lock is not released, the
        # next process waits for its whole patience.
        with suppress(KnowledgeError):
            await store.replace(lock, token, None)


async def _acquire(store: ComparingKnowledgeStore, lock: str, token: str, patience: float, path: str) -> None:
    now = asyncio.get_running_loop().time
    start = unchanged_since = now()
    holder: str | None = None
    pause = _FIRST_PAUSE
    while not await store.replace(lock, None, token):
        current = await store.read(lock)
        if current != holder:
            holder, unchanged_since = current, now()
        elif current is not None and now() - unchanged_since >= patience and await store.replace(lock, current, token):
            _log.warning("an update of the knowledge did not end within %g s; the next update starts", patience)
            return
        if now() - start >= _HOLDERS * patience:
            raise KnowledgeConflictError(
                f"{path!r} was not available within {_HOLDERS * patience:g} s, because other processes change it; "
                "nothing was written: try again later, or let fewer processes change it"
            )
        if current is not None:
            # A random pause, so that no process is always too late.
            await asyncio.sleep(min(pause, patience / 4) * (1 + secrets.randbelow(100) / 100))
            pause = min(2 * pause, _LONGEST_PAUSE)
