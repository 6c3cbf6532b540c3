"""The Python calls that recording adds to a turn: counted, never timed."""

from __future__ import annotations

import pytest
from counting import Calls
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from otel_assembly import (
    Assembler,
    Context,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    TokenBudgetPolicy,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.recorder import NullRecorder
from otel_assembly.telemetry import OpenTelemetryRecorder

#: The most calls of the library's functions that recording adds to a turn of two messages.
BOUND = 300
WARM_UP, TURNS = 8, 24


def turn(number):
    """Two messages: a question and a tool call, or the tool's result and the answer."""
    call = f"call {number // 2}"
    if number % 2:
        return [ToolResultEvent(parent_id=call, content=f"result {number}"), ModelResponse(content=f"answer {number}")]
    return [ModelRequest(content=f"question {number}"), ModelResponse(tool_calls=(ToolCallEvent(id=call, name="f"),))]


async def calls_by_turn(length, recorder):
    """Return the calls of each turn of a conversation that has this number of events before the first of them."""
    history = History(event for number in range(length // 2) for event in turn(number))
    assembler = Assembler([ConversationPolicy(), TokenBudgetPolicy(200)], model="gpt-4o", recorder=recorder)
    context, made = Context(agent_name="desk", conversation_id=f"calls {length}"), []
    for number in range(length // 2, length // 2 + WARM_UP + TURNS):
        history.extend(turn(number))
        with Calls() as calls:
            await assembler.assemble(["be kind"], history, context)
        made.append(calls.made)
    return made[WARM_UP:]


@pytest.mark.parametrize("length", [1_000, 10_000])
async def test_recording_adds_a_bounded_number_of_calls_to_a_turn(length):
    recorder = OpenTelemetryRecorder(
        tracer_provider=TracerProvider(shutdown_on_exit=False),
        meter_provider=MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False),
    )
    silent, recorded = await calls_by_turn(length, NullRecorder()), await calls_by_turn(length, recorder)
    assert max(more - fewer for more, fewer in zip(recorded, silent, strict=True)) <= BOUND
