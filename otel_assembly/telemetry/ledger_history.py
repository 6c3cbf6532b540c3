"""A ledger as its exported spans report it: of every turn what was offered, what was kept, and why the rest is out.

What a turn says is read from that turn's spans alone; only an item's kind and size may stand on those of another one,
which told of its arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.telemetry.span_values import ItemRuns

#: What decides on the items of blocks, by the name that its policy has in a chain.
ALLOCATOR: Final = "allocator"


@dataclass(frozen=True, slots=True)
class ReportedItem:
    """An item as a turn told of it: at first sight, or once more because something of it had changed.

    Attributes:
        id: Its id, as its ledger numbers it.
        kind: Its kind.
        tokens: Its tokens.
        bytes: Bytes of its text, as UTF-8.
        atom: The id of the first item of its atom.
        calls: How many tool calls it asks for, or, below 0, how many it answers.
        sources: Of a summary, the items that it stands for, summaries of summaries resolved.
        turn: The turn that told of it.
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
        reason: The rule; None where it is not known.
        policy: The policy that decided; None where it is not known.
        index: That policy's place in the chain.
        outcome: ``dropped`` or ``compacted``.
        among: Where the turn says no more than that it is one of several, those.
    """

    reason: str | None
    policy: str | None = None
    index: int | None = None
    outcome: str = DecisionOutcome.DROPPED.value
    among: tuple[ReportedExit, ...] = ()

    def may_be(self, other: ReportedExit) -> bool:
        """Whether the other one says the same, or leaves it open."""
        return self == other or self in other.among


@dataclass(frozen=True, slots=True)
class ReportedBlock:
    """One block of an allocation.

    Attributes:
        name: The block's name.
        kind: Its kind.
        priority: Its priority.
        remaining: Tokens of the budget that were left before it was decided.
        items: The ids of its items; empty where the span does not name them.
        attributes: Those of its span, arrays whole.
        order: Its items that are not out from the start, the one that is cut last first.
        winners: Items that are out because another stands for them, with that one.
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
    """One policy's span: its attributes, arrays whole, and what became of its input.

    Where the allocator decided, `allocation` are the attributes of its span, and `blocks` are its blocks, in decision
    order, as far as their spans are there.

    Attributes:
        dropped: The items that it lists as dropped, by reason.
        compacted: Those that it lists as compacted.
        injected: What is in its output and was not in its input.
        rest: The reasons of those that it dropped and does not list; empty where it lists all.
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
        """Why it took the item, where it lists it."""
        for reason, items in self.dropped.items():
            if item in items:
                return ReportedExit(reason, self.policy, self.index)
        if item in self.compacted:
            compacted = DecisionOutcome.COMPACTED.value
            return ReportedExit(DecisionReason.COMPACTED.value, self.policy, self.index, compacted)
        return None

    def listed(self) -> Iterator[str]:
        """The first item of each run that it lists as dropped."""
        return (run.partition("-")[0] for items in self.dropped.values() for run in items.texts)


@dataclass(frozen=True, slots=True)
class ReportedTurn:
    """One assembly that was recorded.

    Attributes:
        number: Assemblies of the ledger before it, the unrecorded ones included.
        assembly_id: Its id.
        sent: Whether a prompt came out of it.
        missing: How many of its policies have no span here.
        attributes: Those of its span, arrays whole.
        steps: Its policies' spans, in the chain's order.
        offered: The items of its input, in the caller's order; None where the input could not be known.
        kept: The prompt's items, in its order.
        arrived: The items that it tells of, at first sight or once more.
        trace_id: Its trace.
        span_id: Its span.
        end_ns: When it ended.
        blocks: Where the allocator ran alone, its blocks with their items, in decision order.
        halts: The halts that its spans tell of, each as its source and its reason, as far as they are there.
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
        """Why the item is out, as this turn's spans say; None where it is in the prompt, or was not offered.

        The last policy that lists it decided. What no policy lists was left by one of those that do not list all.
        """
        if not self.sent or item in self.kept or (self.offered is not None and not self.tells_of(item)):
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
        policies = {(one.policy, one.index) for one in among}
        policy, index = policies.pop() if len(policies) == 1 else (None, None)
        return ReportedExit(None, policy, index, among=among)

    def tells_of(self, item: str) -> bool:
        """Whether the item was offered, kept, or put in by a policy."""
        offered = self.offered is not None and item in self.offered
        return offered or item in self.kept or any(item in step.injected for step in self.steps)

    def absent(self) -> Iterator[str]:
        """The items that are out: those that were offered, in their order, then those that were put in on the way."""
        if self.sent:
            listed = [items for step in self.steps for items in (*step.dropped.values(), step.compacted)]
            told = [*(listed if self.offered is None else [self.offered]), *(step.injected for step in self.steps)]
            yield from (item for item in dict.fromkeys(chain.from_iterable(told)) if item not in self.kept)


@dataclass(slots=True)
class LedgerHistory:
    """One conversation under one assembler, as its spans report it.

    Attributes:
        id: The ledger's id.
        turns: The recorded assemblies, by number.
        items: Each item that a turn tells of, as it was at first sight.
        problems: What does not add up, or is missing, a sentence each; empty for a whole reading.
    """

    id: str
    turns: list[ReportedTurn] = field(default_factory=list)
    items: dict[str, ReportedItem] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _turns: dict[int, ReportedTurn] = field(default_factory=dict, repr=False)
    _told: dict[str, list[tuple[ReportedTurn, ReportedItem]]] = field(default_factory=dict, repr=False)
    _changes: dict[tuple[int, int], bool] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._turns = {turn.number: turn for turn in self.turns}
        for turn in sorted(self.turns, key=lambda turn: turn.end_ns):
            for item, told in turn.arrived.items():
                self.items.setdefault(item, told)
                self._told.setdefault(item, []).append((turn, told))

    def turn(self, number: int) -> ReportedTurn:
        """The assembly of this number.

        Raises:
            KeyError: It was not recorded, or not read.
        """
        return self._turns[number]

    def item(self, number: int, item: str) -> ReportedItem | None:
        """The item as it was on that turn; None where no turn up to it, or that ended before it, tells of it."""
        turn = self._turns[number]
        for at, told in reversed(self._told.get(item, ())):
            if at.number <= number or at.end_ns <= turn.end_ns:
                return told
        return None

    def tokens(self, number: int, item: str) -> int | None:
        """The item's tokens on that turn; None where its arrival is not there."""
        told = self.item(number, item)
        return told.tokens if told is not None else None

    def exit(self, number: int, item: str) -> ReportedExit | None:
        """Why the item is out of that turn's prompt; None where it is in it, or was not offered.

        Where the turn leaves open which policy it was, the turn on which it left says it, if all between are there,
        and each lists all that another rule left out than on the turn before it.
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
        """Why each item is out of that turn's prompt, by its id."""
        found = ((item, self.exit(number, item)) for item in self._turns[number].absent())
        return {item: exit_ for item, exit_ in found if exit_ is not None}

    def since(self, number: int, item: str) -> tuple[int, bool]:
        """Since which turn it is as it is after that one; and whether it was not so before, for no turn is missing."""
        state, first = self.exit(number, item), number
        for turn in self._back(number):
            before = turn.exit(item)
            same = before is not None and state.may_be(before) if state is not None else item in turn.kept
            if not same:
                return first, True
            first = turn.number
        return first, self._back_to(number) == 0

    def _lists_changes(self, turn: ReportedTurn, before: ReportedTurn) -> bool:
        """Whether a turn lists all that another rule left out on the one before it.

        Those come first in what a step lists: where it lists others, it lists all of them.
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
        """The turns right before that one that sent a prompt, the newest first, as far as none is missing."""
        for before in range(number - 1, self._back_to(number) - 1, -1):
            if self._turns[before].sent:
                yield self._turns[before]

    def _back_to(self, number: int) -> int:
        """The first turn of those that are there without a gap up to that one."""
        while number - 1 in self._turns:
            number -= 1
        return number
