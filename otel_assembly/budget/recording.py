"""The protocol by which `allocate` reports a run to a recorder, such as the one that creates spans."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from otel_assembly.budget.allocation import Allocation
    from otel_assembly.budget.attempt import Watch
    from otel_assembly.budget.block import Block


class AllocationRecording(AbstractContextManager[Any], Protocol):
    """Records one call of `allocate`, as a context manager around the call.

    If the context manager exits with an error, it records the error.
    """

    def set_limits(self, window: int, output_reserve: int) -> None:
        """Record the limits, in tokens; called first, so that they are recorded even if the allocation fails."""
        ...

    def watch(self, block: Block) -> Watch:
        """Return the function that records the attempts to shorten texts of a block."""
        ...

    def finish(self, allocation: Allocation) -> None:
        """Record the decisions of a successful allocation."""
        ...
