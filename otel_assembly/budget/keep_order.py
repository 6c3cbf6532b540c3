"""Groups a block's items into atoms, in the order in which atoms are dropped."""

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
    block: Block, items: Sequence[BlockItem], alive: Sequence[int], pairing: Pairing | None
) -> list[list[int]]:
    """Return a block's atoms, from the last to the first that is dropped.

    Atoms with a tool call that awaits an approval come first; they are never dropped.

    Args:
        block: The block.
        items: All its items.
        alive: Indexes of the items that are not excluded beforehand.
        pairing: The tool pairs among those items; None if all are texts.
    """
    remaining = [items[index] for index in alive]
    atoms = [[alive[at] for at in atom] for atom in atoms_of(remaining, pairing).values()]
    if block.cut is Cut.OLDEST:
        atoms.reverse()
    elif block.cut is Cut.SCORE:
        atoms.sort(key=lambda atom: (min(_score(items[index]) for index in atom), atom[0]))
    else:
        place = {index: at for at, index in enumerate(by_rank(items, alive))}
        atoms.sort(key=lambda atom: min(place[index] for index in atom))
    # −1: abandoned calls are excluded beforehand, so every call that remains is pending.
    pending = {alive[at] for at in pairing.pending_calls(-1)} if pairing is not None else set()
    return sorted(atoms, key=pending.isdisjoint) if pending else atoms


def _score(item: BlockItem) -> tuple[bool, float]:
    return not item.profile, -item.score if item.score is not None else float("inf")


def atoms_of(items: Sequence[BlockItem], pairing: Pairing | None) -> dict[int, list[int]]:
    """Return the items that are kept or dropped together, by each atom's first item.

    An atom is a tool call with its results, or a group of items. A group that contains an item of a tool pair contains
    the whole pair.

    Args:
        items: The items.
        pairing: The tool pairs among those items; None if all are texts.
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
        # A leader precedes its members, so it is already resolved.
        leaders[index] = leader_of(index)
        atoms.setdefault(leaders[index], []).append(index)
    return atoms


def pairing_of(facts: Iterable[EventFacts | None]) -> Pairing:
    """Return the tool pairs among items, given each item's facts; None means a text."""
    pairing = Pairing()
    for item_facts in facts:
        pairing.append(_TEXT if item_facts is None else item_facts)
    return pairing
