"""Rows of `describe` for the events of AG2, whatever the name of the package that they are in.

A stream carries a tool call three times (in the response, as a batch, and by itself) and a result twice. Whatever says
it again costs nothing: of a call the response is what is sent, and the text of a result counts where it first stands.
"""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

from otel_assembly.chat import MEDIA_TOKENS
from otel_assembly.facts import EventFacts, EventKind, ToolCallFacts, describe
from otel_assembly.readings import read_from
from otel_assembly.stand_ins import shortened, summary_like

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Written before a summary by AG2 itself, whichever provider it is sent to.
_SUMMARY = "[Summary of earlier conversation]\n"


def register(package: str) -> None:
    """Register the rows of ``ag2``, or of ``autogen.beta``.

    Raises:
        AttributeError: A type that all versions have is not there.
        ImportError: As above.
    """
    events = importlib.import_module(f"{package}.events")
    summary_type = importlib.import_module(f"{package}.compact").CompactionSummary
    replayed = getattr(events, "ProviderReplay", ())

    describe.register(events.BaseEvent, _other)
    describe.register(events.ModelRequest, _request)
    describe.register(events.ModelResponse, _response)
    describe.register(events.ModelMessage, _message)
    describe.register(events.ToolCallEvent, _call)
    describe.register(events.ToolCallsEvent, _calls)
    describe.register(events.ToolResultEvent, _result)
    describe.register(events.ToolResultsEvent, _results)
    describe.register(events.ObserverAlert, _alert)
    describe.register(summary_type, _summary)
    for event_type, attributes in {
        events.BaseEvent: ("__class__",),
        events.ModelRequest: ("parts",),
        events.ModelResponse: ("message", "tool_calls", "files", "usage", "provider"),
        events.ModelMessage: ("content",),
        events.ToolCallEvent: ("id", "name", "arguments"),
        events.ToolCallsEvent: ("calls",),
        events.ToolResultEvent: ("parent_id", "result"),
        events.ToolResultsEvent: ("results",),
        summary_type: ("summary",),
    }.items():
        read_from(event_type, *attributes)

    def _reasoning(event: Any) -> EventFacts:
        """What a provider wants back is sent; reasoning that was only shown is not."""
        return EventFacts(EventKind.OTHER, str(event.content or "") if isinstance(event, replayed) else "")

    if hasattr(events, "ModelReasoning"):
        describe.register(events.ModelReasoning, _reasoning)
        read_from(events.ModelReasoning, "content")

    def _summary_like(event: Any, text: str, stands_for: Sequence[Any]) -> Any:
        return summary_type(summary=text, event_count=len(stands_for))

    def _shortened(event: Any, text: str) -> Any:
        if len(event.result.parts) != 1 or not isinstance(event.result.parts[0], events.TextInput):
            return None
        result = events.ToolResult(text, final=event.result.final, metadata=dict(event.result.metadata))
        return events.ToolResultEvent(parent_id=event.parent_id, name=event.name, result=result)

    summary_like.register(events.BaseEvent, _summary_like)
    shortened.register(events.ToolResultEvent, _shortened)
    shortened.register(events.ToolErrorEvent, _not_shortened)


def _other(event: Any) -> EventFacts:
    return EventFacts(EventKind.OTHER)


def _alert(event: Any) -> EventFacts:
    return EventFacts(EventKind.ALERT)


def _request(event: Any) -> EventFacts:
    texts, media = _parts(event.parts)
    return EventFacts(EventKind.REQUEST, texts[0] if texts else "", fields=texts[1:], media_tokens=media)


def _response(event: Any) -> EventFacts:
    calls = event.tool_calls.calls
    message = event.message
    return EventFacts(
        EventKind.RESPONSE,
        str(message.content or "") if message is not None else "",
        fields=_spelled(calls),
        opens=[call.id for call in calls],
        media_tokens=MEDIA_TOKENS * len(event.files),
        billed_tokens=_billed(event),
        output_tokens=int(event.usage.completion_tokens or 0) or None,
        calls=_called(calls),
    )


def _message(event: Any) -> EventFacts:
    return EventFacts(EventKind.RESPONSE, str(event.content or ""))


def _call(event: Any) -> EventFacts:
    return EventFacts(
        EventKind.TOOL_CALL, fields=_spelled([event]), opens=(event.id,), restates=True, calls=_called([event])
    )


def _calls(event: Any) -> EventFacts:
    return EventFacts(
        EventKind.TOOL_CALL,
        fields=_spelled(event.calls),
        opens=[call.id for call in event.calls],
        restates=True,
        calls=_called(event.calls),
    )


def _result(event: Any) -> EventFacts:
    texts, media = _parts(event.result.parts)
    return EventFacts(
        EventKind.TOOL_RESULT,
        texts[0] if texts else "",
        fields=texts[1:],
        closes=(event.parent_id,) if event.parent_id else (),
        media_tokens=media,
        restates=True,
    )


def _results(event: Any) -> EventFacts:
    texts: list[str] = []
    media = 0
    for result in event.results:
        own, tokens = _parts(result.result.parts)
        texts += own
        media += tokens
    return EventFacts(
        EventKind.TOOL_RESULT,
        fields=texts,
        closes=[result.parent_id for result in event.results if result.parent_id],
        media_tokens=media,
        restates=True,
    )


def _summary(event: Any) -> EventFacts:
    return EventFacts(EventKind.SUMMARY, f"{_SUMMARY}{event.summary}")


def _not_shortened(event: Any, text: str) -> None:
    """The text of an error belongs to its exception."""


def _spelled(calls: Iterable[Any]) -> list[str]:
    return [text for call in calls for text in (str(call.name), str(call.arguments or ""))]


def _called(calls: Iterable[Any]) -> list[ToolCallFacts]:
    return [ToolCallFacts(call.id, str(call.name), str(call.arguments or "")) for call in calls]


def _parts(parts: Iterable[Any]) -> tuple[list[str], int]:
    """The texts of a message's parts, and the tokens of its images, clips and files."""
    texts: list[str] = []
    media = 0
    for part in parts:
        if isinstance(content := getattr(part, "content", None), str):
            texts.append(content)
        elif type(part).__name__ == "DataInput":
            texts.append(_written(part.data))
        else:
            media += MEDIA_TOKENS
    return texts, media


def _written(data: Any) -> str:
    try:
        return json.dumps(data, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        return str(data)


def _billed(event: Any) -> int | None:
    """The input tokens that were billed; Anthropic and Bedrock count what came from their cache apart."""
    usage = event.usage
    billed = getattr(usage, "prompt_tokens", None)
    if not billed:
        return None
    if str(event.provider or "").startswith(("anthropic", "bedrock")):
        billed += (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return int(billed)
