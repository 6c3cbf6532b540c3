"""Decides which blocks and items are kept, cut, compacted or dropped, by the rule of `budget.rule`.

The decisions are made by a generator, because a compactor may wait for a model and may be async or not. The generator
yields a `CompactionRequest` whenever it needs a shorter text, and receives a `Compacted`. `allocator` calls the
compactors.
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
#: The types of a block's content that is one text.
_SINGLE: Final = (str, CompactedBlock)
_PENDING: Final[ItemOutcome] = (DecisionOutcome.KEPT, DecisionReason.PENDING_TOOL_CALL, None)
#: The entry for pending calls of cuttable blocks in `ContextOverflowError.costs`.
_PENDING_COST: Final = "pending_tool_calls"
#: Shared objects for blocks that are dropped whole, which saves the time to create one for each.
_OVER_BUDGET = BlockOutcome(_DROPPED, DecisionReason.OVER_BUDGET)
_BELOW_FLOOR = BlockOutcome(_DROPPED, DecisionReason.BELOW_FLOOR)
_NO_USER: Final = DecisionReason.BEFORE_USER_MESSAGE
#: The facts that stand for a text when the rule on the first message is applied.
_QUERY, _TEXT = EventFacts(EventKind.REQUEST), EventFacts(EventKind.OTHER)


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """A request of the plan to shorten a text.

    Attributes:
        block: The block that contains the text.
        text: The text.
        target: The maximum number of tokens of the shorter text.
        measure: Counts the tokens.
    """

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
    """Return a generator that decides on the blocks: it yields compaction requests and returns the allocation.

    Errors that do not depend on token counts are raised immediately, the others when the generator runs.

    Args:
        blocks: The blocks.
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        measure: Counts tokens. Its ``priming`` is the number of tokens that belong to no block.
        schemas: How many of the ``priming`` tokens are tool schemas.
        user_first: Returns whether the conversation must start with a user's request. The argument is the provider in
            whose format the messages are (`EventFacts.provider`).
        read: Creates the `ReadBlock` of a block.

    Raises:
        ConfigurationError: A number is out of range, two blocks have the same name, or a floor is above the window.
        DescribeError: An item has an unregistered type.
        ContextOverflowError: The content that cannot be cut does not fit.
        TokenizerError: The counter failed; the message names the block.
    """
    return _Rule(blocks, window, output_reserve, measure, schemas, user_first, read).run()


def _sorted_blocks(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks by priority, after checking their types and that their names are unique."""
    collection: Any = blocks
    if isinstance(collection, str | bytes | Block) or not isinstance(collection, Iterable):
        raise ConfigurationError(f"blocks must be several Block objects, got one {type(collection).__name__}")
    collection = list(collection)
    for block in collection:
        if not isinstance(block, Block):
            raise ConfigurationError(f"blocks must be Block objects, got a {type(block).__name__}")
    ordered = sorted(collection, key=attrgetter("order"))
    names = {block.name for block in ordered}
    if len(names) < len(ordered):
        for block in ordered:
            if block.name not in names:
                raise ConfigurationError(f"two blocks are named {block.name!r}; give each block a unique name")
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
        self._blocks = _sorted_blocks(blocks)
        for block in self._blocks:
            if block.min_tokens > window:
                raise ConfigurationError(
                    f"block {block.name!r}: its floor of {block.min_tokens} tokens is above the window of {window}; "
                    "lower min_tokens or raise the window"
                )
        self._read = [read(block, measure) for block in self._blocks]
        self._excluded, pending = self._exclude()
        #: The atoms of cuttable blocks with a pending tool call, by the block's name; they are never dropped.
        self._pending: dict[str, Sequence[Sequence[int]]] = {
            read_block.block.name: read_block.pending_atoms(self._excluded_from(read_block.block))
            for read_block in (self._read if pending else ())
            if read_block.block.cuttable and read_block.block.name in pending
        }
        #: The tokens of these atoms, by the block's name.
        self._pinned: dict[str, int] = {}
        self._costs: list[int] = []

    def _exclude(self) -> tuple[dict[str, dict[int, ItemOutcome]], frozenset[str]]:
        """Find the items that must not be sent (duplicates and orphans), and the blocks with pending calls."""
        multi_item = [read for read in self._read if not isinstance(read.block.content, _SINGLE)]
        if not multi_item:
            return {}, frozenset()
        excluded = duplicates([read.block for read in multi_item])
        unpaired, pending = orphans(multi_item, excluded)
        for name, item_outcomes in unpaired.items():
            excluded.setdefault(name, {}).update(item_outcomes)
        return excluded, pending

    def _count_blocks(self) -> list[int]:
        """Return the tokens of each block without the items of `_exclude`."""
        text, overhead = self._measure.text, self._measure.overhead
        pending = self._pending
        costs: list[int] = []
        block: Block | None = None
        try:
            for read in self._read:
                block = read.block
                if block.is_plain_text:
                    costs.append(overhead + text(block.content) if block.content else 0)  # type: ignore[arg-type]
                else:
                    costs.append(read.cost(self._excluded_from(block)))
                    if block.name in pending:
                        self._pinned[block.name] = read.tokens(_in_order(pending[block.name]))
        except TokenizerError as error:
            raise _with_block_name(block, error) from error
        return costs

    def _excluded_from(self, block: Block) -> Mapping[int, ItemOutcome]:
        """Return the outcomes of the block's items that must not be sent, by index."""
        return self._excluded.get(block.name, {})

    def run(self) -> Plan:
        costs = self._costs = self._count_blocks()
        budget, excluded, overhead = self._budget, self._excluded, self._measure.overhead
        pinned = self._pinned
        fixed = self._measure.priming + sum(pinned.values())
        fixed += sum(cost for block, cost in zip(self._blocks, costs, strict=True) if not block.cuttable)
        sharing = Sharing(budget - fixed)
        if sharing.free < 0:
            raise self._overflow(fixed)
        floors = sharing.reserve(self._floors())
        used = fixed
        # The floors of the turn blocks that are not decided yet, which newer turns may use.
        floors_of_older_turns = sum(
            max(0, floor) for block, floor in zip(self._blocks, floors, strict=True) if block.has_turns
        )
        has_dropped_turns = False
        decided: list[tuple[ReadBlock, int, BlockOutcome | None]] = []
        for read, cost, floor in zip(self._read, costs, floors, strict=True):
            block = read.block
            block_outcome: BlockOutcome | None = None
            if not block.cuttable:
                # The room of a block that cannot be cut is what it needs.
                decided.append((read, cost, self._kept(read) if block.name in excluded else None))
                continue
            # The tokens of the block's pending calls are part of `fixed`, and of the block's room.
            has_pinned = block.name in pinned
            pinned_tokens = pinned[block.name] if has_pinned else 0
            room = sharing.room(floor) + pinned_tokens
            if block.has_turns:
                floors_of_older_turns -= max(0, floor)
                room += floors_of_older_turns
            if has_dropped_turns and block.has_turns:
                block_outcome = self._only_pinned(read, DecisionReason.OVER_BUDGET) if has_pinned else _OVER_BUDGET
                block_outcome = self._with_excluded(block, block_outcome)
            elif floor < 0:
                block_outcome = self._only_pinned(read, DecisionReason.BELOW_FLOOR) if has_pinned else _BELOW_FLOOR
                block_outcome = self._with_excluded(block, block_outcome)
            elif cost <= room:
                sharing.free -= cost - pinned_tokens
                used += cost - pinned_tokens
                block_outcome = self._kept(read) if block.name in excluded else None
            elif room <= (overhead if block.is_plain_text else 0) and not has_pinned:
                block_outcome = self._with_excluded(block, _OVER_BUDGET)
            else:
                try:
                    block_outcome = self._with_excluded(block, (yield from self._cut(read, cost, room)))
                    sharing.free -= min(room, max(pinned_tokens, _charged_tokens(read, block_outcome))) - pinned_tokens
                except TokenizerError as error:
                    raise _with_block_name(block, error) from error
                used += block_outcome.rendered.tokens - pinned_tokens
            if block.has_turns and not has_dropped_turns:
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
        """Drop the messages before the first user's request from `decided`, if the provider requires this.

        Texts are sent as system messages, and the query as a user's request. The freed tokens are not used for other
        content, because then a larger window could keep fewer messages.

        Returns:
            The tokens that were freed; None if the provider has no such requirement.
        """
        with_messages = [read for read in self._read if read.block.has_events]
        if not with_messages or not self._user_first(next(filter(None, (read.provider for read in with_messages)), "")):
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
            for position in section.items:
                sent.append((number, position))
                facts.append(text if is_text(block.items[position]) else read.fact(indexes[position]))
        fixed = [index for index, (number, _) in enumerate(sent) if not decided[number][0].block.cuttable]
        dropped: dict[int, set[int]] = {}
        for number, position in map(sent.__getitem__, before_user(ListHistory(sent, facts).view(), fixed)):
            dropped.setdefault(number, set()).add(position)
        freed = 0
        for number, positions in dropped.items():
            read, room, outcome = decided[number]
            if outcome is None:
                indexes = range(len(read.items))
                outcome = BlockOutcome(
                    DecisionOutcome.KEPT, _NO_USER, indexes, result=read.block, rendered=read.rendered(indexes)
                )
            remaining = self._without(read, outcome, positions)
            freed += outcome.rendered.tokens - remaining.rendered.tokens
            decided[number] = read, room, remaining
        return freed

    def _without(self, read: ReadBlock, outcome: BlockOutcome, positions: Collection[int]) -> BlockOutcome:
        """Return the block's outcome after dropping the items at some positions of `BlockOutcome.result`."""
        indexes, items = outcome.in_result(), outcome.result.items if outcome.result is not None else ()
        dropped = {indexes[position] for position in positions}
        kept = [index for index in outcome.kept if index not in dropped]
        remaining_items = [item for position, item in enumerate(items) if position not in positions]
        item_outcomes = {**outcome.item_outcomes, **dict.fromkeys(sorted(dropped), (_DROPPED, _NO_USER, None))}
        if not remaining_items:
            return BlockOutcome(
                _DROPPED, _NO_USER, (), item_outcomes, outcome.rest_outcome(), attempts=outcome.attempts
            )
        result = read.block.with_content(remaining_items)
        has_summary = outcome.made is not None
        rendered = (
            ReadBlock(result, self._measure).rendered(range(len(remaining_items)))
            if has_summary
            else read.rendered(kept)
        )
        return replace(outcome, kept=kept, item_outcomes=item_outcomes, result=result, rendered=rendered)

    def _overflow(self, fixed: int) -> ContextOverflowError:
        costs = {block.name: cost for block, cost in zip(self._blocks, self._costs, strict=True) if not block.cuttable}
        outside_blocks = {
            _PENDING_COST: sum(self._pinned.values()),
            "tool_schemas": self._schemas,
            "reply_priming": self._measure.priming - self._schemas,
        }
        costs.update((name, tokens) for name, tokens in outside_blocks.items() if tokens)
        error = ContextOverflowError(self._budget, fixed, costs)
        overflow = Overflow(self._budget, fixed, OverflowCause.FIXED)
        error.report = overflow_report(self._blocks, self._costs, self._window, self._reserve, overflow)
        return error

    def _floors(self) -> Iterator[int]:
        """Yield the floor of each block in tokens, less the tokens of its pending calls, which are already counted."""
        for block, cost in zip(self._blocks, self._costs, strict=True):
            floor = min(block.min_tokens, cost) if block.cuttable and block.min_tokens else 0
            yield max(0, floor - self._pinned[block.name]) if floor and block.name in self._pinned else floor

    def _drops_turns(self, read: ReadBlock, outcome: BlockOutcome | None) -> bool:
        """Return whether a turn of the block was dropped for lack of room, so that all older turns are dropped too.

        Turns that were compacted, and turns that must not be sent (such as orphans), do not count.
        """
        if outcome is None or (outcome.made is not None and not outcome.kept and not outcome.item_outcomes):
            return False  # kept whole, or compacted whole
        excluded = self._excluded_from(read.block)
        if not excluded and not outcome.item_outcomes:
            return len(outcome.kept) < len(read.items)
        not_dropped = {
            *outcome.kept,
            *(index for index, (kept, *_) in outcome.item_outcomes.items() if kept is not _DROPPED),
        }
        return len(not_dropped.union(excluded)) < len(read.items)

    def _kept(self, read: ReadBlock) -> BlockOutcome:
        """Return the outcome of a block that fits and is kept without the items that must not be sent."""
        block = read.block
        item_outcomes = dict(self._excluded[block.name])
        indexes = [index for index in range(len(read.items)) if index not in item_outcomes]
        if not indexes:
            return BlockOutcome(_DROPPED, next(iter(item_outcomes.values()))[1], item_outcomes=item_outcomes)
        reason = DecisionReason.FITS if block.cuttable else DecisionReason.PINNED
        result = block.with_content(read.items_at(indexes))
        return BlockOutcome(
            DecisionOutcome.KEPT, reason, indexes, item_outcomes, result=result, rendered=read.rendered(indexes)
        )

    def _only_pinned(self, read: ReadBlock, reason: DecisionReason) -> BlockOutcome:
        """Return the outcome of a block of which only the pending tool calls are kept."""
        kept = _in_order(self._pending[read.block.name])
        return BlockOutcome(
            DecisionOutcome.KEPT,
            reason,
            kept,
            dict.fromkeys(kept, _PENDING),
            (_DROPPED, reason),
            read.block.with_content(read.items_at(kept)),
            read.rendered(kept),
        )

    def _with_excluded(self, block: Block, outcome: BlockOutcome) -> BlockOutcome:
        excluded = self._excluded.get(block.name, {})
        return replace(outcome, item_outcomes={**outcome.item_outcomes, **excluded}) if excluded else outcome

    # Blocks that do not fit whole

    def _cut(self, read: ReadBlock, cost: int, room: int) -> Generator[CompactionRequest, Compacted, BlockOutcome]:
        block, items = read.block, read.items
        if block.cut is Cut.WHOLE:
            has_pinned = block.name in self._pending
            return self._only_pinned(read, DecisionReason.OVER_BUDGET) if has_pinned else _OVER_BUDGET
        attempts: tuple[Any, ...] = ()
        is_single = len(items) == 1
        if is_single or block.cut is Cut.COMPRESS:
            excluded = self._excluded_from(block)
            indexes = [index for index in range(len(items)) if index not in excluded]
            if read.has_only_texts(indexes):
                block_outcome = yield from self._compacted_whole(read, indexes, room)
                if is_single or block_outcome.result is not None:
                    return block_outcome
                attempts = block_outcome.attempts
        block_outcome = yield from self._cut_items(read, room, min(block.min_tokens, cost))
        block_outcome.attempts = (*attempts, *block_outcome.attempts)
        return block_outcome

    def _compacted_whole(
        self, read: ReadBlock, indexes: Sequence[int], room: int
    ) -> Generator[CompactionRequest, Compacted, BlockOutcome]:
        """Request one shorter text for all items of a block; the outcome is ``dropped`` if none fits."""
        measure, block, items = self._measure, read.block, read.items
        overhead = measure.overhead + (measure.text(block.restated) if block.restated else 0)
        target = room - overhead - (measure.text(block.separator) if block.restated and block.separator else 0)
        if target <= 0:
            return BlockOutcome(_DROPPED, DecisionReason.OVER_BUDGET)
        texts = [item_text(items[index]) for index in indexes]
        compacted = yield CompactionRequest(block, block.separator.join(texts), target, measure)
        block_outcome = BlockOutcome(_DROPPED, DecisionReason.OVER_BUDGET, attempts=compacted.attempts)
        if compacted.text is None:
            return block_outcome
        summary = _with_provenance(compacted.text, block, items, indexes)
        result = block.with_content(summary)
        rendered = ReadBlock(result, measure).rendered((0,))
        if rendered.tokens > room:  # the counter may return more for a text than for its parts
            return block_outcome
        return BlockOutcome(
            DecisionOutcome.COMPACTED,
            DecisionReason.COMPACTED,
            result=result,
            rendered=rendered,
            made=summary,
            attempts=compacted.attempts,
        )

    def _cut_items(
        self, read: ReadBlock, room: int, floor: int
    ) -> Generator[CompactionRequest, Compacted, BlockOutcome]:
        block = read.block
        reason = DecisionReason.OVER_BUDGET if block.cut is Cut.OLDEST else DecisionReason.LOW_RANK
        pending = self._pending.get(block.name, ())
        fitting, next_atom, kept, rendered = read.fitting(self._excluded_from(block), room, len(pending))
        item_outcomes: dict[int, ItemOutcome] = {}
        summary: CompactedBlock | None = None
        attempts: tuple[Any, ...] = ()
        result: Block | None = None
        if next_atom is not None and (len(fitting) == len(pending) or rendered.tokens < floor):
            # Too little fits (no atom, or less than the floor): add the next item as a shorter text.
            compacted = yield from self._next_compacted(read, fitting, next_atom, room)
            summary, result, rendered_with, attempts = compacted
            if summary is not None:
                rendered = rendered_with
                item_outcomes[next_atom[0]] = DecisionOutcome.COMPACTED, DecisionReason.COMPACTED, None
        if summary is None:
            if not kept or rendered.tokens < floor:
                block_reason = DecisionReason.BELOW_FLOOR if len(fitting) > len(pending) else DecisionReason.OVER_BUDGET
                block_outcome = (
                    self._only_pinned(read, block_reason) if pending else BlockOutcome(_DROPPED, block_reason)
                )
                block_outcome.attempts = attempts
                return block_outcome
            result = block.with_content(read.items_at(kept))
        item_outcomes.update(dict.fromkeys(_in_order(pending), _PENDING))
        outcome = DecisionOutcome.KEPT if summary is None else DecisionOutcome.COMPACTED
        block_reason = reason if summary is None else DecisionReason.COMPACTED
        return BlockOutcome(
            outcome, block_reason, kept, item_outcomes, (_DROPPED, reason), result, rendered, summary, attempts
        )

    def _next_compacted(
        self, read: ReadBlock, whole: Sequence[Sequence[int]], atom: Sequence[int], room: int
    ) -> Generator[CompactionRequest, Compacted, tuple[CompactedBlock | None, Block | None, Rendered, tuple[Any, ...]]]:
        """Request a shorter text for an atom, if it is a single text and there is room next to the atoms in `whole`.

        Returns:
            The shorter text, the block with it, the block's tokens, and the attempts; the first two are None if no
            shorter text fits.
        """
        block, items = read.block, read.items
        if len(atom) != 1 or not is_text(items[atom[0]]):
            return None, None, NOTHING, ()
        (index,) = atom
        kept = [kept_index for kept_atom in whole for kept_index in kept_atom]
        charge = self._measure.charging(block, has_only_texts=read.has_only_texts(kept))
        costs = [*((read.item_tokens(kept_index), is_text(items[kept_index])) for kept_index in kept), (0, True)]
        target = room - sum([charge(*cost) for cost in costs])
        if target <= 0:
            return None, None, NOTHING, ()
        compacted = yield CompactionRequest(block, item_text(items[index]), target, self._measure)
        if compacted.text is None:
            return None, None, NOTHING, compacted.attempts
        summary = _with_provenance(compacted.text, block, items, atom)
        new_items = [
            replace(items[kept_index], content=summary) if kept_index == index else items[kept_index]
            for kept_index in sorted([*kept, index])
        ]
        result = block.with_content(new_items)
        rendered = ReadBlock(result, self._measure).rendered(range(len(new_items)))
        if rendered.tokens > room:
            return None, None, NOTHING, compacted.attempts
        return summary, result, rendered, compacted.attempts


def _charged_tokens(read: ReadBlock, block_outcome: BlockOutcome) -> int:
    """Return the tokens of a cut block that later blocks cannot use.

    These are the charges of its items, which may be more than the tokens of the rendered block.
    """
    if block_outcome.made is not None or not block_outcome.kept:
        return block_outcome.rendered.tokens
    return max(block_outcome.rendered.tokens, read.charge(block_outcome.kept))


def _in_order(atoms: Iterable[Sequence[int]]) -> list[int]:
    """Return the item indexes of all these atoms, ascending."""
    return sorted(index for atom in atoms for index in atom)


def _with_block_name(block: Block | None, error: TokenizerError) -> TokenizerError:
    return TokenizerError(f"block {block.name!r}: {error}") if block is not None else error


def _with_provenance(text: str, block: Block, items: Sequence[BlockItem], indexes: Sequence[int]) -> CompactedBlock:
    """Return a shorter text with the ids of the original items as provenance.

    An original item that is itself a summary is replaced by the ids in its own provenance.
    """
    leaf_ids: dict[str, None] = {}
    for index in indexes:
        content = items[index].content
        if isinstance(content, CompactedBlock) and content.provenance:
            leaf_ids.update(dict.fromkeys(content.provenance))
        else:
            leaf_ids[items[index].id or (block.name if len(items) == 1 else f"{block.name}[{index}]")] = None
    covers = (min(indexes), max(indexes))
    return CompactedBlock(summary=text, provenance=tuple(leaf_ids), covers_turns=covers)
