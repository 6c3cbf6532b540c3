"""Substitutes for a view: a list of its events as a policy's input, and edited events as a policy's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_assembly.history.view import View


class EventList(list[Any]):
    """A list of a view's events, for policies whose input is a list.

    Args:
        view: The view. A built-in policy that receives the list uses this view instead.
    """

    __slots__ = ("view",)

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.view = view


class Edited(Sequence[Any]):
    """A view's events after an edit that replaced some of them or inserted new ones; their order is unchanged.

    Args:
        view: The view before the edit.
        events: The events after the edit.
        positions: The position in the view's history of each event; None for a new event.
    """

    __slots__ = ("_events", "positions", "view")

    def __init__(self, view: View, events: Sequence[Any], positions: Sequence[int | None]) -> None:
        self.view = view
        self._events = events
        self.positions = positions

    def __len__(self) -> int:
        return len(self._events)

    def __getitem__(self, index: Any) -> Any:
        return self._events[index]
