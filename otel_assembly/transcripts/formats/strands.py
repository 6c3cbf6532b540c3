"""Messages of a session of Strands Agents: ``message_*.json``, or several of them in one file."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from otel_assembly.transcripts.conversation import Conversation, arrived_messages
from otel_assembly.transcripts.log_records import fields_of, log_objects
from otel_assembly.transcripts.messages import readable
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from otel_assembly.transcripts.records import Record

__all__ = ["STRANDS"]


def _read(records: Iterator[Record]) -> Iterator[Conversation]:
    skipped: Counter[str] = Counter()
    stored = sorted(log_objects(records, skipped), key=_number)
    messages = [readable(fields_of(each.get("redact_message") or each.get("message")), skipped) for each in stored]
    yield Conversation(None, arrived_messages((), messages), unknown=("system prompt", "tools"), skipped=skipped)


def _number(stored: dict[str, Any]) -> int:
    number = stored.get("message_id")
    return number if isinstance(number, int) else -1


def _has_ids(sample: Sample) -> bool:
    return all(isinstance(value, dict) and "message_id" in value for value in sample.values)


def _has_messages(sample: Sample) -> bool:
    return all("content" in fields_of(fields_of(value).get("message")) for value in sample.values)


STRANDS = TranscriptFormat(
    "Strands session",
    (Check("records with 'message_id'", _has_ids), Check("a 'message' with 'content'", _has_messages)),
    _read,
    is_log=True,
)
