"""What a turn of a `BudgetPolicy` costs with its spans recorded: counted, never timed."""

from __future__ import annotations

import pytest
from counting import Rounds

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.events import CompactionSummary
from otel_assembly.tokens import CharacterCounter


def exchange(number):
    """A question, a tool's answer to it, and now and then a summary or a call that waits."""
    call = ToolCallEvent(id=f"c{number}", name="look", arguments="{}")
    yield ModelRequest(content=f"question {number}")
    yield ModelResponse(tool_calls=(call,))
    yield ToolResultEvent(parent_id=call.id, name="look", content="row " * (number % 9))
    yield ModelResponse(content=f"answer {number}")


@pytest.fixture(scope="module")
def histories():
    """A short one and a long one: 1,000 events and 100,000."""
    made = []
    for length in (250, 25_000):
        history = History([CompactionSummary(summary="before")])
        history.append(ModelResponse(tool_calls=(ToolCallEvent(id="wait", name="pay", awaiting_approval=True),)))
        for number in range(length):
            history.extend(exchange(number))
        made.append(history)
    return made


async def most_of_a_turn(history, recorder, step):
    """The most calls and rounds of loops of ours that one of 24 turns takes."""
    policies = [ConversationPolicy(), BudgetPolicy(450, 50, step_tokens=step)]
    assembler = Assembler(policies, recorder=recorder.recorder, counter=CharacterCounter(4))
    context, most = Context(), 0

    await assembler.assemble(["p"], history, context)
    for number in range(24):
        history.extend(exchange(number))
        recorder.clear()
        with Rounds() as rounds:
            await assembler.assemble(["p"], history, context)
        assert recorder.span("allocate_budget").attributes["assembly.budget.used"] <= 400
        most = max(most, rounds.made)
    return most


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 30])
async def test_a_recorded_turn_at_a_hundred_thousand_events_takes_the_steps_of_one_at_a_thousand(
    step, histories, recorder
):
    short, long = [await most_of_a_turn(history, recorder, step) for history in histories]
    assert 100 < long <= short * 1.1 + 50
