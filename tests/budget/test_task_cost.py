"""The cost of a task in a long conversation: counted in Python calls, never timed."""

from __future__ import annotations

import pytest
from counting import Rounds

from otel_assembly import Context, ContextAssembler, History, ModelRequest, ModelResponse, Task
from otel_assembly.events import ToolCallEvent, ToolResultEvent
from otel_assembly.recorder import NullRecorder


def exchange(number):
    """A question, a tool call with its result, and an answer."""
    call = ToolCallEvent(id=f"call {number}", name="look")
    return [
        ModelRequest(content=f"question {number}"),
        ModelResponse(tool_calls=(call,)),
        ToolResultEvent(parent_id=call.id, content=f"result {number}"),
        ModelResponse(content=f"answer {number}"),
    ]


async def most_of_a_task(length, order, state=None):
    """The most Python calls of one task, over tasks that each add an exchange of four turns."""
    assembler = ContextAssembler(
        system="Be kind.",
        window=700,
        output_reserve=100,
        scopes=lambda user, task: {"all"},
        state=state,
        order=order,
        step_tokens=100,
        model="gpt-4o",
        recorder=NullRecorder(),
    )
    history, context, most = History(), Context(), 0
    for number in range(length // 4):
        history.extend(exchange(number))
    for number in range(length // 4, length // 4 + 24):
        history.extend(exchange(number))
        with Rounds() as rounds:
            made = await assembler.assemble(Task(f"And {number}?", recent=history), "ada", context)
        assert 10 < len(made.messages) < 100
        if number > length // 4 + 3:
            most = max(most, rounds.made)
    return most


@pytest.mark.parametrize("order", [pytest.param("cache", marks=pytest.mark.slow), "attention"])
async def test_a_task_in_a_long_conversation_makes_as_many_calls_as_in_a_short_one(order):
    short, long = [await most_of_a_task(length, order) for length in (1_000, 10_000)]
    assert 100 < long <= short * 1.05 + 20


async def test_content_that_changes_on_each_task_does_not_make_a_long_conversation_cost_more():
    states = iter(range(1_000))

    def state(task, scopes):
        return f"state {next(states)}"

    short, long = [await most_of_a_task(length, "cache", state) for length in (1_000, 10_000)]
    assert 100 < long <= short * 1.05 + 20
