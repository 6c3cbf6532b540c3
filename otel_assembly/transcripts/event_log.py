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
        #: The events of each message, and the messages of all groups but the last one, which can still grow.
        self._groups: list[list[Event]] = []
        self._messages: list[dict[str, Any] | None] = []
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
        self._append(event)

    def _append(self, event: Event) -> None:
        response = self._response_of(event)
        if self._groups and response and self._response_of(self._groups[-1][-1]) == response:
            self._groups[-1].append(event)
        else:
            self._groups.append([event])

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
        view = [event for group in self._groups for event in group if str(event.get("id")) not in removed]
        created: list[dict[str, Any]] = []
        if summary is not None:
            message = ChatSummary(summary)
            view.insert(offset if isinstance(offset, int) and offset >= 0 else len(view), {"summary message": message})
            created.append(message)
        self._groups, self._messages = [], []
        for event in view:
            self._append(event)
        self._reduction = LoggedReduction(policy, before, created, call_id=call_id)

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages of the events in the view."""
        self._messages += map(self._message, self._groups[len(self._messages) : -1])
        messages = [*self._messages, *map(self._message, self._groups[-1:])]
        return [message for message in messages if message is not None]

    def pending(self) -> tuple[list[dict[str, Any]], Counter[str]]:
        """Return the messages of the events, and the skipped events; the last message can still get more parts."""
        self._messages += map(self._message, self._groups[len(self._messages) : -1])
        known, skipped = len(self._merged), self.skipped.copy()
        messages, with_last = self.messages(), self.skipped
        self.skipped = skipped
        while len(self._merged) > known:
            self._merged.popitem()
        return messages, with_last

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
