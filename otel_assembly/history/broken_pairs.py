"""Pairs that a part of a conversation has lost the other half of: found at its edges, not by reading all of it."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from otel_assembly._internal.intervals import is_in, to_runs
from otel_assembly.history.view import Column
from otel_assembly.messages.describe import EventFacts, EventKind
from otel_assembly.messages.tool_pairs import ECHO, RESPONSE, Pairing, broken_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly._internal.intervals import Run
    from otel_assembly.history.history import History
    from otel_assembly.history.view import View


def broken_in(view: View) -> int:
    """Tool results without their call, and tool calls without their results, among the events of a view.

    What pairs with what is as in the whole conversation. A call is no broken pair while no later response is in the
    view, nor while it explicitly awaits an approval.
    """
    history, runs = view.history, runs_of(view)
    if not runs:
        return 0
    last, cut_through = _newest_response(history, runs), broken_atoms(history, runs)
    orphans, broken = history.orphans, 0
    if len(orphans):
        broken = sum(orphans.index(stop) - orphans.index(start) for start, stop in runs)
    given_up = history.pairing.given_up
    for start, stop in runs:
        asks = given_up[bisect_left(given_up, start) : bisect_left(given_up, min(stop, max(last, 0)))]
        broken += sum(history.atom(ask) not in cut_through for ask in asks)
    for atom in cut_through:
        broken += _broken_of(history, runs, atom, last)
    return broken


def runs_of(view: View) -> list[Run]:
    """A view's positions, as runs ``[start, stop)``."""
    if all(type(column) is Column for column, _, _ in view.segments):
        return [(start, stop) for _, start, stop in view.segments]
    return to_runs(view.positions())


def broken_atoms(history: History, runs: Sequence[Run]) -> set[int]:
    """The atoms of which some items stand in these runs and others may not."""
    atoms, max_atom_span = history.pairing.atoms, history.max_atom_span
    if not max_atom_span:
        return set()
    end = len(atoms)
    edges = {edge for run in runs for edge in run if 0 < edge < end}
    return {atom for edge in edges for atom in atoms[edge : edge + max_atom_span] if atom < edge}


def echoes_stand(history: History, runs: Sequence[Run]) -> bool:
    """Whether every restatement in these runs still has what it restates in front of it."""
    return all(_restates_still(history, runs, atom) for atom in broken_atoms(history, runs))


def _restates_still(history: History, runs: Sequence[Run], atom: int) -> bool:
    whole = list(members(history, atom))
    kept = [position for position in whole if is_in(runs, position)]
    if len(kept) == len(whole) or not any(history.flags(position) & ECHO for position in kept):
        return True
    pairing = Pairing()
    read = [pairing.append(history.facts(position)) for position in kept]
    return all(now & ECHO for position, now in zip(kept, read, strict=True) if history.flags(position) & ECHO)


def members(history: History, atom: int) -> Iterable[int]:
    """The items of an atom, in order."""
    atoms = history.pairing.atoms
    return (
        position for position, one in enumerate(atoms[atom : atom + history.max_atom_span + 1], atom) if one == atom
    )


def _broken_of(history: History, runs: Sequence[Run], atom: int, last: int) -> int:
    kept = [position for position in members(history, atom) if is_in(runs, position)]
    facts = list(map(history.facts, kept))
    if last >= 0 and last not in kept:
        facts.insert(bisect_left(kept, last), EventFacts(EventKind.RESPONSE))
    return len(broken_pairs(facts))


def _newest_response(history: History, runs: Sequence[Run]) -> int:
    if is_in(runs, history.pairing.last_response):
        return history.pairing.last_response
    if history.pairing.last_response < runs[0][0]:
        return -1
    flags = history.pairing.flags
    for start, stop in reversed(runs):
        for position in range(stop - 1, start - 1, -1):
            if flags[position] & RESPONSE:
                return position
    return -1
