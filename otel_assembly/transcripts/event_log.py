"""`EventLog`: the messages of each model call in a log of events."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from otel_assembly.messages import ChatSummary
from otel_assembly.transcripts.conversation import LoggedCall, LoggedReduction
from otel_assembly.transcripts.messages import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Event = dict[str, Any]

__all__ = ["EventLog"]


class EventLog:
    """The events of the next request, while a log is read whose events are messages or parts of messages.

    Args:
        message_of: Returns the message of an event; None if no model receives it. Messages of one response are merged.
        response_of: Returns the id of the response that an event is a part of; empty for other events.

    Attributes:
        skipped: The number of events that were not understood, by description.
        calls: The model calls so far.
    """

    def __init__(
        self, message_of: Callable[[Event], dict[str, Any] | None], response_of: Callable[[Event], str]
    ) -> None:
        self.skipped: Counter[str] = Counter()
        self.calls: list[LoggedCall] = []
        self._message_of = message_of
        self._response_of = response_of
        self._view: list[Event] = []
        self._responses: set[str] = set()
        #: The messages by the ids of their events. The events are kept too, because a new event could get a free id.
        self._merged: dict[tuple[int, ...], tuple[list[Event], dict[str, Any]]] = {}
        self._reduction: LoggedReduction | None = None

    def add(self, event: Event) -> None:
        """Add an event to the view; the first event of a response is a call."""
        response = self._response_of(event)
        if response and response not in self._responses:
            self._responses.add(response)
            self.calls.append(LoggedCall(response, self.messages(), self._reduction))
            self._reduction = None
        self._view.append(event)

    def condense(
        self, policy: str, forgotten: Iterable[Any], summary: dict[str, Any] | None, offset: Any, call_id: str = ""
    ) -> None:
        """Remove events, and insert the summary that replaces them.

        Args:
            policy: The reducer's name.
            forgotten: The ids of the removed events.
            summary: The summary, as a message; None if there is none.
            offset: The place of the summary among the remaining events; at their end if this is not a place.
            call_id: The id of the summarizer's own call; empty if unknown.
        """
        before = self.messages()
        removed = {str(name) for name in forgotten}
        self._responses.add(call_id)
        self._view = [event for event in self._view if str(event.get("id")) not in removed]
        created: list[dict[str, Any]] = []
        if summary is not None:
            message = ChatSummary(summary)
            place = offset if isinstance(offset, int) and offset >= 0 else len(self._view)
            self._view.insert(place, {"summary message": message})
            created.append(message)
        self._reduction = LoggedReduction(policy, before, created, call_id=call_id)

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages of the events in the view."""
        groups: list[list[Event]] = []
        for event in self._view:
            response = self._response_of(event)
            if groups and response and self._response_of(groups[-1][-1]) == response:
                groups[-1].append(event)
            else:
                groups.append([event])
        return [message for group in groups if (message := self._message(group)) is not None]

    def _message(self, group: list[Event]) -> dict[str, Any] | None:
        if "summary message" in group[0]:
            message: dict[str, Any] = group[0]["summary message"]
            return message
        key = tuple(map(id, group))
        if key not in self._merged:
            parts = [part for event in group if (part := self._message_of(event)) is not None]
            if not parts:
                return None
            merged = dict(parts[0])
            for part in parts[1:]:
                merged.setdefault("tool_calls", []).extend(part.get("tool_calls", ()))
            self._merged[key] = group, readable(merged, self.skipped)
        return self._merged[key][1]
