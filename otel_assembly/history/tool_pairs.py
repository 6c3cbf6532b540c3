"""Pair tool results with tool calls: the one rule that every policy uses.

- A result answers the nearest earlier unanswered call with its id, because ids repeat within conversations. A result
  without such a call is *orphaned*, and stays so.
- An *atom* is a set of items that are kept or dropped together: an item with calls and all their results, or any other
  item alone. Reasoning that is an item of its own belongs to the atom of the next item (a message or a call), because
  providers reject either without the other.
- A call without a result is *pending* until a later response exists, or while it explicitly awaits an approval; its
  whole message is then pending. Otherwise it is *abandoned* until a late result answers it.
- An *echo* restates a call or a result, and belongs to the atom that it restates. If it restates several atoms, they
  become one.

`Pairing` reads a conversation once, as it grows. The functions below find items whose counterpart is not in a view;
only filters that remove items from the middle need them. Their cost depends on the view's edges, not on its length.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from itertools import compress, filterfalse, takewhile
from typing import TYPE_CHECKING, Final

from otel_assembly.messages.event_facts import EventFacts, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.history.view import View

#: Flags of an item. An orphan is a result without a call; an abandoned call is not flagged, since it may be answered.
ORPHAN: Final = 1
ECHO: Final = 2
#: Reasoning, or the item that follows it.
REASONED: Final = 4
MEDIA: Final = 8
#: The item answers tool calls.
CLOSES: Final = 16
#: The item requests tool calls.
OPENS: Final = 32
RESPONSE: Final = 64
#: The flags of an item that can belong to an atom of several items.
PAIRED: Final = ORPHAN | ECHO | REASONED | CLOSES | OPENS
#: The flags of an item that requests, answers or restates tool calls.
CALLS: Final = ORPHAN | ECHO | CLOSES | OPENS

_RESPONSE: Final = EventKind.RESPONSE
_TOOL_RESULT: Final = EventKind.TOOL_RESULT
#: The kinds of a model's output; reasoning belongs to the next item of these kinds.
_OUTPUT: Final = frozenset({EventKind.RESPONSE, EventKind.TOOL_CALL})
#: The kinds that are not sent, so that they do not separate reasoning from the next item.
_UNSENT: Final = frozenset({EventKind.ALERT, EventKind.OTHER})
#: The most ids of answered calls that are kept to recognize echoes of results, which follow their results closely.
_MOST_ANSWERED: Final = 4096


class Pairing:
    """The atoms and orphans of a growing conversation. Items are given by their position in it.

    Attributes:
        atoms: By item, its atom: the position of the atom's first item.
        flags: By item, its flags (`ORPHAN`, `ECHO`, `OPENS`, `CLOSES`, …).
        links: By item, the number of calls that it requests or answers; at most 65535.
        incomplete: By atom with unanswered calls, its items so far.
        joined: The atoms that were joined from several.
        reasoned: The atoms with reasoning.
        dangling: The atoms of reasoning that no item of the same answer follows.
        changed: The atoms that became complete, gained reasoning, or were joined or separated; once per change.
        affected_atoms: The items of each atom that the newest item may have made sendable or unsendable.
        last_response: The position of the newest response; −1 while there is none.
        span: The largest distance of an item from the first item of its atom.
        unanswered: By item, the number of its unanswered calls; ascending.
    """

    def __init__(self) -> None:
        self.atoms = array("I")
        self.flags = array("B")
        self.links = array("H")
        self.incomplete: dict[int, list[int]] = {}
        self.changed = array("I")
        self.affected_atoms: Sequence[Sequence[int]] = ()
        self.last_response = -1
        self.span = 0
        #: By call id, the items with an unanswered call of this id, oldest first.
        self._open: dict[str, list[int]] = {}
        self.unanswered: dict[int, int] = {}
        #: By item, the ids of its unanswered calls that explicitly await an approval.
        self._awaits: dict[int, list[str]] = {}
        self.joined: set[int] = set()
        #: By id of an answered call, the item that requested it.
        self._answered: OrderedDict[str, int] = OrderedDict()
        self.reasoned: set[int] = set()
        self.dangling: set[int] = set()
        #: The reasoning at the end, which belongs to the next item.
        self._last_reasoning: list[int] = []
        #: Whether the newest item that is sent is part of a model's answer.
        self._in_answer = False

    def frozen(self) -> Pairing:
        """Return a copy to query while the original grows. No item may be appended to the copy."""
        copied = Pairing()
        copied.atoms, copied.flags, copied.links = self.atoms[:], self.flags[:], self.links[:]
        copied.incomplete = {atom: list(members) for atom, members in self.incomplete.items()}
        copied.last_response, copied.span = self.last_response, self.span
        copied.unanswered, copied.dangling = dict(self.unanswered), set(self.dangling)
        copied._awaits = {caller: list(calls) for caller, calls in self._awaits.items()}
        return copied

    def append(self, facts: EventFacts) -> int:
        """Add the next item and return its flags."""
        position = len(self.atoms)
        atom, flags, links = position, 0, 0
        kind = facts.kind
        self.affected_atoms = ()
        if facts.opens:
            atom, flags, links = self._add_call(position, facts)
        elif facts.closes or kind == _TOOL_RESULT:
            atom, flags, links = self._add_result(position, facts)
        # Reasoning between the calls of one answer abandons none of them, because they still run.
        if kind == _RESPONSE and not (facts.is_reasoning and self._in_answer):
            self._abandon_calls(position)
            flags |= RESPONSE
        if facts.is_reasoning or self._last_reasoning:
            atom, flags = self._join_reasoning(position, atom, flags, facts)
        if kind not in _UNSENT:
            self._in_answer = kind in _OUTPUT
        if facts.media_tokens:
            flags |= MEDIA
        if atom != position:
            self.span = max(self.span, position - atom)
        self.atoms.append(atom)
        self.flags.append(flags)
        self.links.append(links if links < 0xFFFF else 0xFFFF)
        return flags

    def _join_reasoning(self, position: int, atom: int, flags: int, facts: EventFacts) -> tuple[int, int]:
        """Join an item with the reasoning before it, and return the item's atom and flags."""
        reasoning = self._last_reasoning
        if not reasoning:
            reasoning.append(position)
            self.reasoned.add(position)
            return position, flags | REASONED
        first = reasoning[0]
        if facts.is_reasoning:
            reasoning.append(position)
        elif facts.kind not in _OUTPUT or flags & ORPHAN:
            if facts.kind not in _UNSENT:
                self.dangling.add(first)
                self.changed.append(first)
                self.affected_atoms = [*self.affected_atoms, reasoning[:]]
                self._last_reasoning = []
            return atom, flags
        elif flags & ECHO:
            return atom, flags
        else:
            self._last_reasoning = []
            if atom != position:  # it answers calls of an earlier atom
                first = self._join({first, atom})
            elif position in self.incomplete:
                self.incomplete[first] = [*reasoning, *self.incomplete.pop(position)]
        self.changed.append(first)
        return first, flags | REASONED

    def answered_by(self, facts: EventFacts) -> list[int]:
        """Return, for each call that a possible next item answers, the item that requested the call.

        −1 if no such call is unanswered: the answer is then an echo or an orphan.
        """
        callers = {call: list(self._open.get(call, ())) for call in facts.closes}
        return [callers[call].pop() if callers[call] else -1 for call in facts.closes]

    def _add_call(self, position: int, facts: EventFacts) -> tuple[int, int, int]:
        """Add an item that requests or restates calls, and return its atom, flags and links."""
        if facts.restates and all(self._open.get(call) for call in facts.opens):
            callers = {call: self._open[call][-1] for call in facts.opens}
            for call in facts.awaiting:
                awaits = self._awaits.setdefault(callers[call], [])
                if call not in awaits:
                    awaits.append(call)
            atom = self._join({self.atoms[caller] for caller in callers.values()})
            self.incomplete[atom].append(position)
            self.affected_atoms = [self.incomplete[atom]]
            return atom, ECHO, 0
        for call in facts.opens:
            self._open.setdefault(call, []).append(position)
        awaiting = [call for call in facts.awaiting if call in facts.opens]
        if awaiting:
            self._awaits[position] = awaiting
        self.unanswered[position] = len(facts.opens)
        self.incomplete[position] = [position]
        return position, OPENS, len(facts.opens)

    def _add_result(self, position: int, facts: EventFacts) -> tuple[int, int, int]:
        """Add an item with results, and return its atom, flags and links; an orphan if one result has no call."""
        answered: list[tuple[str, int]] = []
        callers: set[int] = set()
        for call in facts.closes:
            unanswered = self._open.get(call)
            if unanswered:
                answered.append((call, unanswered.pop()))
                callers.add(answered[-1][1])
            elif facts.restates and call in self._answered:
                callers.add(self._answered[call])
            else:
                callers.clear()
                break
        if not callers:
            for call, caller in reversed(answered):
                self._open[call].append(caller)
            return position, ORPHAN, 0
        atom = self._join({self.atoms[caller] for caller in callers})
        for call, caller in answered:
            self._answer(call, caller)
        if atom in self.incomplete:
            self.incomplete[atom].append(position)
            self.affected_atoms = [self.incomplete[atom]]
            if self.unanswered.keys().isdisjoint(self.incomplete[atom]):
                del self.incomplete[atom]
                self.changed.append(atom)
        return atom, CLOSES if answered else ECHO, len(answered)

    def _answer(self, call: str, caller: int) -> None:
        """Count a call of an item as answered; `_open` does not have it any more."""
        unanswered = self._open.get(call, ())
        if not unanswered:
            self._open.pop(call, None)
        self.unanswered[caller] -= 1
        if not self.unanswered[caller]:
            del self.unanswered[caller]
        awaits = self._awaits.get(caller)
        if awaits:
            # If an item has two calls of one id, the one that awaits no approval is answered first.
            while awaits.count(call) > unanswered.count(caller):
                awaits.remove(call)
            if not awaits:
                del self._awaits[caller]
        self._answered[call] = caller
        self._answered.move_to_end(call)
        if len(self._answered) > _MOST_ANSWERED:
            self._answered.popitem(last=False)

    def _abandon_calls(self, response: int) -> None:
        """Abandon the unanswered calls between the previous and a new response, except those awaiting an approval."""
        previous, self.last_response = self.last_response, response
        callers = filter(response.__gt__, takewhile(previous.__le__, reversed(self.unanswered)))
        atoms = set(map(self.atoms.__getitem__, filterfalse(self._awaits.__contains__, callers)))
        if atoms:
            self.affected_atoms = [*self.affected_atoms, *map(self.incomplete.__getitem__, atoms)]

    def abandoned(self, newest_response: int) -> list[int]:
        """Return the items with an abandoned call, given the newest response (see `is_sendable`); ascending."""
        return list(filterfalse(self._awaits.__contains__, takewhile(newest_response.__gt__, list(self.unanswered))))

    def _join(self, atoms: set[int]) -> int:
        """Join atoms that have an item in common, and return the joined atom."""
        first = min(atoms)
        if len(atoms) > 1:
            self.changed.append(first)
            members = sorted(position for atom in atoms for position in self.members(atom))
            for position in members:
                self.atoms[position] = first
            self.joined.add(first)
            if not self.reasoned.isdisjoint(atoms):
                self.reasoned.add(first)
                self.reasoned -= atoms - {first}
            for atom in atoms:
                self.incomplete.pop(atom, None)
            if not self.unanswered.keys().isdisjoint(members):
                self.incomplete[first] = members
        return first

    def members(self, atom: int) -> list[int]:
        """Return all items of an atom so far, in order."""
        if atom in self.incomplete:
            return self.incomplete[atom]
        last = atom + self.span + 1
        return list(compress(range(atom, last), map(atom.__eq__, self.atoms[atom:last])))

    def is_sendable(self, position: int, newest_response: int) -> bool:
        """Return True if an item may be sent.

        Orphans, reasoning without its next item, and items of an atom with an abandoned call may not be sent.
        Unanswered calls before `newest_response`, the newest one that is sent (−1 if there is none), are abandoned.
        """
        atom = self.atoms[position]
        if self.flags[position] & ORPHAN or atom in self.dangling:
            return False
        for member in self.incomplete.get(atom, ()):
            if member < newest_response and member in self.unanswered and member not in self._awaits:
                return False
        return True

    def pending_calls(self, newest_response: int) -> list[int]:
        """Return the items of the atoms with a call that explicitly awaits an approval, in order.

        Atoms that also have an abandoned call are left out, because they may not be sent.
        """
        return sorted(self._sendable_items(list(self._awaits), newest_response)) if self._awaits else []

    def open_items(self, newest_response: int) -> set[int]:
        """Return the items of the atoms whose unanswered calls are all pending, so that they may be sent."""
        recent = takewhile(newest_response.__le__, reversed(self.unanswered))
        return self._sendable_items([*self._awaits, *recent], newest_response) if self.unanswered else set()

    def _sendable_items(self, callers: Iterable[int], newest_response: int) -> set[int]:
        items = set[int]()
        for atom in set(map(self.atoms.__getitem__, callers)):
            if self.is_sendable(atom, newest_response):
                items.update(self.incomplete.get(atom, ()))
        return items


def newest_response(view: View) -> int:
    """Return the position of the view's newest response; −1 if the view has none."""
    pairing = view.history.pairing
    newest = pairing.last_response
    if newest < 0 or view.index_of(newest) >= 0:
        return newest
    return next((position for position in view.backward() if pairing.flags[position] & RESPONSE), -1)


def cut_atoms(view: View) -> set[int]:
    """Return the atoms that begin before an edge of a view and may have items after that edge."""
    pairing, positions, found = view.history.pairing, view.column.positions, set[int]()
    for start, stop in view.ranges if pairing.span else ():
        for edge in (positions[start], positions[stop - 1] + 1):
            found.update(filter(edge.__gt__, pairing.atoms[edge : edge + pairing.span]))
    return found


def _among(positions: Sequence[int], view: View) -> list[int]:
    """Return those of ascending positions that a view has."""
    column, found = view.column.positions, list[int]()
    for start, stop in view.ranges if positions else ():
        low, high = bisect_left(positions, column[start]), bisect_left(positions, column[stop - 1] + 1)
        found += filter(view.holds, positions[low:high])
    return found


def _held_of_atom(view: View, atom: int) -> tuple[list[int], bool]:
    """Return an atom's items in a view, and whether only echoes are missing there."""
    pairing = view.history.pairing
    held = list(filter(view.holds, members := pairing.members(atom)))
    missing = set(members).difference(held)
    return held, not any(pairing.flags[position] & (OPENS | CLOSES | REASONED) for position in missing)


def unpaired(view: View, whole: View) -> set[int]:
    """Return the positions of a view's items that may not be sent.

    Either the view has only a part of their atom, or the atom has an abandoned call. The view is a part of `whole`,
    whose newest response abandons the calls before it.
    """
    history, pairing = view.history, view.history.pairing
    atoms = cut_atoms(view).union(pairing.dangling)
    abandoned = pairing.abandoned(pairing.last_response) if pairing.unanswered else ()
    for positions in (history.orphans.positions, abandoned):
        if positions:
            atoms.update(map(pairing.atoms.__getitem__, _among(positions, view)))
    response = newest_response(whole) if atoms else -1
    unsendable: set[int] = set()
    for atom in atoms:
        held, is_whole = _held_of_atom(view, atom)
        if not (is_whole and pairing.is_sendable(atom, response)):
            unsendable.update(position for position in held if pairing.flags[position] & PAIRED)
    return unsendable


def broken_in(view: View, separated: Iterable[int] = ()) -> int:
    """Return the number of a view's items whose counterpart is missing in the view.

    These are tool results without their call, calls without their results, reasoning without the next item, and items
    without the reasoning before them. Pending calls are not counted. The pairs are those of the whole conversation.
    `separated` are the positions of further separated reasoning and next items, as known from an earlier history.
    """
    history, pairing = view.history, view.history.pairing
    last, cut = newest_response(view), cut_atoms(view)
    broken = len(_among(history.orphans.positions, view))
    broken += sum(pairing.atoms[caller] not in cut for caller in _among(pairing.abandoned(last), view))
    alone = {*separated}
    for atom in pairing.dangling:
        alone.update(filter(view.holds, pairing.members(atom)))
    for atom in cut:  # pair the atom's items in the view again, as if they were the whole conversation
        members = pairing.members(atom)
        held = list(filter(view.holds, members))
        reasoned = [position for position in members if pairing.flags[position] & REASONED]
        if not all(map(view.holds, reasoned)):
            alone.update(filter(view.holds, reasoned))
        facts, again = list(map(history.facts, held)), Pairing()
        if last >= 0 and last not in held:
            facts.insert(bisect_left(held, last), EventFacts(EventKind.RESPONSE))
        broken += sum(bool(again.append(event) & ORPHAN) for event in facts)
        broken += len(again.abandoned(again.last_response))
    return broken + len(alone)


def echoes_stand(view: View) -> bool:
    """Return True if every echo in a view has the call or result that it restates in the view, too."""
    flags = view.history.pairing.flags
    for held, is_whole in (_held_of_atom(view, atom) for atom in cut_atoms(view)):
        if not is_whole and any(flags[position] & ECHO for position in held):
            return False
    return True
