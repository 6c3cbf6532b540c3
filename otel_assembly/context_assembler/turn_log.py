"""`TurnLog`: caches the facts of a conversation's turns from task to task.

From one task to the next, turns are appended to a conversation. The facts of earlier turns are used again if their
content did not change. The turns to keep are searched from the newest one on, as far as there is room. So the cost of a
task depends on the new turns and on the window, and not on the length of the conversation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, starmap
from operator import is_, is_not
from typing import TYPE_CHECKING, Any, Final, overload

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.budget.block import BlockItem, LazyItems
from otel_assembly.budget.compacted_block import CompactedBlock
from otel_assembly.budget.measure import Rendered
from otel_assembly.budget.read_block import Fitting, ReadBlock, orphan_reason
from otel_assembly.budget.rule import BYTES_PER_TOKEN
from otel_assembly.context_assembler.block_event import BlockEvent
from otel_assembly.context_assembler.candidates import HistoryTurns
from otel_assembly.context_assembler.turns import STEP
from otel_assembly.events import Event
from otel_assembly.history.history import ListHistory
from otel_assembly.history.tool_pairs import ORPHAN, RESPONSE, Pairing
from otel_assembly.matching.rotation import COMPARED_WHOLE, ComparedMessages
from otel_assembly.messages.content_snapshot import contents, copied, equal, readable
from otel_assembly.messages.event_facts import EventFacts, describe

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Collection, Iterator, Mapping

    from otel_assembly.budget.block import Block
    from otel_assembly.budget.measure import Measure
    from otel_assembly.decision import DecisionReason
    from otel_assembly.history.history import History
    from otel_assembly.history.view import Range, View

#: The module of the event types whose objects are immutable, so that their content need not be compared.
_IMMUTABLE: Final = Event.__module__
#: Whether an event with these flags is a result without a call, as a table for `bytes.translate`.
_IS_ORPHAN: Final = bytes(bool(flags & ORPHAN) for flags in range(256))
#: Turns of these types are not supported by the log.
_NO_EVENT: Final = (str, CompactedBlock, BlockItem)


@dataclass(frozen=True, slots=True)
class Turns:
    """All turns of a conversation at the time of one task, as a `TurnLog` returns them.

    Attributes:
        view: The turns as events of an assembly.
        known: The turns as items of blocks, to which the log appends later turns.
        border: How many of the turns, from the first on, are older turns; the others are recent turns.
        pairing: The tool pairs among the turns.
        orphans: The positions of results without a call, ascending, to which the log appends later ones.
        grouped: How many of the turns, from the first on, are grouped into steps that are kept or dropped whole; see
            `in_steps`.
        pending: The atoms with a pending tool call, which are in no step.
        step_bytes: The size of a step in bytes; 0 if turns are not grouped.
        compared: The turns whose content was compared with the content that was read.
    """

    view: View
    known: list[BlockItem]
    border: int
    pairing: Pairing
    orphans: Sequence[int]
    grouped: int
    pending: frozenset[int]
    step_bytes: int
    compared: ComparedMessages

    @property
    def items(self) -> TurnItems:
        """All turns as the items of a block."""
        return TurnItems(self, range(len(self.view)))

    def item(self, position: int) -> BlockItem:
        """Return a turn as an item of a block, in the group that it was in at the time of the task."""
        item, group = self.known[position], None
        atom, history = self.pairing.atoms[position], self.view.history
        if self.step_bytes and atom not in self.pending:
            step = history.offsets[atom] // self.step_bytes
            if step < history.offsets[len(self.view)] // self.step_bytes - 1:
                group = f"{STEP}{step}"
        return item if item.group == group else replace(item, group=group)


class TurnItems(LazyItems):
    """Consecutive turns as the items of a block.

    Args:
        turns: All turns of the conversation.
        positions: The positions of these turns.
    """

    __slots__ = ("positions", "turns")

    def __init__(self, turns: Turns, positions: range) -> None:
        self.turns = turns
        self.positions = positions

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, index: int) -> BlockItem: ...
    @overload
    def __getitem__(self, index: slice) -> TurnItems: ...
    def __getitem__(self, index: int | slice) -> BlockItem | TurnItems:
        positions = self.positions[index]
        return TurnItems(self.turns, positions) if isinstance(positions, range) else self.turns.item(positions)

    def __iter__(self) -> Iterator[BlockItem]:
        return map(self.turns.item, self.positions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{len(self)} turns>"


class TurnLog:
    """A cache of the turns of one conversation, with their facts, tool pairs and steps.

    Args:
        step_tokens: The size of a step in tokens, of 4 bytes each; 0 to group no turns. See `in_steps`.
    """

    def __init__(self, step_tokens: int) -> None:
        self._step_bytes = BYTES_PER_TOKEN * step_tokens
        self._lock = new_lock(self, TurnLog._begin)
        self._begin()

    def _begin(self) -> None:
        self._turns: list[Any] = []
        #: The `History` from which the turns were taken, if any; its events never change.
        self._source: History | None = None
        #: The content of each turn at the time when its facts were read, to detect changes.
        self._contents: list[Any] = []
        self._history = ListHistory()
        self._items: list[BlockItem] = []
        #: The positions of results without a call.
        self._orphans: list[int] = []
        self._grouped = 0
        #: How many turns `_group` has looked at, and the newest step at that time.
        self._looked_at, self._newest_step = 0, 0
        #: The atoms with a pending tool call, which are not grouped into steps.
        self._pending: set[int] = set()
        self._changes = 0
        #: The turns that the previous task sent, as ascending ranges.
        self._sent: Sequence[Range] = ()
        self._compared = ComparedMessages()

    def take(self, examples: Sequence[EventFacts], older: Sequence[Any], recent: Sequence[Any]) -> Turns | None:
        """Read the facts of the new turns, and return all turns of the conversation.

        Args:
            examples: The facts of the few-shot examples, which precede the turns.
            older: The older turns, oldest first.
            recent: The turns after the older ones.

        Returns:
            The turns; None if the log does not support them, because a turn is a text or a `BlockItem`, or has the call
            id of an example.

        Raises:
            DescribeError: A turn has an unregistered type.
        """
        source = recent.history if isinstance(recent, HistoryTurns) and not older else None
        compared = ComparedMessages()
        with self._lock:
            if source is not None and source is self._source and len(recent) >= len(self._turns):
                new = source.events[len(self._turns) : len(recent)]
            else:
                turns = [*older, *recent]
                found = self._compare_known(turns)
                if found is None:
                    self._begin()
                compared = found or compared
                new = turns[len(self._turns) :]
            if new and not self._read(new, examples):
                return None
            self._source = source
            history = self._history
            self._group()
            border, atoms = len(older), history.pairing.atoms
            while border and (atom := min(atoms[border:], default=border)) < border:
                border = atom
            return Turns(
                history.view(),
                self._items,
                border,
                history.pairing.frozen(),
                self._orphans,
                self._grouped,
                frozenset(self._pending),
                self._step_bytes,
                compared,
            )

    def verify(self, turns: Turns, sent: Sequence[Range]) -> bool:
        """Return whether the turns to send, and the atom in front of the last range, have the content that was read.

        Turns that were compared when the task began are not compared again. If a turn changed, the log is cleared, so
        that all turns are read again. The ranges are stored: the next task compares the turns that this one sends.

        Args:
            turns: The turns of this task.
            sent: The ranges of turns to send, ascending.
        """
        with self._lock:
            if turns.known is not self._items:  # a concurrent task of the conversation has other turns
                return True
            self._sent = sent
            if not turns.compared.start or not sent:
                return True
            start = sent[-1][0]
            atom = self._history.pairing.atoms[start - 1] if start else 0
            rest = turns.compared.others([*range(atom, start), *chain.from_iterable(starmap(range, sent))])
            now, old_contents = ([*map(items.__getitem__, rest)] for items in (self._turns, self._contents))
            if equal(old_contents, contents(now)):
                return True
            self._begin()
            return False

    def _compare_known(self, turns: list[Any]) -> ComparedMessages | None:
        """Return which known turns were compared with the first of `turns`; None if these are others, or changed."""
        known = len(self._turns)
        if known > COMPARED_WHOLE and self._sent and self._starts_with_known(turns):
            *before, (start, _) = self._sent
            sent = [*chain.from_iterable(starmap(range, before))]
            compared = self._compared.following(self._history.pairing.atoms[start - 1] if start else 0, sent)
            self._compared = compared
            now, old_turns, old_contents = compared.select(known, turns, self._turns, self._contents)
            if all(map(is_, now, old_turns)) and _are_readable(now):
                return compared if equal(old_contents, contents(now)) else None
        return ComparedMessages() if self._continues(turns) else None

    def _starts_with_known(self, turns: list[Any]) -> bool:
        """Return whether `turns` begins with the known objects; copies are recognized early, by the first and last."""
        known = len(self._turns)
        same_ends = len(turns) >= known and turns[0] is self._turns[0] and turns[known - 1] is self._turns[-1]
        return same_ends and equal(turns[:known], self._turns)

    def _continues(self, turns: list[Any]) -> bool:
        """Return whether the known turns are at the beginning of `turns` and their content did not change."""
        known = len(self._turns)
        first = turns[:known]
        if len(first) < known or not all(map(is_, map(type, first), map(type, self._turns))):
            return False
        if not _are_readable(first):
            return False
        if not equal(self._contents, contents(first)):
            return False
        for index in list(compress(range(known), map(is_not, first, self._turns))):  # equal content in another object
            item = self._items[index] = replace(self._items[index], content=first[index])
            self._history.events[index].item = item
        self._turns = first
        return True

    def _read(self, new: list[Any], examples: Sequence[EventFacts]) -> bool:
        """Read the facts of new turns, and return False if the log does not support one of them."""
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
        for index in history.echoes[bisect_left(history.echoes, first) :]:
            items[index - first] = replace(items[index - first], echo=True)
        orphans = bytes(history.pairing.flags[first:]).translate(_IS_ORPHAN)
        self._orphans += compress(range(first, len(history)), orphans)
        self._items += items
        self._turns += new
        self._contents += copies
        return True

    def _group(self) -> None:
        """Set `BlockItem.group` of the turns that are grouped into steps, as `in_steps` does."""
        size = self._step_bytes
        if not size:
            return
        history, items, atoms = self._history, self._items, self._history.pairing.atoms
        newest = history.offsets[len(items)] // size
        pending = {atoms[index] for index in history.pairing.pending_calls(-1)}
        joined = filter(history.pairing.joined.__contains__, history.pairing.changed[self._changes :])
        regrouped = {index for atom in {*joined, *(pending ^ self._pending)} for index in history.pairing.members(atom)}
        # Older turns are grouped when a step begins; until then, only a new turn may be part of an older atom.
        first = self._grouped if newest > self._newest_step else self._looked_at
        for index in (*regrouped, *range(first, len(items))):
            step = history.offsets[atoms[index]] // size
            group = f"{STEP}{step}" if step < newest - 1 and atoms[index] not in pending else None
            if items[index].group != group:
                items[index] = replace(items[index], group=group)
        self._grouped = history.position_after((newest - 1) * size)
        self._pending, self._changes = pending, len(history.pairing.changed)
        self._looked_at, self._newest_step = len(items), newest


class TurnsBlock(ReadBlock):
    """A `ReadBlock` of turns, whose facts and token counts are cached in a `TurnLog`.

    Args:
        block: The block.
        measure: Counts the tokens of turns.
        turns: All turns of the conversation.
        start: The index of the block's first turn in `turns`.
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
        if self._start <= self._pairs.last_response < self._stop:
            return self._pairs.last_response
        return next((index for index in range(self._stop - 1, self._start - 1, -1) if flags[index] & RESPONSE), -1)

    def unpaired(self, excluded: Collection[int], *, answered_later: bool) -> tuple[Mapping[int, DecisionReason], bool]:
        pairs, start, stop = self._pairs, self._start, self._stop
        newest = stop if answered_later else self._newest_response()
        orphans = self._turns.orphans
        orphaned = list(orphans[bisect_left(orphans, start) : bisect_left(orphans, stop)])
        for atom, members in pairs.incomplete.items():
            if start <= atom < stop and not pairs.is_sendable(atom, newest):
                orphaned += members
        orphaned += (index for atom in pairs.dangling for index in pairs.members(atom) if start <= index < stop)
        reasons = {index - start: orphan_reason(pairs, index) for index in sorted(orphaned)}
        return reasons, any(start <= index < stop for index in pairs.pending_calls(newest))

    def pending_atoms(self, excluded: Collection[int]) -> Sequence[Sequence[int]]:
        pairs, start = self._pairs, self._start
        pending = (
            index for index in pairs.pending_calls(-1) if start <= index < self._stop and index - start not in excluded
        )
        atoms = set(map(pairs.atoms.__getitem__, pending))
        return [[index - start for index in pairs.incomplete[atom]] for atom in sorted(atoms, reverse=True)]

    def survivors(self, excluded: Collection[int]) -> Iterator[Sequence[int]]:
        """Yield the atoms of pending calls, then those of other turns, the newest first.

        This is a generator, so that older turns are read only if there is room for them. Turns that are grouped into
        steps are yielded one step at a time.
        """
        turns, start, atoms = self._turns, self._start, self._pairs.atoms
        first_turn_at, offsets = turns.view.history.position_after, turns.view.history.offsets
        members: dict[int, list[int]] = {}
        yield from (pending_atoms := self.pending_atoms(excluded))
        pending = {atom[0] for atom in pending_atoms}
        for index in range(self._stop - 1 - start, max(start, turns.grouped) - 1 - start, -1):
            atom_index = atoms[start + index] - start
            if index not in excluded and atom_index not in pending:
                members.setdefault(atom_index, []).append(index)
                if atom_index == index:
                    yield members.pop(index)[::-1]
        end = min(self._stop, turns.grouped)
        while end > start:  # a step contains the results of its calls, even if they are in a later step
            first = max(start, first_turn_at(offsets[end - 1] // turns.step_bytes * turns.step_bytes)) - start
            for index in range(end - 1 - start, first - 1, -1):
                atom_index = atoms[start + index] - start
                if index not in excluded and atom_index not in pending:
                    members.setdefault(atom_index, []).append(index)
            step = [index for atom_index in list(members) if atom_index >= first for index in members.pop(atom_index)]
            if step:
                yield sorted(step)
            end = first + start

    def fitting(self, excluded: Collection[int], room: int, pinned: int) -> Fitting:
        """Find the oldest turn from which the newer ones fit, by bisection in the sums of tokens.

        The sums contain what is not sent anyway, and what is sent with an older turn. So the first cut that they give
        may be too new, and the search goes on from there, turn by turn or step by step. Older turns are never read.
        """
        pending_atoms = self.pending_atoms(excluded)
        if len(pending_atoms) != pinned:
            return super().fitting(excluded, room, pinned)
        turns, start, stop, atoms = self._turns, self._start, self._stop, self._pairs.atoms
        pending = sorted(index for atom in pending_atoms for index in atom)
        remaining = room - self.tokens(pending)
        apart = sorted(start + index for index in (*excluded, *pending)) if excluded or pending else []
        ungrouped = min(stop, max(start, turns.grouped))
        cut = stop
        if remaining >= 0:
            tokens, sums = self._counts()
            enough = bisect_left(sums, sums[stop] - remaining, start, stop)
            cut = max(enough, ungrouped)
            older, used = self._across(cut, apart)
            while cut > ungrouped:
                position = cut - 1
                atom = atoms[position]
                if not _holds(apart, position):
                    older[atom] = older.get(atom, 0) + tokens[position]
                    if atom == position:
                        used += older.pop(atom)
                        if used > remaining:
                            break
                cut = position
            if cut == ungrouped > start:
                history, size = turns.view.history, turns.step_bytes
                offsets, position_after = history.offsets, history.position_after
                if enough < cut:
                    edge = offsets[enough] // size * size
                    # Turns without text before `enough` can be at the same offset, and so in the same step.
                    cut = min(cut, position_after(edge if position_after(edge) == enough else edge + size))
                while cut > start:
                    step = max(start, position_after(offsets[cut - 1] // size * size))
                    if self._across(step, apart)[1] > remaining:
                        break
                    cut = step
        kept: Sequence[int] = range(cut - start, stop - start)
        span = self._pairs.span
        if (apart and apart[-1] >= cut) or pending or any(atom < cut for atom in atoms[cut : min(stop, cut + span)]):
            left_out = set(apart)
            fits = (at - start for at in range(cut, stop) if atoms[at] >= cut and at not in left_out)
            kept = sorted([*pending, *fits])
        fitting = [*pending_atoms, kept] if len(kept) > len(pending) else pending_atoms
        return Fitting(fitting, None, kept, self.rendered(kept))

    def _across(self, cut: int, apart: Sequence[int]) -> tuple[dict[int, int], int]:
        """Add up the tokens of the atoms that are whole from a position on.

        Args:
            cut: The position.
            apart: The positions that do not count, ascending.

        Returns:
            The tokens, from the position on, of each atom that begins before it, by the atom; and those of all others.
        """
        (tokens, sums), stop, atoms = self._counts(), self._stop, self._pairs.atoms
        older: dict[int, int] = {}
        for position, atom in enumerate(atoms[cut : min(stop, cut + self._pairs.span)], cut):
            if atom < cut and not _holds(apart, position):
                older[atom] = older.get(atom, 0) + tokens[position]
        not_sent = sum(map(tokens.__getitem__, apart[bisect_left(apart, cut) :])) if apart else 0
        return older, sums[stop] - sums[cut] - not_sent - sum(older.values())

    def items_at(self, indexes: Sequence[int]) -> Sequence[BlockItem]:
        known, start = self._turns.known, self._start
        if isinstance(indexes, range):
            return known[start + indexes.start : start + indexes.stop]
        return [known[start + index] for index in indexes]

    def charge(self, order: Sequence[int]) -> int:
        return self.tokens(order)

    def charging(self, *, has_only_texts: bool) -> Callable[[int], int]:
        return self.item_tokens

    def has_only_texts(self, indexes: object) -> bool:
        return False

    def _counts(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the tokens of each turn, and the tokens before each turn and before the end."""
        if self._tokens is None or self._sums is None:
            view = self._turns.view
            table = self._measure.exact_table(view)
            self._tokens, self._sums = table.arrive(view.end), table.sums(view.history.all)
        return self._tokens, self._sums

    def item_tokens(self, index: int) -> int:
        return self._counts()[0][self._start + index]

    def tokens(self, kept: Sequence[int]) -> int:
        if not kept:
            return 0
        tokens, sums = self._counts()
        if isinstance(kept, range):
            return sums[self._start + kept.stop] - sums[self._start + kept.start]
        return sum([tokens[self._start + index] for index in kept])

    def rendered(self, kept: Sequence[int]) -> Rendered:
        tokens = self.tokens(kept)
        return Rendered(tokens, tokens, 0, 0)

    def cost(self, excluded: Collection[int]) -> int:
        return self.whole().tokens - self.tokens(list(excluded))


def _are_readable(turns: Sequence[Any]) -> bool:
    """Return whether it is known which content ``describe()`` reads of all these turns."""
    by_type = dict(zip(map(type, turns), turns, strict=True))
    return readable([turn for kind, turn in by_type.items() if kind.__module__ != _IMMUTABLE])


def _holds(positions: Sequence[int], position: int) -> bool:
    """Return whether a position is one of these, which are ascending."""
    place = bisect_left(positions, position)
    return place < len(positions) and positions[place] == position
