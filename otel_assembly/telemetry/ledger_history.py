"""Ledgers as read from exported spans: the offered and kept items of each turn, and why the other items were removed.

All facts of a turn come from its own spans, except the kind and size of its items. An item is described once, on the
turn when it was new or changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.telemetry.span_values import ItemRuns

#: The name of the allocator's policy.
ALLOCATOR: Final = "allocator"


@dataclass(frozen=True, slots=True)
class ReportedItem:
    """The description of an item on the turn when it was new, or when it had changed.

    Attributes:
        id: The item's id in its ledger.
        kind: The item's kind.
        tokens: The item's tokens.
        bytes: The length of the item's text in UTF-8.
        atom: The id of the first item of its atom.
        calls: The number of tool calls in it; for tool results, the number of results as a negative number.
        sources: For a summary, the items that it replaces. A summary of summaries lists the original items.
        turn: The turn that describes it.
    """

    id: str
    kind: str
    tokens: int
    bytes: int
    atom: str
    calls: int
    sources: ItemRuns
    turn: int


@dataclass(frozen=True, slots=True)
class ReportedExit:
    """Why an item is not in the prompt.

    Attributes:
        reason: The reason of the decision; None if unknown.
        policy: The policy that decided; None if unknown.
        index: That policy's index in the chain; None if unknown.
        outcome: ``dropped`` or ``compacted``.
        among: The possible exits, if the turn's spans leave several open; else empty.
    """

    reason: str | None
    policy: str | None = None
    index: int | None = None
    outcome: str = DecisionOutcome.DROPPED.value
    among: tuple[ReportedExit, ...] = ()

    def may_be(self, other: ReportedExit) -> bool:
        """Return whether the other exit is the same, or lists this one as possible."""
        return self == other or self in other.among


@dataclass(frozen=True, slots=True)
class ReportedBlock:
    """One block of an allocation.

    Attributes:
        name: The block's name.
        kind: The block's kind.
        priority: The block's priority.
        remaining: The tokens of the budget that were left before the decision on this block.
        items: The ids of its items; empty if the span does not list them.
        attributes: The attributes of its span, with complete arrays.
        order: The items that could be kept, in the order of preference: the first is cut last.
        winners: From each superseded item to the item that supersedes it.
    """

    name: str
    kind: str
    priority: int | None
    remaining: int | None
    items: ItemRuns
    attributes: Mapping[str, Any] = field(default_factory=dict, repr=False)
    order: Sequence[str] = ()
    winners: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """One policy's step in a turn.

    Attributes:
        policy: The policy's name.
        index: The policy's index in the chain.
        attributes: The attributes of its span, with complete arrays.
        dropped: The listed dropped items, by reason.
        compacted: The listed compacted items.
        injected: The injected items.
        rest: The reasons of dropped items that are not listed; empty if all are listed.
        allocation: The attributes of its ``allocate_budget`` span, if it has one.
        blocks: The allocation's blocks that have a span, in decision order.
    """

    policy: str
    index: int
    attributes: Mapping[str, Any]
    dropped: Mapping[str, ItemRuns]
    compacted: ItemRuns
    injected: ItemRuns
    rest: Sequence[str] = ()
    allocation: Mapping[str, Any] | None = None
    blocks: Sequence[ReportedBlock] = ()

    def exit(self, item: str) -> ReportedExit | None:
        """Return why the step removed an item; None if the step does not list the item."""
        for reason, items in self.dropped.items():
            if item in items:
                return ReportedExit(reason, self.policy, self.index)
        if item in self.compacted:
            compacted = DecisionOutcome.COMPACTED.value
            return ReportedExit(DecisionReason.COMPACTED.value, self.policy, self.index, compacted)
        return None

    def listed(self) -> Iterator[str]:
        """Return the first item of each run of listed dropped items."""
        return (run.partition("-")[0] for items in self.dropped.values() for run in items.texts)


@dataclass(frozen=True, slots=True)
class ReportedTurn:
    """One recorded assembly.

    Attributes:
        number: The turn's index in its ledger; turns that were not recorded count too.
        assembly_id: The assembly's id.
        sent: Whether the assembly produced a prompt.
        missing: How many of its steps have no span.
        attributes: The attributes of its span, with complete arrays.
        steps: Its recorded steps, in the chain's order.
        offered: The items of its input, in the input's order; None if the input is unknown.
        kept: The prompt's items, in the prompt's order.
        arrived: The descriptions of its new and changed items, by item id.
        trace_id: The trace id of its span.
        span_id: The id of its span.
        end_ns: When it ended, in nanoseconds since 1970.
        blocks: For an allocation outside a chain, its blocks in decision order.
        halts: The source and the reason of each recorded halt.
    """

    number: int
    assembly_id: str
    sent: bool
    missing: int
    attributes: Mapping[str, Any]
    steps: Sequence[ReportedStep]
    offered: ItemRuns | None
    kept: ItemRuns
    arrived: Mapping[str, ReportedItem]
    trace_id: str
    span_id: str
    end_ns: int = 0
    blocks: Sequence[ReportedBlock] = ()
    halts: Sequence[tuple[str, str]] = ()

    def exit(self, item: str) -> ReportedExit | None:
        """Return why an item is not in the prompt, from this turn's spans; None if it is, or if it was not offered.

        The last step that lists the item decided. If no step lists it, one of the steps with unlisted items did.
        """
        if not self.sent or item in self.kept or (self.offered is not None and not self.lists(item)):
            return None
        for step in reversed(self.steps):
            if (found := step.exit(item)) is not None:
                return found
            if item in step.injected:
                return self._unlisted()
        return self._unlisted() if self.offered is not None else None

    def _unlisted(self) -> ReportedExit:
        rest = [(step, reason) for step in self.steps for reason in step.rest]
        among = tuple(ReportedExit(reason, step.policy, step.index) for step, reason in rest)
        if self.missing or not among:
            return ReportedExit(None)
        if len(among) == 1:
            return among[0]
        policies = {(exit_.policy, exit_.index) for exit_ in among}
        policy, index = policies.pop() if len(policies) == 1 else (None, None)
        return ReportedExit(None, policy, index, among=among)

    def lists(self, item: str) -> bool:
        """Return whether the turn's spans list the item as offered, kept or injected."""
        offered = self.offered is not None and item in self.offered
        return offered or item in self.kept or any(item in step.injected for step in self.steps)

    def absent(self) -> Iterator[str]:
        """Return the items that are not in the prompt: offered items in their order, then injected ones."""
        if self.sent:
            listed = [items for step in self.steps for items in (*step.dropped.values(), step.compacted)]
            mentioned = [*(listed if self.offered is None else [self.offered]), *(step.injected for step in self.steps)]
            yield from (item for item in dict.fromkeys(chain.from_iterable(mentioned)) if item not in self.kept)


@dataclass(slots=True)
class LedgerHistory:
    """One ledger, as read from spans.

    Attributes:
        id: The ledger's id.
        turns: The recorded assemblies, in the order of their numbers.
        items: The first description of each item, by item id.
        problems: A sentence for each thing that is missing or inconsistent; empty if the ledger is complete.
    """

    id: str
    turns: list[ReportedTurn] = field(default_factory=list)
    items: dict[str, ReportedItem] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _turns: dict[int, ReportedTurn] = field(default_factory=dict, repr=False)
    _descriptions: dict[str, list[tuple[ReportedTurn, ReportedItem]]] = field(default_factory=dict, repr=False)
    _changes: dict[tuple[int, int], bool] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._turns = {turn.number: turn for turn in self.turns}
        for turn in sorted(self.turns, key=lambda turn: turn.end_ns):
            for item, description in turn.arrived.items():
                self.items.setdefault(item, description)
                self._descriptions.setdefault(item, []).append((turn, description))

    def turn(self, number: int) -> ReportedTurn:
        """Return the turn of this number.

        Raises:
            KeyError: The spans contain no such turn.
        """
        return self._turns[number]

    def item(self, number: int, item: str) -> ReportedItem | None:
        """Return the description of an item as of a turn; None if neither that turn nor an earlier one describes it."""
        turn = self._turns[number]
        for at, description in reversed(self._descriptions.get(item, ())):
            if at.number <= number or at.end_ns <= turn.end_ns:
                return description
        return None

    def tokens(self, number: int, item: str) -> int | None:
        """Return an item's tokens as of a turn; None if no turn up to then describes it."""
        description = self.item(number, item)
        return description.tokens if description is not None else None

    def exit(self, number: int, item: str) -> ReportedExit | None:
        """Return why an item is not in a turn's prompt; None if it is, or if it was not offered.

        If the turn's spans do not show which policy decided, the turn on which the item left the prompt may. This works
        only if no turn in between is missing, and if each of these turns lists all items whose exit changed.
        """
        later = self._turns[number]
        found = later.exit(item)
        if found is None or not found.among:
            return found
        for turn in self._back(number):
            if not self._lists_changes(later, turn):
                return found
            before, later = turn.exit(item), turn
            if before is None or before.among != found.among:
                return before if before in found.among else found
        return found

    def exits(self, number: int) -> dict[str, ReportedExit]:
        """Return why each absent item is not in a turn's prompt, by item id."""
        found = ((item, self.exit(number, item)) for item in self._turns[number].absent())
        return {item: exit_ for item, exit_ in found if exit_ is not None}

    def since(self, number: int, item: str) -> tuple[int, bool]:
        """Return the turn since which an item is in its present state, and whether that turn is certain.

        The turn is not certain if earlier turns are missing.
        """
        state, first = self.exit(number, item), number
        for turn in self._back(number):
            before = turn.exit(item)
            same = before is not None and state.may_be(before) if state is not None else item in turn.kept
            if not same:
                return first, True
            first = turn.number
        return first, self._back_to(number) == 0

    def _lists_changes(self, turn: ReportedTurn, before: ReportedTurn) -> bool:
        """Return whether a turn lists all items whose exit differs from the turn before.

        A step lists these items first. So if it lists any item whose exit did not change, it lists all that did.
        """
        key = turn.number, before.number
        if key not in self._changes:
            self._changes[key] = all(
                any(before.exit(item) in {None, step.exit(item)} for item in step.listed())
                for step in turn.steps
                if step.rest
            )
        return self._changes[key]

    def _back(self, number: int) -> Iterator[ReportedTurn]:
        """Yield the earlier turns that produced a prompt, the newest first, until a turn is missing."""
        for before in range(number - 1, self._back_to(number) - 1, -1):
            if self._turns[before].sent:
                yield self._turns[before]

    def _back_to(self, number: int) -> int:
        """Return the first turn of the gapless sequence that ends with this turn."""
        while number - 1 in self._turns:
            number -= 1
        return number
