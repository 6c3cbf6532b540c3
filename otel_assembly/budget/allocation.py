"""`Allocation`: the allocator's decisions as data, from which spans and `explain` are built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from otel_assembly._internal.arguments import of_type
from otel_assembly._internal.forks import worked_out_once
from otel_assembly.budget.block import BlockItem
from otel_assembly.budget.measure import NOTHING, Rendered
from otel_assembly.budget.sections import is_text, item_text
from otel_assembly.decision import DecisionOutcome, DecisionReason
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.budget.block import Block
    from otel_assembly.budget.compacted_block import CompactedBlock
    from otel_assembly.budget.measure import Measure
    from otel_assembly.budget.read_block import ReadBlock
    from otel_assembly.decision import Overflow


@dataclass(frozen=True, slots=True)
class ItemDecision:
    """The decision on one item of a block.

    Attributes:
        item: The original item, even if it was compacted or dropped.
        block: The name of the item's block.
        index: The item's index in the block, from 0.
        kind: The item's kind: that of its block, or of the event.
        tokens: The item's tokens, counted alone.
        bytes: The bytes of the item's text, in UTF-8.
        atom: The index of the first item that is kept or dropped together with this one.
        outcome: ``kept``, ``compacted`` or ``dropped``.
        reason: The rule that decided.
        winner: For ``duplicate`` and ``stale``: the block and index of the item that is kept instead.
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
    """The decision on one block.

    Attributes:
        block: The original block.
        outcome: ``kept`` (whole, or without some items), ``compacted`` or ``dropped``.
        reason: The rule that decided; for a block without some items, the rule that dropped them.
        room: The tokens that were available when the block was decided.
        tokens_in: The tokens of the whole block, without `separators_in`.
        tokens_out: The tokens of the block in the prompt, without `separators_out`.
        separators_in: The tokens that joining the items adds to the whole block.
        separators_out: The tokens that joining the items adds in the prompt.
        result: The block in the prompt; None if it is dropped.
        items: The decision on each item.
        made: The compacted text; it is part of `result`.
        attempts: The attempts to compact.
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
        """How many items are in the prompt unchanged."""
        return sum(item.outcome is DecisionOutcome.KEPT for item in self.items)


#: An item's outcome and reason, and the block and index of the item that is kept instead.
ItemOutcome: TypeAlias = tuple[DecisionOutcome, DecisionReason, tuple[str, int] | None]


@dataclass(slots=True)
class BlockOutcome:
    """The allocator's record of a block that is not simply kept whole."""

    outcome: DecisionOutcome
    reason: DecisionReason
    #: Indexes of the items that are kept unchanged, ascending.
    kept: Sequence[int] = ()
    #: Outcomes of items that differ from the outcome of the rest, or the reason why an item is kept.
    item_outcomes: dict[int, ItemOutcome] = field(default_factory=dict)
    #: The outcome of all other items that are not kept; None: the outcome of the block.
    rest: tuple[DecisionOutcome, DecisionReason] | None = None
    result: Block | None = None
    rendered: Rendered = NOTHING
    made: CompactedBlock | None = None
    attempts: tuple[Attempt, ...] = ()

    def in_result(self) -> Sequence[int]:
        """Return the index of each item of `result`; a compacted item has the index of the original."""
        compacted = [at for at, (outcome, *_) in self.item_outcomes.items() if outcome is DecisionOutcome.COMPACTED]
        return sorted([*self.kept, *compacted]) if self.made is None or compacted else (0,)

    def rest_outcome(self) -> tuple[DecisionOutcome, DecisionReason]:
        """Return the outcome of items that are neither kept nor in `item_outcomes`."""
        return self.rest or (self.outcome, self.reason)


@dataclass(frozen=True, slots=True)
class DecidedBlock:
    """A block with the allocator's decision, not yet expanded into decisions on items."""

    read: ReadBlock
    room: int
    #: The tokens of the whole block.
    whole: Rendered
    outcome: BlockOutcome

    @property
    def kept_reason(self) -> DecisionReason:
        """The reason of the items that are kept unchanged."""
        return DecisionReason.FITS if self.read.block.cuttable else DecisionReason.PINNED


class Allocation:
    """The result of allocating a budget: the prompt's blocks, and a decision on every block and item.

    Iterating yields the blocks in the prompt, and `len` returns their number. An allocation is always true, even if the
    prompt is empty.

    Attributes:
        blocks: The blocks in the prompt, highest priority first. A block that is kept whole is the same object.
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        budget: The tokens for the prompt: ``window − output_reserve``.
        fixed: Tokens of content that cannot be cut, with the reply's priming and calls that await an approval.
        used: Tokens of the whole prompt: ``framing``, ``separators`` and the tokens of each block.
        framing: Tokens that belong to no block: the reply's priming.
        method: How the tokens were counted: ``exact``, ``calibrated`` or ``estimated``.
        encoding: The name of the counter's encoding.
        overflow: The limit that was exceeded, if no error was raised.
        user_first: Whether the provider requires that the prompt starts with a user's request.
    """

    def __init__(
        self,
        decided: Sequence[tuple[ReadBlock, int, BlockOutcome | None]],
        *,
        window: int,
        output_reserve: int,
        fixed: int,
        used: int,
        measure: Measure,
        user_first: bool = False,
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
        self.user_first = user_first
        results = [read.block if block_outcome is None else block_outcome.result for read, _, block_outcome in decided]
        self.blocks: list[Block] = [block for block in results if block is not None]
        if not measure.is_stable:
            # Count now: later, this counter may return other numbers.
            self.decisions  # noqa: B018

    def __iter__(self) -> Iterator[Block]:
        """Iterate over `blocks`."""
        return iter(self.blocks)

    def __len__(self) -> int:
        """Return the number of blocks in the prompt."""
        return len(self.blocks)

    def __bool__(self) -> bool:
        """Return True; see the class."""
        return True

    @property
    def remaining(self) -> int:
        """The unused tokens of the budget."""
        return self.budget - self.used

    @property
    def utilization(self) -> float:
        """Tokens needed ÷ `budget`, a ratio.

        The tokens needed are `used`, or those of an overflow if they are more.
        """
        needed = self.used if self.overflow is None else max(self.used, self.overflow.needed)
        return needed / self.budget if self.budget else 0.0

    @worked_out_once
    def decided(self) -> tuple[DecidedBlock, ...]:
        """Each block with its decision, in the order in which the allocator decided."""
        return tuple(
            DecidedBlock(read, room, whole := read.whole(), block_outcome or _kept(read.block, whole, len(read.items)))
            for read, room, block_outcome in self._decided
        )

    @worked_out_once
    def decisions(self) -> tuple[BlockDecision, ...]:
        """The decision on each block, in the order in which the allocator decided."""
        return tuple(self._decisions())

    @property
    def items(self) -> tuple[ItemDecision, ...]:
        """The decision on each item of each block."""
        return tuple(item for decision in self.decisions for item in decision.items)

    @property
    def dropped(self) -> tuple[ItemDecision, ...]:
        """The items that were dropped."""
        return tuple(item for item in self.items if item.outcome is DecisionOutcome.DROPPED)

    @property
    def compacted(self) -> tuple[ItemDecision, ...]:
        """The items that a shorter text replaces."""
        return tuple(item for item in self.items if item.outcome is DecisionOutcome.COMPACTED)

    @property
    def separators(self) -> int:
        """The tokens that joining items added, over all blocks."""
        return sum([decided.outcome.rendered.separators for decided in self.decided])

    @property
    def costs(self) -> dict[str, int]:
        """The tokens of each block in the prompt, by name; with `separators` and `framing` they sum to `used`."""
        return {decision.block.name: decision.tokens_out for decision in self.decisions if decision.result is not None}

    def count(self, text: str) -> int:
        """Return the tokens of a text, by the counter of this allocation."""
        return self._measure.text(text)

    def _decisions(self) -> Iterator[BlockDecision]:
        for decided in self.decided:
            outcome = decided.outcome
            yield BlockDecision(
                block=decided.read.block,
                outcome=outcome.outcome,
                reason=outcome.reason,
                room=decided.room,
                tokens_in=decided.whole.tokens - decided.whole.separators,
                tokens_out=outcome.rendered.tokens - outcome.rendered.separators,
                separators_in=decided.whole.separators,
                separators_out=outcome.rendered.separators,
                result=outcome.result,
                items=tuple(_items(decided)),
                made=outcome.made,
                attempts=outcome.attempts,
            )

    def __repr__(self) -> str:
        return f"Allocation({self.used} of {self.budget} tokens, {len(self.blocks)} of {len(self._decided)} blocks)"


def _items(decided: DecidedBlock) -> Iterator[ItemDecision]:
    read, block, block_outcome = decided.read, decided.read.block, decided.outcome
    kept, first = set(block_outcome.kept), read.leaders()
    stays, rest = (DecisionOutcome.KEPT, decided.kept_reason), block_outcome.rest_outcome()
    for index, item in enumerate(read.items):
        default = stays if index in kept else rest
        outcome, reason, winner = block_outcome.item_outcomes.get(index, (*default, None))
        yield ItemDecision(
            item=item,
            block=block.name,
            index=index,
            kind=read.kind(index),
            tokens=read.item_tokens(index),
            bytes=sum(map(_utf8_length, read.texts(index))),
            atom=first[index],
            outcome=outcome,
            reason=reason,
            winner=winner,
        )


def _kept(block: Block, whole: Rendered, count: int) -> BlockOutcome:
    reason = DecisionReason.FITS if block.cuttable else DecisionReason.PINNED
    return BlockOutcome(DecisionOutcome.KEPT, reason, range(count), result=block, rendered=whole)


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def texts_of(item: BlockItem) -> tuple[str, ...]:
    """Return the texts of an item that the model reads.

    Raises:
        ConfigurationError: `item` is not a `BlockItem`.
    """
    of_type("item", item, BlockItem)
    if is_text(item):
        return (item_text(item),)
    return () if item.echo else describe(item.content).texts


__all__ = ["Allocation", "BlockDecision", "BlockOutcome", "ItemDecision"]
