"""The turns of a conversation as they were read: each once, for as long as it says what it said.

From one question to the next a conversation grows at its end. What was read of its turns is remembered, and compared
with what they say now, all of them at once and at the speed of comparing lists; so that a question costs what is new
and what the window holds. Which turns survive is found from the newest on, and no further than the room goes.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import compress
from operator import is_, is_not
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.forks import new_lock
from otel_assembly.budget.block import BlockItem
from otel_assembly.budget.compacted_block import CompactedBlock
from otel_assembly.budget.measure import NOTHING, Rendered
from otel_assembly.budget.read_block import ReadBlock, orphan_reason
from otel_assembly.budget.rule import BYTES_PER_TOKEN
from otel_assembly.context_assembler.block_event import BlockEvent
from otel_assembly.context_assembler.candidates import HistoryTurns
from otel_assembly.context_assembler.turns import STEP
from otel_assembly.events import Event
from otel_assembly.history.history import ListHistory
from otel_assembly.history.tool_pairs import ORPHAN, RESPONSE, Pairing
from otel_assembly.messages.content_snapshot import contents, copied, equal, readable
from otel_assembly.messages.event_facts import EventFacts, describe

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from otel_assembly.budget.block import Block
    from otel_assembly.budget.measure import Measure
    from otel_assembly.decision import DecisionReason
    from otel_assembly.history.history import History
    from otel_assembly.history.view import View

#: Where events come from that never change.
_OURS: Final = Event.__module__
#: By the flags of an event, whether it answers no call.
_IS_ORPHAN: Final = bytes(bool(flags & ORPHAN) for flags in range(256))
#: What is no event.
_NO_EVENT: Final = (str, CompactedBlock, BlockItem)


@dataclass(frozen=True, slots=True)
class Turns:
    """A conversation's turns, as one question found them.

    Attributes:
        view: What was read of them, as events of an assembly.
        items: The same as items of blocks.
        border: So many of them are the older ones.
        pairing: Which result answers which call.
        grouped: So many of them begin in a step that is taken whole.
        step_bytes: Bytes of a step.
    """

    view: View
    items: tuple[BlockItem, ...]
    border: int
    pairing: Pairing
    grouped: int
    step_bytes: int


class TurnLog:
    """What was read of one conversation's turns, for as long as they are events, with more of them on every question.

    Args:
        step_tokens: Tokens of a step, of four bytes; 0 groups nothing. See `in_steps`.
    """

    def __init__(self, step_tokens: int) -> None:
        self._step_bytes = BYTES_PER_TOKEN * step_tokens
        self._lock = new_lock(self, TurnLog._begin)
        self._begin()

    def _begin(self) -> None:
        self._given: list[Any] = []
        #: Whose events they all are, where a `History` has them: it says what it said.
        self._source: History | None = None
        #: What each of them said when it was read.
        self._contents: list[Any] = []
        self._history = ListHistory()
        self._items: list[BlockItem] = []
        self._grouped = 0
        #: The atoms that a call that awaits an approval keeps out of their step.
        self._waiting: set[int] = set()
        self._changes = 0

    def take(self, examples: Sequence[EventFacts], older: Sequence[Any], recent: Sequence[Any]) -> Turns | None:
        """Read what is new of these turns; None where some are no events, or belong to what an example called.

        Args:
            examples: What stands before them in the prompt.
            older: The older turns, oldest first.
            recent: The turns after those.

        Raises:
            DescribeError: A turn cannot be read.
        """
        given = [*older, *recent]
        source = recent.history if isinstance(recent, HistoryTurns) and not older else None
        with self._lock:
            same = source is not None and source is self._source and len(given) >= len(self._given)
            if not (same or self._goes_on(given)):
                self._begin()
            known = len(self._given)
            if known < len(given) and not self._read(given[known:], examples):
                return None
            self._source = source
            history = self._history
            self._group()
            border, atoms = len(older), history.pairing.atoms
            while border and (atom := min(atoms[border:], default=border)) < border:
                border = atom
            return Turns(
                history.view(),
                tuple(self._items),
                border,
                history.pairing.frozen(),
                self._grouped,
                self._step_bytes,
            )

    def _goes_on(self, given: list[Any]) -> bool:
        """Whether these are the turns that were read, with more behind them, each of which says what it said."""
        known = len(self._given)
        held = given[:known]
        if len(held) < known or not all(map(is_, map(type, held), map(type, self._given))):
            return False
        of_types = dict(zip(map(type, held), held, strict=True))
        if not readable([event for one, event in of_types.items() if one.__module__ != _OURS]):
            return False
        if not equal(self._contents, contents(held)):
            return False
        for at in list(compress(range(known), map(is_not, held, self._given))):  # another object that says the same
            item = self._items[at] = replace(self._items[at], content=held[at])
            self._history.events[at].item = item
        self._given = held
        return True

    def _read(self, new: list[Any], examples: Sequence[EventFacts]) -> bool:
        if any(issubclass(one, _NO_EVENT) for one in set(map(type, new))):
            return False
        facts = list(map(describe, new))
        called = {call for one in examples for call in (*one.opens, *one.closes)}
        if called and any(not called.isdisjoint((*one.opens, *one.closes)) for one in facts):
            return False
        said = [one if type(one).__module__ == _OURS else copied(one) for one in contents(new)]
        items = list(map(BlockItem, new))
        history, first = self._history, len(self._items)
        history.take([BlockEvent(item, one) for item, one in zip(items, facts, strict=True)], facts)
        for at in history.echoes[bisect_left(history.echoes, first) :]:
            items[at - first] = replace(items[at - first], echo=True)
        self._items += items
        self._given += new
        self._contents += said
        return True

    def _group(self) -> None:
        """Name the step of each turn that is taken in with its step; see `in_steps`."""
        size = self._step_bytes
        if not size:
            return
        history, items, atoms = self._history, self._items, self._history.pairing.atoms
        newest = history.offset(len(items)) // size
        waiting = {atoms[at] for at in history.pairing.pending_calls(-1)}
        joined = filter(history.pairing.joined.__contains__, history.pairing.changed[self._changes :])
        moved = {at for atom in {*joined, *(waiting ^ self._waiting)} for at in history.pairing.members(atom)}
        for at in (*moved, *range(self._grouped, len(items))):
            step = history.offset(atoms[at]) // size
            group = f"{STEP}{step}" if step < newest - 1 and atoms[at] not in waiting else None
            if items[at].group != group:
                items[at] = replace(items[at], group=group)
        self._grouped = history.behind((newest - 1) * size)
        self._waiting, self._changes = waiting, len(history.pairing.changed)


class TurnsBlock(ReadBlock):
    """A block of turns, of which everything was read before.

    Args:
        block: The block.
        measure: What counts.
        turns: The turns.
        start: The first of them that it holds.
    """

    __slots__ = ("_pairs", "_start", "_stop", "_sums", "_tokens", "_turns")

    def __init__(self, block: Block, measure: Measure, turns: Turns, start: int) -> None:
        super().__init__(block, measure)
        self._turns = turns
        self._pairs = turns.pairing
        self._start = start
        self._stop = start + len(self.items)
        self._tokens: array[int] | None = None
        self._sums: array[int] | None = None

    @property
    def facts(self) -> Sequence[EventFacts | None]:
        if self._facts is None:
            self._facts = list(map(self._turns.view.history.facts, range(self._start, self._stop)))
        return self._facts

    @property
    def provider(self) -> str:
        return self._turns.view.history.provider

    def fact(self, index: int) -> EventFacts:
        return self._turns.view.history.facts(self._start + index)

    def _pairing(self, alive: Sequence[int]) -> Pairing | None:
        whole = len(alive) == len(self.items) == len(self._pairs.atoms)
        return self._pairs if whole else super()._pairing(alive)

    def has_response(self, out: Collection[int]) -> bool:
        return self._newest_response() >= 0

    def _newest_response(self) -> int:
        flags = self._pairs.flags
        return next((at for at in range(self._stop - 1, self._start - 1, -1) if flags[at] & RESPONSE), -1)

    def unpaired(self, out: Collection[int], *, answered_later: bool) -> tuple[Mapping[int, DecisionReason], bool]:
        pairs, start, stop = self._pairs, self._start, self._stop
        newest = stop if answered_later else self._newest_response()
        orphans = bytes(pairs.flags[start:stop]).translate(_IS_ORPHAN)
        lost = list(compress(range(start, stop), orphans))
        for atom, of_atom in pairs.incomplete.items():
            if start <= atom < stop and not pairs.is_sendable(atom, newest):
                lost += of_atom
        lost += (at for atom in pairs.dangling for at in pairs.members(atom) if start <= at < stop)
        reasons = {at - start: orphan_reason(pairs, at) for at in sorted(lost)}
        return reasons, any(start <= at < stop for at in pairs.pending_calls(newest))

    def pending_atoms(self, out: Collection[int]) -> Sequence[Sequence[int]]:
        pairs, start = self._pairs, self._start
        waiting = (at for at in pairs.pending_calls(-1) if start <= at < self._stop and at - start not in out)
        atoms = set(map(pairs.atoms.__getitem__, waiting))
        return [[at - start for at in pairs.incomplete[atom]] for atom in sorted(atoms, reverse=True)]

    def survivors(self, out: Collection[int]) -> Iterator[Sequence[int]]:
        """Its atoms, found from the newest turn on: whoever stops early has not looked at what is older."""
        turns, start, atoms = self._turns, self._start, self._pairs.atoms
        first_of, offset = turns.view.history.behind, turns.view.history.offset
        held: dict[int, list[int]] = {}
        yield from (pending := self.pending_atoms(out))
        waiting = {atom[0] for atom in pending}
        for at in range(self._stop - 1 - start, max(start, turns.grouped) - 1 - start, -1):
            atom_at = atoms[start + at] - start
            if at not in out and atom_at not in waiting:
                held.setdefault(atom_at, []).append(at)
                if atom_at == at:
                    yield held.pop(at)[::-1]
        upto = min(self._stop, turns.grouped)
        while upto > start:  # a step at a time, with the results of its calls wherever they stand
            first = max(start, first_of(offset(upto - 1) // turns.step_bytes * turns.step_bytes)) - start
            for at in range(upto - 1 - start, first - 1, -1):
                atom_at = atoms[start + at] - start
                if at not in out and atom_at not in waiting:
                    held.setdefault(atom_at, []).append(at)
            step = [at for atom_at in list(held) if atom_at >= first for at in held.pop(atom_at)]
            if step:
                yield sorted(step)
            upto = first + start

    def charging(self, *, has_only_texts: bool) -> Callable[[int], int]:
        return self.item_tokens

    def has_only_texts(self, indexes: object) -> bool:
        return False

    def item_tokens(self, index: int) -> int:
        if self._tokens is None:
            view = self._turns.view
            table = self._measure.exact_table(view)
            self._tokens, self._sums = table.arrive(view.end), table.sums(view.history.all)
        return self._tokens[self._start + index]

    def tokens(self, kept: Sequence[int]) -> int:
        return sum(map(self.item_tokens, kept))

    def rendered(self, kept: Sequence[int]) -> Rendered:
        tokens = self.tokens(kept)
        return Rendered(tokens, tokens, 0, 0) if kept else NOTHING

    def cost(self, out: Collection[int]) -> int:
        return self.whole().tokens - self.tokens(list(out))

    def whole(self) -> Rendered:
        self.item_tokens(0)
        sums = self._sums
        tokens = sums[self._stop] - sums[self._start] if sums is not None else 0
        return Rendered(tokens, tokens, 0, 0)
