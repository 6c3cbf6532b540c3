"""`Task` and `Candidate`, and the protocols of a `ContextAssembler`'s sources."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias

from pydantic import ConfigDict, PlainValidator
from pydantic.dataclasses import dataclass as model

from otel_assembly._internal.arguments import of_type, whole_number
from otel_assembly.budget.compacted_block import CompactedBlock  # noqa: TC001  # pydantic reads it
from otel_assembly.errors import ConfigurationError
from otel_assembly.history.history import History
from otel_assembly.history.view import View

if TYPE_CHECKING:
    from datetime import datetime


class HistoryTurns(View):
    """All events of a `History` at the time when a task was created.

    A history's events never change, so they need not be copied, and cached facts about them stay valid.
    """

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]  # a task with turns that have a hash has one
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)


def _turns(value: Any) -> Any:
    if isinstance(value, History):
        return HistoryTurns(value, value.all, value.view().ranges)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        # pydantic makes a ValidationError of a ValueError, but not of a TypeError.
        raise ValueError(f"give a sequence of turns, not a {type(value).__name__}")  # noqa: TRY004
    return tuple(value)


_Turns = Annotated[Sequence[Any], PlainValidator(_turns)]


# The input is a prompt's content, which must not reach a log in an error's message.
@model(frozen=True, slots=True, config=ConfigDict(hide_input_in_errors=True, extra="forbid"))
class Task:
    """The input of `ContextAssembler.assemble`: the query and the turns of the conversation.

    Attributes:
        query: The user's question. It is passed to the retrievers, and it is last in the prompt.
        output_schema: The required format of the answer, as a text or as a JSON schema object; None: no format is
            required.
        key_instruction: An instruction to repeat after the query, at the end of the prompt.
        entity: What the query is about, such as an order's id; for the function that loads the application's state.
            None: nothing in particular.
        summary: A summary of earlier turns, as a text or a `CompactedBlock`; None for no summary.
        recent: The newest turns, oldest first: messages of types that are registered with ``describe()``, or texts.
        older: The turns before `recent`, oldest first. They are dropped before `recent`.

    Raises:
        pydantic.ValidationError: A field has another type.
    """

    query: str
    output_schema: str | dict[str, Any] | None = None
    key_instruction: str = ""
    entity: str | None = None
    summary: str | CompactedBlock | None = None
    recent: _Turns = ()
    older: _Turns = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage or a memory that a source returns for the prompt, or a memory to store.

    Attributes:
        id: The candidate's id in its source. If two candidates of a source have the same id, the newer version is kept,
            and the older one is dropped with the reason ``stale``.
        content: The text.
        scope: The name of the scope to which the candidate belongs. Only candidates of permitted scopes are used; see
            the argument ``scopes`` of `ContextAssembler`.
        score: How well the candidate matches, the higher the better. The memory with the lowest score is dropped first;
            None counts as lowest.
        rank: 1 for the best candidate of its source; by default the position in the source's result.
        version: A number or a datetime, by which candidates with the same id are compared; None: the candidate has no
            version.
        source: The name of the source; by default the name of the retriever or recall.
        current: False for a candidate that expired or was superseded; it is dropped with the reason ``stale``.
        profile: For memories: whether it is a durable fact about the user, which is dropped last.

    Raises:
        ConfigurationError: A field has another type; the message contains none of the content.
    """

    id: str
    content: str = field(repr=False)
    scope: str
    score: float | None = None
    rank: int | None = None
    version: float | datetime | None = None
    source: str | None = None
    current: bool = True
    profile: bool = False

    def __post_init__(self) -> None:
        for name in ("id", "content", "scope"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise ConfigurationError(f"a candidate's {name} must be a text, got a {type(value).__name__}")
        if self.rank is not None:
            whole_number("a candidate's rank (1 is the best)", self.rank)
        if self.score is not None:
            try:  # retrievers return numbers of their own libraries: NumPy's are not `float`
                math.isnan(self.score)
            except TypeError:
                raise ConfigurationError(
                    f"a candidate's score must be a number, got a {type(self.score).__name__}"
                ) from None
        if self.source is not None:
            of_type("a candidate's source", self.source, str)
        for name in ("current", "profile"):
            if isinstance(getattr(self, name), str):
                raise ConfigurationError(f"a candidate's {name} must be True or False, got a text")


class Retriever(Protocol):
    """A source of evidence, such as an index, a database or an API.

    If it has an attribute ``name``, errors and logs contain this name; otherwise, the name of its class.
    """

    async def search(self, query: str, *, scopes: Collection[str], k: int) -> Sequence[Candidate]:
        """Return at most `k` candidates that are relevant to the query, best first, all of them from the given scopes.

        Args:
            query: The user's question.
            scopes: The names of the scopes that the user may see.
            k: The maximum number of candidates.
        """
        ...


class Recall(Protocol):
    """A source of memories."""

    async def recall(self, query: str, *, user: Any, scopes: Collection[str], k: int) -> Sequence[Candidate]:
        """Return at most `k` memories of the user that are relevant to the query, all of them from the given scopes.

        Args:
            query: The user's question.
            user: The argument `user` of `ContextAssembler.assemble`.
            scopes: The names of the scopes that the user may see.
            k: The maximum number of memories.
        """
        ...


#: Returns the scopes that a user may see for a task; called before anything is retrieved.
Scopes: TypeAlias = Callable[[Any, Task], Collection[str] | Awaitable[Collection[str]]]
#: Returns candidates in a better order, best first. Candidates that it does not return are not used.
Rerank: TypeAlias = Callable[[str, Sequence[Candidate]], Sequence[Candidate] | Awaitable[Sequence[Candidate]]]
#: Loads the application's state for a task from the given scopes: a text, or an object that is sent as JSON.
LoadState: TypeAlias = Callable[[Task, Collection[str]], Any]
