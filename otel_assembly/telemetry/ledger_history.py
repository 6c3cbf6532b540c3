"""What exported spans record about one conversation of an agent: a ledger of turns and items.

A turn is one assembly of a prompt, and an item is a message. For each turn, the ledger has the items of the input and
of the prompt, and why the other items were removed. These facts come from the turn's own spans. The kind and size of an
item come from the turn in which the item was new or changed, because spans describe an item only once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.telemetry.span_values import ItemRanges

#: The name of the allocator's policy.
ALLOCATOR: Final = "allocator"


@dataclass(frozen=True, slots=True)
class ReportedItem:
    """The description of an item (a message), from the turn in which it was new or had changed.

    Attributes:
        id: The item's id in its ledger.
        kind: The item's kind.
        tokens: The item's tokens.
        bytes: The length of the item's text in UTF-8.
        atom: The id of the first item of its atom, which is a group of items that are kept or dropped together.
        calls: The number of tool calls in the item; for tool results, the number of results as a negative number.
        sources: For a summary, the items that it replaces. A summary of summaries lists the original items.
        turn: The number of the turn that describes the item.
    """

    id: str
    kind: str
    tokens: int
    bytes: int
    atom: str
    calls: int
    sources: ItemRanges
    turn: int


@dataclass(frozen=True, slots=True)
class ReportedExit:
    """Why an item is not in the prompt.

    Attributes:
        reason: The reason of the decision; None if unknown.
        policy: The policy that decided; None if unknown.
        index: That policy's index in the chain; None if unknown.
        outcome: ``dropped`` or ``compacted``.
        among: The possible reasons and policies, if the turn's spans allow several; else empty.
    """

    reason: str | None
    policy: str | None = None
    index: int | None = None
    outcome: str = DecisionOutcome.DROPPED.value
    among: tuple[ReportedExit, ...] = ()

    def may_be(self, other: ReportedExit) -> bool:
        """Return whether the other exit equals this one, or has this one among its possible exits."""
        return self == other or self in other.among


@dataclass(frozen=True, slots=True)
class ReportedBlock:
    """One block of an allocation: a part of the prompt that the allocator kept, cut or dropped separately.

    Attributes:
        name: The block's name.
        kind: The block's kind.
        priority: The block's priority.
        remaining: The tokens of the budget that were left before the decision on this block.
        items: The ids of the block's items; empty if the span does not list them.
        attributes: The attributes of the block's span, with complete arrays.
        order: The items that could be kept, in the order of preference: the first is cut last.
        winners: From each superseded item to the item that supersedes it.
    """

    name: str
    kind: str
    priority: int | None
    remaining: int | None
    items: ItemRanges
    attributes: Mapping[str, Any] = field(default_factory=dict, repr=False)
    order: Sequence[str] = ()
    winners: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """One policy in one turn, as its ``apply_policy`` span records it.

    Attributes:
        policy: The policy's name.
        index: The policy's index in the chain.
        attributes: The attributes of the policy's span, with complete arrays.
        dropped: The listed dropped items, by reason.
        compacted: The listed compacted items.
        injected: The injected items.
        rest: The reasons of dropped items that are not listed; empty if all are listed.
        allocation: The attributes of the policy's ``allocate_budget`` span; None if it has none.
        blocks: The allocation's blocks that have a span, in decision order.
    """

    policy: str
    index: int
    attributes: Mapping[str, Any]
    dropped: Mapping[str, ItemRanges]
    compacted: ItemRanges
    injected: ItemRanges
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
        """Return the first item of each range in the lists of dropped items."""
        return (text.partition("-")[0] for items in self.dropped.values() for text in items.texts)


@dataclass(frozen=True, slots=True)
class ReportedTurn:
    """One turn of a ledger, as its spans record it: one assembly, which makes the prompt of one model call.

    Attributes:
        number: The turn's index in its ledger; turns that were not recorded count too.
        assembly_id: The assembly's id.
        sent: Whether the assembly produced a prompt.
        missing: How many of the assembly's steps have no span.
        attributes: The attributes of the assembly's span, with complete arrays.
        steps: The assembly's recorded steps, in the chain's order.
        offered: The items of the assembly's input, in the input's order; None if the input is unknown.
        kept: The prompt's items, in the prompt's order.
        arrived: The descriptions of the items that are new or changed in this turn, by item id.
        trace_id: The trace id of the assembly's span.
        span_id: The id of the assembly's span.
        end_ns: When the assembly ended, in nanoseconds since 1970.
        blocks: For an allocation outside a chain, its blocks in decision order.
        halts: The source and the reason of each halt of the conversation that the assembly's spans record. A halt stops
            all further model calls of the conversation.
    """

    number: int
    assembly_id: str
    sent: bool
    missing: int
    attributes: Mapping[str, Any]
    steps: Sequence[ReportedStep]
    offered: ItemRanges | None
    kept: ItemRanges
    arrived: Mapping[str, ReportedItem]
    trace_id: str
    span_id: str
    end_ns: int = 0
    blocks: Sequence[ReportedBlock] = ()
    halts: Sequence[tuple[str, str]] = ()

    def exit(self, item: str) -> ReportedExit | None:
        """Return why an item is not in the prompt, by this turn's spans; None if it is kept or was not in the input.

        The last step that lists the item removed it. If no step lists the item, a step whose list is incomplete
        removed it.
        """
        if not self.sent or item in self.kept or (self.offered is not None and not self.lists(item)):
            return None
        for step in reversed(self.steps):
            if (step_exit := step.exit(item)) is not None:
                return step_exit
            if item in step.injected:
                return self._unlisted_exit()
        return self._unlisted_exit() if self.offered is not None else None

    def _unlisted_exit(self) -> ReportedExit:
        """Return the exit of an item that no step lists: one of those that the steps with incomplete lists allow."""
        among = tuple(ReportedExit(reason, step.policy, step.index) for step in self.steps for reason in step.rest)
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
    """One ledger (the recorded turns of one conversation with one agent), as read from spans.

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
        """Return the newest description of an item up to a turn; None if no turn up to that one describes it."""
        turn = self._turns[number]
        for describing, description in reversed(self._descriptions.get(item, ())):
            if describing.number <= number or describing.end_ns <= turn.end_ns:
                return description
        return None

    def tokens(self, number: int, item: str) -> int | None:
        """Return an item's tokens by its newest description up to a turn; None if there is no description."""
        description = self.item(number, item)
        return description.tokens if description is not None else None

    def exit(self, number: int, item: str) -> ReportedExit | None:
        """Return why an item is not in a turn's prompt; None if it is kept or was not in the input.

        If several policies could have removed the item by the turn's spans, this reads the turn in which the item left
        the prompt. That works only if no turn in between is missing, and if each of these turns lists all items whose
        exit changed.
        """
        later = self._turns[number]
        last_exit = later.exit(item)
        if last_exit is None or not last_exit.among:
            return last_exit
        for turn in self._earlier_turns(number):
            if not self._lists_changes(later, turn):
                return last_exit
            before, later = turn.exit(item), turn
            if before is None or before.among != last_exit.among:
                return before if before in last_exit.among else last_exit
        return last_exit

    def exits(self, number: int) -> dict[str, ReportedExit]:
        """Return why each absent item is not in a turn's prompt, by item id."""
        exits = ((item, self.exit(number, item)) for item in self._turns[number].absent())
        return {item: exit_ for item, exit_ in exits if exit_ is not None}

    def since(self, number: int, item: str) -> tuple[int, bool]:
        """Return the turn in which an item got its current state, and whether this is certain.

        The states are: in the prompt, and absent for one reason. The result is uncertain if an earlier turn is missing.
        """
        state, first = self.exit(number, item), number
        for turn in self._earlier_turns(number):
            before = turn.exit(item)
            same = before is not None and state.may_be(before) if state is not None else item in turn.kept
            if not same:
                return first, True
            first = turn.number
        return first, self._first_without_gap(number) == 0

    def _lists_changes(self, turn: ReportedTurn, before: ReportedTurn) -> bool:
        """Return whether a turn lists all items whose exit differs from the turn before.

        A step lists the items whose exit changed first. So if it lists any other item, it lists all that changed.
        """
        key = turn.number, before.number
        if key not in self._changes:
            self._changes[key] = all(
                any(before.exit(item) in {None, step.exit(item)} for item in step.listed())
                for step in turn.steps
                if step.rest
            )
        return self._changes[key]

    def _earlier_turns(self, number: int) -> Iterator[ReportedTurn]:
        """Yield the turns before this one that produced a prompt, the newest first; stop where a turn is missing."""
        for before in range(number - 1, self._first_without_gap(number) - 1, -1):
            if self._turns[before].sent:
                yield self._turns[before]

    def _first_without_gap(self, number: int) -> int:
        """Return the first turn of the gapless sequence that ends with this turn."""
        while number - 1 in self._turns:
            number -= 1
        return number
