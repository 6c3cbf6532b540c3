"""A block while a budget is shared out: what its items say, and what they take, is worked out once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.budget.keep_order import atoms_of, pairing_of, survivors_of
from otel_assembly.budget.sections import is_text, item_text
from otel_assembly.decision import DecisionReason
from otel_assembly.errors import DescribeError
from otel_assembly.history.broken_pairs import unpaired
from otel_assembly.history.tool_pairs import ANSWERS, CALLS, ORPHAN, REASONED, Pairing
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from otel_assembly.budget.block import Block, BlockItem
    from otel_assembly.budget.measure import Measure, Rendered


def orphan_reason(pairing: Pairing, at: int) -> DecisionReason:
    """Return why an item that has lost the other half of its pair leaves."""
    flags = pairing.flags[at]
    if flags & REASONED and not flags & CALLS:
        return DecisionReason.ORPHANED_REASONING
    asks = pairing.links[at] and not flags & ANSWERS
    return DecisionReason.ORPHANED_TOOL_CALL if asks else DecisionReason.ORPHANED_TOOL_RESULT


class ReadBlock:
    """A block, its items as they were read, and their tokens.

    Args:
        block: The block.
        measure: What counts.

    Attributes:
        items: What it holds, one by one.
    """

    __slots__ = ("_alone", "_among", "_facts", "_measure", "block", "items")

    def __init__(self, block: Block, measure: Measure) -> None:
        self.block = block
        self.items: Sequence[BlockItem] = block.items
        self._measure = measure
        self._facts: Sequence[EventFacts | None] | None = None
        self._alone: dict[int, int] = {}
        #: Which result answers which call among some of the items: the last ones that were asked for.
        self._among: tuple[Sequence[int], Pairing] | None = None

    @property
    def facts(self) -> Sequence[EventFacts | None]:
        """What each item says; None of a text.

        Raises:
            DescribeError: An item of a type that no row reads; the message names the block.
        """
        if self._facts is None:
            try:
                self._facts = [None if is_text(item) else describe(item.content) for item in self.items]
            except DescribeError as error:
                raise DescribeError(error.event_type, f"it is an item of block {self.block.name!r}") from error
        return self._facts

    @property
    def provider(self) -> str:
        """The provider whose form its events have; empty if they state none."""
        return next((facts.provider for facts in self.facts if facts is not None and facts.provider), "")

    def fact(self, index: int) -> EventFacts:
        """Return what an item says that is an event."""
        return self.facts[index] or EventFacts(EventKind.OTHER)

    def texts(self, index: int) -> Sequence[str]:
        """The texts that the model reads of an item."""
        item = self.items[index]
        facts = None if is_text(item) else self.facts[index]
        return (item_text(item),) if facts is None else () if item.echo else facts.texts

    def kind(self, index: int) -> str:
        """An item's kind: its block's, or an event's own."""
        facts = self.facts[index] if self.block.eventful else None
        return self.block.kind.value if facts is None else EventKind(facts.kind).value

    def calls(self) -> Sequence[int]:
        """How many tool calls each item asks for, or, below 0, how many it answers."""
        pairing = self._pairing(self._alive(()))
        if pairing is None:
            return [0] * len(self.items)
        return [self._calls(pairing, at) for at in range(len(self.items))]

    def _calls(self, pairing: Pairing, at: int) -> int:
        flags, links, facts = pairing.flags[at], pairing.links[at], self.facts[at]
        if flags & ORPHAN and facts is not None and facts.kind != EventKind.TOOL_RESULT:
            return -len(facts.closes)  # see `History.calls`
        return -links if flags & ANSWERS else links

    def _alive(self, out: Collection[int]) -> Sequence[int]:
        """The items that are not among these, ascending."""
        indexes = range(len(self.items))
        return [index for index in indexes if index not in out] if out else indexes

    def _pairing(self, alive: Sequence[int]) -> Pairing | None:
        """Which result answers which call among some of the items; None where all of the block are texts."""
        if not self.block.eventful:
            return None
        if self._among is None or self._among[0] != alive:
            self._among = alive, pairing_of(map(self.facts.__getitem__, alive))
        return self._among[1]

    # Which items belong together

    def replies(self, out: Collection[int]) -> bool:
        """Whether a response of the model is among its items, but for those that are out."""
        return any(
            facts is not None and facts.kind == EventKind.RESPONSE and at not in out
            for at, facts in enumerate(self.facts)
        )

    def unpaired(self, out: Collection[int], *, answered_later: bool) -> tuple[Mapping[int, DecisionReason], bool]:
        """Return items that have lost the other half of their pair, each with the reason, and whether a call awaits
        approval.

        Args:
            out: Items that are out already.
            answered_later: Whether a response stands behind the block.
        """
        alive = self._alive(out)
        pairing = self._pairing(alive)
        if pairing is None:
            return {}, False
        newest_response = len(alive) if answered_later else pairing.last_response
        lost = unpaired(pairing, range(len(alive) - 1, -1, -1), newest_response)
        asked = {alive[at]: orphan_reason(pairing, at) for at in lost}
        return asked, bool(pairing.pending_calls(newest_response))

    def survivors(self, out: Collection[int]) -> Iterable[Sequence[int]]:
        """Its atoms but for items that are out, the one that is cut last first; see `survivors_of`."""
        alive = self._alive(out)
        return survivors_of(self.block, self.items, alive, self._pairing(alive))

    def pending(self, out: Collection[int]) -> Sequence[Sequence[int]]:
        """The atoms with a tool call that explicitly awaits an approval, as they stand among the survivors."""
        alive = self._alive(out)
        pairing = self._pairing(alive)
        waiting = {alive[at] for at in pairing.pending_calls(-1)} if pairing is not None else set()
        return [atom for atom in self.survivors(out) if not waiting.isdisjoint(atom)]

    def leaders(self) -> Sequence[int]:
        """The place of the first item that each item is kept or dropped together with."""
        atoms = atoms_of(self.items, self._pairing(self._alive(())))
        first = {index: leader for leader, atom in atoms.items() for index in atom}
        return [first[index] for index in range(len(self.items))]

    # What they take

    def alone(self, index: int) -> int:
        """The tokens of one item, alone."""
        tokens = self._alone.get(index)
        if tokens is None:
            item = self.items[index]
            tokens = self._measure.alone(item, None if is_text(item) else self.facts[index])
            self._alone[index] = tokens
        return tokens

    def charging(self, *, texts_alone: bool) -> Callable[[int], int]:
        """What says what each of its items is charged as it is taken in; see `Measure.charging`."""
        charge = self._measure.charging(self.block, texts_alone=texts_alone)
        return lambda index: charge(self.alone(index), is_text(self.items[index]))

    def charges(self, order: Sequence[int]) -> list[int]:
        """What each of these items is charged as they are taken in, in this order."""
        charge = self.charging(texts_alone=self.texts_alone(order))
        return [charge(index) for index in order]

    def texts_alone(self, indexes: Iterable[int]) -> bool:
        """Whether there are texts alone among these items."""
        return not self.block.eventful or all(is_text(self.items[index]) for index in indexes)

    def tokens(self, kept: Sequence[int]) -> int:
        """The tokens of the block with these of its items."""
        return self._measure.tokens(self.block, self.items, kept, self.alone)

    def rendered(self, kept: Sequence[int]) -> Rendered:
        """The same, and what they are made up of."""
        return self._measure.rendered(self.block, self.items, kept, self.alone)

    def cost(self, out: Collection[int]) -> int:
        """The tokens of the block without these of its items."""
        return self.tokens(self._alive(out))

    def whole(self) -> Rendered:
        """What all of it takes."""
        return self.rendered(self._alive(()))
