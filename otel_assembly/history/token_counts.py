"""What one meter counted of a history: the tokens of every event, and sums of them that need not be added up again."""

from __future__ import annotations

from array import array
from contextlib import suppress
from functools import partial
from itertools import accumulate, compress, islice
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from otel_assembly.history.tool_pairs import ECHO, ORPHAN, PAIRED
from otel_assembly.history.view import Column, Run, View, difference, intersection, is_in, joined, merged, to_runs
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly._internal.threads import ThreadLimit
    from otel_assembly.history.history import History
    from otel_assembly.tokens import TokenMeter

#: Of what arrives at once, the newest so many bytes of text are counted; the tokens of what is older are estimated.
MOST_COUNTED: Final = 4 * 1024 * 1024
#: New text of more bytes than this is counted in a thread where that can be waited for: some three milliseconds.
_MOST_IN_PLACE: Final = 64 * 1024
#: Threads in which one meter counts at the same time, for each event loop.
_MOST_THREADS: Final = 4
#: Bytes of text in a token, where nothing that was counted says it of this conversation.
_BYTES_PER_TOKEN: Final = 4
#: By the flags of an event, whether it calls tools or answers them; any other is an atom of its own.
_IS_PAIRED: Final = bytes(bool(flags & PAIRED) for flags in range(256))


class TokenTable:
    """One meter's counts of one history.

    Every event has its tokens when it arrives. Where more text arrives at once than is counted, the oldest have an
    estimate until somebody asks for their exact number; so has a text that the counter could not count.

    Attributes:
        estimated: The positions whose tokens are an estimate, as runs.
        corrected: The positions that had an estimate and have been counted since, in that order.
    """

    __slots__ = ("_atoms", "_counts", "_history", "_meter", "_sums", "corrected", "estimated")

    def __init__(self, history: History, meter: TokenMeter) -> None:
        self._history = history
        self._meter = meter
        self._counts = array("I")
        #: For each column in use, the tokens in front of each of its indexes.
        self._sums: dict[Column, array[int]] = {}
        #: The same for whole atoms, and how many changes of atoms are in them.
        self._atoms: dict[Column, tuple[array[int], int]] = {}
        self.estimated: list[Run] = []
        self.corrected = array("I")

    def uncounted(self, end: int) -> int:
        """Return the bytes of text up to a position that are not counted yet."""
        offsets = self._history.offsets
        return offsets[end] - offsets[len(self._counts)] if end > len(self._counts) else 0

    def arrive(self, end: int) -> array[int]:
        """Count the new events up to a position, and return the tokens of all events so far."""
        start = len(self._counts)
        if end <= start:
            return self._counts
        history = self._history
        first = start if self.uncounted(end) <= MOST_COUNTED else history.newest(start, end, MOST_COUNTED)
        found, failed = self._count(range(first, end))
        estimates = [*range(start, first), *failed]
        if estimates:
            size, tokens = history.offset(end) - history.offset(first), sum(found)
            bytes_per_token = size / tokens if size and tokens else _BYTES_PER_TOKEN
            found = [0] * (first - start) + found
            for position in estimates:
                found[position - start] = round(history.size(position) / bytes_per_token)
        with history.lock:
            here = len(self._counts)  # another thread may have counted meanwhile
            self._counts.extend(found[max(0, here - start) :])
            if estimates:
                self.estimated = merged([*self.estimated, *to_runs(at for at in estimates if at >= here)])
        return self._counts

    def _count(self, positions: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the tokens of events, and the positions of those that could not be counted."""
        history, count, flags = self._history, self._meter.event, self._history.pairing.flags
        facts = history.fresh_facts
        found: list[int] = []
        failed: list[int] = []
        for position in positions:
            try:
                found.append(0 if flags[position] & ECHO else count(facts.get(position) or history.facts(position)))
            except Exception:  # noqa: BLE001  # it is raised where somebody needs the exact number
                found.append(0)
                failed.append(position)
        return found, failed

    def known(self, position: int) -> int:
        """The tokens of an event; an estimate where it is one of `estimated`."""
        return self._counts[position] if position < len(self._counts) else self.arrive(position + 1)[position]

    def tokens(self, position: int) -> int:
        """Return the tokens of an event; an estimate is counted first."""
        if self.estimated and position < self.estimated[-1][1] and is_in(self.estimated, position):
            self._correct([position])
        counts = self._counts
        return counts[position] if position < len(counts) else self.known(position)

    def exact(self, view: View) -> None:
        """Count the events of a view whose tokens are an estimate."""
        self.arrive(view.end)
        if self.estimated and view.runs and view.position(0) < self.estimated[-1][1]:
            self._correct(
                [position for start, stop in self._estimates(view) for position in view.column.positions[start:stop]]
            )

    def estimates(self, view: View) -> int:
        """How many of a view's events have an estimate."""
        return sum([stop - start for start, stop in self._estimates(view)]) if self.estimated else 0

    def _estimates(self, view: View) -> list[Run]:
        """Return the indexes of a view's column at which the view has events with an estimate."""
        index = view.column.index
        return intersection(view.runs, joined((index(start), index(stop)) for start, stop in self.estimated))

    def _correct(self, positions: Iterable[int]) -> None:
        """Count what has an estimate so far."""
        history, meter = self._history, self._meter
        for start, stop in to_runs(sorted(positions)):
            found = [meter.event(history.facts(position)) for position in range(start, stop)]
            with history.lock:
                self._counts[start:stop] = array("I", found)
                self.estimated = difference(self.estimated, [(start, stop)])
                self.corrected.extend(range(start, stop))
                for column, sums in self._sums.items():
                    del sums[column.index(start) + 1 :]
                first = min(map(history.atom, range(start, stop)))
                for column, (sums, _) in self._atoms.items():
                    del sums[column.index(first) + 1 :]

    def sums(self, column: Column) -> array[int]:
        """The tokens in front of each index of a column, and of all of it."""
        sums = self._sums.get(column)
        length = len(column)
        if sums is None or len(sums) <= length:
            counts = self.arrive(len(self._history.events))
            with self._history.lock:
                if sums is None:
                    sums = array("Q", [0])
                    if column.until is None:
                        sums = self._sums.setdefault(column, sums)
                known = len(sums) - 1
                new = map(counts.__getitem__, column.positions[known:length])
                sums.extend(islice(accumulate(new, initial=sums[-1]), 1, None))
        return sums

    def atoms(self, column: Column) -> array[int]:
        """As `sums`, of whole atoms: what one takes stands where it begins.

        Nothing stands for an orphan, nor for an atom with an unanswered call.
        """
        changed, length = self._history.pairing.changed, len(column)
        sums, seen = self._atoms.get(column) or (array("Q", [0]), 0)
        if len(sums) > length and seen == len(changed):
            return sums
        counts = self.arrive(len(self._history.events))
        with self._history.lock:
            if seen < len(changed):
                del sums[column.index(min(changed[seen:])) + 1 :]
            known = len(sums) - 1
            positions = column.positions[known:length]
            taken = [counts[position] for position in positions]
            if self._history.has_pairs:
                self._gather(column, known, taken)
            sums.extend(islice(accumulate(taken, initial=sums[-1]), 1, None))
            if column.until is None:
                self._atoms[column] = sums, len(changed)
        return sums

    def _gather(self, column: Column, start: int, taken: list[int]) -> None:
        """Move what the events of an atom take to where it begins; in front of the start it stands already."""
        pairing, positions = self._history.pairing, column.positions[start : start + len(taken)]
        paired = bytes(map(pairing.flags.__getitem__, positions)).translate(_IS_PAIRED)
        for at in compress(range(len(taken)), paired):
            position = positions[at]
            atom = pairing.atoms[position]
            if pairing.flags[position] & ORPHAN or atom in pairing.incomplete or atom in pairing.dangling:
                taken[at] = 0
            elif atom != position and taken[at]:
                first = column.index(atom)
                if column.positions[first] == atom:
                    if first >= start:
                        taken[first - start] += taken[at]
                    taken[at] = 0

    def follow(self, column: Column, edited: Column, index: int) -> None:
        """Use the sums of a column for the column that replaces it, up to the index at which they differ."""
        sums, atoms = self._sums.pop(column, None), self._atoms.pop(column, None)
        if sums is not None:
            del sums[index + 1 :]
            self._sums[edited] = sums
        if atoms is not None:
            del atoms[0][index + 1 :]
            self._atoms[edited] = atoms

    def sum(self, view: View) -> int:
        """Return the tokens of a view's events; the cost is that of its runs."""
        runs = view.runs
        if not runs:
            return 0
        sums = self._sums.get(view.column)
        if sums is None or len(sums) <= runs[-1][1]:
            sums = self.sums(view.column)
        if len(runs) == 1:
            start, stop = runs[0]
            return sums[stop] - sums[start]
        return sum([sums[stop] - sums[start] for start, stop in runs])

    def each(self, view: View) -> list[int]:
        """The tokens of every event of a view, in its order."""
        return list(map(self.arrive(view.end).__getitem__, view.positions()))

    def by_kind(self, view: View) -> list[int]:
        """The tokens of a view's events, added up by kind, in the order of `EventKind`."""
        sums, codes, counts = [0] * len(EventKind), self._history.kind_codes, self.arrive(view.end)
        for position in view.positions():
            sums[codes[position]] += counts[position]
        return sums


#: A limit for each meter: a counter that hangs holds up the conversations that it counts, and no others.
_limits: Final[WeakKeyDictionary[TokenMeter, ThreadLimit]] = WeakKeyDictionary()


def _threads(meter: TokenMeter) -> ThreadLimit:
    from otel_assembly._internal.threads import ThreadLimit  # most turns count too little for a thread

    limit = _limits.get(meter)
    return limit if limit is not None else _limits.setdefault(meter, ThreadLimit("tokens", _MOST_THREADS))


async def arrive(view: View, meter: TokenMeter, *, in_place: bool = False) -> None:
    """Count what is new in a view's history; so much of it that an event loop would feel it in a thread.

    If `in_place` is true, the caller is synchronous: no event loop is there to feel it.
    """
    table = view.history.table(meter)
    if not in_place and min(table.uncounted(view.end), MOST_COUNTED) > _MOST_IN_PLACE:
        await _threads(meter).run(partial(table.arrive, view.end))
    table.arrive(view.end)


async def count_estimates(view: View, meter: TokenMeter, *, in_place: bool = False) -> None:
    """Count, in a thread unless `in_place` is true, the events of a view whose tokens are an estimate.

    A counter that fails is asked again, and says so, where somebody needs the number.
    """
    table = view.history.table(meter)
    if table.estimated and table.estimates(view):
        with suppress(Exception):
            if in_place:
                table.exact(view)
            else:
                await _threads(meter).run(partial(table.exact, view))
