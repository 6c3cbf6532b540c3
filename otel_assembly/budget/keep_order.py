"""Which items of a block belong together, and in which order they give way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.budget.block import Block, BlockItem, Cut
from otel_assembly.budget.sections import by_rank, is_text
from otel_assembly.messages.describe import EventFacts, EventKind, describe
from otel_assembly.messages.tool_pairs import Pairing

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


def atoms_of(items: Sequence[BlockItem], pairing: Pairing | None = None) -> dict[int, list[int]]:
    """The items that are kept or dropped together, by the first of them: groups, and tool calls with their results.

    A group that holds a part of a tool call's atom holds all of it.

    Args:
        items: The items.
        pairing: Which result answers which call among them, if that is known already.
    """
    apart = all(map(is_text, items))
    if apart and all(item.group is None for item in items):
        return {index: [index] for index in range(len(items))}
    leaders = list(range(len(items))) if apart else list((pairing or pairing_of(items)).atoms)
    groups: dict[str, int] = {}

    def leader_of(index: int) -> int:
        while leaders[index] != index:
            index = leaders[index]
        return index

    for index, item in enumerate(items):
        if item.group is not None:
            one, other = leader_of(groups.setdefault(item.group, index)), leader_of(index)
            leaders[max(one, other)] = min(one, other)
    atoms: dict[int, list[int]] = {}
    for index in range(len(items)):
        # A leader stands before all who follow it, so each is looked up once.
        leaders[index] = leader_of(index)
        atoms.setdefault(leaders[index], []).append(index)
    return atoms


def pairing_of(items: Sequence[BlockItem]) -> Pairing:
    """Which result answers which call, in one block."""
    pairing = Pairing()
    for item in items:
        pairing.append(EventFacts(EventKind.OTHER) if is_text(item) else describe(item.content))
    return pairing
