"""The API histories of Cline and Roo Code: ``api_conversation_history.json``.

The messages have Anthropic's form, with a time ``ts``. Roo Code keeps messages that it condensed or truncated, and
marks them with the id of the summary (``condenseParent``) or of the truncation (``truncationParent``).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from otel_assembly.messages import ChatSummary
from otel_assembly.transcripts.conversation import Conversation, LoggedCall, LoggedReduction, arrived_messages
from otel_assembly.transcripts.log_records import log_objects
from otel_assembly.transcripts.messages import readable
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.records import Record

__all__ = ["CLINE"]

#: The fields of a message that a request contains.
_SENT = ("type", "role", "content", "summary", "encrypted_content", "id")


def _read(records: Iterator[Record]) -> Iterator[Conversation]:
    skipped: Counter[str] = Counter()
    view: list[tuple[dict[str, Any], dict[str, Any]]] = []
    calls: list[LoggedCall] = []
    reduction: LoggedReduction | None = None
    for number, record in enumerate(log_objects(records, skipped)):
        before = [message for _, message in view]
        message: dict[str, Any] = {key: record[key] for key in _SENT if key in record}
        if record.get("isSummary") is True:
            message = ChatSummary(message)
        message = readable(message, skipped)
        summary, truncation = record.get("condenseId"), record.get("truncationId")
        if isinstance(summary, str) and record.get("isSummary") is True:
            view = [entry for entry in view if entry[0].get("condenseParent") != summary]
            reduction = LoggedReduction("condense", before, [message])
        elif isinstance(truncation, str) and record.get("isTruncationMarker") is True:
            view = [entry for entry in view if entry[0].get("truncationParent") != truncation]
            reduction = LoggedReduction("truncate", before, [message], is_summary=False)
        elif record.get("role") == "assistant":
            calls.append(LoggedCall(str(number), before, reduction))
            reduction = None
        view.append((record, message))
    yield Conversation(
        None,
        arrived_messages(calls, [message for _, message in view]),
        calls=calls,
        unknown=("system prompt", "tools"),
        skipped=skipped,
    )


def _has_roles(sample: Sample) -> bool:
    first = sample.values[0] if sample.values else None
    return isinstance(first, dict) and first.get("role") in ("user", "assistant") and "content" in first


def _has_times(sample: Sample) -> bool:
    return all(isinstance(value, dict) and isinstance(value.get("ts"), int | float) for value in sample.values)


CLINE = TranscriptFormat(
    "Cline and Roo Code",
    (Check("messages with 'role' and 'content'", _has_roles), Check("messages with 'ts'", _has_times)),
    _read,
    is_log=True,
)
