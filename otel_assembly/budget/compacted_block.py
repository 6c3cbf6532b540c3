"""`CompactedBlock`: a summary with the ids of the items that it replaces."""

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
    """A summary that replaces other items in the prompt, with the ids of these items.

    Attributes:
        summary: The text that the model reads.
        provenance: The ids of the items that the summary replaces, in their order. A summary of summaries lists the ids
            of the original items, not those of the summaries. A list is accepted too, and integers are converted to
            strings.
        covers_turns: The numbers of the first and the last turn that the summary covers.
        lossy: Whether the summary omits content of the original items.

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
        """Return the summary as a message to append to a conversation, with a new id."""
        return CompactionSummary(
            summary=self.summary, event_count=len(self.provenance), provenance=self.provenance, lossy=self.lossy
        )


@describe.register
def _(block: CompactedBlock) -> EventFacts:
    return EventFacts(EventKind.SUMMARY, block.summary)


def leaf_ids(
    provenance: Iterable[str], summaries: Mapping[str, CompactedBlock | CompactionSummary] | None = None
) -> tuple[str, ...]:
    """Replace the ids of summaries by the ids of the items that they summarize, recursively.

    Args:
        provenance: Ids of items and of summaries.
        summaries: The known summaries by id; other ids are those of original items. A summary without provenance
            counts as an original item. If a summary contains itself, the cycle is ignored.

    Returns:
        The ids of the original items in order, without repetitions.

    Raises:
        ConfigurationError: `provenance` is not a collection of texts, or `summaries` is not a mapping.
    """
    provenance = items_of_type("provenance", provenance, str)
    if summaries is not None:
        of_type("summaries", summaries, Mapping, "give the summaries by their ids")
    known = summaries or {}
    leaves: dict[str, None] = {}
    expanded_ids: set[str] = set()
    remaining = list(provenance)[::-1]
    while remaining:
        id_ = remaining.pop()
        summary = known.get(id_)
        if summary is None or not summary.provenance:
            leaves[id_] = None
        elif id_ not in expanded_ids:
            expanded_ids.add(id_)
            remaining.extend(reversed(summary.provenance))
    return tuple(leaves)
