"""What policies are given and give back in the place of a view: its events as a list, or some of them replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_assembly.history.view import View


class EventList(list[Any]):
    """A list of a view's events, for policies that are given lists; it knows the view.

    Args:
        view: What it is a list of.
    """

    __slots__ = ("view",)

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.view = view


class Edited(Sequence[Any]):
    """A view's events, some of them replaced and others put between them; no event moves.

    Args:
        view: What was edited.
        events: What came of it.
        positions: For each of these the position in the view's history that it stands at; None where it is new.
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
