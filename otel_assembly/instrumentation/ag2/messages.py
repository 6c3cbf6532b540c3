"""Registers how `describe` reads the events of ``ag2`` and ``autogen.beta``: kind, texts, tool calls, tokens.

A stream contains a tool call three times (in the response, in a batch and as a single event) and a result twice. The
repetitions count no tokens: a call is counted in its response, a result where it appears first.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import ConfigurationError
from otel_assembly.messages import Draft, register_results, spelled, summary_like
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe
from otel_assembly.messages.replacements import edited

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: AG2 sends a summary with this prefix, to every provider.
_SUMMARY: Final = "[Summary of earlier conversation]\n"

#: The packages that contain AG2's agents.
PACKAGES: Final = frozenset({"ag2", "autogen.beta"})

#: The types of parts that are images, audio, video and other files.
_FILES: Final = frozenset({"BinaryInput", "UrlInput", "FileIdInput"})


@cache
def register(package: str) -> None:
    """Register the events of ``ag2`` or ``autogen.beta``."""
    events = importlib.import_module(f"{package}.events")
    summary_type = importlib.import_module(f"{package}.compact").CompactionSummary
    replayed = getattr(events, "ProviderReplay", ())

    def _reasoning(event: Any) -> EventFacts:
        """Read reasoning as part of the response if the provider wants it replayed; else AG2 does not send it."""
        if not isinstance(event, replayed):
            return EventFacts(EventKind.OTHER)
        return EventFacts(EventKind.RESPONSE, str(getattr(event, "content", None) or ""), is_reasoning=True)

    def _with_text(event: Any, text: str) -> Any:
        """Return a tool result with a shorter text, for `register_results`; its files are kept."""
        result = event.result
        files = [part for part in result.parts if _text_of(part) is None]
        # For an error, AG2 sends the parts of the result, and not the exception that the result also has.
        shortened = events.ToolResult(text, parts=files, final=result.final, metadata=dict(result.metadata))
        return edited(event, result=shortened)

    for event_type, row, attributes in (  # the type, the function that reads it, and the attributes that this reads
        (events.BaseEvent, _reasoning, ("__class__",)),
        (events.ModelRequest, lambda event: _read(event.parts).facts(EventKind.REQUEST, {}), ("parts",)),
        (events.ModelResponse, _response, ("message", "tool_calls", "files", "usage", "provider")),
        (events.ModelMessage, lambda event: EventFacts(EventKind.RESPONSE, str(event.content or "")), ("content",)),
        (events.ToolCallEvent, _tool_calls, ("id", "name", "arguments")),
        (events.ToolCallsEvent, _tool_calls, ("calls",)),
        (events.ToolResultEvent, _tool_results, ("parent_id", "result")),
        (events.ToolResultsEvent, _tool_results, ("results",)),
        (events.ObserverAlert, lambda _: EventFacts(EventKind.ALERT), ()),
        (summary_type, lambda event: EventFacts(EventKind.SUMMARY, f"{_SUMMARY}{event.summary}"), ("summary",)),
        (getattr(events, "ModelReasoning", None), _reasoning, ("content",)),
    ):
        if event_type is not None:
            describe.register(event_type, row)
            if attributes:
                read_from(event_type, *attributes)
    summary_like.register(
        events.BaseEvent, lambda _, text, sources: summary_type(summary=text, event_count=len(sources))
    )
    register_results(
        events.ToolResultEvent, lambda event: (event,), _result_text, _with_text, lambda _, results: results[0]
    )
    register_results(events.ToolResultsEvent, "results", _result_text, _with_text)


def _result_text(event: Any) -> str:
    return "\n".join(text for part in event.result.parts if (text := _text_of(part)))


def _response(event: Any) -> EventFacts:
    draft = _draft_of_calls(event.tool_calls.calls, getattr(event.message, "content", None))
    for _ in event.files:
        draft.file()
    usage = event.usage
    billed, generated = int(usage.prompt_tokens or 0), int(usage.completion_tokens or 0)
    reports_cached_separately = str(event.provider or "").startswith(("anthropic", "bedrock"))
    if billed and reports_cached_separately:
        billed += int((usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0))
    return draft.facts(EventKind.RESPONSE, {}, billed_tokens=billed or None, output_tokens=generated or None)


def _tool_calls(event: Any) -> EventFacts:
    return _draft_of_calls(getattr(event, "calls", (event,))).facts(EventKind.TOOL_CALL, {}, restates=True)


def _draft_of_calls(calls: Iterable[Any], text: Any = None) -> Draft:
    draft = Draft()
    draft.text(text)
    for call in calls:
        draft.call(call.id, str(call.name), str(call.arguments or ""))
    return draft


def _tool_results(event: Any) -> EventFacts:
    is_batch = hasattr(event, "results")
    results = event.results if is_batch else (event,)
    draft = _read(part for result in results for part in result.result.parts)
    draft.closes += [result.parent_id for result in results if result.parent_id]
    facts = draft.facts(EventKind.TOOL_RESULT, {}, restates=True)
    if not is_batch:
        return facts
    return facts._replace(text="", fields=[text for text in (facts.text, *facts.fields) if text])


def _read(parts: Iterable[Any]) -> Draft:
    draft = Draft()
    for part in parts:
        text = _text_of(part)
        if text is not None:
            draft.text(text)
        elif _FILES & {base.__name__ for base in type(part).__mro__}:
            options = getattr(part, "vendor_metadata", None)
            draft.file(options.get("detail") if isinstance(options, dict) else None)
        else:
            draft.other(type(part).__name__, getattr(part, "__dict__", None))
    return draft


def _text_of(part: Any) -> str | None:
    content = getattr(part, "content", None)
    if isinstance(content, str):
        return content
    if type(part).__name__ != "DataInput":
        return None
    try:
        return spelled(part.data)
    except (TypeError, ValueError):
        return str(part.data)


def package_of(history: Any) -> str:
    """Return the package that defines the history of an AG2 stream; another object is a `ConfigurationError`."""
    for base in type(history).__mro__:
        package = base.__module__.rpartition(".")[0]
        if package in PACKAGES:
            return package
    raise ConfigurationError(f"{type(history).__qualname__} is not the history of an AG2 stream")


def with_new_results(events_before: Sequence[Any], events: list[Any]) -> list[Any]:
    """Return the events, with each tool result that a policy replaced also replaced in its batch, which AG2 sends."""
    ids_before = set(map(id, events_before))
    new_results: dict[str, Any] = {}  # by the id of the tool call
    output: list[Any] = []
    for event in events:
        is_result = hasattr(event, "result") and hasattr(event, "parent_id")
        if is_result and id(event) not in ids_before:
            new_results[event.parent_id] = event
        elif new_results and any(result.parent_id in new_results for result in getattr(event, "results", ())):
            event = type(event)([new_results.pop(result.parent_id, result) for result in event.results])
        output.append(event)
    return output
