"""Gemini CLI's chats: ``~/.gemini/tmp/*/chats/session-*.jsonl``, and ``.json`` in earlier versions.

A record of type ``user`` or ``gemini`` is a message; a later record with the same id replaces it. ``$rewindTo``
removes a message and all later ones, and ``$set`` with ``messages`` replaces all messages, as a compression does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.messages import ChatSummary
from otel_assembly.transcripts.conversation import Arrivals, Conversation, LoggedCall, LoggedReduction
from otel_assembly.transcripts.growing_log import GrowingLog
from otel_assembly.transcripts.log_records import count_unknown, objects_in, text_in
from otel_assembly.transcripts.messages import readable
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_assembly.transcripts.records import Record

__all__ = ["GEMINI_CLI", "GEMINI_CLI_JSON"]

#: Records for the terminal, which no model receives.
_NOTICES = frozenset({"info", "error", "warning"})
_HEADER_KEYS = ("sessionId", "projectHash")


class _Chat(GrowingLog):
    """The messages of the next request, while the records of a chat are read."""

    def __init__(self, session_id: str | None = None) -> None:
        super().__init__()
        self.session_id = session_id
        self.calls: list[LoggedCall] = []
        self._arrivals = Arrivals()
        self._records: dict[str, dict[str, Any]] = {}
        self._converted: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
        self._called: set[str] = set()
        self._reduction: LoggedReduction | None = None

    def add_object(self, record: dict[str, Any]) -> None:
        if isinstance(record.get("sessionId"), str):
            self.session_id = self.session_id or record["sessionId"]
        if isinstance(record.get("$rewindTo"), str):
            self._rewind(record["$rewindTo"])
        elif isinstance(record.get("$set"), dict):
            if isinstance(record["$set"].get("messages"), list):
                self._replace(record["$set"]["messages"])
        elif isinstance(record.get("id"), str) and record.get("type") in ("user", "gemini"):
            self._add_message(record)
        elif text_in(record, "type") not in _NOTICES and not all(key in record for key in _HEADER_KEYS):
            count_unknown(self.skipped, "record", record.get("type"))

    def _add_message(self, record: dict[str, Any]) -> None:
        name = record["id"]
        if record["type"] == "gemini" and name not in self._called:
            self._called.add(name)
            self.calls.append(LoggedCall(name, self.messages(before=name), self._reduction))
            self._arrivals.add(self.calls[-1])
            self._reduction = None
        self._records[name] = record

    def _rewind(self, name: str) -> None:
        names = list(self._records)
        for removed in names[names.index(name) if name in names else 0 :]:
            del self._records[removed]

    def _replace(self, records: list[Any]) -> None:
        before = self.messages()
        old = set(self._records)
        self._records = {record["id"]: record for record in objects_in(records) if isinstance(record.get("id"), str)}
        self._called |= set(self._records)
        if not old - set(self._records):
            return
        after = self.messages(new_summaries=set(self._records) - old)
        known = set(map(id, before))
        self._reduction = LoggedReduction("compress", before, [each for each in after if id(each) not in known])

    def messages(self, before: str | None = None, new_summaries: Iterable[str] = ()) -> list[dict[str, Any]]:
        """Return the messages of the records, up to a record.

        Args:
            before: The id of the first record that is left out; None for all records.
            new_summaries: The ids of records whose user messages are summaries.
        """
        messages: list[dict[str, Any]] = []
        for name, record in self._records.items():
            if name == before:
                break
            if name not in self._converted or self._converted[name][0] != record:
                converted = [readable(message, self.skipped) for message in _contents(record)]
                if name in new_summaries and record.get("type") == "user":
                    converted = [ChatSummary(message) for message in converted]
                self._converted[name] = record, converted
            messages += self._converted[name][1]
        return messages

    def conversations(self) -> Iterator[Conversation]:
        # A later record can replace the newest message before a call contains it, so its conversion is not kept.
        converted, skipped = self._converted.copy(), self.skipped.copy()
        messages = self._arrivals.messages(self.messages())
        yield Conversation(
            self.session_id,
            messages,
            calls=list(self.calls),
            unknown=("system prompt", "tools"),
            skipped=self.skipped_so_far(),
        )
        self._converted, self.skipped = converted, skipped


def _contents(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the messages of a record in the form of Gemini's API: the model's, and the results of its tool calls."""
    content = record.get("content")
    parts = [{"text": content}] if isinstance(content, str) and content else objects_in(content)
    if record.get("type") == "user":
        yield {"role": "user", "parts": parts}
        return
    calls = objects_in(record.get("toolCalls"))
    parts += [{"functionCall": {key: call.get(key) for key in ("id", "name", "args") if key in call}} for call in calls]
    if parts:
        yield {"role": "model", "parts": parts}
    results = [result for call in calls for result in objects_in(call.get("result"))]
    if results:
        yield {"role": "user", "parts": results}


def _read_json(records: Iterator[Record]) -> Iterator[Conversation]:
    for record in records:
        chat = _Chat(record.value["sessionId"] if isinstance(record.value["sessionId"], str) else None)
        for message in objects_in(record.value["messages"]):
            chat.add_object(message)
        yield from chat.conversations()


def _has_header(sample: Sample) -> bool:
    return any(isinstance(value, dict) and all(key in value for key in _HEADER_KEYS) for value in sample.values)


def _has_message_list(sample: Sample) -> bool:
    return any(isinstance(value, dict) and isinstance(value.get("messages"), list) for value in sample.values)


_HEADER = Check("a record with 'sessionId' and 'projectHash'", _has_header)

GEMINI_CLI = TranscriptFormat(
    "Gemini CLI",
    (_HEADER, Check("messages as records of their own", lambda sample: not _has_message_list(sample))),
    lambda records: _Chat().read(records),
    is_log=True,
    new_log=_Chat,
)
GEMINI_CLI_JSON = TranscriptFormat(
    "Gemini CLI (JSON)", (_HEADER, Check("a list 'messages'", _has_message_list)), _read_json
)
