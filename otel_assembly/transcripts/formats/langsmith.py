"""LangSmith's exports: runs of type ``llm``, in LangChain's or OpenAI's message form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.call_log import CallLog, parsed
from otel_assembly.transcripts.langchain_messages import chat_message
from otel_assembly.transcripts.log_records import fields_of, log_objects, objects_in
from otel_assembly.transcripts.messages import as_name
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.records import Record

__all__ = ["LANGSMITH"]

_CONVERSATION_IDS = ("session_id", "thread_id", "conversation_id")


def _messages(value: Any) -> list[Any]:
    messages = value if isinstance(value, list) else []
    if messages and isinstance(messages[0], list):  # LangChain's batches: this run is one of them
        messages = messages[0]
    return [chat_message(message) if isinstance(message, dict) else message for message in messages]


def _answer(outputs: dict[str, Any]) -> list[Any]:
    generations = outputs.get("generations")
    if isinstance(generations, list) and generations and isinstance(generations[0], list):
        generations = generations[0]
    holders = objects_in(generations) or objects_in(outputs.get("choices")) or [outputs]
    message = fields_of(holders[0].get("message") or holders[0].get("output"))
    return [chat_message(message)] if message else _messages(outputs.get("messages"))


def _read(records: Iterator[Record]) -> Iterator[Conversation]:
    log = CallLog()
    runs = [run for run in log_objects(records, log.skipped) if run.get("run_type") == "llm"]
    for run in sorted(runs, key=lambda run: str(run.get("dotted_order") or run.get("start_time") or "")):
        extra = fields_of(run.get("extra"))
        metadata = fields_of(extra.get("metadata"))
        name = next(filter(None, (as_name(metadata.get(key)) for key in _CONVERSATION_IDS)), None)
        tools = fields_of(extra.get("invocation_params")).get("tools")
        inputs, outputs = fields_of(parsed(run.get("inputs"))), fields_of(parsed(run.get("outputs")))
        log.add(
            name,
            "" if name is not None else as_name(run.get("trace_id")) or "",
            as_name(run.get("id")) or "",
            _messages(inputs.get("messages")),
            _answer(outputs),
            objects_in(tools) if isinstance(tools, list) else None,
        )
    yield from log.conversations()


def _has_runs(sample: Sample) -> bool:
    return any("run_type" in fields_of(value) for value in sample.values)


def _has_inputs(sample: Sample) -> bool:
    return any("inputs" in fields_of(value) for value in sample.values)


LANGSMITH = TranscriptFormat(
    "LangSmith runs",
    (Check("runs with 'run_type'", _has_runs), Check("runs with 'inputs'", _has_inputs)),
    _read,
    is_log=True,
)
