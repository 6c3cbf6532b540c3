"""Where the events that came out stood among those that went in, found from both ends at the speed of comparing lists.

What a reducer leaves alone stands at the front and at the back, as the very objects: both are skipped without looking
at single events. Only what is left in the middle is matched one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress, pairwise
from operator import is_not
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.history.view import Run, merged, to_runs
from otel_assembly.matching.event_index import EventIndex, EventMatcher, facts_of
from otel_assembly.messages.content_snapshot import equal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.matching.event_index import Read

#: So many are compared at once.
_AT_ONCE: Final = 512


@dataclass(slots=True)
class SequenceDiff:
    """Which of `length` inputs the outputs are.

    Attributes:
        length: How many went in.
        front: So many stand at the beginning as they did.
        back: So many stand at the end as they did.
        middle: For each output between, the index of the input that it is, or stands for; None where there is none.
    """

    length: int
    front: int
    back: int
    middle: Sequence[int | None]

    @property
    def kept(self) -> list[Run]:
        """The inputs that are still there, as ascending runs."""
        found = sorted(index for index in self.middle if index is not None)
        return merged([(0, self.front), *to_runs(found), (self.length - self.back, self.length)])

    @property
    def in_order(self) -> bool:
        """Whether every output is an input, and they stand in the order that they had."""
        middle = self.middle
        return not middle or (
            None not in middle and all(one < other for one, other in pairwise(middle))  # type: ignore[operator]
        )

    def found(self) -> list[int | None]:
        """For each output, the index of its input."""
        back = range(self.length - self.back, self.length)
        return [*range(self.front), *self.middle, *back]

    def replaced(self) -> list[Run]:
        """Runs in whose place something new stands."""
        low, invention = self.front, False
        runs: list[Run] = []
        for index in (*self.middle, self.length - self.back):
            if index is None:
                invention = True
                continue
            if invention and low < index:
                runs.append((low, index))
            low, invention = max(low, index + 1), False
        return runs


def diff_sequences(
    inputs: Sequence[Any],
    events: Sequence[Any],
    index: Callable[[], EventIndex] | None = None,
    *,
    read: Read = facts_of,
    rereads: bool = False,
) -> SequenceDiff:
    """Find the events among the inputs.

    Args:
        inputs: What went in, as a list.
        events: What came out, as a list.
        index: Where the inputs stand, by position, if that is remembered; else it is found out as far as it is needed.
        read: How an event is read.
        rereads: Whether one that is found by its id, but says something else, is a new one in its place.
    """
    length = len(inputs)
    front = length if inputs is events else _shared(inputs, events)
    most = min(length, len(events)) - front
    back = 0
    if most and inputs[-1] is events[-1]:
        back = _shared(inputs[length - most :][::-1], events[len(events) - most :][::-1])
    out = events[front : len(events) - back]
    if not out:
        return SequenceDiff(length, front, back, ())
    if front + back == length:
        return SequenceDiff(length, front, back, (None,) * len(out))
    low, high = front, length - back
    if index is not None:
        middle = EventMatcher(inputs, low, high, index(), read=read, rereads=rereads).match(out)
    else:
        found = EventMatcher(inputs[low:high], read=read, rereads=rereads).match(out)
        middle = [one if one is None else one + low for one in found]
    return SequenceDiff(length, front, back, middle)


def _shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many items two sequences begin with alike: the first and the last are the very objects, all between equal."""
    most = min(len(one), len(other))
    if not most or one[0] is not other[0]:
        return 0
    alike = 0
    while alike < most and equal(one[alike : alike + _AT_ONCE], other[alike : alike + _AT_ONCE]):
        alike += _AT_ONCE
    if alike >= most and one[most - 1] is other[most - 1]:
        return most
    # Where an equal object stands at the end of what is alike, another may have taken the first one's place.
    start = alike if alike < most and one[alike - 1] is other[alike - 1] else 0
    return next(compress(range(start, most), map(is_not, one[start:most], other[start:most])), most)
