"""Make the events of a conversation from words such as ``ask`` and ``answer``, and describe events in these words."""

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
    """Return one event for each word, with the same texts and ids in every run.

    The words are ``ask`` (a request of the user), ``answer``, ``call a`` (a tool call with the id ``a``; ``call a b``
    is a response with two calls), ``result a`` (``results a b`` is one event with two results), ``error a`` (the call
    failed), ``summary``, ``system`` (a chat message), ``alert``, ``fatal`` (a FATAL alert) and ``note`` (an event
    that no model receives). To set the text, write it after a colon: ``"ask: Where is my bag?"``.

    Raises:
        ConfigurationError: A word is unknown, or needs the id of a call and has none.
    """
    return [_event(word, index) for index, word in enumerate(words)]


def _event(word: str, index: int) -> Any:
    head, colon, own_text = word.partition(":")
    keyword, *ids = head.split() or [""]
    text = own_text.strip() if colon else f"{head.strip()} {index}"
    name = f"{index}-{keyword}"
    if keyword in {"call", "result", "results", "error"} and not ids:
        raise ConfigurationError(f"{word!r} needs the id of a call: '{keyword} a'")
    match keyword:
        case "ask":
            return ModelRequest(id=name, content=text)
        case "answer":
            return ModelResponse(id=name, content=text)
        case "call":
            arguments = json.dumps({"text": text})
            calls = tuple(ToolCallEvent(id=call_id, name="tool", arguments=arguments) for call_id in ids)
            return ModelResponse(id=name, content="", tool_calls=calls)
        case "result":
            return ToolResultEvent(id=name, parent_id=ids[0], name="tool", content=text)
        case "results":
            parts = (
                ToolResultEvent(id=f"{name}-{call_id}", parent_id=call_id, name="tool", content=text) for call_id in ids
            )
            return ToolResultsEvent(id=name, results=tuple(parts))
        case "error":
            return ToolErrorEvent(id=name, parent_id=ids[0], name="tool", error=text)
        case "summary":
            return CompactionSummary(id=name, summary=text)
        case "system":
            return {"role": "system", "content": text}
        case "alert" | "fatal":
            severity = Severity.FATAL if keyword == "fatal" else Severity.WARNING
            return ObserverAlert(id=name, source="observer", severity=severity, message=text)
        case "note":
            return TurnStarted(id=name, turn=index)
    raise ConfigurationError(f"{word!r} begins with none of the words of a conversation: {_WORDS}")


def said(events: Iterable[Any]) -> list[str]:
    """Return the words of `conversation` that describe these events or messages, without their texts."""
    return [_word(event) for event in events]


def _word(event: Any) -> str:
    facts = describe(event)
    opening_ids, closing_ids = " ".join(facts.opens), " ".join(facts.closes)
    match facts.kind:
        case EventKind.REQUEST:
            return "ask"
        case EventKind.RESPONSE | EventKind.TOOL_CALL:
            return f"call {opening_ids}" if opening_ids else "answer"
        case EventKind.TOOL_RESULT:
            if isinstance(event, ToolErrorEvent):
                return f"error {closing_ids}"
            return f"results {closing_ids}" if isinstance(event, ToolResultsEvent) else f"result {closing_ids}"
        case EventKind.ALERT:
            return "fatal" if getattr(event, "severity", None) == Severity.FATAL else "alert"
        case EventKind.OTHER:
            return "note"
        case kind:
            return str(kind)


def assert_paired(events: Iterable[Any]) -> None:
    """Assert that each tool result follows its call, and that each tool call has a result or is still pending.

    Raises:
        AssertionError: Tool calls or results lack their counterpart; the message names them.
    """
    event_list = list(events)
    broken_indexes = broken_pairs([describe(event) for event in event_list])
    if broken_indexes:
        words = said(event_list)
        lost = ", ".join(f"{words[position]!r} (index {position})" for position in broken_indexes)
        raise AssertionError(f"not paired: {lost}; in {words}")
