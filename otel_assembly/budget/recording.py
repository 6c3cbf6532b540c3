"""What the allocator tells of itself while it runs, where nobody's chain tells it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from otel_assembly.budget.allocation import Allocation
    from otel_assembly.budget.attempt import Watch
    from otel_assembly.budget.block import Block


class AllocationRecording(AbstractContextManager[Any], Protocol):
    """One run of the allocator outside of any chain, while it runs; left with an error, it tells of that."""

    def set_limits(self, window: int, output_reserve: int) -> None:
        """The allocator says what it shares out, before anything can go wrong."""
        ...

    def watch(self, block: Block) -> Watch:
        """What stands around each attempt to compact a block."""
        ...

    def finish(self, allocation: Allocation) -> None:
        """The allocator came to its end."""
        ...
