"""Sessions of Google's Agent Development Kit: a session with its events, in Gemini's message form.

An event with ``actions.compaction`` replaces the events of a time range by a summary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.conversation import Conversation, arrived_messages
from otel_assembly.transcripts.event_log import EventLog
from otel_assembly.transcripts.log_records import fields_of, objects_in
from otel_assembly.transcripts.messages import as_name
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.records import Record

__all__ = ["ADK"]


def _message_of(event: dict[str, Any]) -> dict[str, Any] | None:
    content = fields_of(event.get("content"))
    parts = objects_in(content.get("parts"))
    if not parts:
        return None
    role = content.get("role")
    return {"role": role if role in ("user", "model") else "user", "parts": parts}


def _response_of(event: dict[str, Any]) -> str:
    is_response = fields_of(event.get("content")).get("role") == "model"
    return as_name(event.get("id")) or "" if is_response else ""


def _compaction_of(event: dict[str, Any]) -> dict[str, Any]:
    return fields_of(fields_of(event.get("actions")).get("compaction"))


def _either(holder: dict[str, Any], camel: str, snake: str) -> Any:
    return holder.get(camel, holder.get(snake))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _conversation(session: dict[str, Any]) -> Conversation:
    log = EventLog(_message_of, _response_of)
    events = objects_in(session.get("events"))
    added: list[dict[str, Any]] = []
    for event in events:
        compaction = _compaction_of(event)
        if event.get("partial") is True:
            continue
        if compaction:
            start = _either(compaction, "startTimestamp", "start_timestamp")
            end = _either(compaction, "endTimestamp", "end_timestamp")
            times = [(_number(event.get("timestamp")), event.get("id")) for event in added]
            removed = [name for time, name in times if _number(start) <= time <= _number(end)]
            content = fields_of(_either(compaction, "compactedContent", "compacted_content"))
            summary = {"role": "user", "parts": objects_in(content.get("parts"))} if content else None
            place = sum(time < _number(start) for time, _ in times)
            log.condense("compaction", removed, summary, place)
            added = [event for event in added if event.get("id") not in removed]
        else:
            log.add(event)
            added.append(event)
    return Conversation(
        as_name(session.get("id")),
        arrived_messages(log.calls, log.messages()),
        calls=log.calls,
        unknown=("system prompt", "tools"),
        skipped=log.skipped,
    )


def _read(records: Iterator[Record]) -> Iterator[Conversation]:
    for record in records:
        yield _conversation(record.value)


def _has_app(sample: Sample) -> bool:
    return all(isinstance(value, dict) and ("appName" in value or "app_name" in value) for value in sample.values)


def _has_events(sample: Sample) -> bool:
    return all(isinstance(value, dict) and isinstance(value.get("events"), list) for value in sample.values)


ADK = TranscriptFormat(
    "Google ADK session",
    (Check("an object with 'appName'", _has_app), Check("a list 'events'", _has_events)),
    _read,
)
