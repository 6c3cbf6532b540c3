"""Filters: what a step takes out in many places, and goes on taking out, is remembered and read on as it grows.

A filter over a long conversation leaves it in thousands of pieces. They are two columns of its history, what stayed and
what left, each turn with a few positions more; so that a turn costs what is new.
"""

from __future__ import annotations

from array import array
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.history.tool_pairs import ECHO, ORPHAN, REASONED, Pairing
from otel_assembly.history.view import Column, PositionColumn, Run, View
from otel_assembly.matching.sequence_diff import diff_sequences

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


#: A part of fewer pieces is better held as intervals.
PIECES: Final = 16


class FilteredOutput:
    """The output of one step, so far.

    Args:
        view: What went in.
    """

    __slots__ = ("_column", "_known", "_orphans", "_pairing", "_places", "_reasoned", "_separated", "gone", "kept")

    def __init__(self, view: View) -> None:
        self._column = view.segments[0][0]
        self._known = 0
        #: Where in the input that stands which stayed.
        self._places = array("I")
        self._pairing = Pairing()
        self._orphans = 0
        #: By atom with reasoning, how many of its reasoned items stayed; and the atoms of which some did not.
        self._reasoned: dict[int, int] = {}
        self._separated: set[int] = set()
        self.kept = PositionColumn(view.history, array("I"))
        self.gone = PositionColumn(view.history, array("I"))
        self.kept.division = self.gone.division = self._column, self._places

    @staticmethod
    def of(view: View, kept: Sequence[Run]) -> FilteredOutput | None:
        """What stays in order, if that is of one growing column; asked where it is in many pieces."""
        if _growing(view) is None:
            return None
        made = FilteredOutput(view)
        return made if made._take(len(view), kept) else None

    def goes_on(self, view: View, inputs: Sequence[Any], events: Sequence[Any]) -> bool:
        """Take what is new; False where this is not the same again with something behind it."""
        known, length = self._known, len(self._places)
        if _growing(view) is not self._column or len(view) < known or len(events) < length:
            return False
        if not all(map(is_, map(inputs.__getitem__, self._places), events)):
            return False
        out = events[length:]
        diff = diff_sequences(inputs[known:], out)
        if not diff.in_order:
            return False
        kept = diff.kept
        picked = [inputs[known + at] for start, stop in kept for at in range(start, stop)]
        if not all(map(is_, picked, out)):
            return False
        return self._take(len(view), [(known + start, known + stop) for start, stop in kept])

    def _take(self, length: int, kept: Sequence[Run]) -> bool:
        history, at = self.kept.history, self._known
        held, gone = self.kept.held, self.gone.held
        for start, stop in (*kept, (length, length)):
            gone.extend(self._column.positions(at, start))
            if history.pairing.reasoned:
                self._reason(self._column.positions(at, start), self._column.positions(start, stop))
            for position in self._column.positions(start, stop):
                flags = self._pairing.append(history.facts(position))
                if history.flags(position) & ECHO and not flags & ECHO:
                    return False
                self._orphans += bool(flags & ORPHAN)
                held.append(position)
            self._places.extend(range(start, stop))
            at = stop
        self._known = length
        return True

    def _reason(self, gone: Iterable[int], kept: Iterable[int]) -> None:
        """Note which atoms with reasoning stayed in part."""
        pairing = self.kept.history.pairing
        for position in gone:
            if pairing.flags[position] & REASONED and pairing.atoms[position] in self._reasoned:
                self._separated.add(pairing.atoms[position])
        for position in kept:
            if pairing.flags[position] & REASONED:
                atom = pairing.atoms[position]
                count = self._reasoned[atom] = self._reasoned.get(atom, 0) + 1
                (self._separated.discard if count == pairing.reasoned[atom] else self._separated.add)(atom)

    @property
    def broken(self) -> int:
        """Events of the output that lost the other half of their pair."""
        separated = sum(self._reasoned[atom] for atom in self._separated)
        return self._orphans + len(self._pairing.given_up) + separated

    def views(self) -> tuple[View, View]:
        """What stayed, and what left."""
        history = self.kept.history
        stayed = View(history, [(self.kept, 0, len(self.kept))], is_slice=True)
        return stayed, View(history, [(self.gone, 0, len(self.gone))])


def _growing(view: View) -> Column | None:
    """The column that a view is all of, as far as that went when the view was made."""
    if len(view.segments) != 1 or view.segments[0][1] != 0:
        return None
    return view.segments[0][0]
