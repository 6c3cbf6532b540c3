"""What compaction tries and what it comes to, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class CompactionOutcome(StrEnum):
    """How one attempt to compact ended; a closed set."""

    COMPACTED = "compacted"
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    EMPTY = "empty"
    ERROR_TEXT = "error_text"
    TOO_LONG = "too_long"
    REFUSED = "refused"


@dataclass(slots=True)
class Attempt:
    """One attempt to compact; it holds no text, and of an error its type alone.

    Attributes:
        compactor: The compactor's class or function name.
        number: Which attempt of this compaction it is, from 1, over all compactors.
        target: The tokens that the compactor was asked to keep to.
        tokens_in: Tokens of the text that it was given.
        tokens_out: Tokens of what it returned; None where that was no text.
        outcome: How it ended; None while it runs.
        error_type: The type of what was raised.
        started_ns: When it began, where that was before it is told; None where it begins as it is told.
        ended_ns: When it ended, if that was before its span was opened.
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


class Watch(Protocol):
    """Stands around each attempt: entered before the compactor runs, left once the attempt's outcome is filled in.

    The compactor runs in the context variables as they are inside, so a span that is current there is the parent of a
    model call that the compactor makes.
    """

    def __call__(self, attempt: Attempt, /) -> AbstractContextManager[Any]:
        """What is entered around this attempt."""
        ...


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction came to.

    Attributes:
        text: The shorter text; None where every attempt failed, and the original is all there is.
        tokens: Tokens of `text`; 0 where there is none.
        attempts: Every attempt, in order.
    """

    text: str | None
    tokens: int
    attempts: tuple[Attempt, ...]
