"""Write gates, which decide which memories are stored after an answer (the R of CLEAR), and `KnowledgeRecall`."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import quote

from otel_assembly._internal.arguments import function, instance, items_of_type, of_type, whole_number
from otel_assembly.budget.extractive_rank import terms
from otel_assembly.context_assembler.candidates import Candidate
from otel_assembly.errors import ConfigurationError

if TYPE_CHECKING:
    from otel_assembly.knowledge import KnowledgeStore

logger = logging.getLogger("otel_assembly")

#: The directory of a `KnowledgeWriteGate` in the store. It contains one directory per scope, so that a reader lists
#: only permitted scopes.
SCOPES_PREFIX: Final = "/memory/scopes/"
_LONGEST_NAME: Final = 160


class RetentionOutcome(StrEnum):
    """The outcome of a proposal to store a memory.

    Attributes:
        WRITTEN: The memory was stored.
        REJECTED: The gate's rule did not accept the memory.
        FORBIDDEN_SCOPE: The memory is outside the permitted scopes, and was not offered to the gate.
        FAILED: The gate raised an error, or returned no result for the memory.
        QUEUED: The memory is in the queue of a `QueuedWriteGate`.
        REFUSED: The queue of the `QueuedWriteGate` was full or closed.
    """

    WRITTEN = "written"
    REJECTED = "rejected"
    FORBIDDEN_SCOPE = "forbidden_scope"
    FAILED = "failed"
    QUEUED = "queued"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A memory that is offered to a write gate, with the answer after which it was proposed.

    Attributes:
        candidate: The memory, with its scope and source.
        assembly: The id of the assembly that produced the prompt (``assembly.id`` on its span).
        answer: The model's answer, which a gate may read for its decision.
    """

    candidate: Candidate
    assembly: str
    answer: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Retained:
    """The outcome of one proposal.

    Attributes:
        proposal: The proposal.
        outcome: Whether the memory was stored, or why not.
    """

    proposal: Proposal
    outcome: RetentionOutcome


class WriteGate(Protocol):
    """Decides which memories are stored after the answer."""

    async def offer(self, proposals: Sequence[Proposal]) -> Sequence[Retained]:
        """Decide on each proposal, and store the accepted memories.

        Returns:
            One result for each proposal, in the same order.
        """
        ...


#: Returns whether a proposal may be stored; async or not.
Accept: TypeAlias = Callable[[Proposal], bool | Awaitable[bool]]
#: Stores an accepted proposal; async or not.
Write: TypeAlias = Callable[[Proposal], Any]


class KnowledgeWriteGate:
    """A write gate with a function that accepts or rejects each memory; accepted memories are stored.

    They are stored in a `KnowledgeStore`, or with a function of yours. In a store, each memory is a JSON file in the
    directory of its scope, named by the candidate's id. A new memory replaces one with the same id. `KnowledgeRecall`
    reads the files.

    Args:
        store: The store in which accepted memories are written; None if `write` is passed.
        accept: ``accept(proposal)``, async or not: returns True if the memory may be stored.
        write: ``write(proposal)``, async or not: stores an accepted memory; None if `store` is passed.

    Raises:
        ConfigurationError: Both or neither of `store` and `write` are passed, or an argument has the wrong type.
    """

    def __init__(self, store: KnowledgeStore | None = None, *, accept: Accept, write: Write | None = None) -> None:
        if (store is None) is (write is None):
            raise ConfigurationError("KnowledgeWriteGate: give exactly one of store and write")
        instance("store", store)
        if store is not None and not callable(getattr(store, "write", None)):
            raise ConfigurationError(f"store {type(store).__name__} needs an async 'write'; give a KnowledgeStore")
        function("accept", accept)
        if write is not None:
            function("write", write)
        self._accept = accept
        self._write: Write = write if write is not None else self._to_store
        self._store = store

    async def offer(self, proposals: Sequence[Proposal]) -> list[Retained]:
        """Store each proposal that `accept` accepts; an error affects only the proposal for which it was raised.

        Raises:
            ConfigurationError: `proposals` is not a sequence of `Proposal`.
        """
        proposals = items_of_type("proposals", proposals, Proposal)
        return [Retained(proposal, await self._offer(proposal)) for proposal in proposals]

    async def _offer(self, proposal: Proposal) -> RetentionOutcome:
        try:
            answer = self._accept(proposal)
            if (await answer if isawaitable(answer) else answer) is not True:
                return RetentionOutcome.REJECTED
            written = self._write(proposal)
            if isawaitable(written):
                await written
        except Exception as error:  # noqa: BLE001  # the answer was already given; a lost memory must not fail the request
            logger.warning("a memory was not written: %s", type(error).__name__)
            return RetentionOutcome.FAILED
        return RetentionOutcome.WRITTEN

    async def _to_store(self, proposal: Proposal) -> None:
        candidate = proposal.candidate
        version = candidate.version.isoformat() if isinstance(candidate.version, datetime) else candidate.version
        record = {
            "id": candidate.id,
            "content": candidate.content,
            "scope": candidate.scope,
            "source": candidate.source,
            "version": version,
            "profile": candidate.profile,
            "current": candidate.current,
            "assembly": proposal.assembly,
        }
        path = f"{SCOPES_PREFIX}{_file_name(candidate.scope)}/{_file_name(candidate.id)}.json"
        await self._store.write(path, json.dumps(record, ensure_ascii=False))  # type: ignore[union-attr]  # by __init__


class KnowledgeRecall:
    """A source of the memories in the store of a `KnowledgeWriteGate`, ranked by the words they share with the query.

    The object is both a `Recall` and a `Retriever`. Each call reads all memories of the permitted scopes, and no other
    directory. The score of a memory is the fraction of the query's words that the memory contains. For more than some
    hundreds of memories, use a retriever with an index instead.

    Args:
        store: The store in which the memories are.
    """

    name = "knowledge"

    def __init__(self, store: KnowledgeStore) -> None:
        instance("store", store)
        if not callable(getattr(store, "read", None)) or not callable(getattr(store, "list", None)):
            raise ConfigurationError(
                f"store {type(store).__name__} needs an async 'list' and 'read'; give a KnowledgeStore"
            )
        self._store = store

    async def recall(self, query: str, *, user: Any, scopes: Collection[str], k: int) -> list[Candidate]:
        """Return at most `k` memories: durable facts about the user first, then those that share words with the query.

        Args:
            query: The user's question.
            user: Not used: the memories of all users in the scopes are returned.
            scopes: The names of the scopes that the user may see.
            k: The maximum number of memories.
        """
        return await self.search(query, scopes=scopes, k=k)

    async def search(self, query: str, *, scopes: Collection[str], k: int) -> list[Candidate]:
        """Return the same memories as `recall`, so that this object can also be used as a `Retriever`.

        Raises:
            ConfigurationError: `query` is not a text, `scopes` is not a collection of texts, or `k` is not a whole
                number of at least 1.
        """
        of_type("query", query, str)
        scopes = items_of_type("scopes", scopes, str)
        whole_number("k", k)
        query_terms = frozenset(terms(query.casefold()))
        candidates: list[Candidate] = []
        for scope in sorted(scopes):
            directory = f"{SCOPES_PREFIX}{_file_name(scope)}"
            for name in await self._store.list(directory):
                content = None if name.endswith("/") else await self._store.read(f"{directory}/{name}")
                memory = _candidate(content, query_terms) if content is not None else None
                if memory is not None and memory.scope == scope and (memory.score or memory.profile):
                    candidates.append(memory)
        candidates.sort(key=lambda memory: (not memory.profile, -(memory.score or 0.0), memory.scope, memory.id))
        return candidates[:k]


def _candidate(content: str, query_terms: frozenset[str]) -> Candidate | None:
    try:
        record = json.loads(content)
        text, version = record["content"], record.get("version")
        shared = len(query_terms.intersection(terms(text.casefold()))) / len(query_terms) if query_terms else 0.0
        return Candidate(
            id=record["id"],
            content=text,
            scope=record["scope"],
            score=shared,
            version=datetime.fromisoformat(version) if isinstance(version, str) else version,
            source=record.get("source"),
            current=record.get("current", True),
            profile=record.get("profile", False),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("a memory cannot be read and is skipped: %s", type(error).__name__)
        return None


def _file_name(text: str) -> str:
    """Convert any text to a name that is valid as a segment of a path and different for each text."""
    quoted = quote(text, safe="", errors="surrogatepass").replace(".", "%2E").replace("~", "%7E") or "%"
    if len(quoted) <= _LONGEST_NAME:
        return quoted
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{quoted[:_LONGEST_NAME]}-{digest}"


async def offer_candidates(
    gate: WriteGate, answer: str, candidates: Sequence[Candidate], scopes: Collection[str], assembly: str
) -> list[Retained]:
    """Offer memories to a gate, and return the outcome of each.

    Candidates outside `scopes` are not offered. An error of the gate is logged and not raised.
    """
    proposals = [Proposal(candidate, assembly, answer) for candidate in candidates]
    offered = [proposal for proposal in proposals if proposal.candidate.scope in scopes]
    outcomes: dict[int, RetentionOutcome] = {}
    try:
        for result in await gate.offer(offered) if offered else ():
            outcomes[id(result.proposal)] = result.outcome
    except Exception as error:  # noqa: BLE001  # the answer was already given; a lost memory must not fail the request
        logger.warning("the write gate failed: %s", type(error).__name__)
    permitted = {id(proposal) for proposal in offered}
    return [
        Retained(
            proposal,
            outcomes.get(id(proposal), RetentionOutcome.FAILED)
            if id(proposal) in permitted
            else RetentionOutcome.FORBIDDEN_SCOPE,
        )
        for proposal in proposals
    ]
