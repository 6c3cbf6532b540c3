"""In which order the items of a block give way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.budget.allocation import atoms_of, pairing_of
from otel_assembly.budget.block import Block, BlockItem, Cut
from otel_assembly.budget.sections import by_rank

if TYPE_CHECKING:
    from collections.abc import Sequence


def survivors_of(block: Block, items: Sequence[BlockItem], alive: Sequence[int]) -> list[list[int]]:
    """The block's atoms, the one that is cut last first.

    Before all of them stand those with a tool call that explicitly awaits an approval, which are not cut at all.

    Args:
        block: The block.
        items: All its items.
        alive: Indexes of those that are not out from the start.
    """
    held = [items[index] for index in alive]
    pairing = pairing_of(held) if block.eventful else None
    atoms = [[alive[at] for at in atom] for atom in atoms_of(held, pairing).values()]
    if block.cut is Cut.OLDEST:
        atoms.reverse()
    elif block.cut is Cut.SCORE:
        atoms.sort(key=lambda atom: (min(_score(items[index]) for index in atom), atom[0]))
    else:
        place = {index: at for at, index in enumerate(by_rank(items, alive))}
        atoms.sort(key=lambda atom: min(place[index] for index in atom))
    # What nobody will answer any more is out from the start.
    waiting = {alive[at] for at in pairing.pending_calls(-1)} if pairing is not None else set()
    return sorted(atoms, key=waiting.isdisjoint) if waiting else atoms


def pending_of(block: Block, items: Sequence[BlockItem], alive: Sequence[int]) -> list[list[int]]:
    """The atoms with a tool call that explicitly awaits an approval, as they stand in `survivors_of`."""
    pairing = pairing_of([items[index] for index in alive])
    waiting = {alive[at] for at in pairing.pending_calls(-1)}
    return [atom for atom in survivors_of(block, items, alive) if not waiting.isdisjoint(atom)]


def _score(item: BlockItem) -> tuple[bool, float]:
    return not item.profile, -item.score if item.score is not None else float("inf")
