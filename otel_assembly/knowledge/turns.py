"""Turns at a file of a knowledge store: one after the other reads it, thinks for long, and writes.

Whoever's turn it is has a file beside it, with a text of its own. No clock of another process is read, and nobody has
to show that it lives: who waits looks how long that text has stayed the same. A turn saves work that would be done
twice, and no more; that nothing is lost rests on `ComparingKnowledgeStore.replace`, by which the file is written.
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

#: How often as long as for one holder is waited for all of them.
_HOLDERS: Final = 10

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5

_log = logging.getLogger("otel_assembly")


@asynccontextmanager
async def turn_at(store: ComparingKnowledgeStore, path: str, patience: float) -> AsyncIterator[None]:
    """Wait until it is our turn at a file, and have it until the end of the block.

    Args:
        store: Where the file is.
        path: The file; beside it ``{path}.lock`` says whose turn it is.
        patience: Seconds after which one that has its turn is taken to have died, and loses it.

    Raises:
        KnowledgeConflictError: So many others had their turns that it has taken ten times as long.
    """
    lock, mine = f"{path}.lock", secrets.token_hex(16)
    try:
        await _take(store, lock, mine, patience, path)
        yield
    finally:
        # Also where the wait was cancelled: the store may have given it to us even so. Where it is not given back, the
        # next one waits for its patience's length.
        with suppress(KnowledgeError):
            await store.replace(lock, mine, None)


async def _take(store: ComparingKnowledgeStore, lock: str, mine: str, patience: float, path: str) -> None:
    now = asyncio.get_running_loop().time
    began = since = now()
    holder: str | None = None
    pause = _FIRST_PAUSE
    while not await store.replace(lock, None, mine):
        held = await store.read(lock)
        if held != holder:
            holder, since = held, now()
        elif held is not None and now() - since >= patience and await store.replace(lock, held, mine):
            _log.warning(
                "whoever was changing the knowledge did not come to an end in %g s; the next goes on", patience
            )
            return
        if now() - began >= _HOLDERS * patience:
            raise KnowledgeConflictError(
                f"{path!r} was not to be had in {_HOLDERS * patience:g} s, for others change it; nothing was written: "
                "try again later, or have fewer processes change it"
            )
        if held is not None:
            # Not all at the same moments, so that none is always the later one.
            await asyncio.sleep(min(pause, patience / 4) * (1 + secrets.randbelow(100) / 100))
            pause = min(2 * pause, _LONGEST_PAUSE)
