"""The task and candidates of a `ContextAssembler`, and the protocols of its sources."""

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

if TYPE_CHECKING:
    from datetime import datetime


class HistoryTurns(tuple[Any, ...]):
    """All events of a `History` at one time.

    They never change, so facts that were read from them stay valid.

    Attributes:
        history: The history of the events.
    """

    history: History

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)


def _turns(value: Any) -> Any:
    if isinstance(value, History):
        turns = HistoryTurns(value)
        turns.history = value
        return turns
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        # pydantic makes a ValidationError of a ValueError, but not of a TypeError.
        raise ValueError(f"give a sequence of turns, not a {type(value).__name__}")  # noqa: TRY004
    return tuple(value)


_Turns = Annotated[Sequence[Any], PlainValidator(_turns)]


# The input is a prompt's content, which must not reach a log in an error's message.
@model(frozen=True, slots=True, config=ConfigDict(hide_input_in_errors=True, extra="forbid"))
class Task:
    """The current task of the model (the C of CLEAR).

    Attributes:
        query: The question. Retrievers search for it, and it is last in the prompt.
        output_schema: The form of the answer, as a text or as a JSON schema object.
        key_instruction: An instruction that is repeated after the query, at the strongest position.
        entity: The entity that the query is about, for the loader of the application's state.
        summary: A summary of earlier turns, as a text or a `CompactedBlock`.
        recent: The newest turns, oldest first: events of any registered type, or texts.
        older: The turns before `recent`, oldest first.

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
    """A passage or a memory that a source proposes for the prompt.

    Attributes:
        id: The candidate's id in its source. Of two with one id, the newest version is kept, and the other is
            ``stale``.
        content: The text.
        scope: The scope in which it may be seen; `ContextAssembler`'s ``scopes`` returns the permitted scopes.
        score: How well it matches, the higher the better. Of memories, the one with the lowest score is dropped first.
        rank: 1 for the best of its source; by default its position in the source's result.
        version: Determines the newer of two with one id: numbers or datetimes.
        source: The name of the source; by default the name of the retriever or recall.
        current: Whether it still holds. A candidate that expired or was superseded is ``stale`` and never in the
            prompt.
        profile: For memories: whether it belongs to the durable profile, which is dropped last.

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
    """A source of evidence: an index, a database, an API.

    An attribute ``name`` identifies it in errors and logs.
    """

    async def search(self, query: str, *, scopes: Collection[str], k: int) -> Sequence[Candidate]:
        """Return at most `k` candidates, best first; only `scopes` may be searched."""
        ...


class Recall(Protocol):
    """A source of memories."""

    async def recall(self, query: str, *, user: Any, scopes: Collection[str], k: int) -> Sequence[Candidate]:
        """Return at most `k` memories of the user for the query; only `scopes` may be read."""
        ...


#: Returns the scopes that a user may see for a task; called before anything is retrieved.
Scopes: TypeAlias = Callable[[Any, Task], Collection[str] | Awaitable[Collection[str]]]
#: Returns candidates in a better order, best first; omitted candidates are not used.
Rerank: TypeAlias = Callable[[str, Sequence[Candidate]], Sequence[Candidate] | Awaitable[Sequence[Candidate]]]
#: Loads the application's state for a task within the scopes: a text, or an object that is sent as JSON.
LoadState: TypeAlias = Callable[[Task, Collection[str]], Any]
