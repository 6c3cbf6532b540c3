"""Rebuild an allocation from its spans, with blocks without content, and run the real rule on it again.

The rule is `budget.plan.plan`. Tokens come from the ledger, not from a tokenizer: a whole block has its recorded cost,
a part of a block the charged tokens of its items. The caller assumes the results of compactions that were not recorded.
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

#: The reasons of items that stay dropped with every limit.
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
#: A function from a target to the tokens of a summary; 0 for a failure.
Answer: TypeAlias = "Callable[[int], int]"


@dataclass(frozen=True, slots=True)
class BlockNumbers:
    """The recorded numbers of one block that the rule needs; all sizes in tokens.

    Attributes:
        name: The block's name.
        cuttable: Whether it may be cut.
        cost: The tokens of the whole block.
        floor: Its reserved minimum.
        order: Its items; the item that is cut last comes first.
        marks: The charged overhead of each item in addition to its tokens.
        upto: The charged tokens of the first n items of `order`, from n = 0.
        atoms: The sizes of the groups in `order` that are kept or dropped together, in items.
        enough: The number of items of `order` that reach the floor.
        texts: Whether each item is a text, so that it can be compacted.
        kept: The number of kept items of `order`.
        tokens_out: Its tokens in the prompt.
        compacted: Its items that a summary replaced.
        room: The remaining budget when it was decided.
        instructed: Whether it repeats an instruction.
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
        """Return the tokens of its first items, on the correct side of the floor."""
        if count == self.kept and not self.compacted:
            return self.tokens_out
        if not self.floor:
            return self.upto[count]
        return max(self.upto[count], self.floor) if count >= self.enough else min(self.upto[count], self.floor - 1)

    def is_vague(self, count: int, room: int) -> bool:
        """Return whether the tokens of its first items may differ from their charged tokens in a way that matters.

        This is the case if the joined text has more tokens than its parts; if texts and events are mixed and only texts
        are left; or if the room may just suffice for the beginning of a text and the repeated instruction after it.
        """
        if not count and self.instructed:
            return 0 < room <= self.marks[0]
        if not 0 < count < len(self.order):
            return False
        more_together = self.cost > self.upto[-1] or (not self.compacted and self.tokens_out > self.upto[self.kept])
        left = self.texts[:count]
        return more_together or (count > 1 and all(left) and not all(self.texts))

    def least_room(self, item: str) -> int:
        """Return the room below which the item is not kept unchanged."""
        at, end = self.order.index(item), 0
        for size in self.atoms:
            end += size
            if end > at:
                break
        return min(self.cost, self.upto[end])

    def next_change(self, room: int) -> int:
        """Return the smallest increase of the room with which the rule decides differently on this block."""
        found = [self.cost - room, 1 - room]
        at = bisect_right(self.upto, room)
        if at < len(self.upto):
            found.append(self.upto[at] - room)
        found += [
            before + mark + 1 - room
            for before, mark, text in zip(self.upto, self.marks, self.texts, strict=False)
            if text
        ]
        return min((more for more in found if more > 0), default=1 << 60)


@dataclass(frozen=True, slots=True)
class BlocksRun:
    """A rerun of the rule. Blocks are identified by their index.

    Attributes:
        kept: The items that are kept unchanged, for each block.
        rooms: The remaining budget when each block was decided.
        made: The blocks with compacted items.
        asked: The first block for which a compaction was requested; None if there is none.
        assumed: The first block for which the result of a compaction was assumed; None if there is none.
    """

    kept: tuple[frozenset[str], ...]
    rooms: tuple[int, ...]
    made: frozenset[int]
    asked: int | None
    assumed: int | None


class BlocksOfTurn:
    """The blocks of an allocation, rebuilt from its spans.

    Attributes:
        numbers: The numbers of each block, in decision order.
        budget: The token limit of the prompt.
        fixed: Tokens of content that cannot be cut.

    Raises:
        UnknownError: The spans lack a number that the rule needs, or a rerun does not reproduce the recorded decisions.
    """

    def __init__(self, ledger: LedgerHistory, turn: ReportedTurn, step: ReportedStep) -> None:
        self._ledger, self._turn = ledger, turn
        self._exits = ledger.exits(turn.number)
        self._in_prompt = set(turn.kept)
        #: The items that fit the budget, but were dropped by the provider's rule for the first message.
        self._front = {item for item, left in self._exits.items() if left.reason == DecisionReason.BEFORE_USER_MESSAGE}
        window, reserve, fixed = self._limits(step)
        self._window, self._reserve = window, reserve
        self.budget, self.fixed = window - reserve, fixed
        self._readings = step.blocks
        self.numbers = [self._read(block) for block in step.blocks]
        self._places = {block.name: place for place, block in enumerate(self.numbers)}
        texts = [block.marks[0] for block in self.numbers if block.texts and block.texts[0]]
        # If an instruction follows every text, the overhead beyond a message's framing is the instruction.
        self._overhead = min([*texts, MessageFraming().prompt()]) if texts else 0
        self.numbers = [
            replace(block, instructed=bool(block.texts) and block.texts[0] and block.marks[0] > self._overhead)
            for block in self.numbers
        ]
        self._priming = fixed - sum(block.cost for block in self.numbers if not block.cuttable)
        self._blocks = [self._rebuilt(place) for place in range(len(self.numbers))]
        #: The requested compactions by block, target and text, with the tokens of the result.
        self._answers: dict[tuple[str, int, str], int] = {}
        self.base = self.run(0, None)
        self._check()

    def _limits(self, step: ReportedStep) -> tuple[int, int, int]:
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

    def _read(self, block: ReportedBlock) -> BlockNumbers:
        attributes = block.attributes
        if not all(type(attributes.get(key)) is int for key in _INTS):
            raise UnknownError(f"the span of block {block.name!r} lacks attributes that the rule needs")
        order, charges = tuple(block.order), [int(count) for count in attributes.get(names.BLOCK_RANKED_TOKENS, ())]
        out = [item for item in block.items if item in self._exits and self._exits[item].reason in OUT_FROM_THE_START]
        cuttable = bool(attributes.get(names.BLOCK_CUTTABLE))
        front = [item in self._front for item in order]
        stated = len(order) + len(out) if cuttable else len(block.items)
        atoms = tuple(int(size) for size in attributes.get(names.BLOCK_ATOM_SIZES, ())) or (1,) * len(order)
        if stated != attributes[names.ITEMS_IN] or len(charges) != len(order) or sum(atoms) != len(order):
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
            kept=sum(item in self._in_prompt for item in order) + sum(front),
            tokens_out=int(attributes[names.TOKENS_OUT]) + sum(compress(charges, front)),
            compacted=frozenset(i for i in order if i in self._exits and self._exits[i].outcome in compacted),
            room=int(attributes[names.BUDGET_REMAINING]),
            instructed=False,
        )

    def _texts(self, block: ReportedBlock, order: Sequence[str]) -> tuple[bool, ...]:
        """Return for each item whether it is a text: all, none, or the items that have the block's kind."""
        events = block.attributes.get(names.BLOCK_MESSAGE_COUNT, 0)
        if events in {0, len(order)}:
            return (not events,) * len(order)
        texts = tuple(self._ledger.items[item].kind == block.kind for item in order)
        if texts.count(False) != events:
            raise UnknownError(f"which items of block {block.name!r} are texts is not in the spans")
        return texts

    def _rebuilt(self, place: int) -> Block:
        """Return a block on which the rule decides as on the real one; its items have ids but no content."""
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
                        f"{numbers.order[at]};"
                        if numbers.texts[at]
                        else StandIn(numbers.order[at], EventKind.OTHER, 0, 0),
                        rank=at + 1,
                        score=-at,
                        group=group,
                    )
                    for at in range(start, start + size)
                ]
            )
            start += size
        if cut is Cut.OLDEST:
            items.reverse()
        extra = numbers.marks[0] - self._overhead if numbers.texts and numbers.texts[0] else 0
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
            restated=f"{extra}" if extra > 0 else "",
        )

    def holds_turns(self, place: int) -> bool:
        """Return whether a block holds turns and may be cut."""
        return self.numbers[place].cuttable and self._blocks[place].has_turns

    def place_of(self, item: str) -> int | None:
        """Return the index of an item's block; None if the item is in no block's order."""
        return next((place for place, block in enumerate(self.numbers) if item in block.order), None)

    def _check(self) -> None:
        """Check that the run with the recorded limits reproduces the recorded decisions."""
        for place, block in enumerate(self.numbers):
            if not block.cuttable:
                continue
            stated = {item for item in block.order if item in self._in_prompt or item in self._front}
            same = self.base.kept[place] == stated and (place in self.base.made) == bool(block.compacted)
            if not same or self.base.rooms[place] != block.room:
                raise UnknownError(
                    f"the rule, run again on the recorded numbers, decides block {block.name!r} differently"
                )

    def floors(self, more: int) -> tuple[list[int], int]:
        """Return each block's reserve (-1 if its floor does not fit), and the smallest increase for another floor."""
        sharing = Sharing(self.budget + more - self.fixed)
        floors = sharing.reserve(block.floor for block in self.numbers)
        reserved, lacking = 0, 1 << 60
        for block, floor in zip(self.numbers, floors, strict=True):
            if floor < 0:
                lacking = min(lacking, reserved + block.floor - sharing.free)
            reserved += max(0, floor)
        return floors, lacking

    def run(self, more: int, answer: Answer | None) -> BlocksRun:
        """Run the rule with so many more tokens.

        Args:
            more: What to add to the window.
            answer: The assumed results of compactions that were not recorded; None to use recorded results.
        """
        return self._run(self._blocks, self._window + more, self._reserve, self._priming, answer)

    def keeps_with_its_floor_alone(self, item: str, answer: Answer) -> bool:
        """Return whether an item is kept even if its block has only its floor.

        The floor of a block of older turns is not guaranteed: a block of newer turns may use it.
        """
        place = self.place_of(item)
        if place is None or not self.numbers[place].floor:
            return False
        if self.holds_turns(place) and any(map(self.holds_turns, range(place))):
            return False
        ran = self._run([self._blocks[place]], self.numbers[place].floor, 0, 0, answer)
        return item in ran.kept[0]

    def _run(
        self, blocks: Sequence[Block], window: int, reserve: int, priming: int, answer: Answer | None
    ) -> BlocksRun:
        measure = _Numbers(self.numbers, self._overhead, priming)
        asked: list[int] = []
        assumed: list[int] = []
        try:
            steps = plan(blocks, window, reserve, measure)
            reply: Compacted | None = None
            while True:
                try:
                    request = next(steps) if reply is None else steps.send(reply)
                except StopIteration as stop:
                    allocation: Allocation = stop.value
                    break
                place = self._places[request.block.name]
                key = request.block.name, request.target, request.text
                asked.append(place)
                if answer is None:
                    self._answers[key] = self._recorded(request)
                elif key not in self._answers:
                    assumed.append(place)
                tokens = self._answers[key] if key in self._answers else self._assumed(request, answer)
                reply = measure.compacted(tokens)
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
            asked=min(asked, default=None),
            assumed=min(assumed, default=None),
        )

    def _recorded(self, request: CompactionRequest) -> int:
        """Return the block's recorded tokens for this compaction; 0 if it was not compacted."""
        numbers = self.numbers[self._places[request.block.name]]
        return numbers.tokens_out if numbers.compacted == frozenset(_ids(request.text)) else 0

    def _assumed(self, request: CompactionRequest, answer: Answer | None) -> int:
        """Return the block's tokens with an assumed result of this compaction."""
        numbers = self.numbers[self._places[request.block.name]]
        asked = _ids(request.text)
        first = numbers.order.index(asked[0]) if len(asked) == 1 else 0
        tokens = answer(request.target) if answer is not None else 0
        return numbers.upto[first] + numbers.marks[first] + tokens if tokens else 0


def _ids(text: str) -> list[str]:
    return [item for item in text.split(";") if item]


def _id(item: BlockItem) -> str:
    content: Any = item.content
    return content.item if isinstance(content, StandIn) else content.rstrip(";")


class _Numbers(Measure):
    """Measures rebuilt blocks by their recorded numbers."""

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
        # The only text that is measured is an instruction, which is represented by its number of tokens.
        self.text = lambda text: int(text) if text.isdigit() else 0

    @property
    def is_stable(self) -> bool:
        return True

    method = property(lambda self: "exact")
    encoding = property(lambda self: "")

    def compacted(self, tokens: int) -> Compacted:
        """Return the result of a compaction with which the block has this many tokens; 0 for a failure."""
        if not tokens:
            return Compacted(None, 0, ())
        text = f"made {len(self._made)}"
        self._made[text] = tokens
        return Compacted(text, tokens, ())

    def item_tokens(self, item: BlockItem, facts: EventFacts | None) -> int:
        return self._tokens.get(_id(item), 0) if isinstance(item.content, StandIn) else self._text_item(item)

    def _text_item(self, item: BlockItem) -> int:
        content = item.content
        is_item = isinstance(content, str) and content.endswith(";")
        return self._tokens.get(_id(item), 0) if is_item else 0

    def tokens(
        self, block: Block, items: Sequence[BlockItem], kept: Sequence[int], item_tokens: Callable[[int], int]
    ) -> int:
        return self._by_name[block.name].cost if kept else 0

    def rendered(
        self, block: Block, items: Sequence[BlockItem], kept: Sequence[int], item_tokens: Callable[[int], int]
    ) -> Rendered:
        if not kept:
            return NOTHING
        numbers = self._by_name[block.name]
        made = [content.summary for at in kept if isinstance(content := items[at].content, CompactedBlock)]
        whole = len(kept) >= len(numbers.order)
        tokens = self._made[made[0]] if made else numbers.cost if whole else numbers.part(len(kept))
        return Rendered(tokens, tokens, 0, 0)

    def charging(self, block: Block, *, has_only_texts: bool) -> Callable[[int, bool], int]:
        marks = iter(self._by_name[block.name].marks)
        return lambda tokens, text: tokens + next(marks, 0)
