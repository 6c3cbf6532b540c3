"""OpenHands' events: those of the software agent SDK (version 1), and those of earlier versions (0.x).

Version 1 has events with a ``kind``; an event of the model has the ``llm_response_id`` of its response. Version 0 has
events with an ``action`` or an ``observation``. In both, a condensation names the events that it removes, and its
summary is inserted at ``summary_offset``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.conversation import Arrivals, Conversation, arrived_messages
from otel_assembly.transcripts.event_log import EventLog
from otel_assembly.transcripts.growing_log import GrowingLog
from otel_assembly.transcripts.log_records import count_unknown, fields_of, log_objects, objects_in, text_in, texts_of
from otel_assembly.transcripts.messages import as_name, as_text, call_message, function_call
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from otel_assembly.transcripts.conversation import LoggedCall
    from otel_assembly.transcripts.records import Record

    Event = dict[str, Any]

__all__ = ["OPENHANDS", "OPENHANDS_0"]

#: Events of version 1 that no model receives.
_SILENT = frozenset(
    {
        "CondensationRequest",
        "ConversationErrorEvent",
        "ConversationStateUpdateEvent",
        "HookExecutionEvent",
        "LLMCompletionLogEvent",
        "PauseEvent",
        "TokenEvent",
    }
)
#: Actions and observations of version 0 that no model receives.
_SILENT_0 = frozenset({"agent_state_changed", "change_agent_state", "condensation_request", "null", "recall", "loaded"})


def _message_1(event: Event) -> dict[str, Any] | None:
    """Return the message of an event of version 1; parts without text, such as images, are kept."""
    call_id = as_name(event.get("tool_call_id"))
    match event.get("kind"):
        case "SystemPromptEvent":
            texts = filter(None, (texts_of(event.get(key)) for key in ("system_prompt", "dynamic_context")))
            return {"role": "system", "content": "\n\n".join(texts)}
        case "MessageEvent":
            message = fields_of(event.get("llm_message"))
            content = [*objects_in(message.get("content")), *objects_in(event.get("extended_content"))]
            return {"role": message.get("role"), "content": _joined(content)}
        case "ActionEvent":
            call = event.get("tool_call")
            arguments = call.get("arguments") if isinstance(call, dict) else event.get("action")
            call = function_call(call_id or "", str(event.get("tool_name")), arguments)
            return call_message(texts_of(event.get("thought")) or None, [call])
        case "ObservationEvent":
            observation = event.get("observation")
            result = observation.get("content") if isinstance(observation, dict) else observation
            return {"role": "tool", "tool_call_id": call_id, "content": _joined(result)}
        case "AgentErrorEvent":
            return {"role": "tool", "tool_call_id": call_id, "content": as_text(event.get("error"))}
        case "UserRejectObservation":
            return {"role": "tool", "tool_call_id": call_id, "content": as_text(event.get("rejection_reason"))}
    return None


def _joined(content: Any) -> Any:
    parts = objects_in(content)
    is_text = all(isinstance(part.get("text"), str) for part in parts)
    return texts_of(content) if is_text else parts


def _response_1(event: Event) -> str:
    return as_name(event.get("llm_response_id")) or ""


_KINDS_1 = frozenset(
    {
        "ActionEvent",
        "AgentErrorEvent",
        "MessageEvent",
        "ObservationEvent",
        "SystemPromptEvent",
        "UserRejectObservation",
    }
)


class _Events1(GrowingLog):
    """The events of version 1."""

    def __init__(self) -> None:
        super().__init__()
        self._events = EventLog(_message_1, _response_1)
        self._arrivals = Arrivals()
        self._arrived = 0

    def add_object(self, record: Event) -> None:
        kind = text_in(record, "kind")
        if kind == "Condensation":
            forgotten = record.get("forgotten_event_ids")
            self._events.condense(
                "condensation",
                forgotten if isinstance(forgotten, list) else [],
                _summary(record.get("summary")),
                record.get("summary_offset"),
                _response_1(record),
            )
        elif kind in _KINDS_1:
            self._events.add(record)
        elif kind not in _SILENT:
            count_unknown(self.skipped, "event", kind)

    def conversations(self) -> Iterator[Conversation]:
        calls = list(self._events.calls)
        for call in calls[self._arrived :]:
            self._arrivals.add(call)
        self._arrived = len(calls)
        pending, skipped = self._events.pending()
        yield _conversation(calls, self._arrivals.messages(pending), self.skipped_so_far() + skipped)


def _summary(text: Any) -> dict[str, Any] | None:
    return {"role": "user", "content": text} if isinstance(text, str) and text else None


def _conversation(calls: list[LoggedCall], messages: list[dict[str, Any]], skipped: Counter[str]) -> Conversation:
    has_system = any(message["role"] == "system" for call in calls[:1] for message in call.messages[:1])
    unknown = ("tools",) if has_system else ("system prompt", "tools")
    return Conversation(None, messages, calls=calls, unknown=unknown, skipped=skipped)


def _message_0(event: Event) -> dict[str, Any] | None:
    """Return the message of an event of version 0."""
    arguments = fields_of(event.get("args"))
    metadata = fields_of(event.get("tool_call_metadata"))
    call_id = as_name(metadata.get("tool_call_id"))
    if "observation" in event:
        content = event.get("content") if event.get("content") is not None else event.get("message")
        call_id = call_id or as_name(event.get("answered call"))
        if call_id is None:
            return {"role": "user", "content": as_text(content)}
        return {"role": "tool", "tool_call_id": call_id, "content": as_text(content)}
    if event.get("action") == "system":
        return {"role": "system", "content": as_text(arguments.get("content"))}
    if event.get("source") == "user":
        return {"role": "user", "content": as_text(arguments.get("content", event.get("message")))}
    thought = next((text for key in ("thought", "final_thought", "content") if (text := arguments.get(key))), None)
    if call_id is None:
        return {"role": "assistant", "content": as_text(thought if thought is not None else event.get("message"))}
    rest = {key: value for key, value in arguments.items() if key != "thought"}
    call = function_call(call_id, str(metadata.get("function_name")), _logged_arguments(metadata) or rest)
    return call_message(thought, [call])


def _logged_arguments(metadata: dict[str, Any]) -> Any:
    """Return the arguments of a call in the response that the metadata contains; None if it does not contain them."""
    for choice in objects_in(fields_of(metadata.get("model_response")).get("choices")):
        for call in objects_in(fields_of(choice.get("message")).get("tool_calls")):
            if call.get("id") == metadata.get("tool_call_id"):
                return fields_of(call.get("function")).get("arguments")
    return None


def _response_0(event: Event) -> str:
    """Return the id of the response of an action; the event's own id if the action states none."""
    if event.get("source") != "agent" or "action" not in event or event.get("action") == "system":
        return ""
    response = fields_of(fields_of(event.get("tool_call_metadata")).get("model_response"))
    return as_name(response.get("id")) or f"event {event.get('id')}"


def _read_0(records: Iterator[Record]) -> Iterator[Conversation]:
    events = EventLog(_message_0, _response_0)
    call_ids: dict[str, str] = {}
    for event in log_objects(records, events.skipped):
        kind = text_in(event, "action") or text_in(event, "observation")
        arguments = fields_of(event.get("args"))
        if kind == "condensation":
            forgotten = arguments.get("forgotten_event_ids")
            first, last = arguments.get("forgotten_events_start_id"), arguments.get("forgotten_events_end_id")
            if not isinstance(forgotten, list):
                forgotten = range(first, last + 1) if isinstance(first, int) and isinstance(last, int) else ()
            summary = _summary(arguments.get("summary"))
            events.condense("condensation", forgotten, summary, arguments.get("summary_offset"))
        elif not kind:
            count_unknown(events.skipped, "event", kind)
        elif kind not in _SILENT_0:
            if call_id := as_name(fields_of(event.get("tool_call_metadata")).get("tool_call_id")):
                call_ids[str(event.get("id"))] = call_id
            if "observation" in event and (cause := call_ids.get(str(event.get("cause")))):
                event = {**event, "answered call": cause}
            events.add(event)
    yield _conversation(events.calls, arrived_messages(events.calls, events.messages()), events.skipped)


def _has_kinds(sample: Sample) -> bool:
    return any(isinstance(value, dict) and text_in(value, "kind") in _KINDS_1 for value in sample.values)


def _has_source(sample: Sample) -> bool:
    return any(
        isinstance(value, dict) and value.get("source") in ("user", "agent", "environment") for value in sample.values
    )


def _has_actions(sample: Sample) -> bool:
    return any(
        isinstance(value, dict) and ("observation" in value or ("action" in value and "args" in value))
        for value in sample.values
    )


OPENHANDS = TranscriptFormat(
    "OpenHands",
    (
        Check("an event with 'source'", _has_source),
        Check("an event of kind 'MessageEvent' or 'ActionEvent'", _has_kinds),
    ),
    lambda records: _Events1().read(records),
    is_log=True,
    new_log=_Events1,
)
OPENHANDS_0 = TranscriptFormat(
    "OpenHands 0",
    (
        Check("an event with 'source'", _has_source),
        Check("an event with 'action' and 'args', or with 'observation'", _has_actions),
        Check("events without 'kind'", lambda sample: not _has_kinds(sample)),
    ),
    _read_0,
    is_log=True,
)
