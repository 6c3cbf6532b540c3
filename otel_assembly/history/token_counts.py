"""The token counts of a history's events by one meter, and their cumulative sums."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from contextlib import suppress
from functools import partial
from itertools import accumulate, compress, islice
from typing import TYPE_CHECKING, Final

from otel_assembly.history.tool_pairs import ECHO, ORPHAN, PAIRED
from otel_assembly.history.view import Column, Range, View, difference, intersection, is_in, merged, to_ranges
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.history.history import History
    from otel_assembly.tokens import TokenMeter

#: If more new text (bytes) than this is counted in one call, only the newest part is; older events get an estimate.
MOST_COUNTED: Final = 4 * 1024 * 1024
#: New text of more bytes than this (about 3 ms of counting) is counted in a thread if the caller is asynchronous.
_MOST_IN_PLACE: Final = 64 * 1024
#: The assumed bytes of text per token if no event of the call was counted.
_BYTES_PER_TOKEN: Final = 4
_KINDS: Final = len(EventKind)
#: By the flags of an event, whether it can belong to an atom of several events.
_IS_PAIRED: Final = bytes(bool(flags & PAIRED) for flags in range(256))


class TokenTable:
    """The token counts of one history by one meter.

    New events are counted by `arrive`. If they have more text than `MOST_COUNTED`, the oldest of them have an estimate
    until a caller needs the exact number. So do events that the counter failed to count.

    Attributes:
        estimated: The positions whose tokens are an estimate, as ranges.
        corrected: The positions whose estimate was replaced by an exact number, in the order of replacement.
    """

    __slots__ = ("_atoms", "_history", "_meter", "_sums", "corrected", "counts", "estimated")

    def __init__(self, history: History, meter: TokenMeter) -> None:
        self._history = history
        self._meter = meter
        self.counts = array("I")
        #: By column in use, the sums that `sums` returns, and how many of the changed atoms they include.
        self._sums: dict[Column, tuple[array[int], int]] = {}
        self._atoms: dict[Column, tuple[array[int], int]] = {}
        self.estimated: list[Range] = []
        self.corrected = array("I")

    def arrive(self, end: int) -> array[int]:
        """Count the new events up to a position, and return the tokens of all events so far."""
        start = len(self.counts)
        if end <= start:
            return self.counts
        history = self._history
        # The newest event is always counted, even if it is longer than `MOST_COUNTED`.
        first = min(end - 1, bisect_left(history.offsets, history.offsets[end] - MOST_COUNTED, start, end))
        tokens, failed = self._count(range(first, end))
        estimates = [*range(start, first), *failed]
        if estimates:
            size, total = history.offsets[end] - history.offsets[first], sum(tokens)
            bytes_per_token = size / total if size and total else _BYTES_PER_TOKEN
            tokens = [0] * (first - start) + tokens
            for position in estimates:
                tokens[position - start] = round(history.sizes[position] / bytes_per_token)
        with history.lock:
            length = len(self.counts)  # another thread may have counted the same events
            self.counts.extend(tokens[max(0, length - start) :])
            if estimates:
                self.estimated = merged([*self.estimated, *to_ranges(at for at in estimates if at >= length)])
        return self.counts

    def _count(self, positions: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the tokens of events, and the positions of those that could not be counted."""
        history, count, flags = self._history, self._meter.event, self._history.pairing.flags
        facts = history.fresh_facts
        tokens: list[int] = []
        failed: list[int] = []
        for position in positions:
            try:
                tokens.append(0 if flags[position] & ECHO else count(facts.get(position) or history.facts(position)))
            except Exception:  # noqa: BLE001  # `exact` and `tokens` count the event again, and raise the error
                tokens.append(0)
                failed.append(position)
        return tokens, failed

    def known(self, position: int) -> int:
        """Return the tokens of an event; an estimate if it is in `estimated`."""
        return self.counts[position] if position < len(self.counts) else self.arrive(position + 1)[position]

    def tokens(self, position: int) -> int:
        """Return the tokens of an event; an estimate is counted first."""
        if self.estimated and position < self.estimated[-1][1] and is_in(self.estimated, position):
            self._correct([position])
        counts = self.counts
        return counts[position] if position < len(counts) else self.known(position)

    def exact(self, view: View) -> None:
        """Count the events of a view whose tokens are an estimate."""
        self.arrive(view.end)
        if self.estimated and view.ranges and view.position(0) < self.estimated[-1][1]:
            self._correct(
                [position for start, stop in self._estimates(view) for position in view.column.positions[start:stop]]
            )

    def estimates(self, view: View) -> int:
        """Return the number of a view's events with an estimate."""
        return sum([stop - start for start, stop in self._estimates(view)]) if self.estimated else 0

    def _estimates(self, view: View) -> list[Range]:
        """Return the indexes of a view's column at which the view has events with an estimate."""
        index = view.column.index
        return intersection(view.ranges, merged((index(start), index(stop)) for start, stop in self.estimated))

    def _correct(self, positions: Iterable[int]) -> None:
        """Replace the estimates of events by exact numbers, and discard the sums that include them."""
        history, meter = self._history, self._meter
        for start, stop in to_ranges(sorted(positions)):
            tokens = [meter.event(history.facts(position)) for position in range(start, stop)]
            with history.lock:
                self.counts[start:stop] = array("I", tokens)
                self.estimated = difference(self.estimated, [(start, stop)])
                self.corrected.extend(range(start, stop))
                for cache, first in (self._sums, start), (self._atoms, min(history.pairing.atoms[start:stop])):
                    for column, (sums, _) in cache.items():
                        del sums[column.index(first) + 1 :]

    def sums(self, column: Column, *, by_atom: bool = False) -> array[int]:
        """Return the tokens before each index of a column, and as the last entry those of the whole column.

        With `by_atom`, all tokens of an atom are at the index of its first event. Orphans, atoms with an unanswered
        call and separated reasoning then count as 0 tokens.
        """
        cache, changed = (self._atoms, self._history.pairing.changed) if by_atom else (self._sums, ())
        sums, processed = cache.get(column) or (array("Q", [0]), 0)
        length = len(column.positions)
        if len(sums) > length and processed == len(changed):
            return sums
        counts = self.arrive(len(self._history.events))
        with self._history.lock:
            if processed < len(changed):
                del sums[column.index(min(changed[processed:])) + 1 :]
            known = len(sums) - 1
            tokens = list(map(counts.__getitem__, column.positions[known:length]))
            if by_atom:
                self._move_to_atoms(column, known, tokens)
            sums.extend(islice(accumulate(tokens, initial=sums[-1]), 1, None))
            if column.is_current:
                cache[column] = sums, len(changed)
        return sums

    def _move_to_atoms(self, column: Column, start: int, tokens: list[int]) -> None:
        """Move the tokens of each event, from index `start` of a column on, to the first event of its atom.

        If an atom begins before `start`, the sums up to there include the whole atom already.
        """
        pairing, positions = self._history.pairing, column.positions[start : start + len(tokens)]
        paired = bytes(map(pairing.flags.__getitem__, positions)).translate(_IS_PAIRED)
        for index in compress(range(len(tokens)), paired):
            position = positions[index]
            atom = pairing.atoms[position]
            if pairing.flags[position] & ORPHAN or atom in pairing.incomplete or atom in pairing.dangling:
                tokens[index] = 0
            elif atom != position and tokens[index]:
                first = column.index(atom)
                if column.positions[first] == atom:
                    if first >= start:
                        tokens[first - start] += tokens[index]
                    tokens[index] = 0

    def follow(self, column: Column, edited: Column, index: int) -> None:
        """Use the sums of a column for the column that replaces it, up to the index at which they differ."""
        for cache in (self._sums, self._atoms):
            if column in cache:
                cache[edited] = cache.pop(column)
                del cache[edited][0][index + 1 :]

    def sum(self, view: View) -> int:
        """Return the tokens of a view's events; the cost is that of its ranges."""
        ranges = view.ranges
        if not ranges:
            return 0
        sums, _ = self._sums.get(view.column, ((), 0))
        if len(sums) <= ranges[-1][1]:
            sums = self.sums(view.column)
        if len(ranges) == 1:
            start, stop = ranges[0]
            return sums[stop] - sums[start]
        return sum([sums[stop] - sums[start] for start, stop in ranges])

    def by_kind(self, view: View, known: tuple[View, Sequence[int]] | None = None) -> list[int]:
        """Return the total tokens of a view's events by kind, in the order of `EventKind`.

        `known` is another view of this history with its tokens by kind. If that is less work, the tokens of the events
        that only one of the views has are added and subtracted.
        """
        sums, codes, counts = [0] * _KINDS, self._history.kind_codes, self.arrive(view.end)
        parts = [(1, view)]
        if known is not None:
            added, removed = view.minus(known[0]), known[0].minus(view)
            if added.length + removed.length < view.length:
                sums, parts = list(known[1]), [(1, added), (-1, removed)]
        for sign, part in parts:
            for position in part.positions():
                sums[codes[position]] += sign * counts[position]
        return sums


async def arrive(view: View, meter: TokenMeter, *, in_place: bool = False) -> None:
    """Count the new events of a view's history, in a thread if they would block the event loop for long.

    If `in_place` is true, the caller is synchronous and no thread is used.
    """
    table, offsets = view.history.table(meter), view.history.offsets
    uncounted = offsets[view.end] - offsets[min(view.end, len(table.counts))]
    if not in_place and min(uncounted, MOST_COUNTED) > _MOST_IN_PLACE:
        await meter.threads.run(partial(table.arrive, view.end))
    table.arrive(view.end)


async def count_estimates(view: View, meter: TokenMeter, *, in_place: bool = False) -> None:
    """Count, in a thread unless `in_place` is true, the events of a view whose tokens are an estimate.

    Errors of the counter are ignored here; they are raised when a caller needs the exact number.
    """
    table = view.history.table(meter)
    if table.estimated and table.estimates(view):
        with suppress(Exception):
            if in_place:
                table.exact(view)
            else:
                await meter.threads.run(partial(table.exact, view))
