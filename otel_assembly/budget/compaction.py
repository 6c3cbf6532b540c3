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
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_assembly._internal.arguments import called, instance, whole_number
from otel_assembly.budget.attempt import Attempt, Compacted, CompactionOutcome, Watch
from otel_assembly.budget.compact_errors import is_error_text
from otel_assembly.budget.compact_workers import DeadlinePassed, TooManyHang, acall_within, call_within
from otel_assembly.budget.extractive import ExtractiveCompactor
from otel_assembly.conversation_state import halted_here
from otel_assembly.errors import ConfigurationError, ContextOverflowError, HaltedError, error_type

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A compactor: ``compact(text, target_tokens)`` gives a text of at most so many tokens, or an awaitable of one.
Compact: TypeAlias = Callable[..., str | Awaitable[str]]

_TARGET: Final = "target_tokens"
_COUNT: Final = "count"
_BY_NAME = frozenset({inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY})


class _MustAwaitError(ConfigurationError):
    """A compactor is async where nothing can await it."""


_PASS_THROUGH: Final = (HaltedError, ContextOverflowError, _MustAwaitError)
_NOT_REPEATED: Final = frozenset({CompactionOutcome.TIMED_OUT, CompactionOutcome.REFUSED})
_EXTRACTIVE: Final = ExtractiveCompactor()


class Calling:
    """One compactor, and the way it is called; decided once, from its signature.

    Args:
        compact: The compactor.
        role: What it is to the user, for the message of an error: ``compact``, ``fallback``, ``summarizer``.
        given: What it is called with in the place of the text, if it reads something else.

    Raises:
        ConfigurationError: It cannot be called with a text and a number of tokens.
    """

    __slots__ = ("_counts", "_given", "_named", "compact", "is_async", "name", "never_waits")

    def __init__(self, compact: Compact, role: str = "compact", *, given: Any = None) -> None:
        called(role, compact)
        if not callable(compact):
            raise ConfigurationError(f"{role} is a {type(compact).__name__}; give a callable ({role}(text, target))")
        self.compact = compact
        self._given = given
        self.name = _name_of(compact)
        self.is_async = is_async(compact)
        #: It needs no model and no network, so it cannot hang, and its answer is made of the text's own words.
        self.never_waits = getattr(compact, "never_waits", False) is True
        try:
            signature = inspect.signature(compact)
        except (TypeError, ValueError):  # some callables written in C have none
            self._named = self._counts = False
            return
        parameters = signature.parameters.values()
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
        named = signature.parameters.get(_TARGET)
        counted = signature.parameters.get(_COUNT)
        # By keyword only: a second parameter of that name may well be the number of tokens.
        self._counts = counted is not None and counted.kind is inspect.Parameter.KEYWORD_ONLY
        self._named = named.kind in _BY_NAME if named is not None else takes_any and not _binds(signature, "", 1)
        if not self._bound(signature):
            raise ConfigurationError(
                f"{role} {self.name} takes {signature}; it is called with the text and the tokens it may have: "
                "def compact(text, target_tokens)"
            )

    def _bound(self, signature: inspect.Signature) -> bool:
        keywords: dict[str, Any] = {_COUNT: len} if self._counts else {}
        return (
            _binds(signature, "", **{_TARGET: 1}, **keywords) if self._named else _binds(signature, "", 1, **keywords)
        )

    def __call__(self, text: str, target: int, count: Callable[[str], int]) -> Any:
        """What the compactor returns: a text, an awaitable of one, or what it should not have returned."""
        source = text if self._given is None else self._given
        keywords: dict[str, Any] = {_COUNT: count} if self._counts else {}
        if self._named:
            return self.compact(source, target_tokens=target, **keywords)
        return self.compact(source, target, **keywords)


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
    """Whether a callable is known to give an awaitable: a coroutine function, or one that says so (`is_async`)."""
    inner = _unwrapped(compact)
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None)):  # noqa: B004
        return True
    return getattr(inner, "is_async", False) is True


def _name_of(compact: Any) -> str:
    inner = _unwrapped(compact)
    named = inspect.isroutine(inner) or isinstance(inner, type)
    return str(getattr(inner, "__name__", "") if named else type(inner).__name__).strip("<>") or "compactor"


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
        whole_number("Compactors: attempts", attempts)
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
