"""What changed between two assemblies of a ledger: found by comparing intervals, so that it costs what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_assembly._internal.intervals import Run, difference, merged, to_runs
from otel_assembly.history.view import Column, View
from otel_assembly.ledger.snapshot import Group
from otel_assembly.messages.tool_pairs import ECHO

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.decision import DecisionOutcome, DecisionReason
    from otel_assembly.history.history import History
    from otel_assembly.ledger.snapshot import NumberedHistory

    Tag = tuple[DecisionOutcome, DecisionReason]

#: A view of more segments is better searched as a set.
_FEW: Final = 8


def entered(new: Sequence[Group], old: Sequence[Group], *, tagged: bool = True) -> list[Group]:
    """The items of `new` that are not in `old`; with `tagged`, also those whose outcome or reason was another."""
    if not old or not new:
        return list(new)
    if not _comparable(new, old):
        return _by_ordinal(new, old, tagged=tagged)
    held: dict[tuple[int, Tag | None], list[Run]] = {}
    for group in old:
        for column, start, stop in group.view.segments:
            held.setdefault((id(column), group.tag if tagged else None), []).append((start, stop))
    held = {key: merged(runs) for key, runs in held.items()}
    found: list[Group] = []
    for group in new:
        segments = [
            (column, low, high)
            for column, start, stop in group.view.segments
            for low, high in difference([(start, stop)], held.get((id(column), group.tag if tagged else None), ()))
        ]
        if segments:
            view = View(group.view.history, segments)
            found.append(Group(view, group.frame, group.outcome, group.reason))
    return found


def _comparable(new: Sequence[Group], old: Sequence[Group]) -> bool:
    """Whether no item can stand in two of the columns that these groups name."""
    first: Column | None = None
    for group in (*new, *old):
        for column, _, _ in group.view.segments:
            if first is None:
                first = column
            elif column is not first and (
                column.history is not first.history or (type(column) is Column) is not (type(first) is Column)
            ):
                return False
    return True


def _by_ordinal(new: Sequence[Group], old: Sequence[Group], *, tagged: bool) -> list[Group]:
    held: dict[int, Tag] = {ordinal: group.tag for group in old for ordinal in group.frame.of(group.view)}
    found: list[Group] = []
    for group in new:
        tag = group.tag
        runs = to_runs(
            index
            for index, ordinal in enumerate(group.frame.of(group.view))
            if ordinal not in held or (tagged and held[ordinal] != tag)
        )
        if runs:
            found.append(Group(group.view.pick(runs), group.frame, group.outcome, group.reason))
    return found


def still_in(groups: Iterable[Group], view: View, frame: NumberedHistory) -> list[int]:
    """The ordinals, of items that these groups held, that stand in a view now."""
    found: list[int] = []
    kept: set[int] | None = None
    for group in groups:
        if group.view.history is view.history and len(view.segments) <= _FEW:
            found += (group.frame.ordinals.of(p) for p in group.view.positions() if view.holds(p))
            continue
        if kept is None:
            kept = set(frame.of(view))
        found += (ordinal for ordinal in group.frame.of(group.view) if ordinal in kept)
    return sorted(found)


def ordinal_runs(view: View, frame: NumberedHistory) -> list[Run]:
    """A view's ordinals, in its order, as runs ``[first, last]``; a run only ever ascends."""
    runs: list[Run] = []
    for column, start, stop in view.segments:
        for first, last in _spans(column, start, stop, frame):
            if runs and runs[-1][1] + 1 == first:
                runs[-1] = (runs[-1][0], last)
            else:
                runs.append((first, last))
    return runs


def _spans(column: Column, start: int, stop: int, frame: NumberedHistory) -> Iterable[Run]:
    low, high = column.position(start), column.position(stop - 1)
    if high - low == stop - start - 1:
        return frame.ordinals.spans(low, high + 1)
    return ((ordinal, ordinal) for ordinal in map(frame.ordinals.of, column.positions(start, stop)))


def shared_prefix(new: View, old: View) -> int:
    """How many items two views begin with that read the same: by interval as far as that goes, then by their text."""
    count = shared_positions(new, old)
    if count == min(len(new), len(old)):
        return count
    rest = zip(*(view.pick([(count, len(view))]).positions() for view in (new, old)), strict=False)
    for position, other in rest:
        if not _reads_the_same(new.history, position, old.history, other):
            break
        count += 1
    return count


def shared_positions(new: View, old: View) -> int:
    """How many items two views of one history begin with at the same positions, as far as their intervals tell."""
    count = 0
    for (column, start, stop), (other, low, high) in zip(new.segments, old.segments, strict=False):
        if column is not other or start != low:
            break
        count += min(stop, high) - start
        if stop != high:
            break
    return count


def _reads_the_same(history: History, position: int, other: History, at: int) -> bool:
    if history is other and position == at:
        return True
    if history.size(position) != other.size(at):
        return False
    if (history.flags(position) ^ other.flags(at)) & ECHO or history.digest(position) != other.digest(at):
        return False
    # What an image shows is in no text.
    return not history.has_media(position) or bool(history.event(position) == other.event(at))
