"""The attempts of a compaction and its result, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager


class CompactionOutcome(StrEnum):
    """How one attempt to compact ended; a closed set.

    Attributes:
        COMPACTED: The compactor returned a text that fits.
        RAISED: The compactor raised an error.
        TIMED_OUT: The compactor did not return within the deadline.
        EMPTY: The compactor returned no text, or a blank text.
        ERROR_TEXT: The compactor returned an error message or a refusal.
        TOO_LONG: The compactor returned more tokens than the target.
        REFUSED: The compactor was not called, because too many earlier calls still hang.
    """

    COMPACTED = "compacted"
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    EMPTY = "empty"
    ERROR_TEXT = "error_text"
    TOO_LONG = "too_long"
    REFUSED = "refused"


@dataclass(slots=True)
class Attempt:
    """One attempt to compact a text.

    It contains no text, and only the type of an error.

    Attributes:
        compactor: The name of the compactor's class or function.
        number: The attempt's number within the compaction, from 1, over all compactors.
        target: The most tokens that the compactor was asked to return.
        tokens_in: The tokens of the original text.
        tokens_out: The tokens of the returned text; None if no text was returned.
        outcome: How the attempt ended; None while it runs.
        error_type: The type of the error that was raised.
        started_ns: The start time, if the attempt began before it was recorded; otherwise None.
        ended_ns: The end time, if the attempt ended before its span was opened; otherwise None.
    """

    compactor: str
    number: int
    target: int
    tokens_in: int
    tokens_out: int | None = None
    outcome: CompactionOutcome | None = None
    error_type: str | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    model_spans: Sequence[Any] = ()


class Watch(Protocol):
    """Returns a context manager for each attempt to compact.

    It is entered before the compactor runs, and left once the attempt's outcome is set. The compactor runs in the
    context variables of that time, so the current span is the parent of the compactor's own model calls.
    """

    def __call__(self, attempt: Attempt, /) -> AbstractContextManager[Any]:
        """Return the context manager for an attempt."""
        ...


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction.

    Attributes:
        text: The shorter text; None if every attempt failed.
        tokens: The tokens of `text`; 0 if there is none.
        attempts: Every attempt, in order.
    """

    text: str | None
    tokens: int
    attempts: tuple[Attempt, ...]
