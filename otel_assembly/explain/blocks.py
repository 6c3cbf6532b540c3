"""Rebuilds the blocks of an allocation without content from its spans, and runs the allocator on them again.

The allocator's code is the real one (`budget.plan.plan`), but no tokenizer is used. A whole block has its recorded
tokens, and a part of a block has the sum of its items' charges. A charge is an upper bound of the tokens that an item
adds; the spans record it. The caller assumes the results of compactors that were not called.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate, compress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_assembly.budget.attempt import Compacted
from otel_assembly.budget.block import Block, BlockItem, Cut
from otel_assembly.budget.compacted_block import CompactedBlock
from otel_assembly.budget.measure import NOTHING, Measure, Rendered
from otel_assembly.budget.plan import CompactionRequest, plan
from otel_assembly.budget.rule import Sharing
from otel_assembly.decision import DecisionOutcome, DecisionReason
from otel_assembly.errors import AssemblyError
from otel_assembly.explain.skeleton import StandIn, UnknownError
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.telemetry import conventions as names
from otel_assembly.tokens import MessageFraming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from otel_assembly.budget.allocation import Allocation
    from otel_assembly.messages.event_facts import EventFacts
    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedBlock, ReportedStep, ReportedTurn

__all__ = ["OUT_FROM_THE_START", "BlockNumbers", "BlocksOfTurn", "BlocksRun"]

#: The reasons of items that the allocator drops whatever the limit is.
OUT_FROM_THE_START: Final = frozenset(
    {
        DecisionReason.DUPLICATE.value,
        DecisionReason.STALE.value,
        DecisionReason.ORPHANED_TOOL_CALL.value,
        DecisionReason.ORPHANED_TOOL_RESULT.value,
        DecisionReason.ORPHANED_REASONING.value,
    }
)
_INTS: Final = (
    names.BLOCK_PRIORITY,
    names.BLOCK_MIN_TOKENS,
    names.TOKENS_IN,
    names.TOKENS_OUT,
    names.BUDGET_REMAINING,
    names.ITEMS_IN,
)
#: Returns the assumed tokens of a summary for a target; 0 if the compactor is assumed to fail.
Answer: TypeAlias = "Callable[[int], int]"


@dataclass(frozen=True, slots=True)
class BlockNumbers:
    """The numbers of one block that the allocator needs, as the spans record them. Sizes are in tokens.

    Attributes:
        name: The block's name.
        cuttable: Whether the block may be cut.
        cost: The tokens of the whole block.
        floor: The block's reserved minimum.
        order: The ids of the block's items; the item that is dropped last comes first.
        marks: What each item's charge contains in addition to the item's tokens (framing or separator), as in `order`.
        upto: The sum of the charges of the first n items of `order`, for n from 0 on.
        atoms: The number of items in each atom (items that are kept or dropped together), in the order of `order`.
        enough: How many items of `order`, from the first on, reach the floor.
        texts: For each item of `order`, whether it is a text, so that a compactor can shorten it.
        kept: How many items of `order` were kept.
        tokens_out: The block's tokens in the prompt.
        compacted: The ids of the items that a summary replaced.
        room: The tokens that were available when the block was decided.
        instructed: Whether an instruction is repeated after the block's content (`Block.restated`).
    """

    name: str
    cuttable: bool
    cost: int
    floor: int
    order: tuple[str, ...]
    marks: tuple[int, ...]
    upto: tuple[int, ...]
    atoms: tuple[int, ...]
    enough: int
    texts: tuple[bool, ...]
    kept: int
    tokens_out: int
    compacted: frozenset[str]
    room: int
    instructed: bool

    def part(self, count: int) -> int:
        """Return the tokens of the first `count` items of `order`.

        If the spans do not record this number, the result is the sum of the items' charges, an upper bound. The spans
        record whether the items reach the block's floor (`enough`), so the result is at least the floor if they do, and
        below it if they do not.
        """
        if count == self.kept and not self.compacted:
            return self.tokens_out
        if not self.floor:
            return self.upto[count]
        return max(self.upto[count], self.floor) if count >= self.enough else min(self.upto[count], self.floor - 1)

    def is_inexact(self, count: int, room: int) -> bool:
        """Return whether `part` may be wrong for `count` items, so that a decision based on it is uncertain.

        This is the case if the whole block has more tokens than the sum of its charges; if the block has texts and
        messages and only texts are kept; or if no item is kept and a text with a repeated instruction might just fit.
        """
        if not count and self.instructed:
            return 0 < room <= self.marks[0]
        if not 0 < count < len(self.order):
            return False
        exceeds_charges = self.cost > self.upto[-1] or (not self.compacted and self.tokens_out > self.upto[self.kept])
        kept_texts = self.texts[:count]
        return exceeds_charges or (count > 1 and all(kept_texts) and not all(self.texts))

    def least_room(self, item: str) -> int:
        """Return the tokens that must be available for the block so that the item can be kept unchanged."""
        index, end = self.order.index(item), 0
        for size in self.atoms:
            end += size
            if end > index:
                break
        return min(self.cost, self.upto[end])

    def next_change(self, room: int) -> int:
        """Return the smallest increase of the available tokens that changes the allocator's decision on this block."""
        # The whole block fits, or the block gets its first token.
        increases = [self.cost - room, 1 - room]
        index = bisect_right(self.upto, room)
        if index < len(self.upto):
            increases.append(self.upto[index] - room)
        # The next text gets its first token, so that a compactor can shorten it.
        increases += [
            charged_before + mark + 1 - room
            for charged_before, mark, is_text in zip(self.upto, self.marks, self.texts, strict=False)
            if is_text
        ]
        return min((increase for increase in increases if increase > 0), default=1 << 60)


@dataclass(frozen=True, slots=True)
class BlocksRun:
    """The result of running the allocator again.

    Attributes:
        kept: For each block, the ids of the items that are kept unchanged.
        rooms: For each block, the tokens that were available when it was decided.
        made: The indexes of the blocks that contain a summary.
        asked: The index of the first block for which a compactor was needed; None if there is none.
        assumed: The index of the first block for which a compactor's result was assumed; None if there is none.
    """

    kept: tuple[frozenset[str], ...]
    rooms: tuple[int, ...]
    made: frozenset[int]
    asked: int | None
    assumed: int | None


class BlocksOfTurn:
    """The blocks of a turn's allocation, rebuilt from its spans, on which the allocator can be run again.

    Attributes:
        numbers: The recorded numbers of each block, highest priority first.
        budget: The tokens for the prompt.
        fixed: The tokens of content that cannot be dropped.
        base: The result of the run with the recorded window.

    Raises:
        UnknownError: The spans lack a number, or a run with the recorded window does not make the recorded decisions.
    """

    def __init__(self, ledger: LedgerHistory, turn: ReportedTurn, step: ReportedStep) -> None:
        self._ledger, self._turn = ledger, turn
        self._exits = ledger.exits(turn.number)
        self._in_prompt = set(turn.kept)
        #: The items that would fit, but were dropped because the provider requires a user's request before them.
        self._before_user = {
            item for item, left in self._exits.items() if left.reason == DecisionReason.BEFORE_USER_MESSAGE
        }
        window, reserve, fixed = self._limits(step)
        self._window, self._reserve = window, reserve
        self.budget, self.fixed = window - reserve, fixed
        self._readings = step.blocks
        self.numbers = [self._read_numbers(block) for block in step.blocks]
        self._places = {block.name: place for place, block in enumerate(self.numbers)}
        texts = [block.marks[0] for block in self.numbers if block.texts and block.texts[0]]
        # If all texts have a larger overhead than a message's framing, an instruction is repeated after each of them.
        self._overhead = min([*texts, MessageFraming().prompt()]) if texts else 0
        self.numbers = [
            replace(block, instructed=bool(block.texts) and block.texts[0] and block.marks[0] > self._overhead)
            for block in self.numbers
        ]
        #: The fixed tokens outside of the blocks, with which the provider begins the reply.
        self._priming = fixed - sum(block.cost for block in self.numbers if not block.cuttable)
        self._blocks = [self._rebuilt_block(place) for place in range(len(self.numbers))]
        #: The recorded results of compactors: the block's tokens with the result, by block, target and text.
        self._answers: dict[tuple[str, int, str], int] = {}
        self.base = self.run(0, None)
        self._check()

    def _limits(self, step: ReportedStep) -> tuple[int, int, int]:
        """Return the window, the output reserve and the tokens of fixed content from the allocator's span.

        Raises:
            UnknownError: The span lacks a number, or the span of a block is missing.
        """
        allocation = step.allocation
        if allocation is None:
            raise UnknownError("the allocator's span is missing")
        limits = (names.BUDGET_WINDOW, names.BUDGET_OUTPUT_RESERVE, names.BUDGET_FIXED)
        numbers = [allocation.get(key) for key in limits]
        counts = [allocation.get(key) for key in (names.BLOCKS_KEPT, names.BLOCKS_COMPACTED, names.BLOCKS_DROPPED)]
        if not all(type(number) is int for number in (*numbers, *counts)):
            raise UnknownError("the allocator's span lacks its limits")
        total = sum(map(int, counts))  # type: ignore[arg-type]  # ints, just checked
        missing = total - len(step.blocks)
        if missing:
            named = len(allocation.get(names.BLOCKS_NAMES, ()))
            if named:
                raise UnknownError(f"{named} of its {total} blocks have no span, so their items are unknown")
            raise UnknownError(f"the spans of {missing} of its {total} blocks are missing")
        window, reserve, fixed = map(int, numbers)  # type: ignore[arg-type]  # ints, just checked
        return window, reserve, fixed

    def _read_numbers(self, block: ReportedBlock) -> BlockNumbers:
        """Return the numbers of a block from its span; `instructed` is set later, after a comparison of all blocks.

        Items that were dropped only because the provider requires a user's request before them count as kept: the
        allocator keeps them, and they are removed from its result afterwards.

        Raises:
            UnknownError: The span lacks a number.
        """
        attributes = block.attributes
        if not all(type(attributes.get(key)) is int for key in _INTS):
            raise UnknownError(f"the span of block {block.name!r} lacks attributes that the rule needs")
        order, charges = tuple(block.order), [int(count) for count in attributes.get(names.BLOCK_RANKED_TOKENS, ())]
        excluded = [
            item for item in block.items if item in self._exits and self._exits[item].reason in OUT_FROM_THE_START
        ]
        cuttable = bool(attributes.get(names.BLOCK_CUTTABLE))
        is_before_user = [item in self._before_user for item in order]
        recorded_count = len(order) + len(excluded) if cuttable else len(block.items)
        atoms = tuple(int(size) for size in attributes.get(names.BLOCK_ATOM_SIZES, ())) or (1,) * len(order)
        if recorded_count != attributes[names.ITEMS_IN] or len(charges) != len(order) or sum(atoms) != len(order):
            raise UnknownError(f"the spans do not record all items of block {block.name!r} with their charged tokens")
        tokens = [self._ledger.tokens(self._turn.number, item) for item in order]
        known = [count for count in tokens if count is not None]
        if len(known) < len(order):
            raise UnknownError(f"the arrival of an item of block {block.name!r} is not in the spans")
        cost = int(attributes[names.TOKENS_OUT])
        if cuttable:
            cost = int(attributes.get(names.BLOCK_TOTAL_TOKENS, attributes[names.TOKENS_IN]))
        compacted = {DecisionOutcome.COMPACTED.value}
        return BlockNumbers(
            name=block.name,
            cuttable=cuttable,
            cost=cost,
            floor=min(int(attributes[names.BLOCK_MIN_TOKENS]), cost) if cuttable else 0,
            order=order,
            marks=tuple(charge - count for charge, count in zip(charges, known, strict=True)),
            upto=tuple(accumulate(charges, initial=0)),
            atoms=atoms,
            enough=int(attributes.get(names.BLOCK_MIN_ITEMS, 0)),
            texts=self._texts(block, order),
            kept=sum(item in self._in_prompt for item in order) + sum(is_before_user),
            tokens_out=int(attributes[names.TOKENS_OUT]) + sum(compress(charges, is_before_user)),
            compacted=frozenset(
                item for item in order if item in self._exits and self._exits[item].outcome in compacted
            ),
            room=int(attributes[names.BUDGET_REMAINING]),
            instructed=False,
        )

    def _texts(self, block: ReportedBlock, order: Sequence[str]) -> tuple[bool, ...]:
        """Return for each item whether it is a text. In a mixed block, these are the items with the block's kind."""
        events = block.attributes.get(names.BLOCK_MESSAGE_COUNT, 0)
        if events in {0, len(order)}:
            return (not events,) * len(order)
        texts = tuple(self._ledger.items[item].kind == block.kind for item in order)
        if texts.count(False) != events:
            raise UnknownError(f"which items of block {block.name!r} are texts is not in the spans")
        return texts

    def _rebuilt_block(self, place: int) -> Block:
        """Create a block on which the allocator decides as on the recorded one; an item's content is its id."""
        numbers, block = self.numbers[place], self._readings[place]
        priority = block.priority or 1
        if not numbers.cuttable:
            fixed = (f"fixed {place}",) if numbers.cost else ()
            return Block(numbers.name, priority, fixed, cuttable=False, rank=place + 1)
        try:
            cut = Cut(block.attributes.get(names.BLOCK_CUT_STRATEGY, ""))
        except ValueError:
            raise UnknownError(f"how block {numbers.name!r} is cut is not in the spans") from None
        items: list[list[BlockItem]] = []
        start = 0
        for number, size in enumerate(numbers.atoms):
            group = f"{number}" if size > 1 else None
            items.append(
                [
                    BlockItem(
                        f"{numbers.order[index]};"
                        if numbers.texts[index]
                        else StandIn(numbers.order[index], EventKind.OTHER, 0, 0),
                        rank=index + 1,
                        score=-index,
                        group=group,
                    )
                    for index in range(start, start + size)
                ]
            )
            start += size
        if cut is Cut.OLDEST:
            items.reverse()
        instruction_tokens = numbers.marks[0] - self._overhead if numbers.texts and numbers.texts[0] else 0
        return Block(
            numbers.name,
            priority,
            tuple(item for atom in items for item in atom),
            cuttable=True,
            min_tokens=numbers.floor,
            rank=place + 1,
            cut=cut,
            stable=False,
            separator="",
            restated=f"{instruction_tokens}" if instruction_tokens > 0 else "",
        )

    def has_cuttable_turns(self, place: int) -> bool:
        """Return whether the block at `place` consists of turns and may be cut."""
        return self.numbers[place].cuttable and self._blocks[place].has_turns

    def place_of(self, item: str) -> int | None:
        """Return the index of the block that lists the item in `BlockNumbers.order`; None if there is none."""
        return next((place for place, block in enumerate(self.numbers) if item in block.order), None)

    def _check(self) -> None:
        """Check that the run with the recorded window made the recorded decisions.

        Raises:
            UnknownError: The run decided differently on a block.
        """
        for place, block in enumerate(self.numbers):
            if not block.cuttable:
                continue
            recorded_items = {item for item in block.order if item in self._in_prompt or item in self._before_user}
            is_same = self.base.kept[place] == recorded_items and (place in self.base.made) == bool(block.compacted)
            if not is_same or self.base.rooms[place] != block.room:
                raise UnknownError(
                    f"the rule, run again on the recorded numbers, decides block {block.name!r} differently"
                )

    def floors(self, more: int) -> tuple[list[int], int]:
        """Reserve the floors of all blocks in a larger window.

        Args:
            more: The increase of the window.

        Returns:
            The reserved tokens of each block (−1 if its floor does not fit), and the smallest further increase with
            which another floor fits.
        """
        sharing = Sharing(self.budget + more - self.fixed)
        floors = sharing.reserve(block.floor for block in self.numbers)
        reserved_tokens, missing_tokens = 0, 1 << 60
        for block, floor in zip(self.numbers, floors, strict=True):
            if floor < 0:
                missing_tokens = min(missing_tokens, reserved_tokens + block.floor - sharing.free)
            reserved_tokens += max(0, floor)
        return floors, missing_tokens

    def run(self, more: int, answer: Answer | None) -> BlocksRun:
        """Run the allocator with a larger window.

        Args:
            more: The increase of the window in tokens.
            answer: Returns the tokens of summaries that were not recorded. None for the run with the recorded window,
                in which each summary is recorded.
        """
        return self._run(self._blocks, self._window + more, self._reserve, self._priming, answer)

    def keeps_with_floor_only(self, item: str, answer: Answer) -> bool:
        """Return whether an item is kept even if only the block's floor is available for its block.

        The result is False for a block of older turns, because a block of newer turns may use its floor.
        """
        place = self.place_of(item)
        if place is None or not self.numbers[place].floor:
            return False
        if self.has_cuttable_turns(place) and any(map(self.has_cuttable_turns, range(place))):
            return False
        ran = self._run([self._blocks[place]], self.numbers[place].floor, 0, 0, answer)
        return item in ran.kept[0]

    def _run(
        self, blocks: Sequence[Block], window: int, reserve: int, priming: int, answer: Answer | None
    ) -> BlocksRun:
        """Run the allocator, and answer its requests for summaries with recorded or assumed tokens.

        Args:
            blocks: The rebuilt blocks.
            window: The window in tokens.
            reserve: The tokens of the window that are reserved for the reply.
            priming: The tokens with which the provider begins the reply.
            answer: Returns the tokens of summaries that were not recorded; None for the run with the recorded window.

        Raises:
            UnknownError: The allocator failed.
        """
        measure = _RecordedMeasure(self.numbers, self._overhead, priming)
        requested: list[int] = []
        assumed: list[int] = []
        try:
            steps = plan(blocks, window, reserve, measure)
            result: Compacted | None = None
            while True:
                try:
                    request = next(steps) if result is None else steps.send(result)
                except StopIteration as stop:
                    allocation: Allocation = stop.value
                    break
                place = self._places[request.block.name]
                key = request.block.name, request.target, request.text
                requested.append(place)
                if answer is None:
                    self._answers[key] = self._recorded_tokens(request)
                elif key not in self._answers:
                    assumed.append(place)
                tokens = self._answers[key] if key in self._answers else self._assumed_tokens(request, answer)
                result = measure.compacted(tokens)
        except AssemblyError as error:
            raise UnknownError(f"the rule, run again, fails: {type(error).__name__}") from None
        decisions = allocation.decisions
        return BlocksRun(
            kept=tuple(
                frozenset(_id(item.item) for item in decision.items if item.outcome is DecisionOutcome.KEPT)
                if decision.block.cuttable
                else frozenset()
                for decision in decisions
            ),
            rooms=tuple(decision.room for decision in decisions),
            made=frozenset(place for place, decision in enumerate(decisions) if decision.made is not None),
            asked=min(requested, default=None),
            assumed=min(assumed, default=None),
        )

    def _recorded_tokens(self, request: CompactionRequest) -> int:
        """Return the block's recorded tokens if its recorded summary replaced exactly the items of this request.

        Otherwise return 0, which means that the compactor fails: on the recorded turn, it made no such summary.
        """
        numbers = self.numbers[self._places[request.block.name]]
        return numbers.tokens_out if numbers.compacted == frozenset(_ids(request.text)) else 0

    def _assumed_tokens(self, request: CompactionRequest, answer: Answer | None) -> int:
        """Return the block's tokens with the assumed result of this request; 0 if the compactor is assumed to fail.

        The result for a single item replaces this item, after the items that rank before it. The result for several
        items replaces the whole block.
        """
        numbers = self.numbers[self._places[request.block.name]]
        requested_ids = _ids(request.text)
        first = numbers.order.index(requested_ids[0]) if len(requested_ids) == 1 else 0
        tokens = answer(request.target) if answer is not None else 0
        return numbers.upto[first] + numbers.marks[first] + tokens if tokens else 0


def _ids(text: str) -> list[str]:
    """Return the item ids in a text of rebuilt items, each of which is an id and a semicolon."""
    return [item for item in text.split(";") if item]


def _id(item: BlockItem) -> str:
    content: Any = item.content
    return content.item if isinstance(content, StandIn) else content.rstrip(";")


class _RecordedMeasure(Measure):
    """A `Measure` that returns the recorded numbers of rebuilt blocks instead of counting tokens."""

    __slots__ = ("_by_name", "_made", "_tokens")

    def __init__(self, blocks: Iterable[BlockNumbers], overhead: int, priming: int) -> None:
        self._by_name: Mapping[str, BlockNumbers] = {block.name: block for block in blocks}
        self._tokens = {
            item: after - before - mark
            for block in self._by_name.values()
            for item, before, after, mark in zip(block.order, block.upto, block.upto[1:], block.marks, strict=False)
        }
        self._made: dict[str, int] = {}
        self.overhead = overhead
        self.priming = priming
        # Only repeated instructions are counted as texts; their text is the number of their tokens (see
        # `_rebuilt_block`).
        self.text = lambda text: int(text) if text.isdigit() else 0

    @property
    def is_stable(self) -> bool:
        return True

    method = property(lambda self: "exact")
    encoding = property(lambda self: "")

    def compacted(self, tokens: int) -> Compacted:
        """Return the result of a compactor with which the block has `tokens` tokens; a failure if `tokens` is 0."""
        if not tokens:
            return Compacted(None, 0, ())
        text = f"made {len(self._made)}"
        self._made[text] = tokens
        return Compacted(text, tokens, ())

    def item_tokens(self, item: BlockItem, facts: EventFacts | None) -> int:
        return self._tokens.get(_id(item), 0) if isinstance(item.content, StandIn) else self._text_tokens(item)

    def _text_tokens(self, item: BlockItem) -> int:
        content = item.content
        is_item = isinstance(content, str) and content.endswith(";")
        return self._tokens.get(_id(item), 0) if is_item else 0

    def tokens(
        self, block: Block, items: Sequence[BlockItem], kept: Sequence[int], item_tokens: Callable[[int], int]
    ) -> int:
        # The allocator calls this only for all items of a rebuilt block.
        return self._by_name[block.name].cost if kept else 0

    def rendered(
        self, block: Block, items: Sequence[BlockItem], kept: Sequence[int], item_tokens: Callable[[int], int]
    ) -> Rendered:
        if not kept:
            return NOTHING
        numbers = self._by_name[block.name]
        summaries = [content.summary for index in kept if isinstance(content := items[index].content, CompactedBlock)]
        is_whole = len(kept) >= len(numbers.order)
        tokens = self._made[summaries[0]] if summaries else numbers.cost if is_whole else numbers.part(len(kept))
        return Rendered(tokens, tokens, 0, 0)

    def charging(self, block: Block, *, has_only_texts: bool) -> Callable[[int, bool], int]:
        marks = iter(self._by_name[block.name].marks)
        return lambda tokens, text: tokens + next(marks, 0)
