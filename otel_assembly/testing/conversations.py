"""Conversations written in words, for tests and assertions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import ConfigurationError
from otel_assembly.events import (
    CompactionSummary,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    Severity,
    ToolCallEvent,
    ToolErrorEvent,
    ToolResultEvent,
    ToolResultsEvent,
    TurnStarted,
)
from otel_assembly.messages import broken_pairs
from otel_assembly.messages.event_facts import EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Iterable

_WORDS = "ask, answer, call, result, results, error, summary, system, alert, fatal, note"


def conversation(*words: str) -> list[Any]:
    """Return the events for these words, with the same texts and ids in every run.

    ``ask``, ``answer``, ``call a`` (``call a b``: two calls in one response), ``result a`` (``results a b``: two in one
    event), ``error a``, ``summary``, ``system`` (a chat message), ``alert``, ``fatal`` and ``note``, which no model
    receives. Write your own text after a colon: ``"ask: Where is my bag?"``, ``"result a: At gate 14."``

    Raises:
        ConfigurationError: A word is unknown, or needs the id of a call and has none.
    """
    return [_event(word, index) for index, word in enumerate(words)]


def _event(word: str, index: int) -> Any:
    head, colon, own = word.partition(":")
    what, *ids = head.split() or [""]
    text = own.strip() if colon else f"{head.strip()} {index}"
    name = f"{index}-{what}"
    if what in {"call", "result", "results", "error"} and not ids:
        raise ConfigurationError(f"{word!r} needs the id of a call: '{what} a'")
    match what:
        case "ask":
            return ModelRequest(id=name, content=text)
        case "answer":
            return ModelResponse(id=name, content=text)
        case "call":
            arguments = json.dumps({"text": text})
            calls = tuple(ToolCallEvent(id=one, name="tool", arguments=arguments) for one in ids)
            return ModelResponse(id=name, content="", tool_calls=calls)
        case "result":
            return ToolResultEvent(id=name, parent_id=ids[0], name="tool", content=text)
        case "results":
            parts = (ToolResultEvent(id=f"{name}-{one}", parent_id=one, name="tool", content=text) for one in ids)
            return ToolResultsEvent(id=name, results=tuple(parts))
        case "error":
            return ToolErrorEvent(id=name, parent_id=ids[0], name="tool", error=text)
        case "summary":
            return CompactionSummary(id=name, summary=text)
        case "system":
            return {"role": "system", "content": text}
        case "alert" | "fatal":
            severity = Severity.FATAL if what == "fatal" else Severity.WARNING
            return ObserverAlert(id=name, source="observer", severity=severity, message=text)
        case "note":
            return TurnStarted(id=name, turn=index)
    raise ConfigurationError(f"{word!r} begins with none of the words of a conversation: {_WORDS}")


def said(events: Iterable[Any]) -> list[str]:
    """Events of any described type as the words of `conversation`, without their texts."""
    return [_word(event) for event in events]


def _word(event: Any) -> str:
    facts = describe(event)
    opened, closed = " ".join(facts.opens), " ".join(facts.closes)
    match facts.kind:
        case EventKind.REQUEST:
            return "ask"
        case EventKind.RESPONSE | EventKind.TOOL_CALL:
            return f"call {opened}" if opened else "answer"
        case EventKind.TOOL_RESULT:
            if isinstance(event, ToolErrorEvent):
                return f"error {closed}"
            return f"results {closed}" if isinstance(event, ToolResultsEvent) else f"result {closed}"
        case EventKind.ALERT:
            return "fatal" if getattr(event, "severity", None) == Severity.FATAL else "alert"
        case EventKind.OTHER:
            return "note"
        case kind:
            return str(kind)


def assert_paired(events: Iterable[Any]) -> None:
    """Every tool result has its call before it, and every call its result, but for calls that are still pending.

    Raises:
        AssertionError: Names the events that have lost the other half of their pair.
    """
    given = list(events)
    broken = broken_pairs([describe(event) for event in given])
    if broken:
        words = said(given)
        lost = ", ".join(f"{words[position]!r} (index {position})" for position in broken)
        raise AssertionError(f"not paired: {lost}; in {words}")
