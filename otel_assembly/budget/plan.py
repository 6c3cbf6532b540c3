"""Which blocks, and what of them, are kept, cut, compacted or dropped: the rule (`budget.rule`) on blocks.

A block that does not fit whole is cut its own way, and compacted before it is dropped. What compacts may wait for a
model, so the plan is a generator: it yields each compaction that it wants and is sent what came of it. See `allocator`
for who answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import whole_number
from otel_assembly.budget.allocation import Allocation, BlockOutcome, ItemOutcome
from otel_assembly.budget.block import Block, BlockItem, Cut
from otel_assembly.budget.compacted_block import CompactedBlock
from otel_assembly.budget.duplicates import duplicates
from otel_assembly.budget.measure import NOTHING, Rendered
from otel_assembly.budget.ordering import parts_in_order
from otel_assembly.budget.orphans import orphans
from otel_assembly.budget.read_block import ReadBlock
from otel_assembly.budget.reports import overflow_report
from otel_assembly.budget.rule import Sharing
from otel_assembly.budget.sections import Zone, is_text, item_text
from otel_assembly.decision import DecisionOutcome, DecisionReason, Overflow, OverflowCause
from otel_assembly.errors import ConfigurationError, ContextOverflowError, TokenizerError
from otel_assembly.history.first_message import before_user
from otel_assembly.history.history import ListHistory
from otel_assembly.messages.event_facts import EventFacts, EventKind

if TYPE_CHECKING:
    from otel_assembly.budget.attempt import Compacted
    from otel_assembly.budget.measure import Measure

_DROPPED = DecisionOutcome.DROPPED
_PENDING: Final[ItemOutcome] = (DecisionOutcome.KEPT, DecisionReason.PENDING_TOOL_CALL, None)
#: What an overflow calls the calls that await an approval in blocks that may be cut.
_PENDING_COST: Final = "pending_tool_calls"
#: Most blocks that leave whole have nothing more to say, so they share one.
_OVER_BUDGET = BlockOutcome(_DROPPED, DecisionReason.OVER_BUDGET)
_BELOW_FLOOR = BlockOutcome(_DROPPED, DecisionReason.BELOW_FLOOR)
_NO_USER: Final = DecisionReason.BEFORE_USER_MESSAGE
#: What texts are for the rule on the first message.
_QUERY, _TEXT = EventFacts(EventKind.REQUEST), EventFacts(EventKind.OTHER)


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """What the rule asks for: a text of at most `target` tokens that says what `text` says."""

    block: Block
    text: str
    target: int
    measure: Measure


Plan = Generator[CompactionRequest, "Compacted", Allocation]


def plan(
    blocks: Iterable[Block],
    window: int,
    output_reserve: int,
    measure: Measure,
    *,
    schemas: int = 0,
    user_first: Callable[[str], bool] = lambda _: False,
    read: Callable[[Block, Measure], ReadBlock] = ReadBlock,
) -> Plan:
    """The rule, as a generator of what it wants compacted; it returns the allocation.

    What is wrong whatever the tokens are is raised at once, and what only counting shows, by the generator.

    Args:
        blocks: The blocks.
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        measure: What counts; its ``priming`` is what belongs to no block.
        schemas: How many tokens of that are for tool schemas.
        user_first: Whether the prompt must start with a user's request, given the provider whose form the events have
            (`EventFacts.provider`).
        read: How a block is read.

    Raises:
        ConfigurationError: A number cannot work, two blocks share a name, or a floor is above the window.
        DescribeError: An item of a type that no row reads.
        ContextOverflowError: What may not be cut does not fit.
        TokenizerError: The counter does not count; the message names the block.
    """
    return _Rule(blocks, window, output_reserve, measure, schemas, user_first, read).run()


def _sorted(blocks: Iterable[Block]) -> list[Block]:
    """The blocks in the order in which they are decided."""
    given: Any = blocks
    if isinstance(given, str | bytes | Block) or not isinstance(given, Iterable):
        raise ConfigurationError(f"blocks must be several Block objects, got one {type(given).__name__}")
    given = list(given)
    for block in given:
        if not isinstance(block, Block):
            raise ConfigurationError(f"blocks must be Block objects, got a {type(block).__name__}")
    ordered = sorted(given, key=attrgetter("order"))
    names = {block.name for block in ordered}
    if len(names) < len(ordered):
        for block in ordered:
            if block.name not in names:
                raise ConfigurationError(f"two blocks are called {block.name!r}; each needs a name of its own")
            names.remove(block.name)
    return ordered


class _Rule:
    __slots__ = (
        "_blocks",
        "_budget",
        "_costs",
        "_excluded",
        "_measure",
        "_pending",
        "_pinned",
        "_read",
        "_reserve",
        "_schemas",
        "_user_first",
        "_window",
    )

    def __init__(
        self,
        blocks: Iterable[Block],
        window: int,
        output_reserve: int,
        measure: Measure,
        schemas: int,
        user_first: Callable[[str], bool],
        read: Callable[[Block, Measure], ReadBlock],
    ) -> None:
        numbers: dict[str, Any] = {"window": window, "output_reserve": output_reserve}
        for name, value in numbers.items():
            whole_number(name, value, least=0, unit="tokens")
        if output_reserve >= window:
            raise ConfigurationError(
                f"output_reserve ({output_reserve}) leaves nothing of the window ({window}); it must be smaller"
            )
        self._window, self._reserve, self._budget = window, output_reserve, window - output_reserve
        self._measure = measure
        self._schemas = schemas
        self._user_first = user_first
        self._blocks = _sorted(blocks)
        for block in self._blocks:
            if block.min_tokens > window:
                raise ConfigurationError(
                    f"block {block.name!r}: its floor of {block.min_tokens} tokens is above the window of {window}; "
                    "lower min_tokens or raise the window"
                )
        self._read = [read(block, measure) for block in self._blocks]
        self._excluded, pending = self._exclude()
        #: Of cuttable blocks with calls that await an approval, the atoms that stay whatever is cut.
        self._pending: dict[str, Sequence[Sequence[int]]] = {
            one.block.name: one.pending(self._out(one.block))
            for one in (self._read if pending else ())
            if one.block.cuttable and one.block.name in pending
        }
        #: What those take.
        self._pinned: dict[str, int] = {}
        self._costs: list[int] = []

    def _exclude(self) -> tuple[dict[str, dict[int, ItemOutcome]], frozenset[str]]:
        """Items that stay out of any prompt, however much room there is, by block and place.

        And the names of the blocks in which calls await an approval.
        """
        several = [read for read in self._read if isinstance(read.block.content, tuple)]
        if not several:
            return {}, frozenset()
        excluded = duplicates([read.block for read in several])
        unpaired, pending = orphans(several, excluded)
        for name, item_outcomes in unpaired.items():
            excluded.setdefault(name, {}).update(item_outcomes)
        return excluded, pending

    def _counted(self) -> list[int]:
        """What each block takes whole, without the items that are out from the start."""
        text, overhead = self._measure.text, self._measure.overhead
        pending = self._pending
        costs: list[int] = []
        block: Block | None = None
        try:
            for read in self._read:
                block = read.block
                if block.plain:
                    costs.append(overhead + text(block.content) if block.content else 0)  # type: ignore[arg-type]  # plain: a text
                else:
                    costs.append(read.cost(self._out(block)))
                    if block.name in pending:
                        self._pinned[block.name] = read.tokens(_in_order(pending[block.name]))
        except TokenizerError as error:
            raise _named(block, error) from error
        return costs

    def _out(self, block: Block) -> Mapping[int, ItemOutcome]:
        """The items of a block that are out from the start."""
        return self._excluded.get(block.name, {})

    def run(self) -> Plan:
        costs = self._costs = self._counted()
        budget, excluded, overhead = self._budget, self._excluded, self._measure.overhead
        pinned = self._pinned
        fixed = self._measure.priming + sum(pinned.values())
        fixed += sum(cost for block, cost in zip(self._blocks, costs, strict=True) if not block.cuttable)
        sharing = Sharing(budget - fixed)
        if sharing.free < 0:
            raise self._overflow(fixed)
        floors = sharing.reserve(self._floors())
        used = fixed
        # Floors that blocks of turns may take from the blocks of older turns behind them.
        of_older_turns = sum(
            max(0, floor) for block, floor in zip(self._blocks, floors, strict=True) if block.holds_turns
        )
        has_dropped_turns = False
        decided: list[tuple[ReadBlock, int, BlockOutcome | None]] = []
        for read, cost, floor in zip(self._read, costs, floors, strict=True):
            block = read.block
            block_outcome: BlockOutcome | None = None
            if not block.cuttable:
                # Its room is what it was given in the first pass: its own.
                decided.append((read, cost, self._kept(read) if block.name in excluded else None))
                continue
            # What is fixed of it has been taken already, and is all its own.
            holds = block.name in pinned
            own = pinned[block.name] if holds else 0
            room = sharing.room(floor) + own
            if block.holds_turns:
                of_older_turns -= max(0, floor)
                room += of_older_turns
            if has_dropped_turns and block.holds_turns:
                block_outcome = self._pinned_alone(read, DecisionReason.OVER_BUDGET) if holds else _OVER_BUDGET
                block_outcome = self._with_excluded(block, block_outcome)
            elif floor < 0:
                block_outcome = self._pinned_alone(read, DecisionReason.BELOW_FLOOR) if holds else _BELOW_FLOOR
                block_outcome = self._with_excluded(block, block_outcome)
            elif cost <= room:
                sharing.free -= cost - own
                used += cost - own
                block_outcome = self._kept(read) if block.name in excluded else None
            elif room <= (overhead if block.plain else 0) and not holds:
                block_outcome = self._with_excluded(block, _OVER_BUDGET)
            else:
                try:
                    block_outcome = self._with_excluded(block, (yield from self._cut(read, cost, room)))
                    sharing.free -= min(room, max(own, _charged(read, block_outcome))) - own
                except TokenizerError as error:
                    raise _named(block, error) from error
                used += block_outcome.rendered.tokens - own
            if block.holds_turns and not has_dropped_turns:
                has_dropped_turns = self._drops_turns(read, block_outcome)
            decided.append((read, room, block_outcome))
        freed = self._start_with_user(decided)
        return Allocation(
            decided,
            window=self._window,
            output_reserve=self._reserve,
            fixed=fixed,
            used=used - (freed or 0),
            measure=self._measure,
            user_first=freed is not None,
        )

    def _start_with_user(self, decided: list[tuple[ReadBlock, int, BlockOutcome | None]]) -> int | None:
        """Drop the events in front of the first user's request, if the provider refuses a prompt that starts with them.

        Texts are sent as system messages, and the query as the user's. The room that this frees stays free: otherwise a
        larger window could keep less.

        Returns:
            How many tokens the prompt takes less; None if the provider has no such rule.
        """
        eventful = [read for read in self._read if read.block.eventful]
        if not eventful or not self._user_first(next(filter(None, (read.provider for read in eventful)), "")):
            return None
        results = [read.block if outcome is None else outcome.result for read, _, outcome in decided]
        numbers = {read.block.name: number for number, (read, _, _) in enumerate(decided)}
        sent: list[tuple[int, int]] = []
        facts: list[EventFacts] = []
        for block, section in parts_in_order([block for block in results if block is not None], "attention"):
            number = numbers[block.name]
            read, _, outcome = decided[number]
            indexes = range(len(read.items)) if outcome is None else outcome.in_result()
            text = _QUERY if section.zone is Zone.QUERY else _TEXT
            for place in section.items:
                sent.append((number, place))
                facts.append(text if is_text(block.items[place]) else read.fact(indexes[place]))
        fixed = [position for position, (number, _) in enumerate(sent) if not decided[number][0].block.cuttable]
        lost: dict[int, set[int]] = {}
        for number, place in map(sent.__getitem__, before_user(ListHistory(sent, facts).view(), fixed)):
            lost.setdefault(number, set()).add(place)
        freed = 0
        for number, places in lost.items():
            read, room, outcome = decided[number]
            if outcome is None:
                indexes = range(len(read.items))
                outcome = BlockOutcome(
                    DecisionOutcome.KEPT, _NO_USER, indexes, result=read.block, rendered=read.rendered(indexes)
                )
            left = self._without(read, outcome, places)
            freed += outcome.rendered.tokens - left.rendered.tokens
            decided[number] = read, room, left
        return freed

    def _without(self, read: ReadBlock, outcome: BlockOutcome, places: Collection[int]) -> BlockOutcome:
        """Return what stays of a block without the events at some places of its result."""
        indexes, held = outcome.in_result(), outcome.result.items if outcome.result is not None else ()
        lost = {indexes[place] for place in places}
        kept = [index for index in outcome.kept if index not in lost]
        stays = [item for place, item in enumerate(held) if place not in places]
        item_outcomes = {**outcome.item_outcomes, **dict.fromkeys(sorted(lost), (_DROPPED, _NO_USER, None))}
        if not stays:
            return BlockOutcome(_DROPPED, _NO_USER, (), item_outcomes, outcome.of_others(), attempts=outcome.attempts)
        result = read.block.holding(stays)
        made = outcome.made is not None
        rendered = ReadBlock(result, self._measure).rendered(range(len(stays))) if made else read.rendered(kept)
        return replace(outcome, kept=kept, item_outcomes=item_outcomes, result=result, rendered=rendered)

    def _overflow(self, fixed: int) -> ContextOverflowError:
        costs = {block.name: cost for block, cost in zip(self._blocks, self._costs, strict=True) if not block.cuttable}
        around = {
            _PENDING_COST: sum(self._pinned.values()),
            "tool_schemas": self._schemas,
            "reply_priming": self._measure.priming - self._schemas,
        }
        costs.update((name, tokens) for name, tokens in around.items() if tokens)
        error = ContextOverflowError(self._budget, fixed, costs)
        overflow = Overflow(self._budget, fixed, OverflowCause.FIXED)
        error.report = overflow_report(self._blocks, self._costs, self._window, self._reserve, overflow)
        return error

    def _floors(self) -> Iterator[int]:
        """What is to be reserved for each block, beside what is fixed of it."""
        for block, cost in zip(self._blocks, self._costs, strict=True):
            floor = min(block.min_tokens, cost) if block.cuttable and block.min_tokens else 0
            yield max(0, floor - self._pinned[block.name]) if floor and block.name in self._pinned else floor

    def _drops_turns(self, read: ReadBlock, outcome: BlockOutcome | None) -> bool:
        """Return whether a block of turns lost one for lack of room, so that no older turn may stay.

        A turn that is compacted, or that no prompt may contain (an orphan), leaves no hole.
        """
        if outcome is None or (outcome.made is not None and not outcome.kept and not outcome.item_outcomes):
            return False  # kept whole, or compacted whole
        stays = {*outcome.kept, *(at for at, (what, *_) in outcome.item_outcomes.items() if what is not _DROPPED)}
        return len(stays.union(self._out(read.block))) < len(read.items)

    def _kept(self, read: ReadBlock) -> BlockOutcome:
        """A block that is kept whole but for the items that are out from the start."""
        block = read.block
        item_outcomes = dict(self._excluded[block.name])
        alive = [index for index in range(len(read.items)) if index not in item_outcomes]
        if not alive:
            return BlockOutcome(_DROPPED, next(iter(item_outcomes.values()))[1], item_outcomes=item_outcomes)
        reason = DecisionReason.FITS if block.cuttable else DecisionReason.PINNED
        result = block.holding([read.items[index] for index in alive])
        return BlockOutcome(
            DecisionOutcome.KEPT, reason, alive, item_outcomes, result=result, rendered=read.rendered(alive)
        )

    def _pinned_alone(self, read: ReadBlock, reason: DecisionReason) -> BlockOutcome:
        """A block of which nothing is left but the calls that await an approval."""
        kept = _in_order(self._pending[read.block.name])
        return BlockOutcome(
            DecisionOutcome.KEPT,
            reason,
            kept,
            dict.fromkeys(kept, _PENDING),
            (_DROPPED, reason),
            read.block.holding([read.items[index] for index in kept]),
            read.rendered(kept),
        )

    def _with_excluded(self, block: Block, outcome: BlockOutcome) -> BlockOutcome:
        excluded = self._excluded.get(block.name, {})
        return replace(outcome, item_outcomes={**outcome.item_outcomes, **excluded}) if excluded else outcome

    # A block that does not fit whole

    def _cut(self, read: ReadBlock, cost: int, room: int) -> Generator[CompactionRequest, Compacted, BlockOutcome]:
        block, items = read.block, read.items
        if block.cut is Cut.WHOLE:
            holds = block.name in self._pending
            return self._pinned_alone(read, DecisionReason.OVER_BUDGET) if holds else _OVER_BUDGET
        attempts: tuple[Any, ...] = ()
        single = len(items) == 1
        if single or block.cut is Cut.COMPRESS:
            out = self._out(block)
            alive = [index for index in range(len(items)) if index not in out]
            if read.texts_alone(alive):
                block_outcome = yield from self._compacted_whole(read, alive, room)
                if single or block_outcome.result is not None:
                    return block_outcome
                attempts = block_outcome.attempts
        block_outcome = yield from self._cut_items(read, room, min(block.min_tokens, cost))
        block_outcome.attempts = (*attempts, *block_outcome.attempts)
        return block_outcome

    def _compacted_whole(
        self, read: ReadBlock, alive: Sequence[int], room: int
    ) -> Generator[CompactionRequest, Compacted, BlockOutcome]:
        """Compact a block into one text, where there is room to ask for one."""
        measure, block, items = self._measure, read.block, read.items
        around = measure.overhead + (measure.text(block.restated) if block.restated else 0)
        target = room - around - (measure.text(block.separator) if block.restated and block.separator else 0)
        if target <= 0:
            return BlockOutcome(_DROPPED, DecisionReason.OVER_BUDGET)
        texts = [item_text(items[index]) for index in alive]
        compacted = yield CompactionRequest(block, block.separator.join(texts), target, measure)
        block_outcome = BlockOutcome(_DROPPED, DecisionReason.OVER_BUDGET, attempts=compacted.attempts)
        if compacted.text is None:
            return block_outcome
        made = _made(compacted.text, block, items, alive)
        result = block.holding(made)
        rendered = ReadBlock(result, measure).rendered((0,))
        if rendered.tokens > room:  # by a counter that finds more in a text than in its parts
            return block_outcome
        return BlockOutcome(
            DecisionOutcome.COMPACTED,
            DecisionReason.COMPACTED,
            result=result,
            rendered=rendered,
            made=made,
            attempts=compacted.attempts,
        )

    def _cut_items(
        self, read: ReadBlock, room: int, floor: int
    ) -> Generator[CompactionRequest, Compacted, BlockOutcome]:
        block = read.block
        reason = DecisionReason.OVER_BUDGET if block.cut is Cut.OLDEST else DecisionReason.LOW_RANK
        pending = self._pending.get(block.name, ())
        fitting, beyond, kept, rendered = self._that_fit(read, room, len(pending))
        item_outcomes: dict[int, ItemOutcome] = {}
        made: CompactedBlock | None = None
        attempts: tuple[Any, ...] = ()
        result: Block | None = None
        if beyond is not None and (len(fitting) == len(pending) or rendered.tokens < floor):
            # What fits is nothing, or useless by itself: the next item may make up for it, if it is shorter.
            found = yield from self._next_compacted(read, fitting, beyond, room)
            made, result, rendered_with, attempts = found
            if made is not None:
                rendered = rendered_with
                item_outcomes[beyond[0]] = DecisionOutcome.COMPACTED, DecisionReason.COMPACTED, None
        if made is None:
            if not kept or rendered.tokens < floor:
                useless = DecisionReason.BELOW_FLOOR if len(fitting) > len(pending) else DecisionReason.OVER_BUDGET
                block_outcome = self._pinned_alone(read, useless) if pending else BlockOutcome(_DROPPED, useless)
                block_outcome.attempts = attempts
                return block_outcome
            result = block.holding([read.items[index] for index in kept])
        item_outcomes.update(dict.fromkeys(_in_order(pending), _PENDING))
        outcome = DecisionOutcome.KEPT if made is None else DecisionOutcome.COMPACTED
        said = reason if made is None else DecisionReason.COMPACTED
        return BlockOutcome(outcome, said, kept, item_outcomes, (_DROPPED, reason), result, rendered, made, attempts)

    def _that_fit(
        self, read: ReadBlock, room: int, pinned: int
    ) -> tuple[list[Sequence[int]], Sequence[int] | None, list[int], Rendered]:
        """The atoms that fit together, the first ones first; the one behind; their items, ascending; what those take.

        The first `pinned` of them stay in any case: `room` holds them. What is behind is not looked at.
        """
        out = self._out(read.block)
        alive = (index for index in range(len(read.items)) if index not in out)
        charge = read.charging(texts_alone=read.texts_alone(alive))
        left = room
        fitting: list[Sequence[int]] = []
        beyond: Sequence[int] | None = None
        for number, atom in enumerate(read.survivors(out), start=1):
            left -= sum(map(charge, atom)) if left >= 0 else 0
            if left < 0 and number > pinned:
                beyond = atom
                break
            fitting.append(atom)
        while True:
            kept = _in_order(fitting)
            rendered = read.rendered(kept)
            # A counter may find more in a joined text than in its parts; whatever it finds, the budget holds.
            if rendered.tokens <= room or len(fitting) <= pinned:
                return fitting, beyond, kept, rendered
            beyond = fitting.pop()

    def _next_compacted(
        self, read: ReadBlock, whole: Sequence[Sequence[int]], atom: Sequence[int], room: int
    ) -> Generator[CompactionRequest, Compacted, tuple[CompactedBlock | None, Block | None, Rendered, tuple[Any, ...]]]:
        """Compact an atom, where it is one text and there is room for some of it behind these others."""
        block, items = read.block, read.items
        if len(atom) != 1 or not is_text(items[atom[0]]):
            return None, None, NOTHING, ()
        (at,) = atom
        before = [index for one in whole for index in one]
        charge = self._measure.charging(block, texts_alone=read.texts_alone(before))
        costs = [*((read.alone(index), is_text(items[index])) for index in before), (0, True)]
        target = room - sum([charge(*cost) for cost in costs])
        if target <= 0:
            return None, None, NOTHING, ()
        compacted = yield CompactionRequest(block, item_text(items[at]), target, self._measure)
        if compacted.text is None:
            return None, None, NOTHING, compacted.attempts
        made = _made(compacted.text, block, items, atom)
        shown = [
            replace(items[index], content=made) if index == at else items[index] for index in sorted([*before, at])
        ]
        result = block.holding(shown)
        rendered = ReadBlock(result, self._measure).rendered(range(len(shown)))
        if rendered.tokens > room:
            return None, None, NOTHING, compacted.attempts
        return made, result, rendered, compacted.attempts


def _charged(read: ReadBlock, block_outcome: BlockOutcome) -> int:
    """What later blocks cannot have: for a block that was cut, the bound by which it was."""
    if block_outcome.made is not None or not block_outcome.kept:
        return block_outcome.rendered.tokens
    return max(block_outcome.rendered.tokens, sum(read.charges(block_outcome.kept)))


def _in_order(atoms: Iterable[Sequence[int]]) -> list[int]:
    """The items of these atoms, ascending."""
    return sorted(index for atom in atoms for index in atom)


def _named(block: Block | None, error: TokenizerError) -> TokenizerError:
    return TokenizerError(f"block {block.name!r}: {error}") if block is not None else error


def _made(text: str, block: Block, items: Sequence[BlockItem], indexes: Sequence[int]) -> CompactedBlock:
    """What compaction made, with the leaves that it came from; those of a summary are its own."""
    leaves: dict[str, None] = {}
    for index in indexes:
        content = items[index].content
        if isinstance(content, CompactedBlock) and content.provenance:
            leaves.update(dict.fromkeys(content.provenance))
        else:
            leaves[items[index].id or (block.name if len(items) == 1 else f"{block.name}[{index}]")] = None
    covers = (min(indexes), max(indexes))
    return CompactedBlock(summary=text, provenance=tuple(leaves), covers_turns=covers)
