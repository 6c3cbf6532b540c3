"""Determines the permitted scopes, and calls the sources of a prompt's content (the L and E of CLEAR).

Candidates outside the permitted scopes are removed here, before other code reads them. Neither their text nor their ids
nor their number is ever ranked, counted, logged or recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar

from otel_assembly._internal.arguments import instance
from otel_assembly.context_assembler.candidates import Candidate
from otel_assembly.errors import ConfigurationError, ContextOverflowError, HaltedError, SourceFailedError, error_type

if TYPE_CHECKING:
    from otel_assembly.context_assembler.candidates import LoadState, Recall, Rerank, Retriever, Scopes, Task

logger = logging.getLogger("otel_assembly")

T = TypeVar("T")
_CANDIDATES = "return a sequence of Candidate, the best first"
_PASS_THROUGH = (HaltedError, ContextOverflowError)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The results of all sources, without candidates outside the permitted scopes.

    Attributes:
        scopes: The scopes that the user may see.
        evidence: Evidence, best first.
        memories: Memories, in the order in which the source returned them.
        state: The application's state.
        failures: The errors of sources that were skipped.
    """

    scopes: frozenset[str]
    evidence: tuple[Candidate, ...] = ()
    memories: tuple[Candidate, ...] = ()
    state: Any = None
    failures: tuple[SourceFailedError, ...] = ()


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a `ContextAssembler`, with the settings of their calls.

    Attributes:
        scopes: Returns the permitted scopes; called first.
        retrievers: Sources of evidence.
        recall: The source of memories.
        rerank: Returns the evidence in a better order.
        state: Loads the application's state.
        k: How many candidates to request from each retriever.
        recall_k: How many memories to request.
        deadline: The maximum duration of a call of a source, in seconds.
        skips: Whether to continue without a retriever, recall or rerank that failed.
    """

    scopes: Scopes
    retrievers: tuple[Retriever, ...]
    recall: Recall | None
    rerank: Rerank | None
    state: LoadState | None
    k: int
    recall_k: int
    deadline: float
    skips: bool

    async def gather(self, task: Task, user: Any) -> Gathered:
        """Determine the permitted scopes, then call all sources concurrently.

        Raises:
            SourceFailedError: `scopes` or `state` failed; or another source failed, and `skips` is False.
        """
        scopes = await self._permitted(task, user)
        if not scopes:
            return Gathered(scopes)
        failures: list[SourceFailedError] = []
        calls: list[Coroutine[Any, Any, Any]] = [
            self._candidates(
                "retriever", source, partial(source.search, task.query, scopes=scopes, k=self.k), scopes, failures
            )
            for source in self.retrievers
        ]
        if self.recall is not None:
            call = partial(self.recall.recall, task.query, user=user, scopes=scopes, k=self.recall_k)
            calls.append(self._candidates("recall", self.recall, call, scopes, failures))
        if self.state is not None:
            calls.append(self._call_source("state", self.state, partial(self.state, task, scopes)))
        results = await _gather_all(calls)
        evidence = _best_first(results[: len(self.retrievers)])
        rest = iter(results[len(self.retrievers) :])
        memories = next(rest) if self.recall is not None else ()
        state = next(rest) if self.state is not None else None
        if self.rerank is not None and evidence:
            evidence = await self._reranked(self.rerank, task.query, evidence, scopes, failures)
        # Sort, because the order in which sources fail differs from run to run.
        failures.sort(key=lambda failure: (failure.role, failure.source))
        return Gathered(scopes, tuple(evidence), tuple(memories), state, tuple(failures))

    async def _permitted(self, task: Task, user: Any) -> frozenset[str]:
        scopes = await self._call_source("scopes", self.scopes, lambda: self.scopes(user, task))
        if isinstance(scopes, str) or not isinstance(scopes, Collection) or not all(isinstance(s, str) for s in scopes):
            raise _invalid_result(
                "scopes", self.scopes, type(scopes), "return the scopes that the user may see, a set of strings"
            )
        return frozenset(scopes)

    async def _candidates(
        self,
        role: str,
        source: Any,
        call: Callable[[], Any],
        scopes: frozenset[str],
        failures: list[SourceFailedError],
    ) -> list[Candidate]:
        try:
            candidates = permitted(role, source, await self._call_source(role, source, call), scopes)
        except SourceFailedError as failure:
            self._skip(failure, failures)
            return []
        name = name_of(source)
        return [
            candidate if candidate.source is not None else _with_source(name, candidate)
            for candidate in candidates
            if candidate.content.strip()
        ]

    async def _reranked(
        self,
        rerank: Rerank,
        query: str,
        evidence: list[Candidate],
        scopes: frozenset[str],
        failures: list[SourceFailedError],
    ) -> list[Candidate]:
        current = [candidate for candidate in evidence if candidate.current]
        try:
            answer = await self._call_source("rerank", rerank, lambda: rerank(query, tuple(current)))
            ranked = permitted("rerank", rerank, answer, scopes)
        except SourceFailedError as failure:
            self._skip(failure, failures)
            return evidence
        return [*ranked, *(candidate for candidate in evidence if not candidate.current)]

    def _skip(self, failure: SourceFailedError, failures: list[SourceFailedError]) -> None:
        if not self.skips:
            raise failure
        failures.append(failure)

    async def _call_source(self, role: str, source: Any, call: Callable[[], Any]) -> Any:
        """Call a source with the deadline, and return its result.

        Raises:
            SourceFailedError: The source raised an error or exceeded the deadline; the failure is also logged.
        """
        timeout = asyncio.timeout(self.deadline)
        try:
            async with timeout:
                result = call()
                return await result if isawaitable(result) else result
        except _PASS_THROUGH:
            raise
        except Exception as error:  # raised again as a SourceFailedError
            late = isinstance(error, TimeoutError) and timeout.expired()
            problem = f"took longer than {self.deadline:g} s" if late else f"raised {type(error).__name__}"
            fix = "fix it, or skip it with on_retriever_error='skip'"
            if role in {"scopes", "state"}:
                fix = "nothing is assembled without it"
            failure = SourceFailedError(name_of(source), role, problem, fix)
            logger.warning("%s %r %s", role, failure.source, problem)
            raise failure from error


def permitted(role: str, source: Any, result: Any, scopes: Collection[str]) -> list[Candidate]:
    """Return the candidates of a source's result that belong to the given scopes; log a warning if there are others.

    Raises:
        SourceFailedError: The result is not a sequence of candidates.
    """
    if isinstance(result, str) or not isinstance(result, Sequence):
        raise _invalid_result(role, source, type(result), _CANDIDATES)
    invalid = next((element for element in result if not isinstance(element, Candidate)), None)
    if invalid is not None:
        raise _invalid_result(role, source, type(invalid), _CANDIDATES)
    kept = [candidate for candidate in result if candidate.scope in scopes]
    if len(kept) < len(result):
        logger.warning(
            "%s %r returned candidates outside the permitted scopes; they were removed. Fix the source: it must apply "
            "the scopes before it searches",
            role,
            name_of(source),
        )
    return kept


def _invalid_result(role: str, source: Any, kind: type, fix: str) -> SourceFailedError:
    failure = SourceFailedError(name_of(source), role, f"returned a {kind.__name__}", fix)
    logger.warning("%s %r %s", role, failure.source, failure.problem)
    return failure


def _with_source(source: str, candidate: Candidate) -> Candidate:
    # Not `dataclasses.replace`: it looks up every field by name, which was half of the cost of gathering.
    return Candidate(
        candidate.id,
        candidate.content,
        candidate.scope,
        candidate.score,
        candidate.rank,
        candidate.version,
        source,
        candidate.current,
        candidate.profile,
    )


def error_type_of(failure: SourceFailedError) -> str:
    """Return the type of the error that a source raised, as ``error.type`` records it; the message is not exported."""
    return error_type(failure.__cause__ or failure)


def name_of(source: Any) -> str:
    """Return a source's name for errors and logs: its attribute ``name``, or the name of its function or class."""
    name = getattr(source, "name", None) or getattr(source, "__name__", None)
    return name.strip("<>") if isinstance(name, str) else type(source).__name__


def checked_source(role: str, source: Any, method: str) -> None:
    """Check that an object can be used as a source.

    Raises:
        ConfigurationError: The object is a class instead of an instance, or does not have the method.
    """
    instance(role, source)
    if not callable(getattr(source, method, None)):
        raise ConfigurationError(f"{role} {type(source).__name__} needs an async '{method}'")


def _best_first(answers: Sequence[Sequence[Candidate]]) -> list[Candidate]:
    """Merge the results of all retrievers into one list, in ascending order of rank (rank 1 is the best).

    The rank of a candidate without a rank is its position in its retriever's result, from 1. Candidates of the same
    rank are in the order of the retrievers.

    Args:
        answers: The result of each retriever.
    """
    ranked = [
        (candidate.rank if candidate.rank is not None else position, candidate)
        for answer in answers
        for position, candidate in enumerate(answer, start=1)
    ]
    return [candidate for _, candidate in sorted(ranked, key=lambda pair: pair[0])]


async def _gather_all(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all calls concurrently and return their results; if a call fails, cancel the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
