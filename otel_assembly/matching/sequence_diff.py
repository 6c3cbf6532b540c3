"""Compare the output events of a step with its input events, from both ends and at the speed of list comparison.

The unchanged events of a reducer are usually the same objects at the front and the back of its output. List comparison
skips both; only the events between them are matched one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress, pairwise
from operator import is_not
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.history.view import Range, merged, to_ranges
from otel_assembly.matching.event_index import EventIndex, EventMatcher, facts_of
from otel_assembly.messages.content_snapshot import equal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.matching.event_index import Read

#: The number of events per list comparison. The slices are small, so that the first difference is found early.
_CHUNK: Final = 512


@dataclass(slots=True)
class SequenceDiff:
    """The input of each output event of a step.

    Attributes:
        length: The number of inputs.
        front: The number of outputs at the beginning that equal the inputs at the same index.
        back: The number of outputs at the end that equal the inputs at the same distance from the end.
        middle: The index of the input for each output between; None for a new event.
    """

    length: int
    front: int
    back: int
    middle: Sequence[int | None]

    @property
    def kept(self) -> list[Range]:
        """The inputs that are in the output, as ascending ranges."""
        indexes = sorted(index for index in self.middle if index is not None)
        return merged([(0, self.front), *to_ranges(indexes), (self.length - self.back, self.length)])

    @property
    def in_order(self) -> bool:
        """True if every output is an input and their order is unchanged."""
        middle = self.middle
        return not middle or (
            None not in middle and all(left < right for left, right in pairwise(middle))  # type: ignore[operator]
        )

    def found(self) -> list[int | None]:
        """Return for each output the index of its input; None for a new event."""
        back = range(self.length - self.back, self.length)
        return [*range(self.front), *self.middle, *back]

    def gaps_with_new_events(self) -> list[tuple[int, int, int]]:
        """Return the places of new events: between which inputs they are, as a range, and their number.

        The range has the inputs between two neighboring kept ones. It is empty if the new events were only inserted.
        """
        low, new, gaps = self.front, 0, list[tuple[int, int, int]]()
        for index in (*self.middle, self.length - self.back):
            if index is None:
                new += 1
                continue
            if new:
                gaps.append((low, index, new))
            low, new = max(low, index + 1), 0  # an input that moved to the back does not reopen an earlier gap
        return gaps


def diff_sequences(
    inputs: Sequence[Any],
    events: Sequence[Any],
    index: Callable[[], EventIndex] | None = None,
    *,
    read: Read = facts_of,
    changed_is_new: bool = False,
) -> SequenceDiff:
    """Find the events among the inputs.

    Args:
        inputs: The input events, as a list.
        events: The output events, as a list.
        index: Returns an index of the inputs; called only if it is needed. None: the inputs in question are indexed.
        read: Returns the facts of an event; None if it cannot be read.
        changed_is_new: Whether an event with the id of an input, but different content, is a new event in its place.
    """
    length = len(inputs)
    front = length if inputs is events else shared_front(inputs, events)
    most = min(length, len(events)) - front
    back = 0
    if most and inputs[-1] is events[-1]:
        back = shared_front(inputs[length - most :][::-1], events[len(events) - most :][::-1])
    outputs = events[front : len(events) - back]
    if not outputs:
        return SequenceDiff(length, front, back, ())
    if front + back == length:
        return SequenceDiff(length, front, back, (None,) * len(outputs))
    low, high = front, length - back
    if index is not None:
        middle = EventMatcher(inputs, low, high, index(), read=read, changed_is_new=changed_is_new).match(outputs)
    else:
        matches = EventMatcher(inputs[low:high], read=read, changed_is_new=changed_is_new).match(outputs)
        middle = [at if at is None else at + low for at in matches]
    return SequenceDiff(length, front, back, middle)


def shared_front(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the number of items that two sequences begin with in common.

    The first and the last of these items are the same objects; each item between them is the same object or equal.
    """
    most = min(len(first), len(second))
    if not most or first[0] is not second[0]:
        return 0
    if first[most - 1] is second[most - 1]:  # usual, and faster than to search for the first difference
        fronts = (items if len(items) == most else items[:most] for items in (first, second))
        if equal(*fronts):
            return most
    prefix = 0
    while prefix < most and equal(first[prefix : prefix + _CHUNK], second[prefix : prefix + _CHUNK]):
        prefix += _CHUNK
    # If the last equal item is another object, earlier ones may be copies as well: compare all of them by identity.
    start = prefix if prefix < most and first[prefix - 1] is second[prefix - 1] else 0
    return next(compress(range(start, most), map(is_not, first[start:most], second[start:most])), most)
