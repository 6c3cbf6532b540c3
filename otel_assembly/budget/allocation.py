"""`Allocation`: the allocator's decisions as data, from which spans and `explain` are built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from otel_assembly._internal.arguments import of_type
from otel_assembly._internal.fork_safety import lazy_property
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
        kind: The item's kind, such as ``evidence`` or ``tool_result``: of a message object its own, of a text its
            block's.
        tokens: The item's tokens, counted alone.
        bytes: The bytes of the item's text, in UTF-8.
        atom: The index of the first item of this item's atom, the items that are kept or dropped together.
        outcome: ``kept``, ``compacted`` or ``dropped``.
        reason: The rule that decided.
        winner: For the reasons ``duplicate`` and ``stale``: the name of the block and the index of the item that is
            kept instead; None for other reasons.
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
        outcome: ``kept`` (whole or in part), ``compacted`` or ``dropped``.
        reason: The rule that decided; for a block that is kept in part, the rule that dropped the other items.
        room: The tokens that were available when the block was decided.
        tokens_in: The tokens of the whole block, without `separators_in`.
        tokens_out: The tokens of the block in the prompt, without `separators_out`.
        separators_in: The tokens that joining the items adds to the whole block.
        separators_out: The tokens that joining the items adds in the prompt.
        result: The block in the prompt; None if it is dropped.
        items: The decision on each item.
        made: The summary that replaces the block or one of its items, and is part of `result`; None if no summary was
            made.
        attempts: The attempts to shorten a text of the block.
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
        """The number of items that are in the prompt unchanged."""
        return sum(item.outcome is DecisionOutcome.KEPT for item in self.items)


#: An item's outcome and reason, and the block and index of the item that is kept instead.
ItemOutcome: TypeAlias = tuple[DecisionOutcome, DecisionReason, tuple[str, int] | None]


@dataclass(slots=True)
class BlockOutcome:
    """The outcome of a block and its items, in a compact form from which `ItemDecision` objects are made on demand."""

    outcome: DecisionOutcome
    reason: DecisionReason
    #: Indexes of the items that are kept unchanged, ascending.
    kept: Sequence[int] = ()
    #: Outcomes of single items, which take precedence over `kept` and `rest`, by the item's index.
    item_outcomes: dict[int, ItemOutcome] = field(default_factory=dict)
    #: The outcome of items that are neither in `kept` nor in `item_outcomes`; None for the outcome of the block.
    rest: tuple[DecisionOutcome, DecisionReason] | None = None
    result: Block | None = None
    rendered: Rendered = NOTHING
    made: CompactedBlock | None = None
    attempts: tuple[Attempt, ...] = ()

    def in_result(self) -> Sequence[int]:
        """Return for each item of `result` the index of the original item in the block."""
        compacted = [
            index for index, (outcome, *_) in self.item_outcomes.items() if outcome is DecisionOutcome.COMPACTED
        ]
        return sorted([*self.kept, *compacted]) if self.made is None or compacted else (0,)

    def rest_outcome(self) -> tuple[DecisionOutcome, DecisionReason]:
        """Return the outcome of items that are neither kept nor in `item_outcomes`."""
        return self.rest or (self.outcome, self.reason)


@dataclass(frozen=True, slots=True)
class DecidedBlock:
    """A block with the allocator's decision on it, from which `BlockDecision` is made on demand.

    Attributes:
        read: The block with cached token counts.
        room: The tokens that were available when the block was decided.
        whole: The tokens of the whole block.
        outcome: The outcome of the block and its items.
    """

    read: ReadBlock
    room: int
    whole: Rendered
    outcome: BlockOutcome

    @property
    def kept_reason(self) -> DecisionReason:
        """The reason of items that are kept unchanged: ``pinned`` if the block cannot be cut, else ``fits``."""
        return DecisionReason.FITS if self.read.block.cuttable else DecisionReason.PINNED


class Allocation:
    """The result of allocating a budget: the prompt's blocks, and a decision on every block and item.

    Iterating yields the blocks in the prompt, and `len` returns their number. ``bool(allocation)`` is always True, even
    if the prompt is empty.

    Attributes:
        blocks: The blocks in the prompt, highest priority first. A block that is kept whole is the same object.
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        budget: The tokens for the prompt: ``window − output_reserve``.
        fixed: Tokens of content that cannot be dropped: blocks that cannot be cut, tool calls that await a human's
            approval, and ``framing``.
        used: Tokens of the whole prompt: ``framing``, ``separators`` and the tokens of each block.
        framing: Tokens that belong to no block: tokens with which the provider begins the reply, and tool schemas.
        method: How the tokens were counted: ``exact``, ``calibrated`` or ``estimated``.
        encoding: The name of the counter's encoding.
        overflow: The limit that was exceeded, if the caller continues in spite of it; otherwise None.
        user_first: Whether the provider requires that the conversation starts with a user's request.
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
            # Count now, because this counter may return other numbers later.
            self.decisions  # noqa: B018

    def __iter__(self) -> Iterator[Block]:
        """Iterate over the blocks in the prompt."""
        return iter(self.blocks)

    def __len__(self) -> int:
        """Return the number of blocks in the prompt."""
        return len(self.blocks)

    def __bool__(self) -> bool:
        """Return True even for an empty prompt, so that ``if allocation:`` does not test for blocks."""
        return True

    @property
    def remaining(self) -> int:
        """The unused tokens of the budget."""
        return self.budget - self.used

    @property
    def utilization(self) -> float:
        """Needed tokens ÷ `budget`, as a ratio; above 1 if the budget was exceeded."""
        needed = self.used if self.overflow is None else max(self.used, self.overflow.needed)
        return needed / self.budget if self.budget else 0.0

    @lazy_property
    def decided(self) -> tuple[DecidedBlock, ...]:
        """The internal record of each block's decision, highest priority first."""
        return tuple(
            DecidedBlock(read, room, whole := read.whole(), block_outcome or _kept(read.block, whole, len(read.items)))
            for read, room, block_outcome in self._decided
        )

    @lazy_property
    def decisions(self) -> tuple[BlockDecision, ...]:
        """The decision on each block, highest priority first."""
        return tuple(self._decisions())

    @property
    def items(self) -> tuple[ItemDecision, ...]:
        """The decisions on the items of all blocks."""
        return tuple(item for decision in self.decisions for item in decision.items)

    @property
    def dropped(self) -> tuple[ItemDecision, ...]:
        """The decisions on the items that were dropped."""
        return tuple(item for item in self.items if item.outcome is DecisionOutcome.DROPPED)

    @property
    def compacted(self) -> tuple[ItemDecision, ...]:
        """The decisions on the items that a shorter text replaces in the prompt."""
        return tuple(item for item in self.items if item.outcome is DecisionOutcome.COMPACTED)

    @property
    def separators(self) -> int:
        """The tokens that joining items into messages added, summed over all blocks."""
        return sum([decided.outcome.rendered.separators for decided in self.decided])

    @property
    def costs(self) -> dict[str, int]:
        """The tokens of each block in the prompt, by name; their sum is `used` − `separators` − `framing`."""
        return {decision.block.name: decision.tokens_out for decision in self.decisions if decision.result is not None}

    def count(self, text: str) -> int:
        """Return the tokens of a text, counted with the counter of this allocation."""
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
    kept, atom_of = set(block_outcome.kept), read.leaders()
    if_kept, otherwise = (DecisionOutcome.KEPT, decided.kept_reason), block_outcome.rest_outcome()
    for index, item in enumerate(read.items):
        default = if_kept if index in kept else otherwise
        outcome, reason, winner = block_outcome.item_outcomes.get(index, (*default, None))
        yield ItemDecision(
            item=item,
            block=block.name,
            index=index,
            kind=read.kind(index),
            tokens=read.item_tokens(index),
            bytes=sum(map(_utf8_length, read.texts(index))),
            atom=atom_of[index],
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
    """Return the texts that the model reads of an item: none for an item that repeats an earlier message.

    Raises:
        ConfigurationError: `item` is not a `BlockItem`.
    """
    of_type("item", item, BlockItem)
    if is_text(item):
        return (item_text(item),)
    return () if item.echo else describe(item.content).texts


__all__ = ["Allocation", "BlockDecision", "BlockOutcome", "ItemDecision"]
