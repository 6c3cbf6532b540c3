"""Substitutes for a view: a list of its events as a policy's input, and edited events as a policy's output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.history.view import View


class EventList(list[Any]):
    """A list of a view's events, for policies whose input is a list. A built-in policy uses the view instead."""

    __slots__ = ("view",)

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.view = view


class Edited(list[Any]):
    """A list of a view's events with new ones inserted at an index, and some replaced; their order is unchanged.

    Args:
        view: The view before the edit.
        index: The index in the view in front of which events are inserted.
        inserted: These events.
        replaced: New events by the position of the event that each replaces.

    Attributes:
        view: The view before the edit.
        positions: The position in the view's history of each event; None for a new event.
    """

    __slots__ = ("positions", "view")

    def __init__(
        self, view: View, index: int, inserted: Sequence[Any], replaced: Mapping[int, Any] | None = None
    ) -> None:
        replaced, events = replaced or {}, view.history.events
        positions = list(view.positions())
        super().__init__(replaced[at] if at in replaced else events[at] for at in positions)
        self[index:index] = inserted
        self.view = view
        self.positions: list[int | None] = [None if at in replaced else at for at in positions]
        self.positions[index:index] = [None] * len(inserted)
