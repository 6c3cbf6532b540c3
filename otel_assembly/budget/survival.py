"""In which order the items of a block give way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.budget.allocation import atoms_of
from otel_assembly.budget.block import Block, BlockItem, Cut
from otel_assembly.budget.sections import by_rank

if TYPE_CHECKING:
    from collections.abc import Sequence


def survivors_of(block: Block, items: Sequence[BlockItem], alive: Sequence[int]) -> list[list[int]]:
    """The block's atoms, the one that is cut last first."""
    atoms = [[alive[at] for at in atom] for atom in atoms_of([items[index] for index in alive]).values()]
    if block.cut is Cut.OLDEST:
        return atoms[::-1]
    if block.cut is Cut.SCORE:
        return sorted(atoms, key=lambda atom: (min(_score(items[index]) for index in atom), atom[0]))
    place = {index: at for at, index in enumerate(by_rank(items, alive))}
    return sorted(atoms, key=lambda atom: min(place[index] for index in atom))


def _score(item: BlockItem) -> tuple[bool, float]:
    return not item.profile, -item.score if item.score is not None else float("inf")
