"""`CompactedBlock`: a summary with the ids of its sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ConfigDict, model_validator
from pydantic.dataclasses import dataclass

from otel_assembly._internal.arguments import items_of_type, of_type
from otel_assembly.events import CompactionSummary
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Iterable


def _as_id(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


# The input is a prompt's content, which must not reach a log in an error's message.
@dataclass(frozen=True, slots=True, config=ConfigDict(hide_input_in_errors=True))
class CompactedBlock:
    """A lossy text that replaces other items, with their ids as provenance.

    Attributes:
        summary: The text that the model reads.
        provenance: Ids of the items that the summary was made from, in their order. They are always leaf items: a
            summary of summaries lists the sources of those. A list is accepted too, and whole numbers become strings.
        covers_turns: The first and last turn that the summary covers.
        lossy: Whether the summary omits content of its sources, so that readers should not rely on its wording.

    Raises:
        pydantic.ValidationError: A field has another type, or the last turn precedes the first.
    """

    summary: str
    provenance: tuple[Annotated[str, BeforeValidator(_as_id)], ...]
    covers_turns: tuple[int, int]
    lossy: bool = True

    @model_validator(mode="after")
    def _in_order(self) -> CompactedBlock:
        first, last = self.covers_turns
        if last < first:
            raise ValueError(f"covers_turns ends at {last}, before it begins at {first}; give (first, last)")
        return self

    def as_event(self) -> CompactionSummary:
        """Return the summary as an event for a conversation, with a new id."""
        return CompactionSummary(
            summary=self.summary, event_count=len(self.provenance), provenance=self.provenance, lossy=self.lossy
        )


@describe.register
def _(block: CompactedBlock) -> EventFacts:
    return EventFacts(EventKind.SUMMARY, block.summary)


def leaf_ids(
    provenance: Iterable[str], summaries: Mapping[str, CompactedBlock | CompactionSummary] | None = None
) -> tuple[str, ...]:
    """Return ids without summaries: each summary's id is replaced by the ids of its sources, recursively.

    Args:
        provenance: Ids of items or of summaries.
        summaries: The known summaries, by id. A summary without provenance is a leaf. An id that occurs in its own
            provenance is skipped.

    Returns:
        The leaf ids in order, each once.

    Raises:
        ConfigurationError: `provenance` is not a collection of texts, or `summaries` is not a mapping.
    """
    provenance = items_of_type("provenance", provenance, str)
    if summaries is not None:
        of_type("summaries", summaries, Mapping, "give the summaries by their ids")
    known = summaries or {}
    found: dict[str, None] = {}
    opened: set[str] = set()
    left = list(provenance)[::-1]
    while left:
        id_ = left.pop()
        summary = known.get(id_)
        if summary is None or not summary.provenance:
            found[id_] = None
        elif id_ not in opened:
            opened.add(id_)
            left.extend(reversed(summary.provenance))
    return tuple(found)
