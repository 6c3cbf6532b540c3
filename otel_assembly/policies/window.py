"""`SlidingWindowPolicy` and `HeadAndTailPolicy`: limit the number of events."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.decision import DecisionReason, Outcome, Overflow, OverflowCause
from otel_assembly.errors import ConfigurationError
from otel_assembly.history.first_message import essential_events, leading, opening_request
from otel_assembly.history.tool_pairs import cut_atoms
from otel_assembly.history.view import Edited
from otel_assembly.policies.base import (
    DecidingPolicy,
    PolicyLimit,
    as_view,
    at_least,
    keep,
    keep_from,
    never_waits,
    orphan_verdicts,
    start_with_user,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.context import Context
    from otel_assembly.decision import Verdict
    from otel_assembly.history.view import View


def keep_newest(
    view: View, first: int, most: int, stride: int = 1, *, user_first: bool = False
) -> tuple[View, list[Verdict], Overflow | None]:
    """Keep a view's first events and the newest of the rest.

    The newest user request, the newest tool call with its results and calls that await an approval are kept too, even
    if they are older or exceed the limit.

    Args:
        view: The events.
        first: How many events to keep at the front.
        most: How many of the other events to keep.
        stride: The beginning of the kept events moves in jumps of this many events.
        user_first: Whether the result must start with a user's request.

    Returns:
        The kept events, the verdicts on the others, and an overflow if more than `most` events had to be kept.
    """
    total = len(view)
    if total - first <= most:
        kept, verdicts = keep(view, [(0, total)], DecisionReason.OUTSIDE_WINDOW)
        return *(start_with_user(kept, verdicts) if user_first else (kept, verdicts)), None
    essential = essential_events(view)
    if user_first:
        opening = opening_request(view, essential.events)
        essential = essential._replace(request=[*opening, *essential.request])
    cut = _cut(total, first, most, stride, set(map(view.index_of, essential.events)))
    kept, verdicts = keep_from(view, cut, DecisionReason.OUTSIDE_WINDOW, first=first, essential=essential)
    if user_first:
        kept, verdicts = start_with_user(kept, verdicts)
    count = len(kept) - first
    return kept, verdicts, Overflow(most, count, OverflowCause.NEWEST_ATOM, "items") if count > most else None


def _cut(total: int, first: int, most: int, stride: int, pinned: set[int]) -> int:
    """Return the index of the window's oldest event, which moves in jumps of `stride` events.

    `first` events at the front are kept in addition to `most` others. The events at the indexes `pinned` are always
    kept; those in front of the result count toward `most`.
    """
    pinned_before = 0
    while True:
        room = max(0, most - pinned_before)
        jumps = -(-(total - first - room) // stride)
        cut = min(total, first + jumps * stride)
        before = sum(first <= index < cut for index in pinned)
        if before <= pinned_before:
            return cut
        pinned_before = before


class SlidingWindowPolicy(DecidingPolicy):
    """Keep the last `max_events` events (as in AG2).

    A tool call and its results are kept or dropped together. System messages at the beginning are always kept and do
    not count. The newest user request and calls that await an approval are always kept, and count toward the window.
    The newest tool call with its results is kept even if it exceeds the limit; the outcome then reports an overflow,
    and no error is raised. Without its newest call and results, the model would repeat the call endlessly.

    Args:
        max_events: The most events to keep.
        transparent: Append a note to the prompts if events were dropped.
        stride: The beginning of the window moves in jumps of this many events. Most turns then start with the same
            events as the turn before, which the provider's cache can serve. The window contains
            ``max_events - stride + 1`` to `max_events` events.

    Raises:
        ConfigurationError: A limit is below 1, or `stride` is above `max_events`.
    """

    name: str = "sliding_window"
    limit: ClassVar[PolicyLimit | None] = PolicyLimit("max_events", "events")
    replayable: ClassVar[bool] = True

    def __init__(self, max_events: int, transparent: bool = False, stride: int = 1) -> None:
        self.max_events = at_least(self.name, "max_events", max_events)
        self.stride = at_least(self.name, "stride", stride)
        if stride > max_events:
            raise ConfigurationError(
                f"{self.name}: stride must be at most max_events ({max_events}), got {stride}: "
                "a longer jump would leave no event in the window"
            )
        self.transparent = bool(transparent)

    @never_waits
    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the newest `max_events` events, with verdicts on the dropped events."""
        view = as_view(events)
        first = leading(view)
        user_first = context.provider_rules(view.history.provider).is_user_first
        kept, verdicts, overflow = keep_newest(view, first, self.max_events, self.stride, user_first=user_first)
        if self.transparent and len(kept) < len(view) > first + self.max_events:
            prompts = [*prompts, f"[{self.name}] Showing last {len(kept)} of {len(view)} events."]
        return Outcome(prompts, kept, verdicts, overflow=overflow)


class HeadAndTailPolicy(DecidingPolicy):
    """Keep the first `head` and the last `tail` events (as in AutoGen).

    System messages at the beginning are always kept and do not count. The newest user request and calls that await an
    approval are always kept, and count toward `tail`. The newest tool call with its results is kept even if it exceeds
    the limit; the outcome then reports an overflow, and no error is raised.

    A tool call and its results are kept or dropped together. A call at the end of the head is dropped if its results
    are outside the head, and results at the start of the tail are dropped if their call is outside the tail.

    Args:
        head: The most events to keep from the beginning.
        tail: The most events to keep from the end.
        transparent: Append a note to the prompts if events were dropped.
        note: Takes the number of dropped events, and returns an event to insert between head and tail. With a note,
            each turn processes all kept events and not only the new ones. None: insert no event.

    Raises:
        ConfigurationError: A limit is below 1, or `note` is not a function.
    """

    name: str = "head_and_tail"
    limit: ClassVar[PolicyLimit | None] = PolicyLimit("tail", "events", additional="head")
    replayable: ClassVar[bool] = True

    def __init__(
        self, head: int, tail: int, transparent: bool = False, note: Callable[[int], Any] | None = None
    ) -> None:
        self.head = at_least(self.name, "head", head)
        self.tail = at_least(self.name, "tail", tail)
        self.transparent = bool(transparent)
        if note is not None and not callable(note):
            raise ConfigurationError(
                f"{self.name}: note must be a function that takes the number of dropped events, got {note!r}"
            )
        self._note = note

    @property
    def only_in_code(self) -> str:
        """The name ``note`` if `note` is set, because no configuration file can contain a function; else empty."""
        return "note" if self._note is not None else ""

    @never_waits
    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the first `head` and the last `tail` events, with verdicts on the dropped events."""
        view = as_view(events)
        first = min(len(view), leading(view) + self.head)
        user_first = context.provider_rules(view.history.provider).is_user_first
        kept, verdicts, excess = keep_newest(view, first, self.tail, user_first=user_first)
        if halves := _split_by_gap(view, kept):
            verdicts += orphan_verdicts(kept, halves)
            kept = kept.without(halves)
            kept, verdicts = start_with_user(kept, verdicts) if user_first else (kept, verdicts)
        overflow = excess and Overflow(self.head + excess.budget, self.head + excess.needed, excess.cause, excess.unit)
        in_full = len(kept) == len(view) or len(view) <= first + self.tail
        if self.transparent and not in_full:
            prompts = [*prompts, f"[{self.name}] Showing {len(kept)} of {len(view)} events, the first and the last."]
        outcome = Outcome(prompts, kept, verdicts, overflow=overflow)
        if self._note is None or in_full:
            return outcome
        places = map(view.index_of, kept.positions())
        gap = next((index for index, place in enumerate(places) if place >= first), len(kept))
        return replace(outcome, events=Edited(kept, gap, [self._note(len(view) - len(kept))]))


def _split_by_gap(view: View, kept: View) -> set[int]:
    """Return the positions of kept events whose atom has an item in the gap between head and tail.

    These are events whose echo is in the gap: `keep_newest` has dropped those that lack a call or a result.
    """
    pairing, halves = view.history.pairing, set[int]()
    for atom in cut_atoms(kept):
        members = list(filter(view.holds, pairing.members(atom)))
        if not all(map(kept.holds, members)):
            halves.update(filter(kept.holds, members))
    return halves
