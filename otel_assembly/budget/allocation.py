"""`Allocation`: what the allocator decided, as data; spans, `explain` and tests are read from it."""

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
    #: Indexes of the items that stay as they are, ascending.
    kept: Sequence[int] = ()
    #: What became of items, where it is not what became of the rest, or why they stay.
    item_outcomes: dict[int, ItemOutcome] = field(default_factory=dict)
    #: What became of all others that do not stay; None: what became of the block.
    rest: tuple[DecisionOutcome, DecisionReason] | None = None
    result: Block | None = None
    rendered: Rendered = NOTHING
    made: CompactedBlock | None = None
    attempts: tuple[Attempt, ...] = ()

    def in_result(self) -> Sequence[int]:
        """Return the index of each item of `result`: what stays, and the item in whose place a shorter text stands."""
        compacted = [at for at, (what, *_) in self.item_outcomes.items() if what is DecisionOutcome.COMPACTED]
        return sorted([*self.kept, *compacted]) if self.made is None or compacted else (0,)

    def of_others(self) -> tuple[DecisionOutcome, DecisionReason]:
        """What became of the items that do not stay, where nothing else is said of them."""
        return self.rest or (self.outcome, self.reason)


@dataclass(frozen=True, slots=True)
class DecidedBlock:
    """A block with what the allocator decided of it, not yet told item by item."""

    read: ReadBlock
    room: int
    #: What it takes whole.
    whole: Rendered
    outcome: BlockOutcome

    @property
    def stays(self) -> DecisionReason:
        """Why what stays of it does."""
        return DecisionReason.FITS if self.read.block.cuttable else DecisionReason.PINNED


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
        """Tokens needed ÷ `budget`, a ratio: `used`, or what an overflow needed if that is more."""
        needed = self.used if self.overflow is None else max(self.used, self.overflow.needed)
        return needed / self.budget if self.budget else 0.0

    @worked_out_once
    def decided(self) -> tuple[DecidedBlock, ...]:
        """What happened to each block, in the order in which they were decided: what `decisions` says item by item."""
        return tuple(
            DecidedBlock(read, room, whole := read.whole(), block_outcome or _kept(read.block, whole, len(read.items)))
            for read, room, block_outcome in self._decided
        )

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
        return sum([one.outcome.rendered.separators for one in self.decided])

    @property
    def costs(self) -> dict[str, int]:
        """Tokens of each block in the prompt, by its name; with `separators` and `framing` they sum to `used`."""
        return {decision.block.name: decision.tokens_out for decision in self.decisions if decision.result is not None}

    def count(self, text: str) -> int:
        """The tokens of a text, by what counted here."""
        return self._measure.text(text)

    def _decisions(self) -> Iterator[BlockDecision]:
        for one in self.decided:
            outcome = one.outcome
            yield BlockDecision(
                block=one.read.block,
                outcome=outcome.outcome,
                reason=outcome.reason,
                room=one.room,
                tokens_in=one.whole.tokens - one.whole.separators,
                tokens_out=outcome.rendered.tokens - outcome.rendered.separators,
                separators_in=one.whole.separators,
                separators_out=outcome.rendered.separators,
                result=outcome.result,
                items=tuple(_items(one)),
                made=outcome.made,
                attempts=outcome.attempts,
            )

    def __repr__(self) -> str:
        return f"Allocation({self.used} of {self.budget} tokens, {len(self.blocks)} of {len(self._decided)} blocks)"


def _items(decided: DecidedBlock) -> Iterator[ItemDecision]:
    read, block, block_outcome = decided.read, decided.read.block, decided.outcome
    kept, first = set(block_outcome.kept), read.leaders()
    stays, others = (DecisionOutcome.KEPT, decided.stays), block_outcome.of_others()
    for index, item in enumerate(read.items):
        held = stays if index in kept else others
        outcome, reason, winner = block_outcome.item_outcomes.get(index, (*held, None))
        yield ItemDecision(
            item=item,
            block=block.name,
            index=index,
            kind=read.kind(index),
            tokens=read.alone(index),
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
    """Return the texts that the model reads of an item.

    Raises:
        ConfigurationError: `item` is no `BlockItem`.
    """
    of_type("item", item, BlockItem)
    if is_text(item):
        return (item_text(item),)
    return () if item.echo else describe(item.content).texts


__all__ = ["Allocation", "BlockDecision", "BlockOutcome", "ItemDecision"]
