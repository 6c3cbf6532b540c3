"""Exclusive turns at a file of a knowledge store, for long read-modify-write operations.

The holder of a turn writes a lock file with a random text. No clocks are compared and there is no heartbeat: a waiting
process measures how long the text stays the same. A turn only avoids duplicate work; `ComparingKnowledgeStore.replace`,
which writes the file itself, guarantees that no update is lost.
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

#: The wait for all holders together, as a multiple of the wait for one.
_HOLDERS: Final = 10

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5

_log = logging.getLogger("otel_assembly")


@asynccontextmanager
async def turn_at(store: ComparingKnowledgeStore, path: str, patience: float) -> AsyncIterator[None]:
    """Wait for the turn at a file, and keep it until the end of the block.

    Args:
        store: The store of the file.
        path: The file; the lock file is ``{path}.lock``.
        patience: The seconds after which the holder of the turn is considered dead and loses it.

    Raises:
        KnowledgeConflictError: The wait exceeded ten times `patience`.
    """
    lock, mine = f"{path}.lock", secrets.token_hex(16)
    try:
        await _take(store, lock, mine, patience, path)
        yield
    finally:
        # Also after a cancelled wait, because the store may have granted the turn. If it is not released, the next
        # process waits for its whole patience.
        with suppress(KnowledgeError):
            await store.replace(lock, mine, None)


async def _take(store: ComparingKnowledgeStore, lock: str, mine: str, patience: float, path: str) -> None:
    now = asyncio.get_running_loop().time
    began = since = now()
    holder: str | None = None
    pause = _FIRST_PAUSE
    while not await store.replace(lock, None, mine):
        current = await store.read(lock)
        if current != holder:
            holder, since = current, now()
        elif current is not None and now() - since >= patience and await store.replace(lock, current, mine):
            _log.warning("an update of the knowledge did not end within %g s; the next update starts", patience)
            return
        if now() - began >= _HOLDERS * patience:
            raise KnowledgeConflictError(
                f"{path!r} was not available within {_HOLDERS * patience:g} s, because other processes change it; "
                "nothing was written: try again later, or let fewer processes change it"
            )
        if current is not None:
            # Random, so that no process is always the last one.
            await asyncio.sleep(min(pause, patience / 4) * (1 + secrets.randbelow(100) / 100))
            pause = min(2 * pause, _LONGEST_PAUSE)
