"""A conversation as a text that a summariser reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.messages.event_facts import EventFacts, EventKind, describe
from otel_assembly.messages.replacements import summary_text

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The longest text of a tool result that a summariser is shown whole, in characters; of a longer one it is shown the
#: first and the last half of so many.
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
    """The events that a model would be sent, one after another as ``label: text``; empty where there are none.

    Events that are not sent (alerts, lifecycle notes) are left out, and so are those that only say again which tool was
    called or what it returned. Texts of a tool result over `MAX_TOOL_RESULT_CHARACTERS` are elided in the middle.

    Raises:
        DescribeError: An event is of a type that no ``describe()`` row covers.
    """
    echoes = _Echoes()
    return "\n\n".join(_line(facts) for facts in map(describe, events) if facts.rendered and not echoes.repeats(facts))


def _line(facts: EventFacts) -> str:
    label = _LABELS.get(facts.kind, str(facts.kind))
    said = facts.text.removeprefix(summary_text("")) if facts.kind == EventKind.SUMMARY else facts.text
    texts = [text for text in (said, *facts.fields) if text]
    if facts.kind == EventKind.TOOL_RESULT:
        texts = [_elided(text) for text in texts]
    if facts.media_tokens:
        texts.append("[media]")
    return f"{label} {facts.name}".rstrip() + ": " + " ".join(texts)


def _elided(text: str) -> str:
    if len(text) <= MAX_TOOL_RESULT_CHARACTERS:
        return text
    half = MAX_TOOL_RESULT_CHARACTERS // 2
    return f"{text[:half]} [… {len(text) - 2 * half} characters left out …] {text[-half:]}"


class _Echoes:
    """Knows which events of a stream only restate a call or a result; ids may come back in a later turn."""

    __slots__ = ("_answered", "_open")

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._answered: set[str] = set()

    def repeats(self, facts: EventFacts) -> bool:
        if facts.restates and facts.opens and self._open.issuperset(facts.opens):
            return True
        if facts.restates and facts.closes and self._answered.issuperset(facts.closes):
            return True
        self._open.update(facts.opens)
        self._answered.difference_update(facts.opens)
        self._open.difference_update(facts.closes)
        self._answered.update(facts.closes)
        return False
