"""`CompactedBlock`: a summary that knows what it was made from."""

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


# Its input is a prompt's content, which must not reach a log by way of an error's message.
@dataclass(frozen=True, slots=True, config=ConfigDict(hide_input_in_errors=True))
class CompactedBlock:
    """A lossy text in the place of others, with where it came from kept outside the prose.

    Attributes:
        summary: What the model reads.
        provenance: Ids of the items it was made from, in their order. Always leaves: what a summary of summaries stands
            for is what those stood for. A list is taken too, and whole numbers become strings.
        covers_turns: The first and the last turn that it covers.
        lossy: That it says less than its sources, so that nobody relies on it word by word.

    Raises:
        pydantic.ValidationError: A field of another type, or a last turn before the first.
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
        """The summary as an event that can stand in a conversation, with a new id."""
        return CompactionSummary(
            summary=self.summary, event_count=len(self.provenance), provenance=self.provenance, lossy=self.lossy
        )


@describe.register
def _(block: CompactedBlock) -> EventFacts:
    return EventFacts(EventKind.SUMMARY, block.summary)


def leaves(
    provenance: Iterable[str], summaries: Mapping[str, CompactedBlock | CompactionSummary] | None = None
) -> tuple[str, ...]:
    """Ids that are no summaries: each id that names one is replaced by what that was made from, however deep.

    Args:
        provenance: Ids of items or of summaries.
        summaries: The summaries that are known, by id. One without provenance is a leaf itself; an id that comes back
            within its own provenance is passed over.

    Returns:
        The leaves in order, each once.

    Raises:
        ConfigurationError: `provenance` is no collection of texts, or `summaries` no mapping.
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
