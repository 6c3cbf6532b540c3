"""`ReadBlock`: a block with the facts and token counts of its items, cached during one allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from otel_assembly.budget.keep_order import atoms_of, pairing_of, survivors_of
from otel_assembly.budget.sections import is_text, item_text
from otel_assembly.decision import DecisionReason
from otel_assembly.errors import DescribeError
from otel_assembly.history.tool_pairs import CALLS, CLOSES, ORPHAN, REASONED, Pairing
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from otel_assembly.budget.block import Block, BlockItem
    from otel_assembly.budget.measure import Measure, Rendered


def orphan_reason(pairing: Pairing, position: int) -> DecisionReason:
    """Return the reason to record for an item that `ReadBlock.unpaired` found."""
    flags = pairing.flags[position]
    if flags & REASONED and not flags & CALLS:
        return DecisionReason.ORPHANED_REASONING
    is_call = pairing.links[position] and not flags & CLOSES
    return DecisionReason.ORPHANED_TOOL_CALL if is_call else DecisionReason.ORPHANED_TOOL_RESULT


class Fitting(NamedTuple):
    """The items of a block that fit in a number of tokens.

    Attributes:
        atoms: The atoms that fit, the most important first.
        next_atom: The most important atom that does not fit; None if there is none, or if it is no single text.
        kept: The indexes of the items that fit, ascending; a range if they follow each other.
        rendered: Their tokens.
    """

    atoms: Sequence[Sequence[int]]
    next_atom: Sequence[int] | None
    kept: Sequence[int]
    rendered: Rendered


class ReadBlock:
    """A block with the properties (`EventFacts`) and the token count of each item, which are read once and cached.

    An *atom* is a list of item indexes that are kept or dropped together, such as a tool call with its results.

    Args:
        block: The block.
        measure: Counts the tokens of items.

    Attributes:
        items: The block's items.
    """

    __slots__ = ("_facts", "_item_tokens", "_latest_pairing", "_measure", "_whole", "block", "items")

    def __init__(self, block: Block, measure: Measure) -> None:
        self.block = block
        self.items: Sequence[BlockItem] = block.items
        self._measure = measure
        self._facts: Sequence[EventFacts | None] | None = None
        self._item_tokens: dict[int, int] = {}
        self._whole: Rendered | None = None
        #: The arguments and the result of the latest call of `_pairing`.
        self._latest_pairing: tuple[Sequence[int], Pairing] | None = None

    @property
    def facts(self) -> Sequence[EventFacts | None]:
        """The result of ``describe()`` for each item that is a message object; None for a text.

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
        """The name of the provider whose message format the block's message objects use.

        The first object whose format is unique to one provider decides. Empty if no object has such a format.
        """
        return next((facts.provider for facts in self.facts if facts is not None and facts.provider), "")

    def fact(self, index: int) -> EventFacts:
        """Return the facts of an item; for a text, facts without content."""
        return self.facts[index] or EventFacts(EventKind.OTHER)

    def texts(self, index: int) -> Sequence[str]:
        """Return the texts that the model reads of an item; none for an item that repeats an earlier message."""
        item = self.items[index]
        facts = None if is_text(item) else self.facts[index]
        return (item_text(item),) if facts is None else () if item.echo else facts.texts

    def kind(self, index: int) -> str:
        """Return the kind of the item at an index.

        A message object has the kind of its message, such as ``response``. A text has the kind of the block.
        """
        facts = self.facts[index] if self.block.has_events else None
        return self.block.kind.value if facts is None else EventKind(facts.kind).value

    def calls(self) -> Sequence[int]:
        """Return for each item how many tool calls it makes; a negative number is how many calls it answers."""
        pairing = self._pairing(self._not_excluded(()))
        if pairing is None:
            return [0] * len(self.items)
        return [self._calls(pairing, position) for position in range(len(self.items))]

    def _calls(self, pairing: Pairing, position: int) -> int:
        flags, links, facts = pairing.flags[position], pairing.links[position], self.facts[position]
        if flags & ORPHAN and facts is not None and facts.kind != EventKind.TOOL_RESULT:
            return -len(facts.closes)  # see `History.calls`
        return -links if flags & CLOSES else links

    def _not_excluded(self, excluded: Collection[int]) -> Sequence[int]:
        """Return the indexes of the items that are not excluded, ascending."""
        indexes = range(len(self.items))
        return [index for index in indexes if index not in excluded] if excluded else indexes

    def _pairing(self, indexes: Sequence[int]) -> Pairing | None:
        """Return the tool pairs among the items at these indexes; None if all items of the block are texts."""
        if not self.block.has_events:
            return None
        if self._latest_pairing is None or self._latest_pairing[0] != indexes:
            self._latest_pairing = indexes, pairing_of(map(self.facts.__getitem__, indexes))
        return self._latest_pairing[1]

    # Tool pairs and atoms

    def has_response(self, excluded: Collection[int]) -> bool:
        """Return whether an item that is not excluded is a response of the model."""
        return any(
            facts is not None and facts.kind == EventKind.RESPONSE and index not in excluded
            for index, facts in enumerate(self.facts)
        )

    def unpaired(self, excluded: Collection[int], *, answered_later: bool) -> tuple[Mapping[int, DecisionReason], bool]:
        """Find the items that providers reject because their counterpart is missing.

        These are tool results without their call, tool calls that will not get a result, reasoning without the text or
        call that the model wrote after it, and such a text or call without its reasoning.

        Args:
            excluded: Indexes of items that are already excluded.
            answered_later: Whether a response of the model follows the block. A tool call without a result is pending
                (it may still get one) only if no response follows it.

        Returns:
            The indexes of the items with the reason for dropping each, and whether the block has a pending call.
        """
        indexes = self._not_excluded(excluded)
        pairing = self._pairing(indexes)
        if pairing is None:
            return {}, False
        newest_response = len(indexes) if answered_later else pairing.last_response
        reasons = {
            index: orphan_reason(pairing, position)
            for position, index in enumerate(indexes)
            if not pairing.is_sendable(position, newest_response)
        }
        return reasons, bool(pairing.pending_calls(newest_response))

    def survivors(self, excluded: Collection[int]) -> Iterable[Sequence[int]]:
        """Return the atoms of items that are not excluded, the most important first; see `survivors_of`."""
        indexes = self._not_excluded(excluded)
        return survivors_of(self.block, self.items, indexes, self._pairing(indexes))

    def pending_atoms(self, excluded: Collection[int]) -> Sequence[Sequence[int]]:
        """Return the atoms that contain a tool call which awaits a human's approval, in the order of `survivors`."""
        indexes = self._not_excluded(excluded)
        pairing = self._pairing(indexes)
        pending = {indexes[position] for position in pairing.pending_calls(-1)} if pairing is not None else set()
        return [atom for atom in self.survivors(excluded) if not pending.isdisjoint(atom)]

    def leaders(self) -> Sequence[int]:
        """Return, for each item, the index of the first item of its atom."""
        atoms = atoms_of(self.items, self._pairing(self._not_excluded(())))
        leader_of = {index: leader for leader, atom in atoms.items() for index in atom}
        return [leader_of[index] for index in range(len(self.items))]

    def fitting(self, excluded: Collection[int], room: int, pinned: int) -> Fitting:
        """Select the most important atoms that fit together.

        Args:
            excluded: Indexes of items that must not be sent.
            room: The available tokens, including those of the pinned atoms.
            pinned: How many of the first atoms are kept even if they do not fit.
        """
        indexes = (index for index in range(len(self.items)) if index not in excluded)
        charge = self.charging(has_only_texts=self.has_only_texts(indexes))
        remaining = room
        atoms: list[Sequence[int]] = []
        next_atom: Sequence[int] | None = None
        for number, atom in enumerate(self.survivors(excluded), start=1):
            remaining -= sum(map(charge, atom)) if remaining >= 0 else 0
            if remaining < 0 and number > pinned:
                next_atom = atom
                break
            atoms.append(atom)
        while True:
            kept = sorted(index for atom in atoms for index in atom)
            rendered = self.rendered(kept)
            # A counter may return more for a joined text than for its parts.
            if rendered.tokens <= room or len(atoms) <= pinned:
                return Fitting(atoms, next_atom, kept, rendered)
            next_atom = atoms.pop()

    def items_at(self, indexes: Sequence[int]) -> Sequence[BlockItem]:
        """Return the items at these indexes."""
        return [self.items[index] for index in indexes]

    # Tokens

    def item_tokens(self, index: int) -> int:
        """Return the tokens of one item, counted without its neighbors."""
        tokens = self._item_tokens.get(index)
        if tokens is None:
            item = self.items[index]
            tokens = self._measure.item_tokens(item, None if is_text(item) else self.facts[index])
            self._item_tokens[index] = tokens
        return tokens

    def charging(self, *, has_only_texts: bool) -> Callable[[int], int]:
        """Return a function to call with the index of each kept item in order: it returns the item's charge.

        The charge is an upper bound of the tokens that the item adds to the prompt; see `Measure.charging`.
        """
        charge = self._measure.charging(self.block, has_only_texts=has_only_texts)
        return lambda index: charge(self.item_tokens(index), is_text(self.items[index]))

    def charges(self, order: Sequence[int]) -> list[int]:
        """Return the charge of each of these items if they are kept in this order; see `Measure.charging`."""
        charge = self.charging(has_only_texts=self.has_only_texts(order))
        return [charge(index) for index in order]

    def charge(self, order: Sequence[int]) -> int:
        """Return the sum of the charges of items in the given order."""
        return sum(self.charges(order))

    def has_only_texts(self, indexes: Iterable[int]) -> bool:
        """Return whether these items are all texts."""
        return not self.block.has_events or all(is_text(self.items[index]) for index in indexes)

    def tokens(self, kept: Sequence[int]) -> int:
        """Return the tokens of the block if it contains only the items at these indexes."""
        return self._measure.tokens(self.block, self.items, kept, self.item_tokens)

    def rendered(self, kept: Sequence[int]) -> Rendered:
        """Return the tokens of the block with only these items, split into items, framing and separators."""
        return self._measure.rendered(self.block, self.items, kept, self.item_tokens)

    def cost(self, excluded: Collection[int]) -> int:
        """Return the tokens of the block without the excluded items."""
        return self.tokens(self._not_excluded(excluded))

    def whole(self) -> Rendered:
        """Return the tokens of the block with all items, split into items, framing and separators."""
        if self._whole is None:
            self._whole = self.rendered(range(len(self.items)))
        return self._whole
