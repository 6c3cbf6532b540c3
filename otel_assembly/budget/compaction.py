"""Runs compactors with deadlines, several attempts and a fallback.

A compactor is a function that shortens a text and loses details. It often calls a model, so it may raise an error,
hang, or return nothing, an error message or too many tokens. Each attempt ends with a `CompactionOutcome`, and runs in
the context manager of a `Watch`. If every attempt fails, the result contains no text, and the caller keeps the
original.
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
    """A compactor, with the arguments to pass to it; they are read from its signature when this object is created.

    Args:
        compact: The compactor.
        role: The name of the argument that contained the compactor, for error messages: ``compact``, ``fallback`` or
            ``summarizer``.
        source: An object to pass to the compactor instead of the text, such as a list of turns.

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
        #: True for a compactor without a model: it cannot hang, and its result is never taken for an error message.
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
        # Only a keyword-only parameter, because a positional parameter named `count` may be the number of tokens.
        self._counts = counted is not None and counted.kind is inspect.Parameter.KEYWORD_ONLY
        self._named = named.kind in _BY_NAME if named is not None else takes_any and not _can_bind(signature, "", 1)
        if not self._accepts_call(signature):
            raise ConfigurationError(
                f"{role} {self.name} has the signature {signature}; it must accept a text and a number of tokens: "
                "def compact(text, target_tokens)"
            )

    def _accepts_call(self, signature: inspect.Signature) -> bool:
        keywords: dict[str, Any] = {_COUNT: len} if self._counts else {}
        return (
            _can_bind(signature, "", **{_TARGET: 1}, **keywords)
            if self._named
            else _can_bind(signature, "", 1, **keywords)
        )

    def __call__(self, text: str, target: int, count: Callable[[str], int]) -> Any:
        """Call the compactor and return its result, which may be an awaitable or not a string at all."""
        first = text if self._source is None else self._source
        keywords: dict[str, Any] = {_COUNT: count} if self._counts else {}
        if self._named:
            return self.compact(first, target_tokens=target, **keywords)
        return self.compact(first, target, **keywords)


def _can_bind(signature: inspect.Signature, *values: Any, **keywords: Any) -> bool:
    try:
        signature.bind(*values, **keywords)
    except TypeError:
        return False
    return True


def _without_partial(compact: Any) -> Any:
    while isinstance(compact, functools.partial):
        compact = compact.func
    return compact


def is_async(compact: Any) -> bool:
    """Return whether a callable is a coroutine function, or has an attribute ``is_async`` that is True."""
    inner = _without_partial(compact)
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None)):  # noqa: B004
        return True
    return getattr(inner, "is_async", False) is True


def _name_of(compact: Any) -> str:
    inner = _without_partial(compact)
    named = inspect.isroutine(inner) or isinstance(inner, type)
    return str(getattr(inner, "__name__", "") if named else type(inner).__name__).strip("<>") or "compactor"


class Compactors:
    """A compactor, with a deadline, a number of attempts and a fallback.

    An attempt succeeds if the compactor returns a text that is within the target, not blank and not an error message.
    If the compactor raises an error, or returns no text or an error message, it is called again. If its text is too
    long, it is called again with a proportionally smaller target. After a timeout it is not called again. If all
    attempts fail, the fallback is called once, with the original text and target.

    A compactor that is not async runs in a separate daemon thread, even if the caller is async. If it exceeds the
    deadline, the thread is abandoned, and a warning is logged once per compactor. While 16 abandoned threads of the
    process still run, the compactor is not called (outcome ``refused``), and the fallback is used. The extractive
    compactor runs without a thread.

    ``HaltedError``, ``ContextOverflowError``, ``KeyboardInterrupt``, ``SystemExit`` and cancellation are raised to the
    caller, and do not count as a failed attempt.

    Args:
        compact: The compactor. It is called as ``compact(text, target_tokens=n)`` if it has a parameter of that name,
            otherwise as ``compact(text, n)``. A keyword-only parameter ``count`` receives the counter. None: the
            extractive compactor, which needs no model.
        fallback: The compactor to call if `compact` fails; None for no fallback.
        attempts: The maximum number of calls of `compact`.
        deadline: The maximum duration of one attempt, in seconds.

    Raises:
        ConfigurationError: A compactor does not accept a text and a number of tokens, `attempts` is below 1, or
            `deadline` is not a positive number.
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
        first = CompactorCall(_EXTRACTIVE) if compact is None else _as_call(compact, "compact")
        #: Each compactor with its maximum number of calls. A compactor without a model is deterministic, so it is
        #: called once.
        self._plan: tuple[tuple[CompactorCall, int], ...] = ((first, 1 if first.never_waits else attempts),)
        if fallback is not None:
            last = _as_call(fallback, "fallback")
            if not (first.never_waits and last.never_waits):
                self._plan += ((last, 1),)

    @property
    def is_async(self) -> bool:
        """Whether the compactor or the fallback is async, so that `run_async` is required."""
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
        """Shorten a text to at most `target_tokens`, and block until it is done.

        Args:
            text: The original text.
            target_tokens: The maximum number of tokens of the result. If it is below 1, no compactor is called.
            count: Returns the exact number of tokens of a text.
            watch: Called with each `Attempt`; returns the context manager in which the attempt runs, such as a span.
                None: no context manager.
            tokens_in: The tokens of `text`; None: they are counted.

        Returns:
            The shorter text, which is None if all attempts failed, with its tokens and the attempts.

        Raises:
            ConfigurationError: A compactor is async; use `run_async`.
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
                    if not trial.set_failure(attempt, error):
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
        """Shorten a text as `run` does, with the same arguments and result, without blocking the event loop.

        An async compactor runs in the caller's task, and is canceled with it. If a compactor that is not async returns
        an awaitable, this awaitable is awaited on the event loop.
        """
        trial = _Trial(self._plan, text, target_tokens, count, tokens_in)
        for compactor, attempt in trial.attempts_to_make():
            with watch(attempt) if watch else nullcontext():
                try:
                    answer = await self._answer(compactor, trial.call_of(compactor, attempt))
                    trial.judge(compactor, attempt, answer)
                except BaseException as error:
                    if not trial.set_failure(attempt, error):
                        raise
        return trial.result()

    async def _answer(self, compactor: CompactorCall, call: Callable[[], Any]) -> Any:
        end_time = asyncio.get_running_loop().time() + self.deadline
        if compactor.is_async:
            answer = call()
        else:
            deadline = None if compactor.never_waits else self.deadline
            answer = await call_with_deadline_async(call, deadline, compactor.name)
        if not inspect.isawaitable(answer):
            return answer
        timeout = asyncio.timeout_at(end_time)
        try:
            async with timeout:
                return await answer
        except TimeoutError:
            if timeout.expired():
                raise DeadlinePassed from None
            raise


class _Trial:
    """The state of shortening one text: which attempt comes next, and the outcomes of the attempts so far."""

    __slots__ = ("_accepted", "_attempts", "_count", "_plan", "_target", "_text", "_tokens_in")

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
        self._accepted: tuple[str, int] | None = None

    def attempts_to_make(self) -> Iterator[tuple[CompactorCall, Attempt]]:
        """Yield each attempt with its compactor; the caller makes it and sets the outcome before the next one."""
        if self._target < 1:
            return
        tokens_in = self._count(self._text) if self._tokens_in is None else self._tokens_in
        for compactor, max_calls in self._plan:
            target = self._target
            for _ in range(max_calls):
                if not compactor.never_waits and halted_here():
                    break  # a halted conversation makes no model calls
                attempt = Attempt(compactor.name, len(self._attempts) + 1, target, tokens_in)
                self._attempts.append(attempt)
                yield compactor, attempt
                if self._accepted is not None:
                    return
                if attempt.outcome in _NOT_REPEATED:
                    break
                if attempt.outcome is CompactionOutcome.TOO_LONG and attempt.tokens_out:
                    target = max(1, target * self._target // attempt.tokens_out)

    def call_of(self, compactor: CompactorCall, attempt: Attempt) -> Callable[[], Any]:
        return functools.partial(compactor, self._text, attempt.target, self._count)

    def judge(self, compactor: CompactorCall, attempt: Attempt, answer: Any) -> None:
        """Set the attempt's outcome from the value that the compactor returned."""
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
            self._accepted = answer, attempt.tokens_out

    def set_failure(self, attempt: Attempt, error: BaseException) -> bool:
        """Set the attempt's outcome from an error that the compactor raised.

        Returns:
            True if the next attempt can be made; False if the error must be raised to the caller.
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
            # The panic of a Rust extension derives from BaseException, but it is only a failed attempt.
            return isinstance(error, Exception) or type(error).__name__ == "PanicException"
        return True

    def result(self) -> Compacted:
        text, tokens = self._accepted if self._accepted is not None else (None, 0)
        return Compacted(text, tokens, tuple(self._attempts))


def compactors_of(compact: Compact | Compactors | None) -> Compactors:
    """Convert a caller's `compact` argument to `Compactors`; None means the extractive compactor.

    Raises:
        ConfigurationError: `compact` is a class, or cannot be called as a compactor.
    """
    if isinstance(compact, type) and issubclass(compact, Compactors):
        instance("compact", compact)
    return compact if isinstance(compact, Compactors) else Compactors(compact)


def _as_call(compact: Compact | CompactorCall, role: str) -> CompactorCall:
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
