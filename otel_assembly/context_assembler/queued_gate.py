"""A write gate that waits for nobody: what is proposed is queued, and offered to another gate in the background."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Self

from otel_assembly._internal.arguments import items_of_type, whole_number
from otel_assembly._internal.forks import in_child
from otel_assembly.context_assembler.gather import checked_source
from otel_assembly.context_assembler.retention import Proposal, Retained, RetentionOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextvars import Context as Variables

    from otel_assembly.context_assembler.retention import WriteGate

logger = logging.getLogger("otel_assembly")


class QueuedWriteGate:
    """Takes proposals at once and offers them to another gate later, one after the other (candidates queue).

    ``await context.retain(answer, candidates)`` then returns before anything is written, with the outcome ``queued``;
    what does not fit the queue is ``refused``. What becomes of the rest is counted in `outcomes`; what fails is logged
    by its type. Before the loop ends, ``await gate.flush()``, ``await gate.aclose()``, or ``async with gate:``, lest
    what still waits is not written. Use it from one event loop at a time. A forked child begins with an empty queue:
    what waits is offered by its parent.

    Args:
        gate: Decides, and writes.
        most: How many proposals may wait.

    Raises:
        ConfigurationError: `gate` is no gate, or `most` is no whole number from 1.
    """

    def __init__(self, gate: WriteGate, *, most: int = 1_000) -> None:
        checked_source("gate", gate, "offer")
        whole_number("most", most, unit="proposals")
        self._gate = gate
        self._most = most
        self._waiting: deque[tuple[list[Proposal], Variables]] = deque()
        self._size = 0
        self._closed = False
        self._outcomes: Counter[RetentionOutcome] = Counter()
        self._worker: asyncio.Task[None] | None = None
        in_child(self._begin)

    @property
    def waiting(self) -> int:
        """How many proposals wait."""
        return self._size

    @property
    def outcomes(self) -> Mapping[RetentionOutcome, int]:
        """How many proposals came to what, so far; those that are still waiting are not in it."""
        return dict(self._outcomes)

    def _begin(self) -> None:
        """What waits is offered by the process that it was queued in."""
        self._waiting.clear()
        self._size = 0
        self._worker = None

    async def offer(self, proposals: Sequence[Proposal]) -> list[Retained]:
        """Queue proposals; waits for nothing.

        Raises:
            ConfigurationError: `proposals` is no sequence of `Proposal`.
        """
        proposals = items_of_type("proposals", proposals, Proposal)
        free = 0 if self._closed else self._most - self._size
        taken, refused = list(proposals[:free]), proposals[free:]
        if refused:
            self._outcomes[RetentionOutcome.REFUSED] += len(refused)
            logger.warning(
                "%d memories were not queued: the queue %s", len(refused), "is closed" if self._closed else "is full"
            )
        if taken:
            # What a batch does belongs to the trace of who proposed it, whenever it is done.
            self._waiting.append((taken, copy_context()))
            self._size += len(taken)
            self._working()
        return [
            *(Retained(proposal, RetentionOutcome.QUEUED) for proposal in taken),
            *(Retained(proposal, RetentionOutcome.REFUSED) for proposal in refused),
        ]

    async def flush(self) -> None:
        """Wait until all that is queued now has been offered."""
        last = self._waiting[-1] if self._waiting else None
        while last is not None and any(one is last for one in self._waiting):
            await asyncio.wait([self._working()])

    async def aclose(self) -> None:
        """Take no more, and wait for what is queued."""
        self._closed = True
        await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _working(self) -> asyncio.Task[None]:
        """The task that empties the queue; it ends when nothing waits, so that none is left over."""
        task = self._worker
        if task is None or task.done() or task.get_loop().is_closed():
            task = self._worker = asyncio.get_running_loop().create_task(self._work())
        return task

    async def _work(self) -> None:
        worker: Any = asyncio.current_task()
        while self._waiting:
            # It stays in the queue until it is done: where the loop ends before, the next one takes it up again.
            proposals, variables = self._waiting[0]
            offering = asyncio.get_running_loop().create_task(self._offered(proposals), context=variables)
            try:
                outcomes = await offering
            except asyncio.CancelledError:
                if worker.cancelling():
                    raise
                outcomes = _failed(proposals, "CancelledError")  # the gate's own doing
            self._waiting.popleft()
            self._size -= len(proposals)
            self._outcomes.update(outcomes)

    async def _offered(self, proposals: list[Proposal]) -> list[RetentionOutcome]:
        outcomes: dict[int, RetentionOutcome] = {}
        try:
            for one in await self._gate.offer(proposals):
                outcomes[id(one.proposal)] = one.outcome
        except Exception as error:  # noqa: BLE001  # the answer has been given; nobody is there to be told
            return _failed(proposals, type(error).__name__)
        return [outcomes.get(id(proposal), RetentionOutcome.FAILED) for proposal in proposals]


def _failed(proposals: Sequence[Proposal], why: str) -> list[RetentionOutcome]:
    logger.warning("the write gate failed: %s", why)
    return [RetentionOutcome.FAILED] * len(proposals)
