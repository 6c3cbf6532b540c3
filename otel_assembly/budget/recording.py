"""How the allocator reports its runs if it does not run in a chain."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from otel_assembly.budget.allocation import Allocation
    from otel_assembly.budget.attempt import Watch
    from otel_assembly.budget.block import Block


class AllocationRecording(AbstractContextManager[Any], Protocol):
    """Records one run of the allocator outside of a chain.

    If the context manager exits with an error, the error is recorded.
    """

    def set_limits(self, window: int, output_reserve: int) -> None:
        """Set the limits of the allocation; called before any error can occur."""
        ...

    def watch(self, block: Block) -> Watch:
        """Return the `Watch` of a block's attempts to compact."""
        ...

    def finish(self, allocation: Allocation) -> None:
        """Record the finished allocation."""
        ...
