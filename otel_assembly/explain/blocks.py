"""An allocation rebuilt from its spans: blocks without a word in them, on which the real rule runs again.

The rule is `budget.plan.plan` itself. What it asks of a tokenizer is answered from the numbers of the ledger: a block
whole takes its exact cost, a part of it what its items are charged, which is the bound by which it is cut. What a
compactor would answer to a request that was never made is for the caller to assume.
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

#: The reasons of items that stay out however much room there is.
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
#: What a compactor makes of a target, in tokens; 0 where it fails.
Answer: TypeAlias = "Callable[[int], int]"


@dataclass(frozen=True, slots=True)
class BlockNumbers:
    """What the rule goes by, of one block.

    Attributes:
        name: The block.
        cuttable: Whether it may be cut.
        cost: What it takes whole.
        floor: What is reserved for it.
        order: Its items, the one that is cut last first.
        marks: What each is charged beside its tokens.
        upto: What the first items of `order` are charged together; one entry more than these.
        atoms: How many items of `order` are kept or dropped together, each time.
        enough: How many items of `order` are worth the floor.
        texts: Whether each item is a text, so that it can be compacted.
        kept: How many items of `order` were kept.
        tokens_out: What it took in the prompt.
        compacted: Its items for which a shorter text stood.
        room: What was left when it was decided.
        instructed: Whether it says an instruction once more.
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
        """What its first items take, so that it is compared with the floor and with the room as it would be."""
        if count == self.kept and not self.compacted:
            return self.tokens_out
        if not self.floor:
            return self.upto[count]
        return max(self.upto[count], self.floor) if count >= self.enough else min(self.upto[count], self.floor - 1)

    def is_vague(self, count: int, room: int) -> bool:
        """Whether what its first items take may differ from what they are charged, by more than what stays unused.

        So it is where the counter has found more in a joined text than in its parts, where texts stand apart from
        each other only among events and nothing is left but texts, and where there may just be room for the beginning
        of a text and for the instruction that is said behind it.
        """
        if not count and self.instructed:
            return 0 < room <= self.marks[0]
        if not 0 < count < len(self.order):
            return False
        more_together = self.cost > self.upto[-1] or (not self.compacted and self.tokens_out > self.upto[self.kept])
        left = self.texts[:count]
        return more_together or (count > 1 and all(left) and not all(self.texts))

    def least_room(self, item: str) -> int:
        """With less room than this, the item is not in the prompt as it is."""
        at, end = self.order.index(item), 0
        for size in self.atoms:
            end += size
            if end > at:
                break
        return min(self.cost, self.upto[end])

    def next_change(self, room: int) -> int:
        """How many tokens more room would at least have to be there to change what the rule does with this block."""
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
    """The rule, run again.

    Attributes:
        kept: The items that are in the prompt as they are, block by block.
        rooms: What was left for each block.
        made: The blocks of which something was compacted, by place.
        asked: The first block for which a compaction was asked, by place; None where none was.
        assumed: The first for which the answer had to be assumed.
    """

    kept: tuple[frozenset[str], ...]
    rooms: tuple[int, ...]
    made: frozenset[int]
    asked: int | None
    assumed: int | None


class BlocksOfTurn:
    """The blocks of an allocation as its spans state them.

    Attributes:
        numbers: What the rule goes by, block by block, in decision order.
        budget: Tokens that there were for the prompt.
        fixed: Tokens of what may not be cut.

    Raises:
        UnknownError: Something that the rule goes by is not in the traces, or the rule decides otherwise on it.
    """

    def __init__(self, ledger: LedgerHistory, turn: ReportedTurn, step: ReportedStep) -> None:
        self._ledger, self._turn = ledger, turn
        self._exits = ledger.exits(turn.number)
        self._in_prompt = set(turn.kept)
        #: The items that the budget had room for, and that the provider's rule for the first message then dropped.
        self._front = {item for item, left in self._exits.items() if left.reason == DecisionReason.BEFORE_USER_MESSAGE}
        window, reserve, fixed = self._limits(step)
        self._window, self._reserve = window, reserve
        self.budget, self.fixed = window - reserve, fixed
        self._readings = step.blocks
        self.numbers = [self._read(block) for block in step.blocks]
        self._places = {one.name: place for place, one in enumerate(self.numbers)}
        texts = [one.marks[0] for one in self.numbers if one.texts and one.texts[0]]
        # Where every text has an instruction behind it, what is more than a message's marks is the instruction.
        self._overhead = min([*texts, MessageFraming().prompt()]) if texts else 0
        self.numbers = [
            replace(one, instructed=bool(one.texts) and one.texts[0] and one.marks[0] > self._overhead)
            for one in self.numbers
        ]
        self._priming = fixed - sum(one.cost for one in self.numbers if not one.cuttable)
        self._blocks = [self._rebuilt(place) for place in range(len(self.numbers))]
        #: What was asked of compactors, and what came of it.
        self._answers: dict[tuple[str, int, str], int] = {}
        self.base = self.run(0, None)
        self._check()

    def _limits(self, step: ReportedStep) -> tuple[int, int, int]:
        held = step.allocation
        if held is None:
            raise UnknownError("the allocator's span is missing")
        numbers = [held.get(key) for key in (names.BUDGET_WINDOW, names.BUDGET_OUTPUT_RESERVE, names.BUDGET_FIXED)]
        counts = [held.get(key) for key in (names.BLOCKS_KEPT, names.BLOCKS_COMPACTED, names.BLOCKS_DROPPED)]
        if not all(type(number) is int for number in (*numbers, *counts)):
            raise UnknownError("the allocator's span does not state its limits")
        total = sum(map(int, counts))  # type: ignore[arg-type]  # ints, just checked
        missing = total - len(step.blocks)
        if missing:
            named = len(held.get(names.BLOCKS_NAMES, ()))
            if named:
                raise UnknownError(f"{named} of its {total} blocks have no span, and what they may lose is not told")
            raise UnknownError(f"the spans of {missing} of its {total} blocks are missing")
        window, reserve, fixed = map(int, numbers)  # type: ignore[arg-type]  # ints, just checked
        return window, reserve, fixed

    def _read(self, block: ReportedBlock) -> BlockNumbers:
        held = block.attributes
        if not all(type(held.get(key)) is int for key in _INTS):
            raise UnknownError(f"the span of block {block.name!r} does not state all that the rule goes by")
        order, charges = tuple(block.order), [int(one) for one in held.get(names.BLOCK_RANKED_TOKENS, ())]
        out = [item for item in block.items if item in self._exits and self._exits[item].reason in OUT_FROM_THE_START]
        cuttable = bool(held.get(names.BLOCK_CUTTABLE))
        front = [item in self._front for item in order]
        stated = len(order) + len(out) if cuttable else len(block.items)
        atoms = tuple(int(size) for size in held.get(names.BLOCK_ATOM_SIZES, ())) or (1,) * len(order)
        if stated != held[names.ITEMS_IN] or len(charges) != len(order) or sum(atoms) != len(order):
            raise UnknownError(f"which items block {block.name!r} holds, and what they are charged, is not all told")
        tokens = [self._ledger.tokens(self._turn.number, item) for item in order]
        known = [one for one in tokens if one is not None]
        if len(known) < len(order):
            raise UnknownError(f"the arrival of an item of block {block.name!r} is not in the traces")
        cost = (
            int(held.get(names.BLOCK_TOTAL_TOKENS, held[names.TOKENS_IN])) if cuttable else int(held[names.TOKENS_OUT])
        )
        compacted = {DecisionOutcome.COMPACTED.value}
        return BlockNumbers(
            name=block.name,
            cuttable=cuttable,
            cost=cost,
            floor=min(int(held[names.BLOCK_MIN_TOKENS]), cost) if cuttable else 0,
            order=order,
            marks=tuple(charge - one for charge, one in zip(charges, known, strict=True)),
            upto=tuple(accumulate(charges, initial=0)),
            atoms=atoms,
            enough=int(held.get(names.BLOCK_MIN_ITEMS, 0)),
            texts=self._texts(block, order),
            kept=sum(item in self._in_prompt for item in order) + sum(front),
            tokens_out=int(held[names.TOKENS_OUT]) + sum(compress(charges, front)),
            compacted=frozenset(i for i in order if i in self._exits and self._exits[i].outcome in compacted),
            room=int(held[names.BUDGET_REMAINING]),
            instructed=False,
        )

    def _texts(self, block: ReportedBlock, order: Sequence[str]) -> tuple[bool, ...]:
        """Which items are texts: all, none, or those that have their block's kind and none of an event's own."""
        events = block.attributes.get(names.BLOCK_MESSAGE_COUNT, 0)
        if events in {0, len(order)}:
            return (not events,) * len(order)
        texts = tuple(self._ledger.items[item].kind == block.kind for item in order)
        if texts.count(False) != events:
            raise UnknownError(f"which items of block {block.name!r} are texts is not in the traces")
        return texts

    def _rebuilt(self, place: int) -> Block:
        """A block that the rule treats as it treated the real one; its items are named, and say nothing."""
        one, block = self.numbers[place], self._readings[place]
        priority = block.priority or 1
        if not one.cuttable:
            return Block(one.name, priority, (f"fixed {place}",) if one.cost else (), cuttable=False, rank=place + 1)
        try:
            cut = Cut(block.attributes.get(names.BLOCK_CUT_STRATEGY, ""))
        except ValueError:
            raise UnknownError(f"how block {one.name!r} gives way is not in the traces") from None
        items: list[list[BlockItem]] = []
        start = 0
        for number, size in enumerate(one.atoms):
            group = f"{number}" if size > 1 else None
            items.append(
                [
                    BlockItem(
                        f"{one.order[at]};" if one.texts[at] else StandIn(one.order[at], EventKind.OTHER, 0, 0),
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
        extra = one.marks[0] - self._overhead if one.texts and one.texts[0] else 0
        return Block(
            one.name,
            priority,
            tuple(item for atom in items for item in atom),
            cuttable=True,
            min_tokens=one.floor,
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
        """The block whose item it is, if it is one that may be kept."""
        return next((place for place, one in enumerate(self.numbers) if item in one.order), None)

    def _check(self) -> None:
        for place, one in enumerate(self.numbers):
            if not one.cuttable:
                continue
            stated = {item for item in one.order if item in self._in_prompt or item in self._front}
            same = self.base.kept[place] == stated and (place in self.base.made) == bool(one.compacted)
            if not same or self.base.rooms[place] != one.room:
                raise UnknownError(f"the rule, run again on what the spans state, decides block {one.name!r} otherwise")

    def floors(self, more: int) -> tuple[list[int], int]:
        """What is reserved for each block, −1 where there is no room for its floor; and how much more it would take."""
        sharing = Sharing(self.budget + more - self.fixed)
        floors = sharing.reserve(one.floor for one in self.numbers)
        reserved, lacking = 0, 1 << 60
        for one, floor in zip(self.numbers, floors, strict=True):
            if floor < 0:
                lacking = min(lacking, reserved + one.floor - sharing.free)
            reserved += max(0, floor)
        return floors, lacking

    def run(self, more: int, answer: Answer | None) -> BlocksRun:
        """Run the rule with so many more tokens.

        Args:
            more: What to add to the window.
            answer: What compactors make of a target where nobody asked them that; None: as was recorded.
        """
        return self._run(self._blocks, self._window + more, self._reserve, self._priming, answer)

    def keeps_with_its_floor_alone(self, item: str, answer: Answer) -> bool:
        """Return whether an item is kept also if its block has nothing but its floor.

        The floor of a block of older turns is not sure: a block of newer turns may take it.
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
        """What the block took when this was asked; 0 where it was not compacted."""
        one = self.numbers[self._places[request.block.name]]
        return one.tokens_out if one.compacted == frozenset(_ids(request.text)) else 0

    def _assumed(self, request: CompactionRequest, answer: Answer | None) -> int:
        """What the block takes with an answer that is assumed."""
        one = self.numbers[self._places[request.block.name]]
        asked = _ids(request.text)
        first = one.order.index(asked[0]) if len(asked) == 1 else 0
        tokens = answer(request.target) if answer is not None else 0
        return one.upto[first] + one.marks[first] + tokens if tokens else 0


def _ids(text: str) -> list[str]:
    return [item for item in text.split(";") if item]


def _id(item: BlockItem) -> str:
    content: Any = item.content
    return content.item if isinstance(content, StandIn) else content.rstrip(";")


class _Numbers(Measure):
    """Measures rebuilt blocks by the numbers of the ledger."""

    __slots__ = ("_by_name", "_made", "_tokens")

    def __init__(self, blocks: Iterable[BlockNumbers], overhead: int, priming: int) -> None:
        self._by_name: Mapping[str, BlockNumbers] = {one.name: one for one in blocks}
        self._tokens = {
            item: after - before - mark
            for one in self._by_name.values()
            for item, before, after, mark in zip(one.order, one.upto, one.upto[1:], one.marks, strict=False)
        }
        self._made: dict[str, int] = {}
        self.overhead = overhead
        self.priming = priming
        # The only text that is asked for is an instruction, which stands here as its tokens.
        self.text = lambda text: int(text) if text.isdigit() else 0

    @property
    def is_stable(self) -> bool:
        return True

    method = property(lambda self: "exact")
    encoding = property(lambda self: "")

    def compacted(self, tokens: int) -> Compacted:
        """A compactor's answer, by which the block takes so many tokens; 0 where it failed."""
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
        one = self._by_name[block.name]
        made = [content.summary for at in kept if isinstance(content := items[at].content, CompactedBlock)]
        tokens = self._made[made[0]] if made else one.cost if len(kept) >= len(one.order) else one.part(len(kept))
        return Rendered(tokens, tokens, 0, 0)

    def charging(self, block: Block, *, has_only_texts: bool) -> Callable[[int, bool], int]:
        marks = iter(self._by_name[block.name].marks)
        return lambda tokens, text: tokens + next(marks, 0)
