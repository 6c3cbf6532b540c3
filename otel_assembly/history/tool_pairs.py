"""Which tool result answers which tool call: one rule, in one place, that every reducer uses.

A result pairs with the nearest earlier unanswered call of its id, for ids repeat within conversations. A call with all
its results is an *atom*, kept or dropped together; so is any other event, alone. A model's reasoning that is an item of
its own belongs to the atom of the item behind it, a message or a call, because providers refuse either without the
other. A result that finds no open call is an orphan for good. A call without a result is *pending* while no later
response exists, or while it explicitly awaits an approval (its message then waits whole); else it is an orphan until
its result comes, however late. What restates a call or a result (an *echo*) belongs to the atom that it echoes; if it
echoes several, they are one from then on.

`Pairing` reads a conversation once, as it grows. What a part of it has lost is found at the part's edges (`broken_in`),
not by reading all of it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from otel_assembly.history.view import Run, View, is_in, runs_of
from otel_assembly.messages.event_facts import EventFacts, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Flags of an item.
ORPHAN: Final = 1
ECHO: Final = 2
#: Reasoning, or the item behind it.
REASONED: Final = 4
MEDIA: Final = 8
ANSWERS: Final = 16
ASKS: Final = 32
RESPONSE: Final = 64
#: What is set of an event that can belong to an atom of several.
PAIRED: Final = ORPHAN | ECHO | REASONED | ANSWERS | ASKS
#: What is set of an event that calls tools or answers them.
CALLS: Final = ORPHAN | ECHO | ANSWERS | ASKS

_RESPONSE: Final = EventKind.RESPONSE
_TOOL_RESULT: Final = EventKind.TOOL_RESULT
#: What a model answers with: reasoning belongs to the next of these.
_OUTPUT: Final = frozenset({EventKind.RESPONSE, EventKind.TOOL_CALL})
#: What is not sent, and so stands between no two items.
_UNSENT: Final = frozenset({EventKind.ALERT, EventKind.OTHER})
#: An event that restates a result comes soon after it: only so many ids of answered calls are remembered for it.
_ECHO_MEMORY: Final = 4096


class Pairing:
    """Atoms and orphans of a growing conversation; items are named by position.

    Attributes:
        atoms: The position of the first item of each item's atom.
        flags: `ORPHAN`, `ECHO`, `ASKS`, `ANSWERS` … of each item.
        links: How many calls an item opens, or how many it closes.
        incomplete: Of each atom with unanswered calls, by its position: all its items so far.
        joined: Of each atom that was made of several, how many calls it opens.
        reasoned: Of each atom with reasoning, how many items of it are reasoning or the item behind that.
        dangling: The atoms of reasoning that no item of the same answer follows.
        changed: The atoms that had their last call answered, or became one of several, each time.
        given_up: The items that ask for something that nobody has answered, and nobody will; ascending.
        turned: The items of each atom that the newest item may have made sendable, or unsendable.
        last_response: The position of the newest response; −1 while there is none.
        span: How far an item stands behind the first item of its atom, at most.
    """

    __slots__ = (
        "_answered",
        "_answering",
        "_awaits",
        "_missing",
        "_open",
        "_unanswered",
        "_waiting",
        "atoms",
        "changed",
        "dangling",
        "flags",
        "given_up",
        "incomplete",
        "joined",
        "last_response",
        "links",
        "reasoned",
        "span",
        "turned",
    )

    def __init__(self) -> None:
        self.atoms = array("I")
        self.flags = array("B")
        self.links = array("H")
        self.incomplete: dict[int, list[int]] = {}
        self.changed = array("I")
        self.given_up = array("I")
        self.turned: Sequence[Sequence[int]] = ()
        self.last_response = -1
        self.span = 0
        # By id, the items that asked and wait, oldest first; by item, how many of its calls wait; by atom, the same.
        self._open: dict[str, list[int]] = {}
        self._unanswered: dict[int, int] = {}
        self._missing: dict[int, int] = {}
        #: By item, the ids of its unanswered calls that explicitly await an approval.
        self._awaits: dict[int, list[str]] = {}
        self.joined: dict[int, int] = {}
        self._answered: OrderedDict[str, int] = OrderedDict()
        self.reasoned: dict[int, int] = {}
        self.dangling: set[int] = set()
        #: The reasoning at the end that waits for the item behind it.
        self._waiting: list[int] = []
        #: Whether the newest item that is sent is part of a model's answer.
        self._answering = False

    def frozen(self) -> Pairing:
        """What it says now, to be asked while this one grows; nothing is put behind it any more."""
        copied = Pairing()
        copied.atoms, copied.flags, copied.links = self.atoms[:], self.flags[:], self.links[:]
        copied.incomplete = {atom: list(members) for atom, members in self.incomplete.items()}
        copied.last_response, copied.span = self.last_response, self.span
        copied._unanswered, copied._missing = dict(self._unanswered), dict(self._missing)
        copied._awaits = {ask: list(calls) for ask, calls in self._awaits.items()}
        copied.joined = dict(self.joined)
        copied.reasoned, copied.dangling = dict(self.reasoned), set(self.dangling)
        return copied

    def append(self, facts: EventFacts) -> int:
        """Take the next item; its flags are returned."""
        position = len(self.atoms)
        atom, flags, links = position, 0, 0
        kind = facts.kind
        self.turned = ()
        if facts.opens:
            atom, flags, links = self._call(position, facts)
        elif facts.closes or kind == _TOOL_RESULT:
            atom, flags, links = self._result(position, facts)
        # Reasoning between the calls of one answer gives none of them up: they still run.
        if kind == _RESPONSE and not (facts.is_reasoning and self._answering):
            self._give_up(position)
            flags |= RESPONSE
        if facts.is_reasoning or self._waiting:
            atom, flags = self._reason(position, atom, flags, facts)
        if kind not in _UNSENT:
            self._answering = kind in _OUTPUT
        if facts.media_tokens:
            flags |= MEDIA
        if atom != position:
            self.span = max(self.span, position - atom)
        self.atoms.append(atom)
        self.flags.append(flags)
        self.links.append(links if links < 0xFFFF else 0xFFFF)
        return flags

    def _reason(self, position: int, atom: int, flags: int, facts: EventFacts) -> tuple[int, int]:
        """Join an item with the reasoning in front of it; reasoning waits for the item behind it."""
        waiting = self._waiting
        if not waiting:
            waiting.append(position)
            self.reasoned[position] = 1
            return position, flags | REASONED
        first = waiting[0]
        if facts.is_reasoning:
            waiting.append(position)
        elif facts.kind not in _OUTPUT or flags & ORPHAN:
            if facts.kind not in _UNSENT:
                self.dangling.add(first)
                self.changed.append(first)
                self.turned = [*self.turned, waiting[:]]
                self._waiting = []
            return atom, flags
        elif flags & ECHO:
            return atom, flags
        else:
            self._waiting = []
            if atom != position:  # it answers calls of an earlier atom
                first = self._join({first, atom})
            elif position in self.incomplete:
                self.incomplete[first] = [*waiting, *self.incomplete.pop(position)]
                self._missing[first] = self._missing.pop(position)
        self.reasoned[first] += 1
        self.changed.append(first)
        return first, flags | REASONED

    def answered_by(self, facts: EventFacts) -> list[int]:
        """The items that asked for what an item answers that may come next: one for each of the calls that it closes.

        −1 where nobody waits for that answer: it restates one, or is an orphan.
        """
        waiting = {call: list(self._open.get(call, ())) for call in facts.closes}
        return [waiting[call].pop() if waiting[call] else -1 for call in facts.closes]

    def _call(self, position: int, facts: EventFacts) -> tuple[int, int, int]:
        if facts.restates and all(self._open.get(call) for call in facts.opens):
            asked = {call: self._open[call][-1] for call in facts.opens}
            for call in facts.awaiting:
                awaits = self._awaits.setdefault(asked[call], [])
                if call not in awaits:
                    awaits.append(call)
            atom = self._join({self.atoms[ask] for ask in asked.values()})
            for ask in asked.values():
                self._judge(ask)
            self.incomplete[atom].append(position)
            self.turned = [self.incomplete[atom]]
            return atom, ECHO, 0
        for call in facts.opens:
            self._open.setdefault(call, []).append(position)
        awaiting = [call for call in facts.awaiting if call in facts.opens]
        if awaiting:
            self._awaits[position] = awaiting
        self._unanswered[position] = self._missing[position] = len(facts.opens)
        self.incomplete[position] = [position]
        return position, ASKS, len(facts.opens)

    def _result(self, position: int, facts: EventFacts) -> tuple[int, int, int]:
        taken: list[tuple[str, int]] = []
        asks: set[int] = set()
        for call in facts.closes:
            waiting = self._open.get(call)
            if waiting:
                taken.append((call, waiting.pop()))
                asks.add(taken[-1][1])
            elif facts.restates and call in self._answered:
                asks.add(self._answered[call])
            else:
                asks.clear()
                break
        if not asks:
            for untaken, ask in reversed(taken):
                self._open[untaken].append(ask)
            return position, ORPHAN, 0
        atom = self._join({self.atoms[ask] for ask in asks})
        for call, ask in taken:
            self._answer(call, ask, atom)
        if atom in self.incomplete:
            self.incomplete[atom].append(position)
            self.turned = [self.incomplete[atom]]
            if not self._missing[atom]:
                del self._missing[atom], self.incomplete[atom]
                self.changed.append(atom)
        return atom, ANSWERS if taken else ECHO, len(taken)

    def _answer(self, call: str, ask: int, atom: int) -> None:
        waiting = self._open.get(call, ())
        if not waiting:
            self._open.pop(call, None)
        self._missing[atom] -= 1
        self._unanswered[ask] -= 1
        if not self._unanswered[ask]:
            del self._unanswered[ask]
        awaits = self._awaits.get(ask)
        if awaits:
            # Of two calls of one id, the one that waits for nobody is answered first.
            while awaits.count(call) > waiting.count(ask):
                awaits.remove(call)
            if not awaits:
                del self._awaits[ask]
        self._judge(ask)
        self._answered[call] = ask
        self._answered.move_to_end(call)
        if len(self._answered) > _ECHO_MEMORY:
            self._answered.popitem(last=False)

    def _give_up(self, response: int) -> None:
        """A response came: the calls in front of it that are open and do not await an approval have been given up."""
        before, self.last_response = self.last_response, response
        asks: list[int] = []
        for ask in reversed(self._unanswered):
            if ask < before:
                break
            if ask < response and ask not in self._awaits:
                asks.append(ask)
        if asks:
            self.given_up.extend(reversed(asks))
            self.turned = [*self.turned, *(self.incomplete[atom] for atom in {self.atoms[ask] for ask in asks})]

    def _judge(self, ask: int) -> None:
        """One of an item's calls was answered, or said to await an approval: it is given up now, or no more."""
        place = bisect_left(self.given_up, ask)
        held = place < len(self.given_up) and self.given_up[place] == ask
        given_up = ask < self.last_response and ask in self._unanswered and ask not in self._awaits
        if given_up and not held:
            self.given_up.insert(place, ask)
        elif held and not given_up:
            del self.given_up[place]

    def _join(self, atoms: set[int]) -> int:
        """The one atom that several become because an item belongs to all of them; its position is returned."""
        first = min(atoms)
        if len(atoms) > 1:
            self.changed.append(first)
            members = sorted(position for atom in atoms for position in self.members(atom))
            for position in members:
                self.atoms[position] = first
            reasoned = sum(self.reasoned.pop(atom, 0) for atom in atoms)
            if reasoned:
                self.reasoned[first] = reasoned
            self.joined[first] = sum(self.links[position] for position in members if self.flags[position] & ASKS)
            missing = 0
            for atom in atoms:
                missing += self._missing.pop(atom, 0)
                self.incomplete.pop(atom, None)
            if missing:
                self._missing[first], self.incomplete[first] = missing, members
        return first

    def members(self, atom: int) -> list[int]:
        """All items of an atom so far, in order."""
        return [position for position, one in enumerate(self.atoms[atom : atom + self.span + 1], atom) if one == atom]

    def is_sendable(self, position: int, newest_response: int) -> bool:
        """Whether an item may stand in a prompt: it is no orphan, nor in an atom with a call that nobody will answer.

        Args:
            position: The item.
            newest_response: The newest response in sight: an unanswered call in front of it has been given up.
        """
        if self.flags[position] & ORPHAN or self.atoms[position] in self.dangling:
            return False
        members = self.incomplete.get(self.atoms[position])
        return members is None or not self._is_abandoned(members, newest_response)

    def _is_abandoned(self, members: Sequence[int], newest_response: int) -> bool:
        for member in members:
            if member < newest_response and member in self._unanswered and member not in self._awaits:
                return True
        return False

    def pending_calls(self, newest_response: int) -> list[int]:
        """Items of the atoms with a call that explicitly awaits an approval and has no result yet, in order."""
        if not self._awaits:
            return []
        atoms = {self.atoms[ask] for ask in list(self._awaits)}
        return sorted(
            position
            for members in [tuple(self.incomplete.get(atom, ())) for atom in atoms]
            if not self._is_abandoned(members, newest_response)
            for position in members
        )

    def open_items(self, newest_response: int) -> Iterator[int]:
        """Items of the atoms with an unanswered call that may stand in a prompt all the same."""
        asks = list(self._awaits)
        for ask in reversed(self._unanswered):
            if ask < newest_response:
                break
            asks.append(ask)
        for atom in {self.atoms[ask] for ask in asks}:
            members = self.incomplete[atom]
            if not self._is_abandoned(members, newest_response):
                yield from members

    def has_lost_some(self, atom: int, opened: int, closed: int) -> bool:
        """Whether a selection with so many of an atom's calls and answers has lost some of it."""
        return (
            not opened
            or ((opened != closed or atom in self._missing) and opened - closed != self._missing.get(atom, 0))
            or (atom in self.joined and opened != self.joined[atom])
        )


def broken_in(view: View, separated: Iterable[int] = ()) -> int:
    """Tool results without their call, tool calls without their results, and reasoning without the item behind it, or
    such an item without its reasoning, among the events of a view.

    What pairs with what is as in the whole conversation. A call is no broken pair while no later response is in the
    view, nor while it explicitly awaits an approval.

    Args:
        view: The events.
        separated: Positions of reasoning and of items behind it that an earlier history shows to be separated.
    """
    history, runs = view.history, runs_of(view)
    if not runs:
        return 0
    pairing, orphans, broken = history.pairing, history.orphans, 0
    last, cut_through = _newest_response(pairing, runs), broken_atoms(pairing, runs)
    if orphans.positions:
        broken = sum(orphans.index(stop) - orphans.index(start) for start, stop in runs)
    given_up = pairing.given_up
    for start, stop in runs if given_up else ():
        asks = given_up[bisect_left(given_up, start) : bisect_left(given_up, min(stop, max(last, 0)))]
        broken += sum(pairing.atoms[ask] not in cut_through for ask in asks)
    alone = {*separated}
    alone.update(at for atom in pairing.dangling for at in pairing.members(atom) if is_in(runs, at))
    for atom in cut_through:
        kept = [position for position in pairing.members(atom) if is_in(runs, position)]
        reasoned = [position for position in kept if pairing.flags[position] & REASONED]
        if len(reasoned) != pairing.reasoned.get(atom, 0):
            alone.update(reasoned)
        facts, again = list(map(history.facts, kept)), Pairing()
        if last >= 0 and last not in kept:
            facts.insert(bisect_left(kept, last), EventFacts(EventKind.RESPONSE))
        broken += sum(bool(again.append(one) & ORPHAN) for one in facts) + len(again.given_up)
    return broken + len(alone)


def may_have_lost_some(view: View) -> bool:
    """Whether a view may hold items that have lost the other half of their pair, or that nobody will answer.

    It costs the view's runs and their edges: a cut through a long conversation looks at what stands at the cut.
    """
    history, runs = view.history, runs_of(view)
    orphans, given_up = history.orphans, history.pairing.given_up
    return (
        bool(broken_atoms(history.pairing, runs))
        or any(is_in(runs, atom) for atom in history.pairing.dangling)
        or (bool(orphans.positions) and any(orphans.index(stop) > orphans.index(start) for start, stop in runs))
        or (bool(given_up) and any(bisect_left(given_up, stop) > bisect_left(given_up, start) for start, stop in runs))
    )


def broken_atoms(pairing: Pairing, runs: Sequence[Run]) -> set[int]:
    """The atoms of which some items stand in these runs and others may not."""
    if not pairing.span:
        return set()
    atoms = pairing.atoms
    edges = {edge for run in runs for edge in run if 0 < edge < len(atoms)}
    return {atom for edge in edges for atom in atoms[edge : edge + pairing.span] if atom < edge}


def _newest_response(pairing: Pairing, runs: Sequence[Run]) -> int:
    if is_in(runs, pairing.last_response):
        return pairing.last_response
    if pairing.last_response < runs[0][0]:
        return -1
    for start, stop in reversed(runs):
        for position in range(stop - 1, start - 1, -1):
            if pairing.flags[position] & RESPONSE:
                return position
    return -1
