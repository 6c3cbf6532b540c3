"""`SlidingWindowPolicy`: a limit by count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.decision import DecisionReason, Outcome, Overflow, OverflowCause
from otel_assembly.errors import ConfigurationError
from otel_assembly.history.first_message import leading, newest_atom, newest_request, newest_response
from otel_assembly.policies.base import (
    DecidingPolicy,
    PolicyLimit,
    as_view,
    at_least,
    is_user_first,
    keep,
    keep_from,
    opening_request,
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
    """Keep a view's first events and the newest of the rest, with what no limit by count may take.

    Args:
        view: The events.
        first: How many of them stay in front.
        most: How many of the rest stay.
        stride: The cut moves in jumps of so many events.
        user_first: Whether what is kept has to start with a user's request.

    Returns:
        What is kept, verdicts on the rest, and, where what had to stay is more than `most`, by how much.
    """
    total = len(view)
    if total - first <= most:
        kept, verdicts = keep(view, [(0, total)], DecisionReason.OUTSIDE_WINDOW)
        return *(start_with_user(kept, verdicts) if user_first else (kept, verdicts)), None
    history, response = view.history, newest_response(view)
    request = newest_request(view)
    awaiting = [position for position in history.pairing.pending_calls(response) if view.holds(position)]
    held = {*request, *awaiting, *newest_atom(view, response)}
    if user_first and (opening := opening_request(view, held)):
        request = [*opening, *request]
        held.update(opening)
    cut = _cut(total, first, most, stride, set(map(view.index_of, held)))
    kept, verdicts = keep_from(
        view,
        cut,
        DecisionReason.OUTSIDE_WINDOW,
        first=first,
        held=held,
        request=request,
        pending=awaiting,
    )
    count = len(kept) - first
    if user_first:
        whole = len(kept)
        kept, verdicts = start_with_user(kept, verdicts)
        count -= whole - len(kept)
    return kept, verdicts, Overflow(most, count, OverflowCause.NEWEST_ATOM, "items") if count > most else None


def _cut(total: int, first: int, most: int, stride: int, pinned: set[int]) -> int:
    """The index of the window's oldest event; what is pinned in front of it takes places of the window."""
    held = 0
    while True:
        room = max(0, most - held)
        jumps = -(-(total - first - room) // stride)
        cut = min(total, first + jumps * stride)
        before = sum(first <= index < cut for index in pinned)
        if before <= held:
            return cut
        held = before


class SlidingWindowPolicy(DecidingPolicy):
    """Keeps the last `max_events` events (as in AG2), whole tool calls, and the newest user request.

    System messages that lead the events are prompts: they stay and do not count. The newest user request and a call
    that awaits an approval stay, and take a place of the window. The newest tool call with its results stays even past
    the limit; the outcome is then overflowed, with no error: a window that cut a call from under its result would make
    the model call for ever.

    Args:
        max_events: The most events to keep.
        transparent: Append a note to the prompts when something was dropped.
        stride: The cut moves in jumps of so many events, so that the prompt's beginning stays the same, and cached, for
            most turns; the window then holds between ``max_events - stride + 1`` and `max_events` events.

    Raises:
        ConfigurationError: A limit below 1, or a stride above the window.
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
                "a longer jump would leave nothing"
            )
        self.transparent = bool(transparent)

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the window."""
        view = as_view(events)
        first = leading(view)
        user_first = is_user_first(view, context)
        kept, verdicts, overflow = keep_newest(view, first, self.max_events, self.stride, user_first=user_first)
        if self.transparent and len(kept) < len(view) > first + self.max_events:
            prompts = [*prompts, f"[{self.name}] Showing last {len(kept)} of {len(view)} events."]
        return Outcome(prompts, kept, verdicts, overflow=overflow)
