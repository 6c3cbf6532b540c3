"""The rule by which blocks are kept, cut, compacted or dropped (seed 004).

First what may not be cut; then floors, so that no block of higher priority eats what a lower one cannot do without;
then the rest, highest priority first, each block whole if it fits, else cut its own way, and compacted before it is
dropped.

What compacts may wait for a model, so the rule is a generator: it asks for a compaction and is sent what came of it.
See `allocator` for who answers it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from otel_assembly.budget.allocation import Allocation, Fate, atoms_of, pairing_of
from otel_assembly.budget.block import Block, BlockItem, Cut
from otel_assembly.budget.compaction import CompactedBlock
from otel_assembly.budget.rivals import losers
from otel_assembly.budget.sections import by_rank, is_text, item_text
from otel_assembly.budget.sheets import overflowing_sheet
from otel_assembly.decision import DecisionOutcome, DecisionReason, Overflow, OverflowCause
from otel_assembly.errors import ConfigurationError, ContextOverflowError, TokenizerError
from otel_assembly.pairing import ANSWERS, unpaired

if TYPE_CHECKING:
    from otel_assembly.budget.compaction import Compacted
    from otel_assembly.budget.measure import Measure

_DROPPED = DecisionOutcome.DROPPED


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """What the rule asks for: a text of at most `target` tokens that says what `text` says."""

    block: Block
    text: str
    target: int
    measure: Measure


Plan = Generator[CompactionRequest, "Compacted", Allocation]


def plan(blocks: Iterable[Block], window: int, output_reserve: int, measure: Measure) -> Plan:
    """The rule, as a generator of what it wants compacted; it returns the allocation.

    Raises:
        ConfigurationError: A number cannot work, two blocks share a name, or a floor is above the budget.
        ContextOverflowError: What may not be cut does not fit.
        TokenizerError: The counter does not count; the message names the block.
    """
    return _Rule(list(blocks), window, output_reserve, measure).run()


class _Rule:
    __slots__ = ("_blocks", "_budget", "_costs", "_lost", "_measure", "_reserve", "_window")

    def __init__(self, blocks: list[Block], window: int, output_reserve: int, measure: Measure) -> None:
        numbers: dict[str, Any] = {"window": window, "output_reserve": output_reserve}
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigurationError(f"{name} must be a whole number of tokens, 0 or more, got {value!r}")
        if output_reserve >= window:
            raise ConfigurationError(
                f"output_reserve ({output_reserve}) leaves nothing of the window ({window}); it must be smaller"
            )
        self._window, self._reserve, self._budget = window, output_reserve, window - output_reserve
        self._measure = measure
        self._blocks = sorted(blocks, key=attrgetter("order"))
        names = {block.name for block in blocks}
        if len(names) < len(blocks):
            seen: set[str] = set()
            twice = next(block.name for block in blocks if block.name in seen or seen.add(block.name))  # type: ignore[func-returns-value]
            raise ConfigurationError(f"two blocks are called {twice!r}; each needs a name of its own")
        self._lost = losers(self._blocks)
        self._costs = self._counted()

    def _counted(self) -> list[int]:
        """What each block takes whole, without what stale and duplicate items would take."""
        text, overhead, lost = self._measure.text, self._measure.overhead, self._lost
        costs: list[int] = []
        block: Block | None = None
        try:
            for block in self._blocks:
                if block.min_tokens > self._window:
                    raise ConfigurationError(
                        f"block {block.name!r}: its floor of {block.min_tokens} tokens is above the window of "
                        f"{self._window}; lower min_tokens or raise the window"
                    )
                if block.plain and block.name not in lost:
                    costs.append(overhead + text(block.content) if block.content else 0)  # type: ignore[arg-type]  # plain: a text
                else:
                    costs.append(self._measure.rendered(block, block.items, self._alive(block)).tokens)
        except TokenizerError as error:
            raise TokenizerError(f"block {block.name if block else ''!r}: {error}") from error
        return costs

    def _alive(self, block: Block) -> Sequence[int]:
        lost = self._lost.get(block.name)
        count = len(block.items)
        return range(count) if lost is None else [index for index in range(count) if index not in lost]

    def run(self) -> Plan:
        measure, budget = self._measure, self._budget
        fixed = measure.priming
        for block, cost in zip(self._blocks, self._costs, strict=True):
            if not block.cuttable:
                fixed += cost
        if fixed > budget:
            raise self._overflow(fixed)
        floors, reserved = self._floors(budget - fixed)
        free = budget - fixed
        used = fixed
        decided: list[tuple[Block, int, Fate | None]] = []
        for at, block in enumerate(self._blocks):
            cost = self._costs[at]
            if not block.cuttable:
                decided.append((block, cost, self._fixed(block) if block.name in self._lost else None))
                continue
            floor = floors[at]
            if floor < 0:
                fate: Fate | None = self._with_losers(block, Fate(_DROPPED, DecisionReason.BELOW_FLOOR))
                decided.append((block, free - reserved, fate))
                continue
            reserved -= floor
            room = free - reserved
            if cost <= room:
                decided.append((block, room, self._fixed(block) if block.name in self._lost else None))
                free -= cost
                used += cost
                continue
            fate = yield from self._cut(block, cost, room)
            decided.append((block, room, self._with_losers(block, fate)))
            used += fate.rendered.tokens
            free -= self._charged(block, fate)
        return Allocation(
            decided,
            window=self._window,
            output_reserve=self._reserve,
            fixed=fixed,
            used=used,
            measure=measure,
        )

    def _overflow(self, fixed: int) -> ContextOverflowError:
        costs = {block.name: cost for block, cost in zip(self._blocks, self._costs, strict=True) if not block.cuttable}
        if self._measure.priming:
            costs["reply_priming"] = self._measure.priming
        error = ContextOverflowError(self._budget, fixed, costs)
        overflow = Overflow(self._budget, fixed, OverflowCause.FIXED)
        error.sheet = overflowing_sheet(self._blocks, self._costs, self._window, self._reserve, overflow)
        return error

    def _floors(self, room: int) -> tuple[list[int], int]:
        """What is reserved for each block, −1 where there was no room for its floor; and the sum."""
        floors: list[int] = []
        reserved = 0
        for block, cost in zip(self._blocks, self._costs, strict=True):
            floor = min(block.min_tokens, cost) if block.cuttable and block.min_tokens else 0
            if reserved + floor > room:
                floors.append(-1)
                continue
            floors.append(floor)
            reserved += floor
        return floors, reserved

    def _fixed(self, block: Block) -> Fate:
        """A block that is kept whole but for items that others stand for."""
        alive = list(self._alive(block))
        items = block.items
        reason = DecisionReason.FITS if block.cuttable else DecisionReason.PINNED
        result = block.holding([items[index] for index in alive]) if alive else None
        outcome = DecisionOutcome.KEPT if alive else _DROPPED
        if not alive:
            reason = next(iter(self._lost[block.name].values()))[1]
        fate = Fate(outcome, reason, alive, result=result)
        fate.rendered = self._measure.rendered(block, items, alive)
        return self._with_losers(block, fate)

    def _with_losers(self, block: Block, fate: Fate) -> Fate:
        fate.told.update(self._lost.get(block.name, {}))
        return fate

    def _charged(self, block: Block, fate: Fate) -> int:
        """What later blocks cannot have: for a block that was cut, the bound by which it was."""
        if fate.made is not None or not fate.kept:
            return fate.rendered.tokens
        items = block.items
        costs = self._measure.charges(block, [(self._measure.item(items[at]), is_text(items[at])) for at in fate.kept])
        return max(fate.rendered.tokens, sum(costs))

    # A block that does not fit whole

    def _cut(self, block: Block, cost: int, room: int) -> Generator[CompactionRequest, Compacted, Fate]:
        if room <= 0:
            return Fate(_DROPPED, DecisionReason.OVER_BUDGET)
        floor = min(block.min_tokens, cost)
        items = block.items
        alive = list(self._alive(block))
        if block.cut is Cut.WHOLE:
            return Fate(_DROPPED, DecisionReason.OVER_BUDGET)
        if len(items) == 1 and is_text(items[0]):
            return (yield from self._compacted_whole(block, items, [0], room)) or Fate(
                _DROPPED, DecisionReason.OVER_BUDGET
            )
        attempts: tuple[Any, ...] = ()
        if block.cut is Cut.COMPRESS and all(is_text(items[index]) for index in alive):
            fate = yield from self._compacted_whole(block, items, alive, room)
            if fate is not None and fate.result is not None:
                return fate
            attempts = fate.attempts if fate is not None else ()
        fate = yield from self._cut_items(block, items, alive, room, floor)
        fate.attempts = (*attempts, *fate.attempts)
        return fate

    def _compacted_whole(
        self, block: Block, items: Sequence[BlockItem], alive: Sequence[int], room: int
    ) -> Generator[CompactionRequest, Compacted, Fate | None]:
        """Compact a block into one text; None where there is no room to ask for one."""
        around = self._measure.overhead + (self._measure.text(block.restated) if block.restated else 0)
        texts = [item_text(items[index]) for index in alive]
        target = room - around - (self._measure.text(block.separator) if block.restated else 0)
        if target <= 0:
            return None
        compacted = yield CompactionRequest(block, block.separator.join(texts), target, self._measure)
        if compacted.text is None:
            return Fate(_DROPPED, DecisionReason.OVER_BUDGET, attempts=compacted.attempts)
        made = _made(compacted.text, block, items, alive)
        result = block.holding(made)
        rendered = self._measure.rendered(result, result.items, (0,))
        if rendered.tokens > room:
            return Fate(_DROPPED, DecisionReason.OVER_BUDGET, attempts=compacted.attempts)
        fate = Fate(DecisionOutcome.COMPACTED, DecisionReason.COMPACTED, result=result, rendered=rendered, made=made)
        fate.attempts = compacted.attempts
        return fate

    def _cut_items(
        self, block: Block, items: Sequence[BlockItem], alive: Sequence[int], room: int, floor: int
    ) -> Generator[CompactionRequest, Compacted, Fate]:
        reason = DecisionReason.OVER_BUDGET if block.cut is Cut.OLDEST else DecisionReason.LOW_RANK
        told = _orphans(items, alive)
        alive = [index for index in alive if index not in told]
        survivors = self._survivors(block, items, alive)
        kept = self._that_fit(block, items, survivors, room)
        rendered = self._measure.rendered(block, items, kept)
        made: CompactedBlock | None = None
        attempts: tuple[Any, ...] = ()
        if (not kept or rendered.tokens < floor) and len(kept) < len(alive):
            found = yield from self._best_compacted(block, items, survivors, kept, room)
            if found is not None:
                made, attempts = found
        if made is not None:
            at = next(index for index in survivors[_atoms_kept(survivors, kept)] if is_text(items[index]))
            told[at] = (DecisionOutcome.COMPACTED, DecisionReason.COMPACTED, None)
            shown = {**{index: items[index] for index in kept}, at: replace(items[at], content=made)}
            result = block.holding([shown[index] for index in sorted(shown)])
            rendered = self._measure.rendered(result, result.items, range(len(shown)))
            return Fate(DecisionOutcome.COMPACTED, reason, kept, told, result, rendered, made, attempts)
        if not kept:
            return Fate(_DROPPED, DecisionReason.OVER_BUDGET, (), told, attempts=attempts)
        if rendered.tokens < floor:
            return Fate(_DROPPED, DecisionReason.BELOW_FLOOR, (), told, attempts=attempts)
        told.update((index, (_DROPPED, reason, None)) for index in alive if index not in set(kept))
        result = block.holding([items[index] for index in kept])
        return Fate(DecisionOutcome.KEPT, reason, kept, told, result, rendered, attempts=attempts)

    def _survivors(self, block: Block, items: Sequence[BlockItem], alive: Sequence[int]) -> list[list[int]]:
        """The block's atoms, the one that is cut last first."""
        atoms = [[alive[at] for at in atom] for atom in atoms_of([items[index] for index in alive]).values()]
        if block.cut is Cut.OLDEST:
            return atoms[::-1]
        if block.cut is Cut.SCORE:
            return sorted(atoms, key=lambda atom: (min(_score(items[index]) for index in atom), atom[0]))
        place = {index: at for at, index in enumerate(by_rank(items, alive))}
        return sorted(atoms, key=lambda atom: min(place[index] for index in atom))

    def _that_fit(
        self, block: Block, items: Sequence[BlockItem], survivors: Sequence[Sequence[int]], room: int
    ) -> list[int]:
        """The indexes, ascending, of the first atoms that fit together."""
        order = [index for atom in survivors for index in atom]
        charges = iter(
            self._measure.charges(block, [(self._measure.item(items[at]), is_text(items[at])) for at in order])
        )
        kept: list[int] = []
        for atom in survivors:
            room -= sum(next(charges) for _ in atom)
            if room < 0:
                break
            kept += atom
        return sorted(kept)

    def _best_compacted(
        self,
        block: Block,
        items: Sequence[BlockItem],
        survivors: Sequence[Sequence[int]],
        kept: Sequence[int],
        room: int,
    ) -> Generator[CompactionRequest, Compacted, tuple[CompactedBlock | None, tuple[Any, ...]] | None]:
        """Compact the item that just did not fit, where it is a text and there is room for some of it."""
        atom = survivors[_atoms_kept(survivors, kept)]
        if len(atom) != 1 or not is_text(items[atom[0]]):
            return None
        order = [*(index for one in survivors[: _atoms_kept(survivors, kept)] for index in one), atom[0]]
        costs = [(self._measure.item(items[at]), True) for at in order[:-1]]
        target = room - sum(self._measure.charges(block, [*costs, (0, True)]))
        if target <= 0:
            return None
        compacted = yield CompactionRequest(block, item_text(items[atom[0]]), target, self._measure)
        if compacted.text is None:
            return None, compacted.attempts
        made = _made(compacted.text, block, items, atom)
        shown = sorted([*kept, atom[0]])
        trial = [replace(items[at], content=made) if at == atom[0] else items[at] for at in shown]
        if self._measure.rendered(block, trial, range(len(trial))).tokens > room:
            return None, compacted.attempts
        return made, compacted.attempts


def _atoms_kept(survivors: Sequence[Sequence[int]], kept: Sequence[int]) -> int:
    held = set(kept)
    return sum(atom[0] in held for atom in survivors)


def _score(item: BlockItem) -> tuple[bool, float]:
    return not item.profile, -item.score if item.score is not None else float("inf")


def _made(text: str, block: Block, items: Sequence[BlockItem], indexes: Sequence[int]) -> CompactedBlock:
    """What compaction made, with the leaves that it came from; those of a summary are its own."""
    leaves: dict[str, None] = {}
    for index in indexes:
        content = items[index].content
        if isinstance(content, CompactedBlock):
            leaves.update(dict.fromkeys(content.provenance))
        else:
            leaves[items[index].id or (block.name if len(items) == 1 else f"{block.name}[{index}]")] = None
    covers = (min(indexes), max(indexes))
    return CompactedBlock(summary=text, provenance=tuple(leaves), covers_turns=covers)


def _orphans(
    items: Sequence[BlockItem], alive: Sequence[int]
) -> dict[int, tuple[DecisionOutcome, DecisionReason, tuple[str, int] | None]]:
    """Items without the other half of their pair; none of them is kept by any cut."""
    if all(is_text(items[index]) for index in alive):
        return {}
    pairing = pairing_of([items[index] for index in alive])
    lost = unpaired(pairing, range(len(alive) - 1, -1, -1), pairing.last_response)
    return {
        alive[at]: (
            _DROPPED,
            DecisionReason.ORPHANED_TOOL_CALL
            if pairing.links[at] and not pairing.flags[at] & ANSWERS
            else DecisionReason.ORPHANED_TOOL_RESULT,
            None,
        )
        for at in lost
    }
