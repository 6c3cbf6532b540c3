"""The turns of a conversation, each read once while its content is unchanged.

From one task to the next, a conversation grows at its end. The contents of known turns are compared with those that
were read, as lists. So the cost of a task depends on the new turns and on the window. Surviving turns are searched from
the newest on, only as far as there is room.
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

#: The module of event types that never change.
_IMMUTABLE: Final = Event.__module__
#: Whether an event with these flags is a result without a call, as a table for `bytes.translate`.
_IS_ORPHAN: Final = bytes(bool(flags & ORPHAN) for flags in range(256))
#: Types of turns that are not events.
_NO_EVENT: Final = (str, CompactedBlock, BlockItem)


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of a conversation at one task.

    Attributes:
        view: The turns as events of an assembly.
        items: The turns as items of blocks.
        border: How many of the turns are older turns.
        pairing: The tool pairs among the turns.
        grouped: How many turns begin in a step that is kept or dropped whole.
        step_bytes: The bytes of a step.
    """

    view: View
    items: tuple[BlockItem, ...]
    border: int
    pairing: Pairing
    grouped: int
    step_bytes: int


class TurnLog:
    """The turns of one conversation that were read so far.

    Args:
        step_tokens: The tokens of a step, of four bytes each; 0 groups nothing. See `in_steps`.
    """

    def __init__(self, step_tokens: int) -> None:
        self._step_bytes = BYTES_PER_TOKEN * step_tokens
        self._lock = new_lock(self, TurnLog._begin)
        self._begin()

    def _begin(self) -> None:
        self._turns: list[Any] = []
        #: The history of all turns, if there is one; its events never change.
        self._source: History | None = None
        #: The content of each turn when it was read.
        self._contents: list[Any] = []
        self._history = ListHistory()
        self._items: list[BlockItem] = []
        self._grouped = 0
        #: The atoms of pending calls, which belong to no step.
        self._pending: set[int] = set()
        self._changes = 0

    def take(self, examples: Sequence[EventFacts], older: Sequence[Any], recent: Sequence[Any]) -> Turns | None:
        """Read the turns that are new, and return all turns.

        It is None if a turn is not an event, or if a turn belongs to a call of an example.

        Args:
            examples: The facts of the items in front of the turns in the prompt.
            older: The older turns, oldest first.
            recent: The turns after those.

        Raises:
            DescribeError: A turn has an unregistered type.
        """
        turns = [*older, *recent]
        source = recent.history if isinstance(recent, HistoryTurns) and not older else None
        with self._lock:
            same = source is not None and source is self._source and len(turns) >= len(self._turns)
            if not (same or self._continues(turns)):
                self._begin()
            known = len(self._turns)
            if known < len(turns) and not self._read(turns[known:], examples):
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

    def _continues(self, turns: list[Any]) -> bool:
        """Return whether the turns begin with those that were read, with equal content."""
        known = len(self._turns)
        first = turns[:known]
        if len(first) < known or not all(map(is_, map(type, first), map(type, self._turns))):
            return False
        by_type = dict(zip(map(type, first), first, strict=True))
        if not readable([event for kind, event in by_type.items() if kind.__module__ != _IMMUTABLE]):
            return False
        if not equal(self._contents, contents(first)):
            return False
        for at in list(compress(range(known), map(is_not, first, self._turns))):  # other objects of equal content
            item = self._items[at] = replace(self._items[at], content=first[at])
            self._history.events[at].item = item
        self._turns = first
        return True

    def _read(self, new: list[Any], examples: Sequence[EventFacts]) -> bool:
        if any(issubclass(kind, _NO_EVENT) for kind in set(map(type, new))):
            return False
        facts = list(map(describe, new))
        called = {call for example in examples for call in (*example.opens, *example.closes)}
        if called and any(not called.isdisjoint((*turn.opens, *turn.closes)) for turn in facts):
            return False
        copies = [content if type(content).__module__ == _IMMUTABLE else copied(content) for content in contents(new)]
        items = list(map(BlockItem, new))
        history, first = self._history, len(self._items)
        history.take([BlockEvent(item, of_item) for item, of_item in zip(items, facts, strict=True)], facts)
        for at in history.echoes[bisect_left(history.echoes, first) :]:
            items[at - first] = replace(items[at - first], echo=True)
        self._items += items
        self._turns += new
        self._contents += copies
        return True

    def _group(self) -> None:
        """Set the step of each turn that is kept or dropped with its step; see `in_steps`."""
        size = self._step_bytes
        if not size:
            return
        history, items, atoms = self._history, self._items, self._history.pairing.atoms
        newest = history.offset(len(items)) // size
        pending = {atoms[at] for at in history.pairing.pending_calls(-1)}
        joined = filter(history.pairing.joined.__contains__, history.pairing.changed[self._changes :])
        moved = {at for atom in {*joined, *(pending ^ self._pending)} for at in history.pairing.members(atom)}
        for at in (*moved, *range(self._grouped, len(items))):
            step = history.offset(atoms[at]) // size
            group = f"{STEP}{step}" if step < newest - 1 and atoms[at] not in pending else None
            if items[at].group != group:
                items[at] = replace(items[at], group=group)
        self._grouped = history.behind((newest - 1) * size)
        self._pending, self._changes = pending, len(history.pairing.changed)


class TurnsBlock(ReadBlock):
    """A block of turns that were read before.

    Args:
        block: The block.
        measure: Counts the turns.
        turns: The turns of the conversation.
        start: The index of the block's first turn.
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

    def has_response(self, excluded: Collection[int]) -> bool:
        return self._newest_response() >= 0

    def _newest_response(self) -> int:
        flags = self._pairs.flags
        return next((at for at in range(self._stop - 1, self._start - 1, -1) if flags[at] & RESPONSE), -1)

    def unpaired(self, excluded: Collection[int], *, answered_later: bool) -> tuple[Mapping[int, DecisionReason], bool]:
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

    def pending_atoms(self, excluded: Collection[int]) -> Sequence[Sequence[int]]:
        pairs, start = self._pairs, self._start
        pending = (at for at in pairs.pending_calls(-1) if start <= at < self._stop and at - start not in excluded)
        atoms = set(map(pairs.atoms.__getitem__, pending))
        return [[at - start for at in pairs.incomplete[atom]] for atom in sorted(atoms, reverse=True)]

    def survivors(self, excluded: Collection[int]) -> Iterator[Sequence[int]]:
        """Yield the atoms from the newest turn on, so that older turns are read only if needed."""
        turns, start, atoms = self._turns, self._start, self._pairs.atoms
        first_of, offset = turns.view.history.behind, turns.view.history.offset
        members: dict[int, list[int]] = {}
        yield from (pending_atoms := self.pending_atoms(excluded))
        pending = {atom[0] for atom in pending_atoms}
        for at in range(self._stop - 1 - start, max(start, turns.grouped) - 1 - start, -1):
            atom_at = atoms[start + at] - start
            if at not in excluded and atom_at not in pending:
                members.setdefault(atom_at, []).append(at)
                if atom_at == at:
                    yield members.pop(at)[::-1]
        upto = min(self._stop, turns.grouped)
        while upto > start:  # one step at a time, with the results of its calls at any position
            first = max(start, first_of(offset(upto - 1) // turns.step_bytes * turns.step_bytes)) - start
            for at in range(upto - 1 - start, first - 1, -1):
                atom_at = atoms[start + at] - start
                if at not in excluded and atom_at not in pending:
                    members.setdefault(atom_at, []).append(at)
            step = [at for atom_at in list(members) if atom_at >= first for at in members.pop(atom_at)]
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

    def cost(self, excluded: Collection[int]) -> int:
        return self.whole().tokens - self.tokens(list(excluded))

    def whole(self) -> Rendered:
        self.item_tokens(0)
        sums = self._sums
        tokens = sums[self._stop] - sums[self._start] if sums is not None else 0
        return Rendered(tokens, tokens, 0, 0)
