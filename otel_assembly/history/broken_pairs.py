"""Find items whose counterpart is not in a selection: tool pairs cut in two, and echoes without their original.

Only filters that remove items from the middle need this. A conversation that only grows has no such items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.history.tool_pairs import CALLS, CLOSES, ECHO, PAIRED, REASONED, Pairing, broken_atoms
from otel_assembly.history.view import Run, is_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.history.history import History


def unpaired(pairing: Pairing, newest_first: Iterable[int], newest_response: int) -> set[int]:
    """Return the selected positions that may not be sent.

    Either the selection has only a part of their atom, or the atom has an abandoned call. The cost is proportional to
    the selection, not to the conversation.

    Args:
        pairing: The pairs of the conversation.
        newest_first: The positions of the selection, newest first.
        newest_response: The position of the newest response in the view that the selection was made from; −1 if that
            has none. Earlier calls without a result are abandoned.
    """
    atoms, flags, links = pairing.atoms, pairing.flags, pairing.links
    paired = [position for position in newest_first if flags[position] & PAIRED]
    # By atom, the number of its calls, of its answered calls and of its reasoning items in the selection.
    opened: dict[int, int] = {}
    closed: dict[int, int] = {}
    reasoned: dict[int, int] = {}
    for position in paired:
        if flags[position] & REASONED:
            reasoned[atoms[position]] = reasoned.get(atoms[position], 0) + 1
            if not flags[position] & CALLS:
                continue
        side, atom = closed if flags[position] & CLOSES else opened, atoms[position]
        side[atom] = side.get(atom, 0) + links[position]
    unsendable: set[int] = set()
    for atom in opened.keys() | closed:
        calls, answers = opened.get(atom, 0), closed.get(atom, 0)
        # An atom of one call item with as many answers is complete; the exact checks are for all others.
        if (not calls or calls != answers or atom in pairing.incomplete or atom in pairing.joined) and (
            pairing.is_cut(atom, calls, answers) or not pairing.is_sendable(atom, newest_response)
        ):
            unsendable.add(atom)
    for atom, count in reasoned.items():
        if count != pairing.reasoned[atom] or not pairing.is_sendable(atom, newest_response):
            unsendable.add(atom)
    return {position for position in paired if atoms[position] in unsendable} if unsendable else unsendable


def echoes_stand(history: History, runs: Sequence[Run]) -> bool:
    """Return True if every echo in these runs has the call or result that it restates earlier in the runs."""
    return all(_has_originals(history, runs, atom) for atom in broken_atoms(history.pairing, runs))


def _has_originals(history: History, runs: Sequence[Run], atom: int) -> bool:
    """Return True if the echoes of one atom are still echoes when only the atom's items in these runs are paired."""
    members = history.pairing.members(atom)
    kept = [position for position in members if is_in(runs, position)]
    if len(kept) == len(members) or not any(history.flags(position) & ECHO for position in kept):
        return True
    pairing = Pairing()
    new_flags = [pairing.append(history.facts(position)) for position in kept]
    return all(flags & ECHO for position, flags in zip(kept, new_flags, strict=True) if history.flags(position) & ECHO)
