"""`Allocation`: what the allocator decided, as data; spans, `explain` and tests are read from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from otel_assembly._internal.forks import worked_out_once
from otel_assembly.budget.keep_order import atoms_of, pairing_of
from otel_assembly.budget.measure import NOTHING, Rendered
from otel_assembly.budget.sections import is_text, item_text
from otel_assembly.decision import DecisionOutcome, DecisionReason
from otel_assembly.messages.describe import EventKind, describe
from otel_assembly.messages.tool_pairs import ANSWERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.budget.block import Block, BlockItem
    from otel_assembly.budget.compacted_block import CompactedBlock
    from otel_assembly.budget.measure import Measure
    from otel_assembly.decision import Overflow


@dataclass(frozen=True, slots=True)
class ItemDecision:
    """What happened to one item of a block.

    Attributes:
        item: The item, as it was given: what was compacted or dropped is never excluded.
        block: Its block's name.
        index: Its place in the block, from 0.
        kind: Its kind: the block's, or an event's own.
        tokens: What it takes alone, in tokens.
        bytes: Bytes of its text, as UTF-8.
        atom: The place of the first item that it is kept or dropped together with.
        outcome: ``kept``, ``compacted`` or ``dropped``.
        reason: The rule.
        winner: For ``duplicate`` and ``stale``: the block and the place of the item that stands for it.
    """

    item: BlockItem
    block: str
    index: int
    kind: str
    tokens: int
    bytes: int
    atom: int
    outcome: DecisionOutcome
    reason: DecisionReason
    winner: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class BlockDecision:
    """What happened to one block.

    Attributes:
        block: The block, as it was given.
        outcome: ``kept`` (whole, or with some items cut), ``compacted`` or ``dropped``.
        reason: The rule; for a block that was cut, the rule that took its items.
        room: Tokens that were left for it when it was decided.
        tokens_in: What it takes whole, without `separators_in`.
        tokens_out: What it takes in the prompt, without `separators_out`.
        separators_in: What joining its items adds when it is whole.
        separators_out: What joining its items adds in the prompt.
        result: What is in the prompt of it; None where nothing is.
        items: What happened to each of its items.
        made: What compaction made of some of them; it is in `result`.
        attempts: What it took.
    """

    block: Block
    outcome: DecisionOutcome
    reason: DecisionReason
    room: int
    tokens_in: int
    tokens_out: int
    separators_in: int
    separators_out: int
    result: Block | None
    items: tuple[ItemDecision, ...]
    made: CompactedBlock | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def items_out(self) -> int:
        """How many of its items are in the prompt as they were given."""
        return sum(item.outcome is DecisionOutcome.KEPT for item in self.items)


#: What became of an item, by which rule, and the block and the place of the item that stands for it.
ItemOutcome: TypeAlias = tuple[DecisionOutcome, DecisionReason, tuple[str, int] | None]


@dataclass(slots=True)
class BlockOutcome:
    """What the allocator notes of a block that is not simply kept whole."""

    outcome: DecisionOutcome
    reason: DecisionReason
    #: Indexes of the items that stay as they are.
    kept: Sequence[int] = ()
    #: What became of items, where it is not the block's own outcome and reason, or why they stay.
    item_outcomes: dict[int, ItemOutcome] = field(default_factory=dict)
    result: Block | None = None
    rendered: Rendered = NOTHING
    made: CompactedBlock | None = None
    attempts: tuple[Attempt, ...] = ()


class Allocation:
    """A budget, allocated: what is in the prompt, and why the rest is not.

    It is iterated over as the blocks that are in the prompt, and has their number. It is always true, also where the
    prompt is empty: that too is an answer.

    Attributes:
        blocks: What is in the prompt, highest priority first; a block that was kept whole is the very object.
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        budget: ``window − output_reserve``: the tokens there are for the prompt.
        fixed: Tokens of what may not be cut, the reply's priming and calls that await an approval included.
        used: Tokens of the whole prompt: ``framing`` and ``separators`` and what each block takes, summed.
        framing: Tokens that belong to no block: the reply's priming.
        method: How far the counts can be trusted: ``exact``, ``calibrated`` or ``estimated``.
        encoding: What counted.
        overflow: The limit that could not hold, where no error was raised.
    """

    def __init__(
        self,
        decided: Sequence[tuple[Block, int, BlockOutcome | None]],
        *,
        window: int,
        output_reserve: int,
        fixed: int,
        used: int,
        measure: Measure,
    ) -> None:
        self._decided = decided
        self._measure = measure
        self.window = window
        self.output_reserve = output_reserve
        self.budget = window - output_reserve
        self.fixed = fixed
        self.used = used
        self.framing = measure.priming
        self.method: str = measure.method
        self.encoding = measure.encoding
        self.overflow: Overflow | None = None
        results = [block if block_outcome is None else block_outcome.result for block, _, block_outcome in decided]
        self.blocks: list[Block] = [block for block in results if block is not None]
        if not measure.steady:
            # Later, what was counted now would be counted otherwise.
            self.decisions  # noqa: B018

    def __iter__(self) -> Iterator[Block]:
        """What is in the prompt, as `blocks` has it."""
        return iter(self.blocks)

    def __len__(self) -> int:
        """How many blocks are in the prompt."""
        return len(self.blocks)

    def __bool__(self) -> bool:
        """Always true: see the class."""
        return True

    @property
    def remaining(self) -> int:
        """Tokens of the budget that nothing took."""
        return self.budget - self.used

    @property
    def utilization(self) -> float:
        """``used ÷ budget``, a ratio."""
        return self.used / self.budget if self.budget else 0.0

    @worked_out_once
    def decisions(self) -> tuple[BlockDecision, ...]:
        """What happened to each block, in the order in which they were decided."""
        return tuple(self._decisions())

    @property
    def items(self) -> tuple[ItemDecision, ...]:
        """What happened to each item of each block."""
        return tuple(item for decision in self.decisions for item in decision.items)

    @property
    def dropped(self) -> tuple[ItemDecision, ...]:
        """The items that are not in the prompt, and for which nothing else stands."""
        return tuple(item for item in self.items if item.outcome is DecisionOutcome.DROPPED)

    @property
    def compacted(self) -> tuple[ItemDecision, ...]:
        """The items for which a shorter text stands."""
        return tuple(item for item in self.items if item.outcome is DecisionOutcome.COMPACTED)

    @property
    def separators(self) -> int:
        """Tokens that joining items added, all blocks together."""
        return sum(decision.separators_out for decision in self.decisions)

    @property
    def costs(self) -> dict[str, int]:
        """Tokens of each block in the prompt, by its name; with `separators` and `framing` they sum to `used`."""
        return {decision.block.name: decision.tokens_out for decision in self.decisions if decision.result is not None}

    def tokens_of(self, block: Block, kept: Sequence[int]) -> int:
        """What a block takes with these of its items, counted as it is sent."""
        return self._measure.tokens(block, block.items, kept)

    def charges(self, block: Block, order: Sequence[int]) -> list[int]:
        """What each of these items of a block is charged as they are taken in, in this order."""
        items = block.items
        return self._measure.charges(block, [(self._measure.item(items[at]), is_text(items[at])) for at in order])

    def count(self, text: str) -> int:
        """The tokens of a text, by what counted here."""
        return self._measure.text(text)

    def _decisions(self) -> Iterator[BlockDecision]:
        for block, room, block_outcome in self._decided:
            items = block.items
            whole = self._measure.rendered(block, items, range(len(items)))
            if block_outcome is None:
                block_outcome = _kept(block, whole, range(len(items)))
            yield BlockDecision(
                block=block,
                outcome=block_outcome.outcome,
                reason=block_outcome.reason,
                room=room,
                tokens_in=whole.tokens - whole.separators,
                tokens_out=block_outcome.rendered.tokens - block_outcome.rendered.separators,
                separators_in=whole.separators,
                separators_out=block_outcome.rendered.separators,
                result=block_outcome.result,
                items=tuple(self._items(block, items, block_outcome)),
                made=block_outcome.made,
                attempts=block_outcome.attempts,
            )

    def _items(self, block: Block, items: Sequence[BlockItem], block_outcome: BlockOutcome) -> Iterator[ItemDecision]:
        kept = set(block_outcome.kept)
        first = {index: leader for leader, atom in atoms_of(items).items() for index in atom}
        stays = DecisionReason.FITS if block.cuttable else DecisionReason.PINNED
        for index, item in enumerate(items):
            held = (DecisionOutcome.KEPT, stays) if index in kept else (block_outcome.outcome, block_outcome.reason)
            outcome, reason, winner = block_outcome.item_outcomes.get(index, (*held, None))
            text = is_text(item)
            texts = (item_text(item),) if text else texts_of(item)
            yield ItemDecision(
                item=item,
                block=block.name,
                index=index,
                kind=block.kind.value if text else kind_of(block, item),
                tokens=self._measure.text(texts[0]) if text else self._measure.item(item),
                bytes=sum(map(_utf8_length, texts)),
                atom=first[index],
                outcome=outcome,
                reason=reason,
                winner=winner,
            )

    def __repr__(self) -> str:
        return f"Allocation({self.used} of {self.budget} tokens, {len(self.blocks)} of {len(self._decided)} blocks)"


def _kept(block: Block, whole: Rendered, items: Sequence[int]) -> BlockOutcome:
    reason = DecisionReason.FITS if block.cuttable else DecisionReason.PINNED
    return BlockOutcome(DecisionOutcome.KEPT, reason, items, result=block, rendered=whole)


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def texts_of(item: BlockItem) -> tuple[str, ...]:
    """The texts that the model reads of an item."""
    if is_text(item):
        return (item_text(item),)
    return () if item.echo else describe(item.content).texts


def kind_of(block: Block, item: BlockItem) -> str:
    """An item's kind: its block's, or an event's own."""
    return block.kind.value if is_text(item) else EventKind(describe(item.content).kind).value


def calls_of(items: Sequence[BlockItem]) -> list[int]:
    """How many tool calls each of a block's items asks for, or, below 0, how many it answers."""
    if all(map(is_text, items)):
        return [0] * len(items)
    pairing = pairing_of(items)
    return [-links if flags & ANSWERS else links for links, flags in zip(pairing.links, pairing.flags, strict=True)]


__all__ = ["Allocation", "BlockDecision", "BlockOutcome", "ItemDecision"]
