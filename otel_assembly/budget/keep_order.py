"""Groups a block's items into atoms (items that are kept or dropped together), and sorts the atoms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.budget.block import Block, BlockItem, Cut
from otel_assembly.budget.sections import by_rank
from otel_assembly.history.tool_pairs import Pairing
from otel_assembly.messages.event_facts import EventFacts, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TEXT = EventFacts(EventKind.OTHER)


def survivors_of(
    block: Block, items: Sequence[BlockItem], indexes: Sequence[int], pairing: Pairing | None
) -> list[list[int]]:
    """Return a block's atoms, the most important first; if room is short, atoms are dropped from the end of the list.

    `Block.cut` determines the importance. Atoms with a tool call that awaits a human's approval come first; they are
    never dropped.

    Args:
        block: The block.
        items: All items of the block.
        indexes: Indexes of the items to group, ascending; excluded items are not among them.
        pairing: The tool pairs among these items; None if all are texts.

    Returns:
        The atoms, each a list of item indexes.
    """
    remaining = [items[index] for index in indexes]
    atoms = [[indexes[position] for position in atom] for atom in atoms_of(remaining, pairing).values()]
    if block.cut is Cut.OLDEST:
        atoms.reverse()
    elif block.cut is Cut.SCORE:
        atoms.sort(key=lambda atom: (min(_score(items[index]) for index in atom), atom[0]))
    else:
        rank_of = {index: position for position, index in enumerate(by_rank(items, indexes))}
        atoms.sort(key=lambda atom: min(rank_of[index] for index in atom))
    # −1 (no response of the model follows): abandoned calls are already excluded, so each unanswered call is pending.
    pending = {indexes[position] for position in pairing.pending_calls(-1)} if pairing is not None else set()
    return sorted(atoms, key=pending.isdisjoint) if pending else atoms


def _score(item: BlockItem) -> tuple[bool, float]:
    return not item.profile, -item.score if item.score is not None else float("inf")


def atoms_of(items: Sequence[BlockItem], pairing: Pairing | None) -> dict[int, list[int]]:
    """Group items into atoms, which are kept or dropped together.

    An atom is a tool call with its results, the items with one `BlockItem.group`, or a single item. A group that
    contains an item of a tool pair contains the whole pair.

    Args:
        items: The items.
        pairing: The tool pairs among these items; None if all are texts.

    Returns:
        The indexes of each atom's items, by the index of the first one.
    """
    if pairing is None and all(item.group is None for item in items):
        return {index: [index] for index in range(len(items))}
    leaders = list(range(len(items))) if pairing is None else list(pairing.atoms)
    groups: dict[str, int] = {}

    def leader_of(index: int) -> int:
        while leaders[index] != index:
            index = leaders[index]
        return index

    for index, item in enumerate(items):
        if item.group is not None:
            group_leader, leader = leader_of(groups.setdefault(item.group, index)), leader_of(index)
            leaders[max(group_leader, leader)] = min(group_leader, leader)
    atoms: dict[int, list[int]] = {}
    for index in range(len(items)):
        # An atom's first item precedes the others, so its own entry is already final.
        leaders[index] = leader_of(index)
        atoms.setdefault(leaders[index], []).append(index)
    return atoms


def pairing_of(facts: Iterable[EventFacts | None]) -> Pairing:
    """Return the tool pairs among items, from the facts of each item; None stands for a text."""
    pairing = Pairing()
    for item_facts in facts:
        pairing.append(_TEXT if item_facts is None else item_facts)
    return pairing
