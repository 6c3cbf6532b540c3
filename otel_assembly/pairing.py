"""Which tool result answers which tool call: one rule, in one place, that every reducer uses.

A result pairs with the nearest earlier unanswered call of its id, for ids repeat within conversations. A call with all
its results is an *atom*, kept or dropped together; so is any other event, alone. A result that finds no open call is an
orphan for good. A call without a result is *pending* while no later response exists, or while it explicitly awaits an
approval; else it is an orphan until its result comes, however late.

`Pairing` reads a conversation once, as it grows. `unpaired` looks at a selection of it, from the newest item backwards.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Final

from otel_assembly.facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.facts import EventFacts

#: Flags of an item.
ORPHAN: Final = 1
ECHO: Final = 2
AWAITING: Final = 4
MEDIA: Final = 8
ANSWERS: Final = 16
ASKS: Final = 32
RESPONSE: Final = 64

#: An event that restates a result comes soon after it: only so many answered calls are remembered for it.
_ECHO_MEMORY: Final = 512


class Pairing:
    """Atoms and orphans of a growing conversation; items are named by position.

    Attributes:
        atoms: The position of the first item of each item's atom.
        flags: `ORPHAN`, `ECHO`, `AWAITING`, `ASKS`, `ANSWERS` of each item.
        links: How many calls an item opens, or how many it closes.
        incomplete: Of each atom with unanswered calls, by its position: all its items so far.
        last_response: The position of the newest response; −1 while there is none.
    """

    __slots__ = ("_answered", "_open", "_unanswered", "atoms", "flags", "incomplete", "last_response", "links")

    def __init__(self) -> None:
        self.atoms = array("I")
        self.flags = array("B")
        self.links = array("H")
        self.incomplete: dict[int, list[int]] = {}
        self.last_response = -1
        self._open: dict[str, list[int]] = {}
        self._unanswered: dict[int, int] = {}
        self._answered: deque[tuple[str, int]] = deque(maxlen=_ECHO_MEMORY)

    def append(self, facts: EventFacts) -> int:
        """Take the next item; its flags are returned."""
        position = len(self.atoms)
        atom, flags, links = position, 0, 0
        if facts.opens:
            atom, flags, links = self._call(position, facts)
        elif facts.closes:
            atom, flags, links = self._result(position, facts)
        if facts.kind == EventKind.RESPONSE:
            self.last_response = position
            flags |= RESPONSE
        if facts.media_tokens:
            flags |= MEDIA
        self.atoms.append(atom)
        self.flags.append(flags)
        self.links.append(min(links, 0xFFFF))
        return flags

    def _call(self, position: int, facts: EventFacts) -> tuple[int, int, int]:
        if facts.restates and all(self._open.get(call) for call in facts.opens):
            atom = self._open[facts.opens[0]][-1]
            self.incomplete[atom].append(position)
            return atom, ECHO | (AWAITING if facts.awaiting else 0), 0
        for call in facts.opens:
            self._open.setdefault(call, []).append(position)
        self._unanswered[position] = len(facts.opens)
        self.incomplete[position] = [position]
        return position, ASKS | (AWAITING if facts.awaiting else 0), len(facts.opens)

    def _result(self, position: int, facts: EventFacts) -> tuple[int, int, int]:
        taken: list[tuple[str, int]] = []
        echoed = -1
        for call in facts.closes:
            waiting = self._open.get(call)
            if waiting:
                taken.append((call, waiting.pop()))
            elif facts.restates and (echoed := self._echoed(call)) >= 0:
                continue
            else:
                for untaken, atom in reversed(taken):
                    self._open[untaken].append(atom)
                return position, ORPHAN, 0
        if not taken:
            return echoed, ECHO, 0
        for call, atom in taken:
            if not self._open.get(call, True):
                del self._open[call]
            self._answered.append((call, atom))
        atoms = [atom for _, atom in taken]
        first = min(atoms)
        for atom in set(atoms) - {first}:
            self._join(atom, first)
        self.incomplete[first].append(position)
        self._unanswered[first] -= len(atoms)
        if self._unanswered[first] == 0:
            del self._unanswered[first], self.incomplete[first]
        return first, ANSWERS, len(atoms)

    def _echoed(self, call: str) -> int:
        return next((atom for answered, atom in reversed(self._answered) if answered == call), -1)

    def _join(self, atom: int, first: int) -> None:
        """One result answered calls of two responses: they are one atom from now on."""
        for position in self.incomplete[atom]:
            self.atoms[position] = first
        self.incomplete[first] = sorted(self.incomplete[first] + self.incomplete.pop(atom))
        self._unanswered[first] += self._unanswered.pop(atom)
        for waiting in self._open.values():
            waiting[:] = [first if one == atom else one for one in waiting]

    def awaiting(self) -> list[int]:
        """Items of the atoms with a call that explicitly awaits an approval and has no result yet, in order."""
        return sorted(
            position
            for members in self.incomplete.values()
            if any(self.flags[member] & AWAITING for member in members)
            for position in members
        )

    def orphaned_calls(self, end: int) -> list[int]:
        """Items of the atoms that a call without a result makes unsendable, in a conversation of `end` items."""
        found: list[int] = []
        for members in self.incomplete.values():
            newest_ask = max(member for member in members if self.flags[member] & ASKS)
            if newest_ask >= self.last_response or any(self.flags[member] & AWAITING for member in members):
                continue
            found += (member for member in members if member < end)
        return sorted(found)


def unpaired(pairing: Pairing, newest_first: Iterable[int]) -> set[int]:
    """Positions, of a selection of a conversation, that have lost the other half of their pair in it.

    One pass from the newest item backwards, for results follow their calls; the cost is that of the selection.
    """
    atoms, flags, links = pairing.atoms, pairing.flags, pairing.links
    members: dict[int, list[int]] = {}
    lost: set[int] = set()
    newest_response = -1
    asked: dict[int, int] = {}
    answered: dict[int, int] = {}
    newest_ask: dict[int, int] = {}
    waiting: set[int] = set()
    for position in newest_first:
        flag = flags[position]
        if newest_response < 0 and flag & RESPONSE:
            newest_response = position
        if flag & ORPHAN:
            lost.add(position)
        if not flag & (ASKS | ANSWERS | ECHO):
            continue
        atom = atoms[position]
        members.setdefault(atom, []).append(position)
        if flag & AWAITING:
            waiting.add(atom)
        if flag & ANSWERS:
            answered[atom] = answered.get(atom, 0) + links[position]
        elif flag & ASKS:
            asked[atom] = asked.get(atom, 0) + links[position]
            newest_ask.setdefault(atom, position)
    for atom, positions in members.items():
        opened, closed = asked.get(atom, 0), answered.get(atom, 0)
        pending = opened and (newest_ask[atom] >= newest_response or atom in waiting)
        if opened != closed and not (pending and closed < opened):
            lost.update(positions)
        elif not opened:
            lost.update(positions)  # echoes alone
    return lost


def broken_pairs(facts: Sequence[EventFacts]) -> list[int]:
    """Positions, in events as they would be sent, of a result without its call or a call without its result.

    An independent check for tests and reports: it reads the facts afresh and goes by positions, never by a set of ids.
    """
    open_calls: dict[str, list[int]] = {}
    broken: list[int] = []
    last_response = max((i for i, one in enumerate(facts) if one.kind == EventKind.RESPONSE), default=-1)
    restated: set[str] = set()
    for position, one in enumerate(facts):
        for call in one.opens:
            if not (one.restates and open_calls.get(call)):
                open_calls.setdefault(call, []).append(position)
        for call in one.closes:
            if open_calls.get(call):
                open_calls[call].pop()
                restated.add(call)
            elif not (one.restates and call in restated):
                broken.append(position)
    for call, positions in open_calls.items():
        broken += (p for p in positions if p < last_response and call not in facts[p].awaiting)
    return sorted(set(broken))
