"""Renders a conversation as text, for the model that summarizes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.messages.event_facts import EventFacts, EventKind, describe
from otel_assembly.messages.replacements import summary_text

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The most characters of a tool result that are rendered. Of a longer result, the first half and the last half of this
#: number are rendered.
MAX_TOOL_RESULT_CHARACTERS = 2_000

_LABELS: dict[str, str] = {
    EventKind.REQUEST: "user",
    EventKind.RESPONSE: "assistant",
    EventKind.TOOL_CALL: "tool call",
    EventKind.TOOL_RESULT: "tool result",
    EventKind.SUMMARY: "summary of earlier events",
    EventKind.SYSTEM: "system",
}


def render_events(events: Iterable[Any]) -> str:
    """Return the events as one text, a paragraph ``label: text`` for each event; empty if no event is rendered.

    Events that a model is never sent (alerts, lifecycle notes) are omitted, as are events that only repeat a tool call
    or a tool result of an earlier event. Tool results longer than `MAX_TOOL_RESULT_CHARACTERS` are cut in the middle.

    Raises:
        DescribeError: The library does not know the type of an event.
    """
    repetitions = _Repetitions()
    return "\n\n".join(
        _line(facts) for facts in map(describe, events) if facts.rendered and not repetitions.contain(facts)
    )


def _line(facts: EventFacts) -> str:
    label = _LABELS.get(facts.kind, str(facts.kind))
    content = facts.text.removeprefix(summary_text("")) if facts.kind == EventKind.SUMMARY else facts.text
    texts = [text for text in (content, *facts.fields) if text]
    if facts.kind == EventKind.TOOL_RESULT:
        texts = [_shorten(text) for text in texts]
    if facts.media_tokens:
        texts.append("[media]")
    return f"{label} {facts.name}".rstrip() + ": " + " ".join(texts)


def _shorten(text: str) -> str:
    if len(text) <= MAX_TOOL_RESULT_CHARACTERS:
        return text
    half = MAX_TOOL_RESULT_CHARACTERS // 2
    return f"{text[:half]} [… {len(text) - 2 * half} characters left out …] {text[-half:]}"


class _Repetitions:
    """Finds the events that only repeat a tool call or a tool result; a later turn may reuse the ids of calls."""

    __slots__ = ("_answered", "_open")

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._answered: set[str] = set()

    def contain(self, facts: EventFacts) -> bool:
        """Return True if the event repeats an earlier one; call it once for each event, in order."""
        if facts.restates and facts.opens and self._open.issuperset(facts.opens):
            return True
        if facts.restates and facts.closes and self._answered.issuperset(facts.closes):
            return True
        self._open.update(facts.opens)
        self._answered.difference_update(facts.opens)
        self._open.difference_update(facts.closes)
        self._answered.update(facts.closes)
        return False
