"""Rows of `describe` for the events of AG2, whatever the name of the package that they are in.

A stream carries a tool call three times (in the response, as a batch, and by itself) and a result twice. Whatever says
it again costs nothing: of a call the response is what is sent, and the text of a result counts where it first stands.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.messages import Draft, register_results, spelled, summary_like
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe
from otel_assembly.messages.replacements import edited

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Written before a summary by AG2 itself, whichever provider it is sent to.
_SUMMARY: Final = "[Summary of earlier conversation]\n"

#: The packages that AG2's agents live in.
PACKAGES: Final = frozenset({"ag2", "autogen.beta"})

#: Parts that are pictures, clips and files.
_FILES: Final = frozenset({"BinaryInput", "UrlInput", "FileIdInput"})


@cache
def register(package: str) -> None:
    """Register the rows of ``ag2``, or of ``autogen.beta``.

    Raises:
        AttributeError: A type that all versions have is not there.
        ImportError: As above.
    """
    events = importlib.import_module(f"{package}.events")
    summary_type = importlib.import_module(f"{package}.compact").CompactionSummary
    replayed = getattr(events, "ProviderReplay", ())

    def _reasoning(event: Any) -> EventFacts:
        """What a provider wants back is sent, with the event behind it; reasoning that was only shown is not."""
        if not isinstance(event, replayed):
            return EventFacts(EventKind.OTHER)
        return EventFacts(EventKind.RESPONSE, str(getattr(event, "content", None) or ""), is_reasoning=True)

    def _saying(event: Any, text: str) -> Any:
        result = event.result
        files = [part for part in result.parts if _text_of(part) is None]
        # AG2 sends the parts of an error too; the exception beside them is its own business.
        short = events.ToolResult(text, parts=files, final=result.final, metadata=dict(result.metadata))
        return edited(event, result=short)

    for event_type, row, attributes in (
        (events.BaseEvent, _reasoning, ("__class__",)),
        (events.ModelRequest, lambda event: _read(event.parts).facts(EventKind.REQUEST, {}), ("parts",)),
        (events.ModelResponse, _response, ("message", "tool_calls", "files", "usage", "provider")),
        (events.ModelMessage, lambda event: EventFacts(EventKind.RESPONSE, str(event.content or "")), ("content",)),
        (events.ToolCallEvent, _calls, ("id", "name", "arguments")),
        (events.ToolCallsEvent, _calls, ("calls",)),
        (events.ToolResultEvent, _answered, ("parent_id", "result")),
        (events.ToolResultsEvent, _answered, ("results",)),
        (events.ObserverAlert, lambda _: EventFacts(EventKind.ALERT), ()),
        (summary_type, lambda event: EventFacts(EventKind.SUMMARY, f"{_SUMMARY}{event.summary}"), ("summary",)),
        (getattr(events, "ModelReasoning", None), _reasoning, ("content",)),
    ):
        if event_type is not None:
            describe.register(event_type, row)
            if attributes:
                read_from(event_type, *attributes)
    summary_like.register(
        events.BaseEvent, lambda _, text, stands_for: summary_type(summary=text, event_count=len(stands_for))
    )
    register_results(events.ToolResultEvent, lambda event: (event,), _said, _saying, lambda _, made: made[0])
    register_results(events.ToolResultsEvent, "results", _said, _saying)


def _said(event: Any) -> str:
    return "\n".join(text for part in event.result.parts if (text := _text_of(part)))


def _response(event: Any) -> EventFacts:
    draft = _asking(event.tool_calls.calls, getattr(event.message, "content", None))
    for _ in event.files:
        draft.file()
    answered = int(event.usage.completion_tokens or 0) or None
    return draft.facts(EventKind.RESPONSE, {}, billed_tokens=_billed(event), output_tokens=answered)


def _calls(event: Any) -> EventFacts:
    return _asking(getattr(event, "calls", (event,))).facts(EventKind.TOOL_CALL, {}, restates=True)


def _asking(calls: Iterable[Any], said: Any = None) -> Draft:
    draft = Draft()
    draft.text(said)
    for call in calls:
        draft.call(call.id, str(call.name), str(call.arguments or ""))
    return draft


def _answered(event: Any) -> EventFacts:
    batch = hasattr(event, "results")
    results = event.results if batch else (event,)
    draft = _read(part for result in results for part in result.result.parts)
    draft.closes += [result.parent_id for result in results if result.parent_id]
    facts = draft.facts(EventKind.TOOL_RESULT, {}, restates=True)
    return facts._replace(text="", fields=[text for text in (facts.text, *facts.fields) if text]) if batch else facts


def _read(parts: Iterable[Any]) -> Draft:
    """The texts of a message's parts, and the tokens of its images, clips and files."""
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


def _billed(event: Any) -> int | None:
    """The input tokens that were billed; Anthropic and Bedrock count what came from their cache apart."""
    usage = event.usage
    billed = getattr(usage, "prompt_tokens", None)
    if billed and str(event.provider or "").startswith(("anthropic", "bedrock")):
        billed += (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return int(billed) if billed else None
