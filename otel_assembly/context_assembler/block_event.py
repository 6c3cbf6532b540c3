"""`BlockEvent`: represents an item of a block as an event of an ordinary assembly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.budget.sections import is_text, item_text
from otel_assembly.history.history import text_digest
from otel_assembly.history.read_events import ReadEvent
from otel_assembly.messages.event_facts import EventFacts, describe

if TYPE_CHECKING:
    from otel_assembly.budget.block import Block, BlockItem


class BlockEvent(ReadEvent):
    """An event of an assembly that represents an item of a block.

    Two events are equal if their content is equal, so that an unchanged item is recognized on the next turn. The
    content of a text includes its block, source, id and version.

    Args:
        item: The item.
        facts: The item's facts; see `facts_in`.
    """

    __slots__ = ("item",)

    def __init__(self, item: BlockItem, facts: EventFacts) -> None:
        super().__init__(facts)
        self.item = item

    @property
    def _content(self) -> tuple[Any, ...]:
        facts = self.facts
        name = facts.id if is_text(self.item) else None
        return facts.kind, name, facts.texts, tuple(facts.opens), tuple(facts.closes), facts.media_tokens

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockEvent) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __repr__(self) -> str:
        return f"BlockEvent({str(self.facts.kind)!r})"


def facts_in(block: Block, item: BlockItem) -> EventFacts:
    """Return the facts of a block's item, with an id that is unique for its content if the item is a text."""
    if not is_text(item):
        return describe(item.content)
    text = item_text(item)
    # The ledger's items never change, so another text is another item, even if the source uses the same id.
    name = f"{block.name}/{item.source or ''}/{item.id or ''}/{item.version or ''}/{text_digest((text,)):016x}"
    return EventFacts(block.kind, text, id=name, framed=False)
