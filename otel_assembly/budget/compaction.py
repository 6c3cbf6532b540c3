"""Compactors with deadlines, attempts and a fallback: what goes wrong in one is recorded, and costs nothing else.

A compactor makes a text shorter and loses something on the way. It is often a model, so it may raise, hang, return
nothing, answer with an error text or with more than was asked. Each attempt has one outcome of a closed set, a `Watch`
stands around it, and if all of them come to nothing the result says so: the caller still holds the original.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_assembly._internal.arguments import instance
from otel_assembly.budget.compact_calling import Calling, Compact
from otel_assembly.budget.compact_errors import is_error_text
from otel_assembly.budget.compact_workers import DeadlinePassed, TooManyHang, acall_within, call_within
from otel_assembly.budget.compacted_block import CompactedBlock, leaves
from otel_assembly.budget.extractive import ExtractiveCompactor
from otel_assembly.conversation import halted_here
from otel_assembly.errors import ConfigurationError, ContextOverflowError, HaltedError, error_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "Attempt",
    "Compact",
    "Compacted",
    "CompactedBlock",
    "CompactionOutcome",
    "Compactors",
    "ExtractiveCompactor",
    "Watch",
    "compactors_of",
    "leaves",
]


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
    """

    compactor: str
    number: int
    target: int
    tokens_in: int
    tokens_out: int | None = None
    outcome: CompactionOutcome | None = None
    error_type: str | None = None


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


class _MustAwaitError(ConfigurationError):
    """A compactor is async where nothing can await it."""


_PASS_THROUGH: Final = (HaltedError, ContextOverflowError, _MustAwaitError)
_NOT_REPEATED: Final = frozenset({CompactionOutcome.TIMED_OUT, CompactionOutcome.REFUSED})
_EXTRACTIVE: Final = ExtractiveCompactor()


class Compactors:
    """A compactor, how often and how long it is tried, and what is tried when it fails.

    An attempt succeeds when it returns a text, not blank and not an error message, of at most the target's tokens. One
    that raised, returned nothing or an error text is repeated as it was. One that was too long is repeated with a
    target as much smaller as it was over. One that hung is not repeated: a second deadline would be paid for nothing.
    The fallback is tried once, with the original text and the original target.

    A compactor that is not async runs in a thread of its own, also where the caller is async; one that is late is left
    behind there (daemon, logged once a compactor). While 16 of the process still hang, attempts are ``refused`` unheard
    and the fallback answers. The extractive compactor waits for nobody and needs no thread.

    What stops an agent passes through: ``HaltedError``, ``ContextOverflowError``, ``KeyboardInterrupt``,
    ``SystemExit`` and cancellation are never taken for a compactor's failure.

    Args:
        compact: The compactor, called as ``compact(text, target_tokens=n)`` if it names such a parameter and as
            ``compact(text, n)`` if it does not; with a keyword-only ``count`` it is given the counter too. None: the
            extractive one, which needs no model.
        fallback: What is tried when `compact` has failed; None for nothing.
        attempts: How often `compact` is tried at most.
        deadline: Seconds that one attempt may take.

    Raises:
        ConfigurationError: A compactor that cannot be called so, fewer than one attempt, or a deadline that is not a
            positive number of seconds.
    """

    __slots__ = ("_plan", "deadline")

    def __init__(
        self,
        compact: Compact | Calling | None = None,
        *,
        fallback: Compact | Calling | None = _EXTRACTIVE,
        attempts: int = 2,
        deadline: float = 30.0,
    ) -> None:
        if type(attempts) is not int or attempts < 1:
            raise ConfigurationError(f"Compactors: attempts is {attempts!r}; give a whole number from 1")
        if type(deadline) not in (int, float) or not 0 < deadline < math.inf:
            raise ConfigurationError(f"Compactors: deadline is {deadline!r}; give a positive number of seconds")
        self.deadline = min(float(deadline), threading.TIMEOUT_MAX)
        first = Calling(_EXTRACTIVE) if compact is None else _calling(compact, "compact")
        #: Who is called, and how often at most; what needs no model gives the same answer each time.
        self._plan: tuple[tuple[Calling, int], ...] = ((first, 1 if first.never_waits else attempts),)
        if fallback is not None:
            last = _calling(fallback, "fallback")
            if not (first.never_waits and last.never_waits):
                self._plan += ((last, 1),)

    @property
    def is_async(self) -> bool:
        """Whether one of the compactors is known to be async, so that only `run_async` can call it."""
        return any(calling.is_async for calling, _ in self._plan)

    def run(
        self,
        text: str,
        target_tokens: int,
        count: Callable[[str], int],
        watch: Watch | None = None,
        *,
        tokens_in: int | None = None,
    ) -> Compacted:
        """Compact `text` to at most `target_tokens`; blocks for as long as the attempts take.

        Args:
            text: The original.
            target_tokens: Tokens that the result may have; below 1 nothing is attempted.
            count: Counts exactly.
            watch: Stands around each attempt.
            tokens_in: Tokens of `text`, if they are known already.

        Raises:
            ConfigurationError: A compactor is async.
        """
        for calling, _ in self._plan:
            if calling.is_async:
                raise _must_await(calling)
        trial = _Trial(self._plan, text, target_tokens, count, tokens_in)
        for calling, attempt in trial.attempts_to_make():
            with watch(attempt) if watch else nullcontext():
                try:
                    call = trial.call_of(calling, attempt)
                    answer = call() if calling.never_waits else call_within(call, self.deadline, calling.name)
                    if inspect.isawaitable(answer):
                        _close(answer)
                        raise _must_await(calling)
                    trial.judge(calling, attempt, answer)
                except BaseException as error:
                    if not trial.failed(attempt, error):
                        raise
        return trial.result()

    async def run_async(
        self,
        text: str,
        target_tokens: int,
        count: Callable[[str], int],
        watch: Watch | None = None,
        *,
        tokens_in: int | None = None,
    ) -> Compacted:
        """As `run`, without blocking the loop; a compactor may be async or not.

        An async one runs in the caller's task: cancelling that cancels it. One that is not async may still return an
        awaitable, which is awaited on the loop.
        """
        trial = _Trial(self._plan, text, target_tokens, count, tokens_in)
        for calling, attempt in trial.attempts_to_make():
            with watch(attempt) if watch else nullcontext():
                try:
                    answer = await self._answer(calling, trial.call_of(calling, attempt))
                    trial.judge(calling, attempt, answer)
                except BaseException as error:
                    if not trial.failed(attempt, error):
                        raise
        return trial.result()

    async def _answer(self, calling: Calling, call: Callable[[], Any]) -> Any:
        ends = asyncio.get_running_loop().time() + self.deadline
        if calling.is_async:
            answer = call()
        else:
            answer = await acall_within(call, None if calling.never_waits else self.deadline, calling.name)
        if not inspect.isawaitable(answer):
            return answer
        bound = asyncio.timeout_at(ends)
        try:
            async with bound:
                return await answer
        except TimeoutError:
            if bound.expired():
                raise DeadlinePassed from None
            raise


class _Trial:
    """One compaction while it runs: whose turn it is, and what came of each attempt."""

    __slots__ = ("_attempts", "_count", "_found", "_plan", "_target", "_text", "_tokens_in")

    def __init__(
        self,
        plan: tuple[tuple[Calling, int], ...],
        text: str,
        target: int,
        count: Callable[[str], int],
        tokens_in: int | None,
    ) -> None:
        self._plan = plan
        self._text = text
        self._target = target
        self._count = count
        self._tokens_in = tokens_in
        self._attempts: list[Attempt] = []
        self._found: tuple[str, int] | None = None

    def attempts_to_make(self) -> Iterator[tuple[Calling, Attempt]]:
        """The next attempt, until one succeeds or none is left."""
        if self._target < 1:
            return
        tokens_in = self._count(self._text) if self._tokens_in is None else self._tokens_in
        for calling, most in self._plan:
            target = self._target
            for _ in range(most):
                if not calling.never_waits and halted_here():
                    break  # it may call a model
                attempt = Attempt(calling.name, len(self._attempts) + 1, target, tokens_in)
                self._attempts.append(attempt)
                yield calling, attempt
                if self._found is not None:
                    return
                if attempt.outcome in _NOT_REPEATED:
                    break
                if attempt.outcome is CompactionOutcome.TOO_LONG and attempt.tokens_out:
                    target = max(1, target * self._target // attempt.tokens_out)

    def call_of(self, calling: Calling, attempt: Attempt) -> Callable[[], Any]:
        return functools.partial(calling, self._text, attempt.target, self._count)

    def judge(self, calling: Calling, attempt: Attempt, answer: Any) -> None:
        """Fill in what the compactor's answer is worth."""
        if not isinstance(answer, str):
            attempt.outcome = CompactionOutcome.EMPTY
            return
        attempt.tokens_out = self._count(answer)
        if not answer.strip():
            attempt.outcome = CompactionOutcome.EMPTY
        elif not calling.never_waits and is_error_text(answer, self._text):
            attempt.outcome = CompactionOutcome.ERROR_TEXT
        elif attempt.tokens_out > self._target:
            attempt.outcome = CompactionOutcome.TOO_LONG
        else:
            attempt.outcome = CompactionOutcome.COMPACTED
            self._found = answer, attempt.tokens_out

    def failed(self, attempt: Attempt, error: BaseException) -> bool:
        """Fill in what was raised; False where it is for the caller and not a failure of the compactor."""
        if isinstance(error, DeadlinePassed):
            attempt.outcome = CompactionOutcome.TIMED_OUT
        elif isinstance(error, TooManyHang):
            attempt.outcome = CompactionOutcome.REFUSED
        else:
            attempt.outcome = CompactionOutcome.RAISED
            attempt.error_type = error_type(error)
            if isinstance(error, _PASS_THROUGH):
                return False
            # A panic of a Rust extension is no Exception, but it is the compactor's failure all the same.
            return isinstance(error, Exception) or type(error).__name__ == "PanicException"
        return True

    def result(self) -> Compacted:
        text, tokens = self._found if self._found is not None else (None, 0)
        return Compacted(text, tokens, tuple(self._attempts))


def compactors_of(compact: Compact | Compactors | None) -> Compactors:
    """What was given to make texts shorter, as compactors; None: the extractive one.

    Raises:
        ConfigurationError: It is a class, or cannot be called as a compactor.
    """
    if isinstance(compact, type) and issubclass(compact, Compactors):
        instance("compact", compact)
    return compact if isinstance(compact, Compactors) else Compactors(compact)


def _calling(compact: Compact | Calling, role: str) -> Calling:
    return compact if isinstance(compact, Calling) else Calling(compact, role)


def _must_await(calling: Calling) -> _MustAwaitError:
    return _MustAwaitError(
        f"the compactor {calling.name} is async, and this call is not: await the async form (run_async, "
        "compact_history_async, or the allocator's async entry), or give a function that is not async"
    )


def _close(answer: Any) -> None:
    close = getattr(answer, "close", None) or getattr(answer, "cancel", None)
    if close is not None:
        close()  # a coroutine that nobody awaits would warn
