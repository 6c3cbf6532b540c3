"""`QueuedWriteGate`: queues proposals of memories, and passes them to another write gate in the background."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Self

from otel_assembly._internal.arguments import items_of_type, whole_number
from otel_assembly._internal.fork_safety import after_fork_in_child
from otel_assembly.context_assembler.gather import checked_source
from otel_assembly.context_assembler.retention import Proposal, Retained, RetentionOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextvars import Context as Variables

    from otel_assembly.context_assembler.retention import WriteGate

logger = logging.getLogger("otel_assembly")


class QueuedWriteGate:
    """A write gate that queues proposals of memories, and offers them to another gate in the background.

    ``await context.retain(answer, candidates)`` returns immediately with the outcome ``queued``. Proposals that do not
    fit in the queue have the outcome ``refused``. The other gate receives one batch after the other; `outcomes` counts
    its results. If that gate raises an error, the type of the error is logged.

    Use the gate from one event loop at a time. Before the loop ends, call ``await gate.flush()`` or
    ``await gate.aclose()``, or use ``async with gate:``; otherwise, queued proposals are not stored. In a forked child
    process, the queue is empty; the parent process offers the proposals that were queued before the fork.

    Args:
        gate: The gate that decides which memories are stored, and stores them.
        max_queued: The maximum number of proposals in the queue.

    Raises:
        ConfigurationError: `gate` is not a gate, or `max_queued` is not a whole number of at least 1.
    """

    def __init__(self, gate: WriteGate, *, max_queued: int = 1_000) -> None:
        checked_source("gate", gate, "offer")
        whole_number("max_queued", max_queued, unit="proposals")
        self._gate = gate
        self._max_queued = max_queued
        self._queue: deque[tuple[list[Proposal], Variables]] = deque()
        self._size = 0
        self._closed = False
        self._outcomes: Counter[RetentionOutcome] = Counter()
        self._worker: asyncio.Task[None] | None = None
        after_fork_in_child(self._reset)

    @property
    def queued(self) -> int:
        """The number of proposals in the queue."""
        return self._size

    @property
    def outcomes(self) -> Mapping[RetentionOutcome, int]:
        """The number of proposals by outcome, without those that are still in the queue."""
        return dict(self._outcomes)

    def _reset(self) -> None:
        """Empty the queue in a forked child process, because the parent process offers the proposals."""
        self._queue.clear()
        self._size = 0
        self._worker = None

    async def offer(self, proposals: Sequence[Proposal]) -> list[Retained]:
        """Queue proposals, and return their outcome (``queued`` or ``refused``) without waiting for the other gate.

        Raises:
            ConfigurationError: `proposals` is not a sequence of `Proposal`.
        """
        proposals = items_of_type("proposals", proposals, Proposal)
        free = 0 if self._closed else self._max_queued - self._size
        accepted, refused = list(proposals[:free]), proposals[free:]
        if refused:
            self._outcomes[RetentionOutcome.REFUSED] += len(refused)
            logger.warning(
                "%d memories were not queued: the queue is %s", len(refused), "closed" if self._closed else "full"
            )
        if accepted:
            # With a copy of the context variables, the spans of a batch belong to the trace of its caller.
            self._queue.append((accepted, copy_context()))
            self._size += len(accepted)
            self._ensure_worker()
        return [
            *(Retained(proposal, RetentionOutcome.QUEUED) for proposal in accepted),
            *(Retained(proposal, RetentionOutcome.REFUSED) for proposal in refused),
        ]

    async def flush(self) -> None:
        """Wait until the other gate has received all proposals that are in the queue at the time of the call."""
        last = self._queue[-1] if self._queue else None
        while last is not None and any(batch is last for batch in self._queue):
            await asyncio.wait([self._ensure_worker()])

    async def aclose(self) -> None:
        """Refuse further proposals, and wait until the other gate has received the queued ones."""
        self._closed = True
        await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _ensure_worker(self) -> asyncio.Task[None]:
        """Return the task that offers the queued proposals; start it if it does not run."""
        task = self._worker
        if task is None or task.done() or task.get_loop().is_closed():
            task = self._worker = asyncio.get_running_loop().create_task(self._work())
        return task

    async def _work(self) -> None:
        worker: Any = asyncio.current_task()
        while self._queue:
            # Remove a batch only after it was offered: if the event loop ends before, the next loop offers it again.
            proposals, variables = self._queue[0]
            offer = asyncio.get_running_loop().create_task(self._offer_batch(proposals), context=variables)
            try:
                outcomes = await offer
            except asyncio.CancelledError:
                if worker.cancelling():
                    raise
                outcomes = _log_failure(proposals, "CancelledError")  # the gate canceled itself
            self._queue.popleft()
            self._size -= len(proposals)
            self._outcomes.update(outcomes)

    async def _offer_batch(self, proposals: list[Proposal]) -> list[RetentionOutcome]:
        outcomes: dict[int, RetentionOutcome] = {}
        try:
            for result in await self._gate.offer(proposals):
                outcomes[id(result.proposal)] = result.outcome
        except Exception as error:  # noqa: BLE001  # in the background, no caller can handle the error
            return _log_failure(proposals, type(error).__name__)
        return [outcomes.get(id(proposal), RetentionOutcome.FAILED) for proposal in proposals]


def _log_failure(proposals: Sequence[Proposal], error_type: str) -> list[RetentionOutcome]:
    logger.warning("the write gate failed: %s", error_type)
    return [RetentionOutcome.FAILED] * len(proposals)
