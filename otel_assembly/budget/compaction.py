"""Runs compactors with deadlines, attempts and a fallback.

A compactor shortens a text and loses details. It is often a model, so it may raise, hang, return nothing, an error
message, or too many tokens. Each attempt ends with one outcome of a closed set, inside the context manager of a
`Watch`. If every attempt fails, the result contains no text, and the caller keeps the original.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_assembly._internal.arguments import called, instance, whole_number
from otel_assembly.budget.attempt import Attempt, Compacted, CompactionOutcome, Watch
from otel_assembly.budget.compact_errors import is_error_text
from otel_assembly.budget.compact_workers import (
    DeadlinePassed,
    TooManyHang,
    call_with_deadline,
    call_with_deadline_async,
)
from otel_assembly.budget.extractive import ExtractiveCompactor
from otel_assembly.conversation_state import halted_here
from otel_assembly.errors import ConfigurationError, ContextOverflowError, HaltedError, error_type

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A compactor: ``compact(text, target_tokens)`` returns a text of at most that many tokens, or an awaitable of one.
Compact: TypeAlias = Callable[..., str | Awaitable[str]]

_TARGET: Final = "target_tokens"
_COUNT: Final = "count"
_BY_NAME = frozenset({inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY})


class _MustAwaitError(ConfigurationError):
    """A compactor is async, but the caller cannot await it."""


_PASS_THROUGH: Final = (HaltedError, ContextOverflowError, _MustAwaitError)
_NOT_REPEATED: Final = frozenset({CompactionOutcome.TIMED_OUT, CompactionOutcome.REFUSED})
_EXTRACTIVE: Final = ExtractiveCompactor()


class CompactorCall:
    """A compactor and the way to call it, which its signature determines once.

    Args:
        compact: The compactor.
        role: The name of the caller's argument, for errors: ``compact``, ``fallback``, ``summarizer``.
        source: The first argument, if the compactor does not read the text.

    Raises:
        ConfigurationError: The compactor cannot be called with a text and a number of tokens.
    """

    __slots__ = ("_counts", "_named", "_source", "compact", "is_async", "name", "never_waits")

    def __init__(self, compact: Compact, role: str = "compact", *, source: Any = None) -> None:
        called(role, compact)
        if not callable(compact):
            raise ConfigurationError(f"{role} is a {type(compact).__name__}; give a callable ({role}(text, target))")
        self.compact = compact
        self._source = source
        self.name = _name_of(compact)
        self.is_async = is_async(compact)
        #: Whether the compactor needs no model and no network, so that it cannot hang and returns words of the text.
        self.never_waits = getattr(compact, "never_waits", False) is True
        try:
            signature = inspect.signature(compact)
        except (TypeError, ValueError):  # some callables written in C have no signature
            self._named = self._counts = False
            return
        parameters = signature.parameters.values()
        takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        named = signature.parameters.get(_TARGET)
        counted = signature.parameters.get(_COUNT)
        # Keyword-only, because a second positional parameter named `count` may be the number of tokens.
        self._counts = counted is not None and counted.kind is inspect.Parameter.KEYWORD_ONLY
        self._named = named.kind in _BY_NAME if named is not None else takes_any and not _binds(signature, "", 1)
        if not self._bound(signature):
            raise ConfigurationError(
                f"{role} {self.name} has the signature {signature}; it must accept a text and a number of tokens: "
                "def compact(text, target_tokens)"
            )

    def _bound(self, signature: inspect.Signature) -> bool:
        keywords: dict[str, Any] = {_COUNT: len} if self._counts else {}
        return (
            _binds(signature, "", **{_TARGET: 1}, **keywords) if self._named else _binds(signature, "", 1, **keywords)
        )

    def __call__(self, text: str, target: int, count: Callable[[str], int]) -> Any:
        """Return the compactor's result, which may be an awaitable or an invalid value."""
        first = text if self._source is None else self._source
        keywords: dict[str, Any] = {_COUNT: count} if self._counts else {}
        if self._named:
            return self.compact(first, target_tokens=target, **keywords)
        return self.compact(first, target, **keywords)


def _binds(signature: inspect.Signature, *values: Any, **keywords: Any) -> bool:
    try:
        signature.bind(*values, **keywords)
    except TypeError:
        return False
    return True


def _unwrapped(compact: Any) -> Any:
    while isinstance(compact, functools.partial):
        compact = compact.func
    return compact


def is_async(compact: Any) -> bool:
    """Return whether a callable is known to return an awaitable.

    That is a coroutine function, or a callable with an attribute ``is_async`` that is True.
    """
    inner = _unwrapped(compact)
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None)):  # noqa: B004
        return True
    return getattr(inner, "is_async", False) is True


def _name_of(compact: Any) -> str:
    inner = _unwrapped(compact)
    named = inspect.isroutine(inner) or isinstance(inner, type)
    return str(getattr(inner, "__name__", "") if named else type(inner).__name__).strip("<>") or "compactor"


class Compactors:
    """A compactor, with a deadline, a number of attempts and a fallback.

    An attempt succeeds if the compactor returns a text within the target that is neither blank nor an error message.
    After an error, an empty result or an error message, the attempt is repeated. After a result that is too long, it is
    repeated with a proportionally smaller target. After a timeout it is not repeated. The fallback is called once, with
    the original text and target.

    A compactor that is not async runs in a separate thread, even if the caller is async. If it misses the deadline, its
    daemon thread is abandoned, and one warning per compactor is logged. While 16 abandoned threads of the process still
    run, attempts are ``refused`` and the fallback is used. The extractive compactor needs no thread.

    ``HaltedError``, ``ContextOverflowError``, ``KeyboardInterrupt``, ``SystemExit`` and cancellation are raised to the
    caller, and are never treated as a compactor's failure.

    Args:
        compact: The compactor. It is called as ``compact(text, target_tokens=n)`` if it has a parameter of that name,
            otherwise as ``compact(text, n)``. A keyword-only parameter ``count`` receives the counter. None: the
            extractive compactor, which needs no model.
        fallback: The compactor to call if `compact` fails; None for none.
        attempts: The most calls of `compact`.
        deadline: The most seconds of one attempt.

    Raises:
        ConfigurationError: A compactor cannot be called so, `attempts` is below 1, or `deadline` is not a positive
            number.
    """

    __slots__ = ("_plan", "deadline")

    def __init__(
        self,
        compact: Compact | CompactorCall | None = None,
        *,
        fallback: Compact | CompactorCall | None = _EXTRACTIVE,
        attempts: int = 2,
        deadline: float = 30.0,
    ) -> None:
        whole_number("Compactors: attempts", attempts)
        if type(deadline) not in (int, float) or not 0 < deadline < math.inf:
            raise ConfigurationError(f"Compactors: deadline is {deadline!r}; give a positive number of seconds")
        self.deadline = min(float(deadline), threading.TIMEOUT_MAX)
        first = CompactorCall(_EXTRACTIVE) if compact is None else _calling(compact, "compact")
        #: Each compactor with its most calls; a compactor without a model returns the same text every time.
        self._plan: tuple[tuple[CompactorCall, int], ...] = ((first, 1 if first.never_waits else attempts),)
        if fallback is not None:
            last = _calling(fallback, "fallback")
            if not (first.never_waits and last.never_waits):
                self._plan += ((last, 1),)

    @property
    def is_async(self) -> bool:
        """Whether a compactor is known to be async, so that only `run_async` can call it."""
        return any(compactor.is_async for compactor, _ in self._plan)

    def run(
        self,
        text: str,
        target_tokens: int,
        count: Callable[[str], int],
        watch: Watch | None = None,
        *,
        tokens_in: int | None = None,
    ) -> Compacted:
        """Compact a text to at most `target_tokens`; blocks until the attempts end.

        Args:
            text: The original.
            target_tokens: The most tokens of the result; below 1, no attempt is made.
            count: Counts tokens exactly.
            watch: Returns the context manager around each attempt.
            tokens_in: The tokens of `text`, if they are known.

        Raises:
            ConfigurationError: A compactor is async.
        """
        for compactor, _ in self._plan:
            if compactor.is_async:
                raise _must_await(compactor)
        trial = _Trial(self._plan, text, target_tokens, count, tokens_in)
        for compactor, attempt in trial.attempts_to_make():
            with watch(attempt) if watch else nullcontext():
                try:
                    call = trial.call_of(compactor, attempt)
                    answer = (
                        call() if compactor.never_waits else call_with_deadline(call, self.deadline, compactor.name)
                    )
                    if inspect.isawaitable(answer):
                        _close(answer)
                        raise _must_await(compactor)
                    trial.judge(compactor, attempt, answer)
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
        """Compact as `run` does, without blocking the event loop.

        An async compactor runs in the caller's task, and is canceled with it. A compactor that is not async may still
        return an awaitable, which is awaited on the event loop.
        """
        trial = _Trial(self._plan, text, target_tokens, count, tokens_in)
        for compactor, attempt in trial.attempts_to_make():
            with watch(attempt) if watch else nullcontext():
                try:
                    answer = await self._answer(compactor, trial.call_of(compactor, attempt))
                    trial.judge(compactor, attempt, answer)
                except BaseException as error:
                    if not trial.failed(attempt, error):
                        raise
        return trial.result()

    async def _answer(self, compactor: CompactorCall, call: Callable[[], Any]) -> Any:
        ends = asyncio.get_running_loop().time() + self.deadline
        if compactor.is_async:
            answer = call()
        else:
            deadline = None if compactor.never_waits else self.deadline
            answer = await call_with_deadline_async(call, deadline, compactor.name)
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
    """The state of one compaction: the next attempt, and the outcome of each."""

    __slots__ = ("_attempts", "_count", "_found", "_plan", "_target", "_text", "_tokens_in")

    def __init__(
        self,
        plan: tuple[tuple[CompactorCall, int], ...],
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

    def attempts_to_make(self) -> Iterator[tuple[CompactorCall, Attempt]]:
        """Yield the next attempt, until one succeeds or none remains."""
        if self._target < 1:
            return
        tokens_in = self._count(self._text) if self._tokens_in is None else self._tokens_in
        for compactor, most in self._plan:
            target = self._target
            for _ in range(most):
                if not compactor.never_waits and halted_here():
                    break  # the compactor may call a model
                attempt = Attempt(compactor.name, len(self._attempts) + 1, target, tokens_in)
                self._attempts.append(attempt)
                yield compactor, attempt
                if self._found is not None:
                    return
                if attempt.outcome in _NOT_REPEATED:
                    break
                if attempt.outcome is CompactionOutcome.TOO_LONG and attempt.tokens_out:
                    target = max(1, target * self._target // attempt.tokens_out)

    def call_of(self, compactor: CompactorCall, attempt: Attempt) -> Callable[[], Any]:
        return functools.partial(compactor, self._text, attempt.target, self._count)

    def judge(self, compactor: CompactorCall, attempt: Attempt, answer: Any) -> None:
        """Set the attempt's outcome from the compactor's result."""
        if not isinstance(answer, str):
            attempt.outcome = CompactionOutcome.EMPTY
            return
        attempt.tokens_out = self._count(answer)
        if not answer.strip():
            attempt.outcome = CompactionOutcome.EMPTY
        elif not compactor.never_waits and is_error_text(answer, self._text):
            attempt.outcome = CompactionOutcome.ERROR_TEXT
        elif attempt.tokens_out > self._target:
            attempt.outcome = CompactionOutcome.TOO_LONG
        else:
            attempt.outcome = CompactionOutcome.COMPACTED
            self._found = answer, attempt.tokens_out

    def failed(self, attempt: Attempt, error: BaseException) -> bool:
        """Set the attempt's outcome from an error.

        Returns:
            Whether the error is a compactor's failure; otherwise it must be raised to the caller.
        """
        if isinstance(error, DeadlinePassed):
            attempt.outcome = CompactionOutcome.TIMED_OUT
        elif isinstance(error, TooManyHang):
            attempt.outcome = CompactionOutcome.REFUSED
        else:
            attempt.outcome = CompactionOutcome.RAISED
            attempt.error_type = error_type(error)
            if isinstance(error, _PASS_THROUGH):
                return False
            # A panic of a Rust extension is not an Exception, but it is a failure of the compactor.
            return isinstance(error, Exception) or type(error).__name__ == "PanicException"
        return True

    def result(self) -> Compacted:
        text, tokens = self._found if self._found is not None else (None, 0)
        return Compacted(text, tokens, tuple(self._attempts))


def compactors_of(compact: Compact | Compactors | None) -> Compactors:
    """Return a caller's `compact` argument as `Compactors`.

    None means the extractive compactor.

    Raises:
        ConfigurationError: `compact` is a class, or cannot be called as a compactor.
    """
    if isinstance(compact, type) and issubclass(compact, Compactors):
        instance("compact", compact)
    return compact if isinstance(compact, Compactors) else Compactors(compact)


def _calling(compact: Compact | CompactorCall, role: str) -> CompactorCall:
    return compact if isinstance(compact, CompactorCall) else CompactorCall(compact, role)


def _must_await(compactor: CompactorCall) -> _MustAwaitError:
    return _MustAwaitError(
        f"the compactor {compactor.name} is async, but this function is not: await the async function instead "
        "(run_async, compact_history_async, allocate_async), or give a compactor that is not async"
    )


def _close(answer: Any) -> None:
    close = getattr(answer, "close", None) or getattr(answer, "cancel", None)
    if close is not None:
        close()  # otherwise Python warns about a coroutine that was never awaited
