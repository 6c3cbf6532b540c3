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

`Pairing` reads a conversation once, as it grows. To find the pairs that a selection cuts in two, `broken_in` reads only
the events at the selection's edges.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from otel_assembly.history.view import Run, View, is_in, runs_of
from otel_assembly.messages.event_facts import EventFacts, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
        joined: By atom that was joined from several, the number of calls that it requests.
        reasoned: By atom with reasoning, the number of its items that are reasoning or follow reasoning.
        dangling: The atoms of reasoning that no item of the same answer follows.
        changed: The atoms that became complete, gained reasoning, or were joined or separated; once per change.
        abandoned: The items with an unanswered call before the newest response that awaits no approval; ascending.
        affected_atoms: The items of each atom that the newest item may have made sendable or unsendable.
        last_response: The position of the newest response; −1 while there is none.
        span: The largest distance of an item from the first item of its atom.
    """

    __slots__ = (
        "_answered",
        "_awaits",
        "_in_answer",
        "_last_reasoning",
        "_missing",
        "_open",
        "_unanswered",
        "abandoned",
        "affected_atoms",
        "atoms",
        "changed",
        "dangling",
        "flags",
        "incomplete",
        "joined",
        "last_response",
        "links",
        "reasoned",
        "span",
    )

    def __init__(self) -> None:
        self.atoms = array("I")
        self.flags = array("B")
        self.links = array("H")
        self.incomplete: dict[int, list[int]] = {}
        self.changed = array("I")
        self.abandoned = array("I")
        self.affected_atoms: Sequence[Sequence[int]] = ()
        self.last_response = -1
        self.span = 0
        #: By call id, the items with an unanswered call of this id, oldest first.
        self._open: dict[str, list[int]] = {}
        #: By item, the number of its unanswered calls.
        self._unanswered: dict[int, int] = {}
        #: By atom, the number of its unanswered calls.
        self._missing: dict[int, int] = {}
        #: By item, the ids of its unanswered calls that explicitly await an approval.
        self._awaits: dict[int, list[str]] = {}
        self.joined: dict[int, int] = {}
        #: By id of an answered call, the item that requested it.
        self._answered: OrderedDict[str, int] = OrderedDict()
        self.reasoned: dict[int, int] = {}
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
        copied._unanswered, copied._missing = dict(self._unanswered), dict(self._missing)
        copied._awaits = {caller: list(calls) for caller, calls in self._awaits.items()}
        copied.joined = dict(self.joined)
        copied.reasoned, copied.dangling = dict(self.reasoned), set(self.dangling)
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
            self.reasoned[position] = 1
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
                self._missing[first] = self._missing.pop(position)
        self.reasoned[first] += 1
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
            for caller in callers.values():
                self._update_abandoned(caller)
            self.incomplete[atom].append(position)
            self.affected_atoms = [self.incomplete[atom]]
            return atom, ECHO, 0
        for call in facts.opens:
            self._open.setdefault(call, []).append(position)
        awaiting = [call for call in facts.awaiting if call in facts.opens]
        if awaiting:
            self._awaits[position] = awaiting
        self._unanswered[position] = self._missing[position] = len(facts.opens)
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
            self._answer(call, caller, atom)
        if atom in self.incomplete:
            self.incomplete[atom].append(position)
            self.affected_atoms = [self.incomplete[atom]]
            if not self._missing[atom]:
                del self._missing[atom], self.incomplete[atom]
                self.changed.append(atom)
        return atom, CLOSES if answered else ECHO, len(answered)

    def _answer(self, call: str, caller: int, atom: int) -> None:
        """Count a call of an item as answered; `_open` does not have it any more."""
        unanswered = self._open.get(call, ())
        if not unanswered:
            self._open.pop(call, None)
        self._missing[atom] -= 1
        self._unanswered[caller] -= 1
        if not self._unanswered[caller]:
            del self._unanswered[caller]
        awaits = self._awaits.get(caller)
        if awaits:
            # If an item has two calls of one id, the one that awaits no approval is answered first.
            while awaits.count(call) > unanswered.count(caller):
                awaits.remove(call)
            if not awaits:
                del self._awaits[caller]
        self._update_abandoned(caller)
        self._answered[call] = caller
        self._answered.move_to_end(call)
        if len(self._answered) > _MOST_ANSWERED:
            self._answered.popitem(last=False)

    def _abandon_calls(self, response: int) -> None:
        """Mark the unanswered calls before a new response as abandoned, except those that await an approval."""
        previous, self.last_response = self.last_response, response
        callers: list[int] = []
        for caller in reversed(self._unanswered):
            if caller < previous:
                break
            if caller < response and caller not in self._awaits:
                callers.append(caller)
        if callers:
            self.abandoned.extend(reversed(callers))
            atoms = {self.atoms[caller] for caller in callers}
            self.affected_atoms = [*self.affected_atoms, *(self.incomplete[atom] for atom in atoms)]

    def _update_abandoned(self, caller: int) -> None:
        """Add an item to the abandoned ones or remove it, after a call of it was answered or awaits an approval."""
        index = bisect_left(self.abandoned, caller)
        is_listed = index < len(self.abandoned) and self.abandoned[index] == caller
        is_abandoned = caller < self.last_response and caller in self._unanswered and caller not in self._awaits
        if is_abandoned and not is_listed:
            self.abandoned.insert(index, caller)
        elif is_listed and not is_abandoned:
            del self.abandoned[index]

    def _join(self, atoms: set[int]) -> int:
        """Join atoms that have an item in common, and return the joined atom."""
        first = min(atoms)
        if len(atoms) > 1:
            self.changed.append(first)
            members = sorted(position for atom in atoms for position in self.members(atom))
            for position in members:
                self.atoms[position] = first
            reasoned = sum(self.reasoned.pop(atom, 0) for atom in atoms)
            if reasoned:
                self.reasoned[first] = reasoned
            self.joined[first] = sum(self.links[position] for position in members if self.flags[position] & OPENS)
            missing = 0
            for atom in atoms:
                missing += self._missing.pop(atom, 0)
                self.incomplete.pop(atom, None)
            if missing:
                self._missing[first], self.incomplete[first] = missing, members
        return first

    def members(self, atom: int) -> list[int]:
        """Return all items of an atom so far, in order."""
        atoms = enumerate(self.atoms[atom : atom + self.span + 1], atom)
        return [position for position, item_atom in atoms if item_atom == atom]

    def is_sendable(self, position: int, newest_response: int) -> bool:
        """Return True if an item may be sent.

        Orphans, reasoning without its next item, and items of an atom with an abandoned call may not be sent.

        Args:
            position: The item.
            newest_response: The newest response of the selection that is sent; −1 if it has none. Unanswered calls
                before that response are abandoned.
        """
        if self.flags[position] & ORPHAN or self.atoms[position] in self.dangling:
            return False
        members = self.incomplete.get(self.atoms[position])
        return members is None or not self._is_abandoned(members, newest_response)

    def _is_abandoned(self, members: Sequence[int], newest_response: int) -> bool:
        """Return True if one of an atom's items has an abandoned call, given the newest response."""
        for member in members:
            if member < newest_response and member in self._unanswered and member not in self._awaits:
                return True
        return False

    def pending_calls(self, newest_response: int) -> list[int]:
        """Return the items of the atoms with a call that explicitly awaits an approval, in order.

        Atoms that also have an abandoned call are left out, because they may not be sent.
        """
        if not self._awaits:
            return []
        atoms = {self.atoms[caller] for caller in list(self._awaits)}
        return sorted(
            position
            for members in [tuple(self.incomplete.get(atom, ())) for atom in atoms]
            if not self._is_abandoned(members, newest_response)
            for position in members
        )

    def open_items(self, newest_response: int) -> set[int]:
        """Return the items of the atoms whose unanswered calls are all pending, so that they may be sent."""
        callers = list(self._awaits)
        for caller in reversed(self._unanswered):
            if caller < newest_response:
                break
            callers.append(caller)
        items: set[int] = set()
        for atom in set(map(self.atoms.__getitem__, callers)):
            members = self.incomplete[atom]
            if not self._is_abandoned(members, newest_response):
                items.update(members)
        return items

    def is_cut(self, atom: int, opened: int, closed: int) -> bool:
        """Return True if a selection has only part of an atom.

        Args:
            atom: The atom.
            opened: The number of calls that the selected items of the atom request.
            closed: The number of calls that they answer.
        """
        return (
            not opened
            or ((opened != closed or atom in self._missing) and opened - closed != self._missing.get(atom, 0))
            or (atom in self.joined and opened != self.joined[atom])
        )


def broken_in(view: View, separated: Iterable[int] = ()) -> int:
    """Return the number of a view's items whose counterpart is missing in the view.

    These are tool results without their call, calls without their results, reasoning without the next item, and items
    without the reasoning before them. Pending calls are not counted. The pairs are those of the whole conversation.

    Args:
        view: The events.
        separated: The positions of further separated reasoning and next items, as known from an earlier history.
    """
    history, runs = view.history, runs_of(view)
    if not runs:
        return 0
    pairing, orphans, broken = history.pairing, history.orphans, 0
    last, cut_atoms = _newest_response(pairing, runs), broken_atoms(pairing, runs)
    if orphans.positions:
        broken = sum(orphans.index(stop) - orphans.index(start) for start, stop in runs)
    abandoned = pairing.abandoned
    for start, stop in runs if abandoned else ():
        callers = abandoned[bisect_left(abandoned, start) : bisect_left(abandoned, min(stop, max(last, 0)))]
        broken += sum(pairing.atoms[caller] not in cut_atoms for caller in callers)
    alone = {*separated}
    alone.update(at for atom in pairing.dangling for at in pairing.members(atom) if is_in(runs, at))
    for atom in cut_atoms:  # pair the atom's items in the view again, as if they were the whole conversation
        kept = [position for position in pairing.members(atom) if is_in(runs, position)]
        reasoned = [position for position in kept if pairing.flags[position] & REASONED]
        if len(reasoned) != pairing.reasoned.get(atom, 0):
            alone.update(reasoned)
        facts, again = list(map(history.facts, kept)), Pairing()
        if last >= 0 and last not in kept:
            facts.insert(bisect_left(kept, last), EventFacts(EventKind.RESPONSE))
        broken += sum(bool(again.append(event) & ORPHAN) for event in facts) + len(again.abandoned)
    return broken + len(alone)


def may_have_unpaired(view: View) -> bool:
    """Return True if a view may have items without their counterpart, or abandoned calls; False is certain.

    The cost depends on the number of the view's runs and on the events at their edges, not on the view's length.
    """
    history, runs = view.history, runs_of(view)
    orphans, abandoned, dangling = history.orphans, history.pairing.abandoned, history.pairing.dangling
    return (
        bool(broken_atoms(history.pairing, runs))
        or (bool(dangling) and any(is_in(runs, atom) for atom in dangling))
        or (bool(orphans.positions) and any(orphans.index(stop) > orphans.index(start) for start, stop in runs))
        or (
            bool(abandoned)
            and any(bisect_left(abandoned, stop) > bisect_left(abandoned, start) for start, stop in runs)
        )
    )


def broken_atoms(pairing: Pairing, runs: Sequence[Run]) -> set[int]:
    """Return the atoms that begin before an edge of these runs and may have items after that edge."""
    atoms, span, found = pairing.atoms, pairing.span, set[int]()
    for run in runs if span else ():
        for edge in run:
            found.update(filter(edge.__gt__, atoms[edge : edge + span]))
    return found


def _newest_response(pairing: Pairing, runs: Sequence[Run]) -> int:
    """Return the position of the newest response in the runs; −1 if they have none."""
    if is_in(runs, pairing.last_response):
        return pairing.last_response
    if pairing.last_response < runs[0][0]:
        return -1
    for start, stop in reversed(runs):
        for position in range(stop - 1, start - 1, -1):
            if pairing.flags[position] & RESPONSE:
                return position
    return -1
