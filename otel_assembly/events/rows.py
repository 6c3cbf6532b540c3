"""Registers how the events of this package are read (`describe`), summarized and shortened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.events import (
    CompactionSummary,
    Event,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    ToolCallEvent,
    ToolErrorEvent,
    ToolResultEvent,
    ToolResultsEvent,
    new_id,
)
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.draft import encrypted_tokens
from otel_assembly.messages.event_facts import EventFacts, EventKind, ToolCallFacts, describe
from otel_assembly.messages.provider_rules import tool_name
from otel_assembly.messages.replacements import result_texts, shortened, summary_like, summary_text

if TYPE_CHECKING:
    from collections.abc import Sequence

read_from(Event, "__dict__")


def _id_facts(event: Event) -> dict[str, Any]:
    """Return the id of an event, and whether the program set it; otherwise the id is random."""
    return {"id": event.id, "id_given": "id" in event.model_fields_set}


@describe.register
def _(event: ModelRequest) -> EventFacts:
    return EventFacts(EventKind.REQUEST, event.content, id=event.id, id_given="id" in event.model_fields_set)


@describe.register
def _(event: ModelResponse) -> EventFacts:
    fields: list[str] = []
    for call in event.tool_calls:
        fields += (tool_name(call.name), call.arguments)  # the name as it is sent to the provider
    sealed = 0
    if event.thinking and event.tool_calls:
        fields += [thought.text for thought in event.thinking if thought.text]
        sealed = sum(encrypted_tokens(part.sealed or part.signature) for part in event.thinking if not part.text)
    return EventFacts(
        EventKind.RESPONSE,
        event.content,
        fields=fields,
        opens=[call.id for call in event.tool_calls],
        awaiting=[call.id for call in event.tool_calls if call.awaiting_approval],
        **_id_facts(event),
        media_tokens=sealed,
        billed_tokens=event.usage.input_tokens if event.usage else None,
        output_tokens=event.usage.output_tokens if event.usage else None,
        calls=[ToolCallFacts(call.id, call.name, call.arguments) for call in event.tool_calls],
    )


@describe.register
def _(event: ToolCallEvent) -> EventFacts:
    return EventFacts(
        EventKind.TOOL_CALL,
        fields=(tool_name(event.name), event.arguments),
        opens=(event.id,),
        awaiting=(event.id,) if event.awaiting_approval else (),
        **_id_facts(event),
        restates=True,
        calls=(ToolCallFacts(event.id, event.name, event.arguments),),
    )


@describe.register
def _(event: ToolResultEvent) -> EventFacts:
    return EventFacts(
        EventKind.TOOL_RESULT, event.content, closes=(event.parent_id,), **_id_facts(event), restates=True
    )


@describe.register
def _(event: ToolErrorEvent) -> EventFacts:
    return EventFacts(EventKind.TOOL_RESULT, event.error, closes=(event.parent_id,), **_id_facts(event), restates=True)


@describe.register
def _(event: ToolResultsEvent) -> EventFacts:
    return EventFacts(
        EventKind.TOOL_RESULT,
        fields=[_text(result) for result in event.results],
        closes=[result.parent_id for result in event.results],
        **_id_facts(event),
        restates=True,
    )


@describe.register
def _(event: CompactionSummary) -> EventFacts:
    return EventFacts(EventKind.SUMMARY, summary_text(event.summary), **_id_facts(event))


@describe.register
def _(event: ObserverAlert) -> EventFacts:
    return EventFacts(EventKind.ALERT, **_id_facts(event))


@describe.register
def _(event: Event) -> EventFacts:
    return EventFacts(EventKind.OTHER, **_id_facts(event))


@summary_like.register(Event)
def _(event: Event, text: str, events: Sequence[Any]) -> CompactionSummary:
    ids = tuple(replaced.id for replaced in events if isinstance(replaced, Event))
    return CompactionSummary(summary=text, event_count=len(events), provenance=ids)


def _text(result: ToolResultEvent | ToolErrorEvent) -> str:
    return result.content if isinstance(result, ToolResultEvent) else result.error


@result_texts.register(ToolResultEvent)
@result_texts.register(ToolErrorEvent)
@result_texts.register(ToolResultsEvent)
def _(event: ToolResultEvent | ToolErrorEvent | ToolResultsEvent) -> Sequence[str]:
    results = event.results if isinstance(event, ToolResultsEvent) else (event,)
    return [text for text in map(_text, results) if text]


@shortened.register(ToolResultEvent)
@shortened.register(ToolErrorEvent)
@shortened.register(ToolResultsEvent)
def _(event: ToolResultEvent | ToolErrorEvent | ToolResultsEvent, texts: Sequence[str]) -> Event:
    # New ids: these are new events, and the ledger records that they replace the original ones.
    next_text = iter(texts)
    if isinstance(event, ToolResultsEvent):
        results = [
            _with_text(result, next(next_text, _text(result))) if _text(result) else result for result in event.results
        ]
        return event.model_copy(update={"results": tuple(results), "id": new_id()})
    return _with_text(event, next(next_text, _text(event)))


def _with_text(result: ToolResultEvent | ToolErrorEvent, text: str) -> ToolResultEvent | ToolErrorEvent:
    if text == _text(result):
        return result
    key = "content" if isinstance(result, ToolResultEvent) else "error"
    return result.model_copy(update={key: text, "id": new_id()})
