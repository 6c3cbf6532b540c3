"""The interface of a run: one call of a function that is tracked from its start to the end of its answer."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class TrackedRun(Protocol):
    """One call of an agent, a model client or another function whose answer may be a stream.

    Implementations inherit from this class and override the methods of the events that they need.
    """

    @abstractmethod
    def current(self) -> AbstractContextManager[None]:
        """Make the run current in this block; a stream enters it once for each step."""
        ...

    @abstractmethod
    def end(self, error: BaseException | None = None) -> None:
        """End the run."""
        ...

    def on_stream(self) -> None:
        """Called once, before the first step, if the answer is a stream."""
        return

    def on_chunk(self, chunk: Any) -> None:
        """Called with each item of a stream."""
        return

    def on_result(self, answer: Any) -> None:
        """Called with an answer that is not a stream."""
        return
