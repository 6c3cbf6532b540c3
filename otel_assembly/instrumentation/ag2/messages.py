"""Rows of `describe` for the events of AG2, whatever the name of the package that they are in.

A stream carries a tool call three times (in the response, as a batch, and by itself) and a result twice. Whatever says
it again costs nothing: of a call the response is what is sent, and the text of a result counts where it first stands.
"""

from __future__ import annotations

import importlib
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.messages import MEDIA_TOKENS, Draft, spelled
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.describe import EventFacts, EventKind, ToolCallFacts, describe
from otel_assembly.messages.replacements import result_texts, shortened, summary_like

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Written before a summary by AG2 itself, whichever provider it is sent to.
_SUMMARY: Final = "[Summary of earlier conversation]\n"

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

    def _texts(event: Any) -> Sequence[str]:
        said = (_said(one.result.parts) for one in _results_of(event))
        return [text for text in said if text]

    def _shortened(event: Any, texts: Sequence[str]) -> Any:
        given = iter(texts)
        made = [_saying(one, next(given)) if _said(one.result.parts) else one for one in _results_of(event)]
        if not hasattr(event, "results"):
            return made[0]
        whole = copy(event)
        whole.results = made
        return whole

    def _saying(event: Any, text: str) -> Any:
        if text == _said(event.result.parts):
            return event
        files = [part for part in event.result.parts if _text_of(part) is None]
        # AG2 sends the parts of an error too; the exception beside them is its own business.
        short = copy(event)
        short.result = events.ToolResult(
            text, parts=files, final=event.result.final, metadata=dict(event.result.metadata)
        )
        return short

    summary_like.register(events.BaseEvent, _summary_like)
    for kind in (events.ToolResultEvent, events.ToolResultsEvent):
        result_texts.register(kind, _texts)
        shortened.register(kind, _shortened)


def _results_of(event: Any) -> Sequence[Any]:
    """The results of a batch, or the one that an event is."""
    results: Sequence[Any] = getattr(event, "results", None) or (event,)
    return results


def _said(parts: Iterable[Any]) -> str:
    return "\n".join(text for part in parts if (text := _text_of(part)))


def _other(event: Any) -> EventFacts:
    return EventFacts(EventKind.OTHER)


def _alert(event: Any) -> EventFacts:
    return EventFacts(EventKind.ALERT)


def _request(event: Any) -> EventFacts:
    return _read(event.parts).facts(EventKind.REQUEST, {})


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
    return _answering([event])


def _results(event: Any) -> EventFacts:
    facts = _answering(event.results)
    return facts._replace(text="", fields=[text for text in (facts.text, *facts.fields) if text])


def _answering(results: Sequence[Any]) -> EventFacts:
    draft = _read(part for result in results for part in result.result.parts)
    draft.closes += [result.parent_id for result in results if result.parent_id]
    return draft.facts(EventKind.TOOL_RESULT, {}, restates=True)


def _summary(event: Any) -> EventFacts:
    return EventFacts(EventKind.SUMMARY, f"{_SUMMARY}{event.summary}")


def _spelled(calls: Iterable[Any]) -> list[str]:
    return [text for call in calls for text in (str(call.name), str(call.arguments or ""))]


def _called(calls: Iterable[Any]) -> list[ToolCallFacts]:
    return [ToolCallFacts(call.id, str(call.name), str(call.arguments or "")) for call in calls]


def _read(parts: Iterable[Any]) -> Draft:
    """The texts of a message's parts, and the tokens of its images, clips and files."""
    draft = Draft()
    for part in parts:
        text = _text_of(part)
        if text is not None:
            draft.text(text)
        elif _FILES & {base.__name__ for base in type(part).__mro__}:
            draft.file()
        else:
            draft.other(type(part).__name__, getattr(part, "__dict__", None))
    return draft


def _text_of(part: Any) -> str | None:
    content = getattr(part, "content", None)
    if isinstance(content, str):
        return content
    return _written(part.data) if type(part).__name__ == "DataInput" else None


def _written(data: Any) -> str:
    try:
        return spelled(data)
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
