"""Codex CLI's rollouts: ``~/.codex/sessions/**/rollout-*.jsonl``.

Each line has a ``type`` and a ``payload``. The payloads of ``response_item`` are the items of OpenAI's Responses API
that a request contains. A record ``compacted`` replaces all items: by its ``replacement_history``, or, in earlier
versions, by the user's messages and a summary. ``thread_rolled_back`` removes the newest turns. Early rollouts have the
items themselves as lines, after a line with the session's ``id`` and ``instructions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.messages import ITEMS, ChatSummary
from otel_assembly.transcripts.conversation import Arrivals, Conversation, LoggedCall, LoggedReduction
from otel_assembly.transcripts.growing_log import GrowingLog
from otel_assembly.transcripts.log_records import count_unknown, objects_in, text_in, texts_of
from otel_assembly.transcripts.messages import readable
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CODEX"]

_KNOWN = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
#: Items that the client keeps for itself.
_LOCAL_ITEMS = frozenset({"ghost_snapshot", "other"})
#: Tool results; all other items that are not messages are part of the model's response.
_RESULT_SUFFIX = "_output"


class _Rollout(GrowingLog):
    """The items of the next request, while the records of a rollout are read."""

    def __init__(self) -> None:
        super().__init__()
        self.session_id: str | None = None
        self.instructions: str = ""
        self.items: list[dict[str, Any]] = []
        self.calls: list[LoggedCall] = []
        self._arrivals = Arrivals()
        self._is_answering = False
        self._reduction: LoggedReduction | None = None

    def add_object(self, record: dict[str, Any]) -> None:
        payload = record.get("payload")
        kind = text_in(record, "type")
        if not isinstance(payload, dict):
            self._add_line(record)
        elif kind == "session_meta":
            self._add_session(payload)
        elif kind == "response_item":
            self._add_item(payload)
        elif kind == "compacted":
            self._compact(payload)
        elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            self._roll_back(payload.get("num_turns"))
        elif kind not in _KNOWN:
            count_unknown(self.skipped, "record", kind)

    def _add_line(self, record: dict[str, Any]) -> None:
        """Add a line of an early version."""
        kind = text_in(record, "type")
        if not kind and "instructions" in record:
            self._add_session(record)
        elif kind == "message" or kind in ITEMS:
            self._add_item(record)
        elif "record_type" not in record:
            count_unknown(self.skipped, "record", kind)

    def _add_session(self, payload: dict[str, Any]) -> None:
        if self.session_id is not None:  # a forked session repeats the records of its parent
            return
        session_id = payload.get("id")
        self.session_id = session_id if isinstance(session_id, str) else None
        base = payload.get("base_instructions", payload.get("instructions"))
        self.instructions = texts_of(base)

    def _add_item(self, item: dict[str, Any]) -> None:
        kind = text_in(item, "type")
        if kind in _LOCAL_ITEMS:
            return
        is_message = kind == "message"
        is_answer = item.get("role") == "assistant" if is_message else not kind.endswith(_RESULT_SUFFIX)
        if is_answer and not self._is_answering:
            self.calls.append(LoggedCall(str(len(self.calls) + 1), list(self.items), self._reduction))
            self._arrivals.add(self.calls[-1])
            self._reduction = None
        self._is_answering = is_answer
        self.items.append(readable(item, self.skipped))

    def _compact(self, payload: dict[str, Any]) -> None:
        before = list(self.items)
        history = payload.get("replacement_history")
        if isinstance(history, list):
            # An item that stays is the same object, so that it counts as kept.
            after = [next((old for old in before if old == item), item) for item in objects_in(history)]
        else:
            summary = {"type": "input_text", "text": str(payload.get("message") or "")}
            after = [item for item in before if _is_request(item)]
            after.append({"type": "message", "role": "user", "content": [summary]})
        known = set(map(id, before))
        created: list[dict[str, Any]] = []
        for place, item in enumerate(after):
            if id(item) not in known:
                is_text = item.get("type") == "message" and item.get("role") == "user"
                after[place] = readable(ChatSummary(item) if is_text else item, self.skipped)
                created.append(after[place])
        self.items, self._is_answering = after, False
        self._reduction = LoggedReduction("compact", before, created)

    def _roll_back(self, turns: Any) -> None:
        for _ in range(turns if isinstance(turns, int) else 0):
            requests = [place for place, item in enumerate(self.items) if _is_request(item)]
            if not requests:
                return
            del self.items[requests[-1] :]
        self._is_answering = False

    def conversations(self) -> Iterator[Conversation]:
        yield Conversation(
            self.session_id,
            self._arrivals.messages(self.items),
            prompts=[self.instructions] if self.instructions else [],
            calls=list(self.calls),
            unknown=("tools",) if self.instructions else ("system prompt", "tools"),
            skipped=self.skipped_so_far(),
        )


def _is_request(item: dict[str, Any]) -> bool:
    """Return whether an item is a message of the user; Codex writes its own user messages as tags."""
    return item.get("role") == "user" and not texts_of(item.get("content")).lstrip().startswith("<")


def _has_payload(sample: Sample) -> bool:
    return any(
        isinstance(value, dict)
        and (isinstance(value.get("payload"), dict) or (value.get("type") is None and "instructions" in value))
        and "timestamp" in value
        for value in sample.values
    )


def _is_rollout(sample: Sample) -> bool:
    return any(
        isinstance(value, dict)
        and (text_in(value, "type") in _KNOWN or (value.get("type") is None and isinstance(value.get("id"), str)))
        for value in sample.values
    )


CODEX = TranscriptFormat(
    "Codex CLI",
    (
        Check("a record with 'timestamp' and 'payload'", _has_payload),
        Check("a record of type 'session_meta' or 'response_item'", _is_rollout),
    ),
    lambda records: _Rollout().read(records),
    is_log=True,
    new_log=_Rollout,
)
