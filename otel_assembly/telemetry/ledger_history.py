"""A ledger as its exported spans report it: what became of every item, turn by turn."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from otel_assembly.decision import DecisionOutcome, DecisionReason
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.span_values import item_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")

#: What decides on the items of blocks, by the name that its policy has in a chain.
ALLOCATOR: Final = "allocator"


@dataclass(frozen=True, slots=True)
class ReportedItem:
    """An item as it was at first sight.

    Attributes:
        id: Its id, as its ledger numbers it.
        kind: Its kind.
        bytes: Bytes of its text, as UTF-8.
        atom: The id of the first item of its atom.
        turn: The turn on which it arrived.
        calls: How many tool calls it asks for, or, below 0, how many it answers; None where the traces do not say.
    """

    id: int
    kind: str
    bytes: int
    atom: int
    turn: int
    calls: int | None = None


@dataclass(frozen=True, slots=True)
class ReportedExit:
    """Why an item is not in the prompt.

    Attributes:
        reason: The rule; None where it is not known.
        policy: The policy that decided; None where the caller no longer offers the item, or where it is not known.
        index: That policy's place in the chain.
        outcome: ``dropped`` or ``compacted``.
        turn: Since when; where the reason is not known, since when that is so.
    """

    reason: str | None
    policy: str | None = None
    index: int | None = None
    outcome: str = DecisionOutcome.DROPPED.value
    turn: int = 0


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
    items: frozenset[int]
    attributes: Mapping[str, Any] = field(default_factory=dict, repr=False)
    order: Sequence[int] = ()
    winners: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """One policy's span: its attributes, arrays whole, and what it says of items since the turn before.

    Where the allocator decided, `allocation` are the attributes of its span, and `blocks` are its blocks, in decision
    order, as far as their spans are there.
    """

    policy: str
    index: int
    attributes: Mapping[str, Any]
    exits: Mapping[int, ReportedExit]
    injected: Sequence[int]
    returned: Sequence[int]
    withdrawn: Sequence[int]
    allocation: Mapping[str, Any] | None = None
    blocks: Sequence[ReportedBlock] = ()


@dataclass(frozen=True, slots=True)
class ReportedCompaction:
    """A summary that was made, or used again, on a turn.

    Attributes:
        result: The summary's item id; None where its span does not name it.
        provenance: The ids of the items that it stands for in the end, summaries of summaries resolved.
        turn: The turn.
    """

    result: int | None
    provenance: frozenset[int]
    turn: int


@dataclass(frozen=True, slots=True)
class ReportedTurn:
    """One assembly that was recorded.

    Attributes:
        number: Assemblies of the ledger before it, the unrecorded ones included.
        assembly_id: Its id.
        previous_id: The assembly that its changes are against; None for a ledger's first.
        sent: Whether a prompt came out of it; where none did, the ledger stays as it was.
        follows: Whether the assembly that its changes are against was read too, and the spans of all its policies.
        attributes: Those of its span, arrays whole.
        steps: Its policies' spans, in the chain's order.
        kept: The prompt's items, in its order.
        arrived: Items at first sight.
        counted: Tokens of earlier items that were counted since.
        withdrawn: Items that the caller no longer offers.
        trace_id: Its trace.
        span_id: Its span.
        compactions: What ``compact_block`` spans say of summaries.
        blocks: Where the allocator ran alone, its blocks with their items, in decision order.
    """

    number: int
    assembly_id: str
    previous_id: str | None
    sent: bool
    follows: bool
    attributes: Mapping[str, Any]
    steps: Sequence[ReportedStep]
    kept: Sequence[int]
    arrived: Sequence[int]
    counted: Mapping[int, int]
    withdrawn: Sequence[int]
    trace_id: str
    span_id: str
    compactions: Sequence[ReportedCompaction] = ()
    blocks: Sequence[ReportedBlock] = ()


class _Timeline(Generic[T]):
    """Values with the place in the reading at which each began to hold."""

    __slots__ = ("_places", "_values")

    def __init__(self) -> None:
        self._places: list[int] = []
        self._values: list[T] = []

    def put(self, place: int, value: T) -> None:
        self._places.append(place)
        self._values.append(value)

    def at(self, place: int, *, else_first: bool = False) -> T | None:
        index = bisect_right(self._places, place) - 1
        return self._values[max(0, index)] if index >= 0 or else_first else None


@dataclass(slots=True)
class LedgerHistory:
    """One conversation under one assembler, as its spans report it.

    Attributes:
        id: The ledger's id.
        turns: The recorded assemblies, in the order in which they ended.
        items: What is known of each item that arrived.
        problems: What does not add up, or is missing, a sentence each; empty for a whole reading.
    """

    id: str
    turns: list[ReportedTurn] = field(default_factory=list)
    items: dict[int, ReportedItem] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _exits: dict[int, _Timeline[ReportedExit | None]] = field(default_factory=dict, repr=False)
    _tokens: dict[int, _Timeline[int]] = field(default_factory=dict, repr=False)
    _kept: set[int] = field(default_factory=set, repr=False)
    _absent: set[int] = field(default_factory=set, repr=False)
    _places: dict[int, int] = field(default_factory=dict, repr=False)
    _makers: dict[int, int] = field(default_factory=dict, repr=False)

    def turn(self, number: int) -> ReportedTurn:
        """The assembly of this number.

        Raises:
            KeyError: It was not recorded, or not read.
        """
        return self.turns[self._places[number]]

    def exits(self, number: int) -> dict[int, ReportedExit]:
        """Why each absent item was absent after that turn, by its id."""
        place = self._places[number]
        found = ((item, timeline.at(place)) for item, timeline in sorted(self._exits.items()))
        return {item: exit_ for item, exit_ in found if exit_ is not None}

    def exit(self, number: int, item: int) -> ReportedExit | None:
        """Why the item was absent after that turn; None where it was in the prompt, or had not arrived."""
        timeline = self._exits.get(item)
        return timeline.at(self._places[number]) if timeline is not None else None

    def tokens(self, number: int, item: int) -> int | None:
        """The item's tokens as counted up to that turn; None while nobody had counted it."""
        timeline = self._tokens.get(item)
        return timeline.at(self._places[number]) if timeline is not None else None

    def tokens_known(self, number: int, item: int) -> int | None:
        """The item's tokens as counted up to that turn, else as first counted after it; None where nobody ever did."""
        timeline = self._tokens.get(item)
        return timeline.at(self._places[number], else_first=True) if timeline is not None else None

    def maker_of(self, item: int) -> int | None:
        """The place in the chain of the policy that made the item; None where it came in."""
        return self._makers.get(item)

    @property
    def made_by_policies(self) -> frozenset[int]:
        """The items that did not come in, but were made by a policy: summaries, replacements, injected events."""
        return frozenset(self._makers)

    # Reading, one assembly after the other

    def read(self, turn: ReportedTurn) -> None:
        """Go on by one assembly."""
        place = len(self.turns)
        self.turns.append(turn)
        self._places[turn.number] = place
        self._check(turn)
        if not turn.follows:
            self._problem(turn, "a policy's span is missing, or the assembly that its changes are against")
        if not turn.sent:
            return
        if not turn.follows:
            for item in tuple(self._absent):
                self._leave(place, item, ReportedExit(None, turn=turn.number))
        self._arrive(turn, place)
        for step in turn.steps:
            self._makers.update(dict.fromkeys(step.injected, step.index))
            for item, exit_ in step.exits.items():
                self._leave(place, item, exit_)
            for item in step.withdrawn:
                self._leave(
                    place, item, ReportedExit(DecisionReason.WITHDRAWN.value, step.policy, step.index, turn=turn.number)
                )
        for item in turn.withdrawn:
            self._leave(place, item, ReportedExit(DecisionReason.WITHDRAWN.value, turn=turn.number))
        self._keep(turn, place)

    def _arrive(self, turn: ReportedTurn, place: int) -> None:
        held = turn.attributes
        columns = (names.ARRIVED_KINDS, names.ARRIVED_TOKENS, names.ARRIVED_BYTES, names.ARRIVED_ATOMS)
        calls = dict(zip(turn.arrived, held.get(names.ARRIVED_CALLS, ()), strict=False))
        for item, kind, tokens, size, atom in zip(turn.arrived, *(held.get(n, ()) for n in columns), strict=False):
            if item in self.items:
                self._problem(turn, f"item {item} arrived a second time")
            self.items[item] = ReportedItem(
                item, kind, int(size), item_id(atom), turn.number, int(calls[item]) if item in calls else None
            )
            if int(tokens) >= 0:
                self._count(place, item, int(tokens))
        for item, tokens in turn.counted.items():
            self._count(place, item, tokens)

    def _count(self, place: int, item: int, tokens: int) -> None:
        self._tokens.setdefault(item, _Timeline()).put(place, tokens)

    def _leave(self, place: int, item: int, exit_: ReportedExit) -> None:
        self._absent.add(item)
        self._exits.setdefault(item, _Timeline()).put(place, exit_)

    def _keep(self, turn: ReportedTurn, place: int) -> None:
        """The state is what the turn says it is, whatever the changes said."""
        kept = set(turn.kept)
        for item in kept - self._kept:
            if item not in self.items:
                self._problem(turn, f"item {item} is in the prompt, and its arrival is missing")
        for item in kept & self._absent:
            self._exits[item].put(place, None)
        self._absent -= kept
        for item in sorted((self._kept | set(turn.arrived)) - kept - self._absent):
            self._leave(place, item, ReportedExit(None, turn=turn.number))
            if names.DIFF not in turn.attributes:
                self._problem(turn, f"item {item} is not in the prompt, and no span says why")
        self._kept = kept

    def _check(self, turn: ReportedTurn) -> None:
        """The equation, of the assembly and of each step; and that the lists are as long as the counts say."""
        for name, held in (("the assembly", turn.attributes), *((step.policy, step.attributes) for step in turn.steps)):
            numbers = [held.get(key) for key in _EQUATION]
            if names.DIFF in held or not all(type(number) is int for number in numbers):
                continue
            came, injected, left, dropped, compacted = map(int, numbers)  # type: ignore[arg-type]  # ints, just checked
            if came + injected != left + dropped + compacted:
                self._problem(
                    turn,
                    f"{name}: {came} events in + {injected} injected are not "
                    f"{left} out + {dropped} dropped + {compacted} compacted",
                )
        alone = any(step.allocation is turn.attributes for step in turn.steps)
        if turn.sent and not alone and turn.attributes.get(names.EVENTS_OUT) != len(turn.kept):
            self._problem(
                turn, f"{turn.attributes.get(names.EVENTS_OUT)} events out, of which {len(turn.kept)} are listed"
            )

    def _problem(self, turn: ReportedTurn, what: str) -> None:
        self.problems.append(f"turn {turn.number}: {what}")


_EQUATION: Final = (
    names.EVENTS_IN,
    names.EVENTS_INJECTED,
    names.EVENTS_OUT,
    names.DROPPED_COUNT,
    names.COMPACTED_COUNT,
)
