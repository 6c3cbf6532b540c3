"""What a `ContextAssembler` is asked (`Task`), what its sources bring (`Candidate`), and what a source is."""

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
    """All events of a `History`, up to now, which nobody changes: what was read of them holds.

    Attributes:
        history: Whose they are.
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
        # pydantic makes a ValidationError of this one, and of no TypeError.
        raise ValueError(f"give a sequence of turns, not a {type(value).__name__}")  # noqa: TRY004
    return tuple(value)


_Turns = Annotated[Sequence[Any], PlainValidator(_turns)]


# Its input is a prompt's content, which must not reach a log by way of an error's message.
@model(frozen=True, slots=True, config=ConfigDict(hide_input_in_errors=True, extra="forbid"))
class Task:
    """What is asked of the model now (the C of CLEAR: the Current task).

    Attributes:
        query: The question; it is what retrievers search for, and stands last in the prompt.
        output_schema: The form of the answer, as a text or as the object that is its JSON schema.
        key_instruction: Said once more behind the question, at the strongest position.
        entity: What the question is about, for the loader of the application's state.
        summary: What was said before that, as a text, or as what compaction made of it.
        recent: The newest turns, oldest first: events of any described type, or texts.
        older: The turns before those.

    Raises:
        pydantic.ValidationError: A field of another type.
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
    """Something that a source would put into the prompt: a passage, or a memory.

    Attributes:
        id: Its id at its source; of two with one id, the newest version stands, and the other is ``stale``.
        content: Its text.
        scope: Who may see it: what `ContextAssembler`'s ``scopes`` permits.
        score: How well it fits, the higher the better; of memories, the lowest is cut first.
        rank: 1 for the best of its source; without one, its place in what the source brought.
        version: What tells the newer of two with one id: numbers, or datetimes.
        source: Who says so; by default the name of whoever brought it.
        current: Whether it still holds; what has expired or was superseded is ``stale`` and never in the prompt.
        profile: Of memories: whether it belongs to the durable profile, which is cut last.

    Raises:
        ConfigurationError: A field of another type; the message says nothing of the content.
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
            try:  # retrievers bring the numbers of their own libraries: NumPy's are no `float`
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
    """A source of evidence: an index, a database, an API. A ``name`` of its own tells it apart in errors and logs."""

    async def search(self, query: str, *, scopes: Collection[str], k: int) -> Sequence[Candidate]:
        """The best `k` at most, best first; nothing outside of `scopes` may be looked at."""
        ...


class Recall(Protocol):
    """A source of memories."""

    async def recall(self, query: str, *, user: Any, scopes: Collection[str], k: int) -> Sequence[Candidate]:
        """What is remembered of this user that bears on the query, `k` at most; nothing outside of `scopes`."""
        ...


#: Says which scopes this user may see for this task; it is asked before anything is retrieved.
Scopes: TypeAlias = Callable[[Any, Task], Collection[str] | Awaitable[Collection[str]]]
#: Puts candidates in a better order, best first; what it leaves out is no candidate any more.
Rerank: TypeAlias = Callable[[str, Sequence[Candidate]], Sequence[Candidate] | Awaitable[Sequence[Candidate]]]
#: Loads the application's state for a task, as far as the scopes permit: a text, or an object, shown as JSON.
LoadState: TypeAlias = Callable[[Task, Collection[str]], Any]
