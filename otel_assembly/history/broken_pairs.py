"""What a selection of a conversation leaves without its other half: pairs cut in two, and restatements of what is gone.

A filter that takes items out of the middle asks this; a conversation that only grows, or is cut at its end, does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.history.tool_pairs import ANSWERS, CALLS, ECHO, PAIRED, REASONED, Pairing, broken_atoms
from otel_assembly.history.view import Run, is_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.history.history import History


def unpaired(pairing: Pairing, newest_first: Iterable[int], newest_response: int) -> set[int]:
    """Positions, of a selection of a conversation, that have lost the other half of their pair in it.

    One pass from the newest item backwards; the cost is that of the selection.

    Args:
        pairing: The pairs of the conversation.
        newest_first: The selection.
        newest_response: The newest response of what was selected from.
    """
    atoms, flags, links = pairing.atoms, pairing.flags, pairing.links
    paired = [position for position in newest_first if flags[position] & PAIRED]
    opened: dict[int, int] = {}
    closed: dict[int, int] = {}
    reasoned: dict[int, int] = {}
    for position in paired:
        if flags[position] & REASONED:
            reasoned[atoms[position]] = reasoned.get(atoms[position], 0) + 1
            if not flags[position] & CALLS:
                continue
        side, atom = closed if flags[position] & ANSWERS else opened, atoms[position]
        side[atom] = side.get(atom, 0) + links[position]
    lost: set[int] = set()
    for atom in opened.keys() | closed:
        asked, answered = opened.get(atom, 0), closed.get(atom, 0)
        if (not asked or asked != answered or atom in pairing.incomplete or atom in pairing.joined) and (
            pairing.has_lost_some(atom, asked, answered) or not pairing.is_sendable(atom, newest_response)
        ):
            lost.add(atom)
    for atom, count in reasoned.items():
        if count != pairing.reasoned[atom] or not pairing.is_sendable(atom, newest_response):
            lost.add(atom)
    return {position for position in paired if atoms[position] in lost} if lost else lost


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
