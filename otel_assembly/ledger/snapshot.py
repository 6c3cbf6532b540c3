"""What one assembly leaves behind for the next: numbered histories, groups of items, and the snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from otel_assembly.matching.event_index import EventIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.decision import DecisionOutcome, DecisionReason
    from otel_assembly.history.history import History, ListHistory
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.history.view import View
    from otel_assembly.ledger.item_ids import ItemIds
    from otel_assembly.messages.describe import EventFacts


@dataclass(slots=True)
class NumberedHistory:
    """A history together with the ordinals that a ledger gave its positions."""

    history: History
    ordinals: ItemIds
    #: Tokens by ordinal that a reader of the traces was told while the item stood in an earlier frame.
    told: dict[int, int] = field(default_factory=dict)
    #: Of a step's output: the frame that came into the step.
    made_of: NumberedHistory | None = None
    _places: EventIndex | None = None

    @property
    def listed(self) -> ListHistory:
        """Its history, where that is of a list: what came in as one, or what a step made."""
        return cast("ListHistory", self.history)

    def places(self) -> EventIndex:
        """Where its events stand."""
        if self._places is None:
            self._places = EventIndex(self.history.events, self.history.facts)
        return self._places

    def renew(self, events: Sequence[Any], reread: Mapping[int, EventFacts]) -> None:
        """Its events are fresh objects of those that it had; some were read again, and may have been given an id."""
        self.listed.renew(events)
        for position, facts in reread.items():
            self.listed.reread(position, facts)
        if reread:
            self._places = None
        elif self._places is not None:
            self._places.renewed()

    def of(self, view: View) -> Iterator[int]:
        """The ordinals of a view's items, in order."""
        ordinal = self.ordinals.of
        return (ordinal(position) for position in view.positions())


@dataclass(slots=True)
class Group:
    """Some items with one outcome and one reason."""

    view: View
    frame: NumberedHistory
    outcome: DecisionOutcome
    reason: DecisionReason

    @property
    def tag(self) -> tuple[DecisionOutcome, DecisionReason]:
        """What makes two groups the same to a reader."""
        return self.outcome, self.reason


@dataclass(frozen=True, slots=True)
class Departure:
    """Why an item left that is not offered any more, decided in an assembly that no reader was told of."""

    policy: str
    index: int
    outcome: DecisionOutcome
    reason: DecisionReason


@dataclass(slots=True)
class Snapshot:
    """What one assembly did, as far as the next one needs it."""

    assembly_id: str
    policies: tuple[str, ...]
    #: By step: what left, what was pinned, what was moved, and the events that were created, with their ordinals.
    exits: tuple[tuple[Group, ...], ...]
    pinned: tuple[tuple[Group, ...], ...]
    moved: tuple[tuple[int, ...], ...]
    created: tuple[tuple[tuple[Any, int], ...], ...]
    prompts: tuple[str, ...]
    tools: tuple[Mapping[str, Any], ...]
    kept: View
    frame: NumberedHistory
    #: The input's frame, how many of its positions came in, and how many some assembly up to this one has announced:
    #: more than came in where one that began later ended first.
    source: NumberedHistory
    end: int
    seen: int
    #: The source's token table, and how many counts were made in it by then.
    table: TokenTable
    counted: int
    #: Tokens of what was kept, by kind, if somebody has asked, as this table has them.
    kinds: Sequence[int] | None
    kept_table: TokenTable
    #: Tokens of what steps made, by ordinal.
    told_of_made: Mapping[int, int]

    def did(self, index: int, policy: str) -> bool:
        """Whether this policy stood at this place of the chain: a framework's chain need not be the same each time."""
        return index < len(self.policies) and self.policies[index] == policy

    def told(self) -> dict[int, int]:
        """Tokens by ordinal, of the items that came in, as they were announced up to this assembly."""
        ordinal = self.source.ordinals.of
        now = {ordinal(position): self.table.known(position) for position in self.table.order[: self.counted]}
        return {**self.source.told, **now, **self.told_of_made}


@dataclass(slots=True)
class PendingUsage:
    """What was counted for a prompt, until the provider says what it billed."""

    frame: NumberedHistory
    #: A response at this position or later is the answer to that prompt.
    seen: int
    tokens: int
    generation: int


@dataclass(slots=True)
class LedgerInput:
    """The input of one assembly, read into the ledger."""

    frame: NumberedHistory
    view: View
    #: The events as a list, which later ones may have been put behind since.
    given: list[Any] = field(default_factory=list)
