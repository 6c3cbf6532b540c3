"""Where the events that came out stood among those that went in, found from both ends at the speed of comparing lists.

What a reducer leaves alone stands at the front and at the back, as the very objects: both are skipped without looking
at single events. Only what is left in the middle is matched one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.intervals import to_runs, without
from otel_assembly.matching.event_index import Index, Matcher, facts_of
from otel_assembly.messages.content_snapshot import equal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly._internal.intervals import Run
    from otel_assembly.matching.event_index import Read

#: So many are compared at first, and so many times as many next.
_FIRST: Final = 16
_GROWTH: Final = 8


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
        runs = [(0, self.front), *to_runs(found), (self.length - self.back, self.length)]
        merged: list[Run] = []
        for start, stop in runs:
            if start < stop:
                if merged and merged[-1][1] == start:
                    merged[-1] = (merged[-1][0], stop)
                else:
                    merged.append((start, stop))
        return merged

    @property
    def gone(self) -> list[Run]:
        """The inputs that are not there any more."""
        return without(self.length, self.kept)

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
        """Runs in which what is gone was replaced: something new stands where they stood."""
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


def align(
    inputs: Sequence[Any],
    events: Sequence[Any],
    index: Callable[[], Index] | None = None,
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
    front = _front(inputs, events)
    back = _back(inputs, events, front)
    out = events[front : len(events) - back]
    if not out:
        return SequenceDiff(length, front, back, ())
    if front + back == length:
        return SequenceDiff(length, front, back, (None,) * len(out))
    low, high = front, length - back
    if index is not None:
        middle = Matcher(inputs, low, high, index(), read=read, rereads=rereads).match(out)
    else:
        found = Matcher(inputs[low:high], read=read, rereads=rereads).match(out)
        middle = [one if one is None else one + low for one in found]
    return SequenceDiff(length, front, back, middle)


def _front(inputs: Sequence[Any], events: Sequence[Any]) -> int:
    """How many both begin with: the very objects at both ends of it, and equal ones between."""
    most = min(len(inputs), len(events))
    if inputs is events:
        return most
    if not most or inputs[0] is not events[0]:
        return 0
    if len(inputs) == len(events) and equal(inputs, events):
        return most if inputs[-1] is events[-1] else _exactly(inputs, events, most)
    done, step = 0, _FIRST
    while done < most:
        upto = min(most, done + step)
        if not equal(inputs[done:upto], events[done:upto]):
            while upto - done > 1:
                middle = (done + upto) // 2
                if equal(inputs[done:middle], events[done:middle]):
                    done = middle
                else:
                    upto = middle
            break
        done, step = upto, step * _GROWTH
    return done if done and inputs[done - 1] is events[done - 1] else _exactly(inputs, events, done)


def _exactly(inputs: Sequence[Any], events: Sequence[Any], upto: int) -> int:
    """How many of so many are the very objects: among equal ones, another may have taken the first one's place."""
    return next((at for at in range(upto) if inputs[at] is not events[at]), upto)


def _back(inputs: Sequence[Any], events: Sequence[Any], front: int) -> int:
    """The same, from the end."""
    most = min(len(inputs), len(events)) - front
    if not most or inputs[-1] is not events[-1]:
        return 0
    high, top = len(inputs), len(events)
    done, step = 0, _FIRST
    while done < most:
        upto = min(most, done + step)
        if not equal(inputs[high - upto : high - done], events[top - upto : top - done]):
            while upto - done > 1:
                middle = (done + upto) // 2
                if equal(inputs[high - middle : high - done], events[top - middle : top - done]):
                    done = middle
                else:
                    upto = middle
            break
        done, step = upto, step * _GROWTH
    if done and inputs[high - done] is events[top - done]:
        return done
    return next((at for at in range(done) if inputs[high - at - 1] is not events[top - at - 1]), done)
