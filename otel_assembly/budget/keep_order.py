"""Which items of a block belong together, and in which order they give way."""

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
    """The block's atoms, the one that is cut last first.

    Before all of them stand those with a tool call that explicitly awaits an approval, which are not cut at all.

    Args:
        block: The block.
        items: All its items.
        alive: Indexes of those that are not out from the start.
        pairing: Which result answers which call among those; None where all are texts.
    """
    held = [items[index] for index in alive]
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


def _score(item: BlockItem) -> tuple[bool, float]:
    return not item.profile, -item.score if item.score is not None else float("inf")


def atoms_of(items: Sequence[BlockItem], pairing: Pairing | None) -> dict[int, list[int]]:
    """The items that are kept or dropped together, by the first of them: groups, and tool calls with their results.

    A group that holds a part of a tool call's atom holds all of it.

    Args:
        items: The items.
        pairing: Which result answers which call among them; None where all are texts.
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
            one, other = leader_of(groups.setdefault(item.group, index)), leader_of(index)
            leaders[max(one, other)] = min(one, other)
    atoms: dict[int, list[int]] = {}
    for index in range(len(items)):
        # A leader stands before all who follow it, so each is looked up once.
        leaders[index] = leader_of(index)
        atoms.setdefault(leaders[index], []).append(index)
    return atoms


def pairing_of(facts: Iterable[EventFacts | None]) -> Pairing:
    """Which result answers which call, by what each item says; None stands for a text."""
    pairing = Pairing()
    for one in facts:
        pairing.append(_TEXT if one is None else one)
    return pairing
