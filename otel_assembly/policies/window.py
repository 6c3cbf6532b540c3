"""`SlidingWindowPolicy`: limits the number of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.decision import DecisionReason, Outcome, Overflow, OverflowCause
from otel_assembly.errors import ConfigurationError
from otel_assembly.history.first_message import essential_events, leading, opening_request
from otel_assembly.policies.base import (
    DecidingPolicy,
    PolicyLimit,
    as_view,
    at_least,
    keep,
    keep_from,
    never_waits,
    start_with_user,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

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
