"""Gathering what a prompt may be made of: permission first, then all sources at once (the L and E of CLEAR).

What is not permitted is taken out here, before anything else sees it: it is never ranked, counted, logged or recorded,
not by its text, nor by its id, nor by how many there were.
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
    """What the sources brought, permitted all of it.

    Attributes:
        scopes: What the user may see.
        evidence: Best first.
        memories: As they were recalled.
        state: The application's state, as it was loaded.
        failures: The sources that were passed over.
    """

    scopes: frozenset[str]
    evidence: tuple[Candidate, ...] = ()
    memories: tuple[Candidate, ...] = ()
    state: Any = None
    failures: tuple[SourceFailedError, ...] = ()


@dataclass(frozen=True, slots=True)
class Sources:
    """Whom a `ContextAssembler` asks.

    Attributes:
        scopes: Says what is permitted; asked first.
        retrievers: Sources of evidence.
        recall: The source of memories.
        rerank: Puts the evidence in a better order.
        state: Loads the application's state.
        k: How much each retriever is asked for.
        recall_k: How many memories are asked for.
        deadline: Seconds that each of them may take.
        skips: Whether a retriever, recall or rerank that fails is passed over.
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
        """Ask what is permitted, then, within that, everybody at once.

        Raises:
            SourceFailedError: `scopes` or `state` failed; or another source, unless those are passed over.
        """
        scopes = await self._permitted(task, user)
        if not scopes:
            return Gathered(scopes)
        failures: list[SourceFailedError] = []
        asked: list[Coroutine[Any, Any, Any]] = [
            self._found("retriever", one, partial(one.search, task.query, scopes=scopes, k=self.k), scopes, failures)
            for one in self.retrievers
        ]
        if self.recall is not None:
            call = partial(self.recall.recall, task.query, user=user, scopes=scopes, k=self.recall_k)
            asked.append(self._found("recall", self.recall, call, scopes, failures))
        if self.state is not None:
            asked.append(self._answer("state", self.state, partial(self.state, task, scopes)))
        answers = await _all(asked)
        evidence = _best_first(answers[: len(self.retrievers)])
        rest = iter(answers[len(self.retrievers) :])
        memories = next(rest) if self.recall is not None else ()
        state = next(rest) if self.state is not None else None
        if self.rerank is not None and evidence:
            evidence = await self._reranked(self.rerank, task.query, evidence, scopes, failures)
        # By place, so that what is told of failures does not depend on who was quicker.
        failures.sort(key=lambda failure: (failure.role, failure.source))
        return Gathered(scopes, tuple(evidence), tuple(memories), state, tuple(failures))

    async def _permitted(self, task: Task, user: Any) -> frozenset[str]:
        found = await self._answer("scopes", self.scopes, lambda: self.scopes(user, task))
        if isinstance(found, str) or not isinstance(found, Collection) or not all(isinstance(s, str) for s in found):
            raise _returned(
                "scopes", self.scopes, type(found), "return the scopes that the user may see, a set of strings"
            )
        return frozenset(found)

    async def _found(
        self,
        role: str,
        source: Any,
        call: Callable[[], Any],
        scopes: frozenset[str],
        failures: list[SourceFailedError],
    ) -> list[Candidate]:
        try:
            found = permitted(role, source, await self._answer(role, source, call), scopes)
        except SourceFailedError as failure:
            self._passed_over(failure, failures)
            return []
        name = name_of(source)
        return [one if one.source is not None else _from(name, one) for one in found if one.content.strip()]

    async def _reranked(
        self,
        rerank: Rerank,
        query: str,
        evidence: list[Candidate],
        scopes: frozenset[str],
        failures: list[SourceFailedError],
    ) -> list[Candidate]:
        current = [one for one in evidence if one.current]
        try:
            answer = await self._answer("rerank", rerank, lambda: rerank(query, tuple(current)))
            ranked = permitted("rerank", rerank, answer, scopes)
        except SourceFailedError as failure:
            self._passed_over(failure, failures)
            return evidence
        return [*ranked, *(one for one in evidence if not one.current)]

    def _passed_over(self, failure: SourceFailedError, failures: list[SourceFailedError]) -> None:
        if not self.skips:
            raise failure
        failures.append(failure)

    async def _answer(self, role: str, source: Any, call: Callable[[], Any]) -> Any:
        """What a source says within its deadline.

        Raises:
            SourceFailedError: It raised, or was late; logged.
        """
        bound = asyncio.timeout(self.deadline)
        try:
            async with bound:
                made = call()
                return await made if isawaitable(made) else made
        except _PASS_THROUGH:
            raise
        except Exception as error:  # raised again, under our name
            late = isinstance(error, TimeoutError) and bound.expired()
            problem = f"took longer than {self.deadline:g} s" if late else f"raised {type(error).__name__}"
            mend = "mend it, or pass it over with on_retriever_error='skip'"
            if role in {"scopes", "state"}:
                mend = "nothing is assembled without it"
            failure = SourceFailedError(name_of(source), role, problem, mend)
            logger.warning("%s %r %s", role, failure.source, problem)
            raise failure from error


def permitted(role: str, source: Any, found: Any, scopes: Collection[str]) -> list[Candidate]:
    """What of this is within the scopes; what is not is forgotten at once.

    Raises:
        SourceFailedError: It is no sequence of candidates.
    """
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise _returned(role, source, type(found), _CANDIDATES)
    stranger = next((one for one in found if not isinstance(one, Candidate)), None)
    if stranger is not None:
        raise _returned(role, source, type(stranger), _CANDIDATES)
    kept = [one for one in found if one.scope in scopes]
    if len(kept) < len(found):
        logger.warning(
            "%s %r returned what is outside of the scopes it was given; that was taken out. Mend it: it must apply the "
            "scopes before it searches",
            role,
            name_of(source),
        )
    return kept


def _returned(role: str, source: Any, kind: type, mend: str) -> SourceFailedError:
    failure = SourceFailedError(name_of(source), role, f"returned a {kind.__name__}", mend)
    logger.warning("%s %r %s", role, failure.source, failure.problem)
    return failure


def _from(source: str, one: Candidate) -> Candidate:
    """A candidate that says who brought it."""
    # `replace` looks up every field by its name, which was half of the cost of gathering.
    return Candidate(one.id, one.content, one.scope, one.score, one.rank, one.version, source, one.current, one.profile)


def error_type_of(failure: SourceFailedError) -> str:
    """What a source failed with, for telemetry: an error's type, never its message."""
    return error_type(failure.__cause__ or failure)


def name_of(source: Any) -> str:
    """What a source is called in errors and logs: its ``name``, else its function's or class's."""
    name = getattr(source, "name", None) or getattr(source, "__name__", None)
    return name.strip("<>") if isinstance(name, str) else type(source).__name__


def checked_source(role: str, source: Any, method: str) -> None:
    """Refuse what cannot be a source.

    Raises:
        ConfigurationError: It has no such method, or is a class.
    """
    instance(role, source)
    if not callable(getattr(source, method, None)):
        raise ConfigurationError(f"{role} {type(source).__name__} needs an async '{method}'")


def _best_first(answers: Sequence[Sequence[Candidate]]) -> list[Candidate]:
    """All evidence by rank; of one rank, the earlier retriever's first, whoever answered first."""
    ranked = [
        (one.rank if one.rank is not None else place, one)
        for answer in answers
        for place, one in enumerate(answer, start=1)
    ]
    return [one for _, one in sorted(ranked, key=lambda pair: pair[0])]


async def _all(asked: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All answers; where one fails, the others are not waited for."""
    tasks = [asyncio.ensure_future(one) for one in asked]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
