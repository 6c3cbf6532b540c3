"""Data classes for a compaction (making a text shorter): its attempts and its result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager


class CompactionOutcome(StrEnum):
    """How one attempt to shorten a text ended.

    Attributes:
        COMPACTED: The compactor returned a text that fits.
        RAISED: The compactor raised an error.
        TIMED_OUT: The compactor did not return within the deadline.
        EMPTY: The compactor returned no text, or a blank text.
        ERROR_TEXT: The compactor returned an error message or a refusal.
        TOO_LONG: The compactor returned more tokens than the target.
        REFUSED: The compactor was not called, because too many earlier calls exceeded their deadline and still run.
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
    """One attempt to shorten a text with a compactor, as numbers.

    The object contains neither the text nor an error's message, so it is safe to export.

    Attributes:
        compactor: The name of the compactor's class or function.
        number: The attempt's number within the compaction, from 1. The fallback compactor continues the numbering.
        target: The maximum number of tokens that the compactor was asked to return.
        tokens_in: The tokens of the original text.
        tokens_out: The tokens of the returned text; None if no text was returned.
        outcome: How the attempt ended; None while it runs.
        error_type: The type of the error that the compactor raised; None without an error.
        started_ns: The start time in nanoseconds since the epoch, for attempts whose span is created afterwards;
            otherwise None.
        ended_ns: The end time in nanoseconds since the epoch, for attempts whose span is created afterwards; otherwise
            None.
        model_spans: Spans of model calls that the attempt made.
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
    """A function that returns a context manager for each attempt to shorten a text, such as one that opens a span.

    The context manager is entered before the compactor runs, and exited after the attempt's outcome is set. If it sets
    the current span, that span is the parent of the compactor's own model calls.
    """

    def __call__(self, attempt: Attempt, /) -> AbstractContextManager[Any]:
        """Return the context manager in which the attempt runs."""
        ...


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of shortening a text, after all attempts.

    Attributes:
        text: The shorter text; None if every attempt failed.
        tokens: The tokens of `text`; 0 if there is none.
        attempts: Every attempt, in order.
    """

    text: str | None
    tokens: int
    attempts: tuple[Attempt, ...]
