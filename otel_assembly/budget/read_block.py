"""`ReadBlock`: a block with cached facts and tokens, during an allocation."""

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
    """Return the reason for dropping an item whose tool pair or reasoning is incomplete."""
    flags = pairing.flags[at]
    if flags & REASONED and not flags & CALLS:
        return DecisionReason.ORPHANED_REASONING
    asks = pairing.links[at] and not flags & ANSWERS
    return DecisionReason.ORPHANED_TOOL_CALL if asks else DecisionReason.ORPHANED_TOOL_RESULT


class ReadBlock:
    """A block with the facts and the tokens of its items, each determined once.

    Args:
        block: The block.
        measure: Counts the items.

    Attributes:
        items: The block's items.
    """

    __slots__ = ("_among", "_facts", "_item_tokens", "_measure", "block", "items")

    def __init__(self, block: Block, measure: Measure) -> None:
        self.block = block
        self.items: Sequence[BlockItem] = block.items
        self._measure = measure
        self._facts: Sequence[EventFacts | None] | None = None
        self._item_tokens: dict[int, int] = {}
        #: The tool pairs among the items that were last requested.
        self._among: tuple[Sequence[int], Pairing] | None = None

    @property
    def facts(self) -> Sequence[EventFacts | None]:
        """The facts of each item; None for a text.

        Raises:
            DescribeError: An item has an unregistered type; the message names the block.
        """
        if self._facts is None:
            try:
                self._facts = [None if is_text(item) else describe(item.content) for item in self.items]
            except DescribeError as error:
                raise DescribeError(error.event_type, f"it is an item of block {self.block.name!r}") from error
        return self._facts

    @property
    def provider(self) -> str:
        """The provider whose form the events have; empty if they state none."""
        return next((facts.provider for facts in self.facts if facts is not None and facts.provider), "")

    def fact(self, index: int) -> EventFacts:
        """Return the facts of an item that is an event."""
        return self.facts[index] or EventFacts(EventKind.OTHER)

    def texts(self, index: int) -> Sequence[str]:
        """Return the texts of an item that the model reads."""
        item = self.items[index]
        facts = None if is_text(item) else self.facts[index]
        return (item_text(item),) if facts is None else () if item.echo else facts.texts

    def kind(self, index: int) -> str:
        """Return an item's kind: that of its block, or of the event."""
        facts = self.facts[index] if self.block.has_events else None
        return self.block.kind.value if facts is None else EventKind(facts.kind).value

    def calls(self) -> Sequence[int]:
        """Return how many tool calls each item makes; below 0, how many it answers."""
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
        """Return the indexes of the items that are not excluded, ascending."""
        indexes = range(len(self.items))
        return [index for index in indexes if index not in out] if out else indexes

    def _pairing(self, alive: Sequence[int]) -> Pairing | None:
        """Return the tool pairs among some items; None if all items of the block are texts."""
        if not self.block.has_events:
            return None
        if self._among is None or self._among[0] != alive:
            self._among = alive, pairing_of(map(self.facts.__getitem__, alive))
        return self._among[1]

    # Tool pairs and atoms

    def has_response(self, out: Collection[int]) -> bool:
        """Return whether a response of the model is among the items that are not excluded."""
        return any(
            facts is not None and facts.kind == EventKind.RESPONSE and at not in out
            for at, facts in enumerate(self.facts)
        )

    def unpaired(self, out: Collection[int], *, answered_later: bool) -> tuple[Mapping[int, DecisionReason], bool]:
        """Return orphaned items with their reasons, and whether a call awaits an approval.

        Args:
            out: Items that are already excluded.
            answered_later: Whether a response follows the block.
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
        """Return the atoms without excluded items, the first dropped last; see `survivors_of`."""
        alive = self._alive(out)
        return survivors_of(self.block, self.items, alive, self._pairing(alive))

    def pending_atoms(self, out: Collection[int]) -> Sequence[Sequence[int]]:
        """Return the atoms with a tool call that explicitly awaits an approval, in the order of `survivors`."""
        alive = self._alive(out)
        pairing = self._pairing(alive)
        pending = {alive[at] for at in pairing.pending_calls(-1)} if pairing is not None else set()
        return [atom for atom in self.survivors(out) if not pending.isdisjoint(atom)]

    def leaders(self) -> Sequence[int]:
        """Return, for each item, the index of the first item of its atom."""
        atoms = atoms_of(self.items, self._pairing(self._alive(())))
        first = {index: leader for leader, atom in atoms.items() for index in atom}
        return [first[index] for index in range(len(self.items))]

    # Tokens

    def item_tokens(self, index: int) -> int:
        """Return the tokens of one item, counted alone."""
        tokens = self._item_tokens.get(index)
        if tokens is None:
            item = self.items[index]
            tokens = self._measure.item_tokens(item, None if is_text(item) else self.facts[index])
            self._item_tokens[index] = tokens
        return tokens

    def charging(self, *, has_only_texts: bool) -> Callable[[int], int]:
        """Return a function that charges items as they are kept; see `Measure.charging`."""
        charge = self._measure.charging(self.block, has_only_texts=has_only_texts)
        return lambda index: charge(self.item_tokens(index), is_text(self.items[index]))

    def charges(self, order: Sequence[int]) -> list[int]:
        """Return the charge of each of these items, if they are kept in this order."""
        charge = self.charging(has_only_texts=self.has_only_texts(order))
        return [charge(index) for index in order]

    def has_only_texts(self, indexes: Iterable[int]) -> bool:
        """Return whether these items are all texts."""
        return not self.block.has_events or all(is_text(self.items[index]) for index in indexes)

    def tokens(self, kept: Sequence[int]) -> int:
        """Return the tokens of the block with only these items."""
        return self._measure.tokens(self.block, self.items, kept, self.item_tokens)

    def rendered(self, kept: Sequence[int]) -> Rendered:
        """Return the same tokens as `tokens`, by what they are used for."""
        return self._measure.rendered(self.block, self.items, kept, self.item_tokens)

    def cost(self, out: Collection[int]) -> int:
        """Return the tokens of the block without these items."""
        return self.tokens(self._alive(out))

    def whole(self) -> Rendered:
        """Return the tokens of the whole block."""
        return self.rendered(self._alive(()))
