"""The item ids of events that were laid out, and read, before an assembly of them begins."""

from __future__ import annotations

from operator import attrgetter, lt
from typing import TYPE_CHECKING, Final

from otel_assembly.history.read_events import ReadHistory
from otel_assembly.ledger.snapshot import ItemIds, NumberedHistory
from otel_assembly.matching.event_index import EventMatcher
from otel_assembly.matching.sequence_diff import SequenceDiff, diff_sequences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_assembly.history.read_events import ReadEvents

_FACTS: Final = attrgetter("facts")


def numbered_read(old: NumberedHistory | None, events: ReadEvents, take: Callable[[int], int]) -> NumberedHistory:
    """These events with their item ids: what stood there before keeps its own, wherever it stands now.

    It costs what is new, for the rest are the very objects that stood there before.

    Args:
        old: What stood there before.
        events: What stands there now.
        take: Gives so many new item ids; it returns the first of them.
    """
    numbered = NumberedHistory(ReadHistory(events), ItemIds())
    if old is None:
        numbered.item_ids.extend(len(events), take(len(events)))
        return numbered
    diff = diff_sequences(old.history.events, events, read=_FACTS)
    found = [at for at in diff.middle if at is not None]
    if not all(map(lt, found, found[1:])):  # what has no id is known by what stands around it
        matcher = EventMatcher(old.history.events, read=_FACTS, by_identity=False)
        diff = SequenceDiff(diff.length, 0, 0, matcher.match(events))
    numbered.item_ids.extend_from(old.item_ids, 0, diff.front)
    for at, stop in _runs_of(diff.middle):
        if at is None:
            numbered.item_ids.extend(stop, take(stop))
        else:
            numbered.item_ids.extend_from(old.item_ids, at, stop)
    numbered.item_ids.extend_from(old.item_ids, diff.length - diff.back, diff.length)
    return numbered


def _runs_of(found: Sequence[int | None]) -> Iterator[tuple[int | None, int]]:
    """Places in a row as ``(first, stop)``; of what has none, None and how many."""
    at: int | None = None
    stop = 0
    for place in found:
        if stop and (place is None if at is None else place == stop):
            stop += 1
            continue
        if stop:
            yield at, stop
        at, stop = place, 1 if place is None else place + 1
    if stop:
        yield at, stop
