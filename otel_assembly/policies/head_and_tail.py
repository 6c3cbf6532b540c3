"""`HeadAndTailPolicy`: keeps a number of events from each end of a conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.decision import Outcome, Overflow
from otel_assembly.errors import ConfigurationError
from otel_assembly.history.edited import Edited
from otel_assembly.history.first_message import leading
from otel_assembly.history.tool_pairs import cut_atoms
from otel_assembly.policies.base import (
    DecidingPolicy,
    PolicyLimit,
    as_view,
    at_least,
    never_waits,
    orphan_verdicts,
    start_with_user,
)
from otel_assembly.policies.window import keep_newest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.context import Context
    from otel_assembly.history.view import View


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
        if halves := _halves(view, kept):
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


def _halves(view: View, kept: View) -> set[int]:
    """Return the positions of kept events whose atom has an item in the gap, which can also be an echo."""
    pairing, halves = view.history.pairing, set[int]()
    for atom in cut_atoms(kept):
        members = list(filter(view.holds, pairing.members(atom)))
        if not all(map(kept.holds, members)):
            halves.update(filter(kept.holds, members))
    return halves
