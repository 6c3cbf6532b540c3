"""What a selection of a conversation leaves without its other half: pairs cut in two, and restatements of what is gone.

A filter that takes items out of the middle asks this; a conversation that only grows, or is cut at its end, does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.history.tool_pairs import ANSWERS, ASKS, ECHO, ORPHAN, PAIRED, Pairing, broken_atoms
from otel_assembly.history.view import Run, is_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from otel_assembly.history.history import History


def unpaired(pairing: Pairing, newest_first: Iterable[int], newest_response: int) -> set[int]:
    """Positions, of a selection of a conversation, that have lost the other half of their pair in it.

    One pass from the newest item backwards; the cost is that of the selection.

    Args:
        pairing: The pairs of the conversation.
        newest_first: The selection.
        newest_response: The newest response of what was selected from.
    """
    atoms, flags, links, incomplete = pairing.atoms, pairing.flags, pairing.links, pairing.incomplete
    lost: set[int] = set()
    paired = [position for position in newest_first if flags[position] & PAIRED]
    asked: set[int] = set()
    balance: dict[int, int] = {}
    for position in paired:
        flag, atom = flags[position], atoms[position]
        if flag & ANSWERS:
            balance[atom] = balance.get(atom, 0) - links[position]
        elif flag & ASKS:
            asked.add(atom)
            balance[atom] = balance.get(atom, 0) + links[position]
        elif flag & ORPHAN:
            lost.add(position)
        else:
            balance.setdefault(atom, 0)
    doubtful = {
        atom
        for atom, rest in balance.items()
        if rest or atom not in asked or atom in incomplete or pairing.is_joined(atom)
    }
    if doubtful:
        of_doubt = [position for position in paired if atoms[position] in doubtful]
        lost.update(_broken(pairing, of_doubt, newest_response))
    return lost


def _broken(pairing: Pairing, positions: list[int], newest_response: int) -> Iterator[int]:
    """Of items in atoms that may have lost some of theirs, those in atoms that have."""
    atoms, flags, links = pairing.atoms, pairing.flags, pairing.links
    opened: dict[int, int] = {}
    closed: dict[int, int] = {}
    for position in positions:
        side = closed if flags[position] & ANSWERS else opened
        side[atoms[position]] = side.get(atoms[position], 0) + links[position]
    for position in positions:
        atom = atoms[position]
        lost = pairing.has_lost_some(atom, opened.get(atom, 0), closed.get(atom, 0))
        if (lost or not pairing.is_sendable(position, newest_response)) and not flags[position] & ORPHAN:
            yield position


def echoes_stand(history: History, runs: Sequence[Run]) -> bool:
    """Whether every restatement in these runs still has what it restates in front of it."""
    return all(_restates_still(history, runs, atom) for atom in broken_atoms(history.pairing, runs))


def _restates_still(history: History, runs: Sequence[Run], atom: int) -> bool:
    whole = history.pairing.members(atom)
    kept = [position for position in whole if is_in(runs, position)]
    if len(kept) == len(whole) or not any(history.flags(position) & ECHO for position in kept):
        return True
    pairing = Pairing()
    read = [pairing.append(history.facts(position)) for position in kept]
    return all(now & ECHO for position, now in zip(kept, read, strict=True) if history.flags(position) & ECHO)
