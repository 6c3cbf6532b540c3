"""Results of tau2-bench: simulations with the messages of the agent, the user and the tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.formats.conversations import conversation_of
from otel_assembly.transcripts.log_records import fields_of, objects_in
from otel_assembly.transcripts.messages import as_name, function_call
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.json_values import MalformedError
    from otel_assembly.transcripts.records import Record

__all__ = ["TAU2"]


def _agent_messages(messages: Any) -> Iterator[Any]:
    """Yield the messages that the agent's model receives: without tool calls of the simulated user."""
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            yield message
            continue
        role, calls = message.get("role"), objects_in(message.get("tool_calls"))
        if message.get("requestor") == "user" or (role == "user" and calls):
            continue
        fields = {"role": role, "content": message.get("content")}
        if role == "tool":
            yield fields | {"tool_call_id": as_name(message.get("id"))}
        elif calls:
            made = [
                function_call(as_name(call.get("id")) or f"call {at}", str(call.get("name")), call.get("arguments"))
                for at, call in enumerate(calls)
            ]
            yield fields | {"tool_calls": made}
        else:
            yield fields


def _read(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    for record in records:
        for simulation in objects_in(record.value["simulations"]):
            task, trial = as_name(simulation.get("task_id")), as_name(simulation.get("trial"))
            name = f"{task}-{trial}" if task and trial else as_name(simulation.get("id"))
            messages = _agent_messages(simulation.get("messages"))
            yield conversation_of(name, messages, place=f"simulation {name}", unknown=("system prompt", "tools"))


def _has_simulations(sample: Sample) -> bool:
    return all(isinstance(fields_of(value).get("simulations"), list) for value in sample.values)


TAU2 = TranscriptFormat("tau2-bench", (Check("a list 'simulations'", _has_simulations),), _read)
