"""What should last beyond an answer: proposed after it, and written only past a gate (the R of CLEAR)."""

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

#: Where a `KnowledgeWriteGate` writes, one directory a scope: who may not see a scope need not even list it.
SCOPES_PREFIX: Final = "/memory/scopes/"
_LONGEST_NAME: Final = 160


class RetentionOutcome(StrEnum):
    """What became of a proposal; a closed set.

    Attributes:
        WRITTEN: It is remembered.
        REJECTED: The gate's rule did not accept it.
        FORBIDDEN_SCOPE: It lies outside of what was permitted, and the gate never saw it.
        FAILED: The gate failed.
        QUEUED: A `QueuedWriteGate` holds it for later.
        REFUSED: A `QueuedWriteGate` had no room for it, or was closed.
    """

    WRITTEN = "written"
    REJECTED = "rejected"
    FORBIDDEN_SCOPE = "forbidden_scope"
    FAILED = "failed"
    QUEUED = "queued"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Proposal:
    """Something that might be worth remembering, and where it comes from.

    Attributes:
        candidate: What would be remembered, its scope and its source.
        assembly: The id of the assembly whose prompt was answered (``assembly.id`` on its span).
        answer: The answer, for a rule that wants to see it.
    """

    candidate: Candidate
    assembly: str
    answer: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Retained:
    """What became of one proposal.

    Attributes:
        proposal: What was proposed.
        outcome: What became of it.
    """

    proposal: Proposal
    outcome: RetentionOutcome


class WriteGate(Protocol):
    """Decides what is remembered, after the answer."""

    async def offer(self, proposals: Sequence[Proposal]) -> Sequence[Retained]:
        """Write what deserves it; one result for each proposal, in their order."""
        ...


#: Whether something may be remembered; async or not.
Accept: TypeAlias = Callable[[Proposal], bool | Awaitable[bool]]
#: Takes what was accepted; async or not.
Write: TypeAlias = Callable[[Proposal], Any]


class KnowledgeWriteGate:
    """Writes what a rule of yours accepts: to a `KnowledgeStore`, or to a callback.

    In a store, each memory is one JSON file in its scope's directory, named by the candidate's id, so that a newer
    version takes the place of an older one; `KnowledgeRecall` reads them.

    Args:
        store: Where to write.
        accept: The rule; a fact that it does not accept is not written anywhere.
        write: Takes what was accepted instead of a store.

    Raises:
        ConfigurationError: Not exactly one of `store` and `write`.
    """

    def __init__(self, store: KnowledgeStore | None = None, *, accept: Accept, write: Write | None = None) -> None:
        if (store is None) is (write is None):
            raise ConfigurationError("a KnowledgeWriteGate needs a store or a write callback, and not both")
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
        """Ask the rule about each proposal and write what it accepts; a failure costs that proposal alone.

        Raises:
            ConfigurationError: `proposals` is no sequence of `Proposal`.
        """
        proposals = items_of_type("proposals", proposals, Proposal)
        return [Retained(proposal, await self._offered(proposal)) for proposal in proposals]

    async def _offered(self, proposal: Proposal) -> RetentionOutcome:
        try:
            answer = self._accept(proposal)
            if (await answer if isawaitable(answer) else answer) is not True:
                return RetentionOutcome.REJECTED
            made = self._write(proposal)
            if isawaitable(made):
                await made
        except Exception as error:  # noqa: BLE001  # the answer has been given; what is not remembered must not undo it
            logger.warning("a memory was not written: %s", type(error).__name__)
            return RetentionOutcome.FAILED
        return RetentionOutcome.WRITTEN

    async def _to_store(self, proposal: Proposal) -> None:
        one = proposal.candidate
        version = one.version.isoformat() if isinstance(one.version, datetime) else one.version
        record = {
            "id": one.id,
            "content": one.content,
            "scope": one.scope,
            "source": one.source,
            "version": version,
            "profile": one.profile,
            "current": one.current,
            "assembly": proposal.assembly,
        }
        path = f"{SCOPES_PREFIX}{_name(one.scope)}/{_name(one.id)}.json"
        await self._store.write(path, json.dumps(record, ensure_ascii=False))  # type: ignore[union-attr]  # by __init__


class KnowledgeRecall:
    """What a `KnowledgeStore` holds of the permitted scopes, as memories or as evidence; needs no model.

    It reads every memory of those scopes and no other directory, and scores a memory by how many of the query's words
    are in it. That does for hundreds of memories; for more, bring a retriever with an index.

    Args:
        store: Where a `KnowledgeWriteGate` wrote.
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
        """The profile, and the memories that share words with the query, best first."""
        return await self.search(query, scopes=scopes, k=k)

    async def search(self, query: str, *, scopes: Collection[str], k: int) -> list[Candidate]:
        """The same, for who needs no user.

        Raises:
            ConfigurationError: The query is no text, `scopes` no collection of texts, or `k` no whole number from 1.
        """
        of_type("query", query, str)
        scopes = items_of_type("scopes", scopes, str)
        whole_number("k", k)
        asked = frozenset(terms(query.casefold()))
        found: list[Candidate] = []
        for scope in sorted(scopes):
            directory = f"{SCOPES_PREFIX}{_name(scope)}"
            for name in await self._store.list(directory):
                content = None if name.endswith("/") else await self._store.read(f"{directory}/{name}")
                one = _remembered(content, asked) if content is not None else None
                if one is not None and one.scope == scope and (one.score or one.profile):
                    found.append(one)
        return sorted(found, key=lambda one: (not one.profile, -(one.score or 0.0), one.scope, one.id))[:k]


def _remembered(content: str, asked: frozenset[str]) -> Candidate | None:
    try:
        record = json.loads(content)
        text, version = record["content"], record.get("version")
        shared = len(asked.intersection(terms(text.casefold()))) / len(asked) if asked else 0.0
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
        logger.warning("a memory cannot be read and is passed over: %s", type(error).__name__)
        return None


def _name(text: str) -> str:
    """A text as one segment of a path, different for different texts, whatever is in it."""
    named = quote(text, safe="", errors="surrogatepass").replace(".", "%2E").replace("~", "%7E") or "%"
    if len(named) <= _LONGEST_NAME:
        return named
    return (
        f"{named[:_LONGEST_NAME]}-{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
    )


async def retained(
    gate: WriteGate, answer: str, candidates: Sequence[Candidate], scopes: Collection[str], assembly: str
) -> list[Retained]:
    """Offer candidates to a gate; what lies outside of the scopes never reaches it, and no failure comes through."""
    proposals = [Proposal(candidate, assembly, answer) for candidate in candidates]
    offered = [proposal for proposal in proposals if proposal.candidate.scope in scopes]
    outcomes: dict[int, RetentionOutcome] = {}
    try:
        for one in await gate.offer(offered) if offered else ():
            outcomes[id(one.proposal)] = one.outcome
    except Exception as error:  # noqa: BLE001  # as above
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
