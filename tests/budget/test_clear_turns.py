"""Turns with tool calls in the CLEAR pass: pairs stay whole, echoes cost nothing, orphans are never sent."""

from __future__ import annotations

import pytest
from clearing import desk
from hypothesis import given, settings
from hypothesis import strategies as st
from recount import assert_sendable, awaiting, count, event_tokens, pair
from strategies import conversations

from otel_assembly import (
    Context,
    ContextOverflowError,
    ModelRequest,
    ModelResponse,
    Task,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.testing import RecordedTelemetry

ASKED = "And now?"


def called(id_, **settings):
    return ModelResponse(content="", tool_calls=(ToolCallEvent(id=id_, name="find", arguments="{}", **settings),))


def answered(id_, content="found"):
    return ToolResultEvent(parent_id=id_, name="find", content=content)


def recounted(messages, events) -> int:
    """What messages cost, of which these events are some; what restates another costs nothing."""
    given_events = set(map(id, events))
    turns = [message for message in messages if id(message) in given_events]
    echoes = pair(turns).echoes
    said = sum(event_tokens(turn) for at, turn in enumerate(turns) if at not in echoes)
    return 3 + said + sum(4 + count(message["content"]) for message in messages if id(message) not in given_events)


@settings(deadline=None, max_examples=80)
@given(conversations(), st.integers(0, 40), st.integers(0, 400))
async def test_any_conversation_is_cut_so_that_it_can_be_sent(events, at, room):
    telemetry = RecordedTelemetry()
    fixed = (await desk(window=100_000, output_reserve=0).assemble(Task(ASKED), None)).allocation.used
    assembler = desk(window=fixed + 1 + room, output_reserve=0, floors={}, recorder=telemetry.recorder)
    task = Task(ASKED, older=events[:at], recent=events[at:])
    overflow = None
    try:
        context = await assembler.assemble(task, None, Context())
    except ContextOverflowError as error:
        overflow = error
    if overflow is not None:  # calls that await an approval are fixed; nothing else of the turns is
        assert overflow.costs["pending_tool_calls"] > overflow.budget - fixed
        assert awaiting(events)
        return
    given_events = set(map(id, events))
    assert_sendable(events, [message for message in context.messages if id(message) in given_events])
    used = recounted(context.messages, events)
    assert used == context.allocation.used == context.assembly.totals.tokens_out <= fixed + 1 + room
    assert used == telemetry.span("assemble_context").attributes["assembly.tokens.out"]
    assert telemetry.violations() == []


async def test_a_call_and_its_result_are_on_one_side_of_the_border_between_older_and_recent():
    events = [ModelRequest(content="Find it."), called("1"), answered("1"), ModelResponse(content="There it is.")]
    context = await desk().assemble(Task(ASKED, older=events[:2], recent=events[2:]), None)
    held = {
        decision.block.name: [item.content for item in decision.block.items]
        for decision in context.allocation.decisions
    }
    assert held["older"] == events[:1]
    assert held["recent"] == events[1:]


async def test_what_restates_another_event_costs_nothing_and_goes_where_it_goes():
    call = ToolCallEvent(id="1", name="find", arguments='{"of": "a long thing to find"}')
    events = [ModelRequest(content="Find it."), ModelResponse(content="", tool_calls=(call,)), call, answered("1")]
    plain = await desk().assemble(Task(ASKED, recent=[events[0], events[1], events[3]]), None)
    context = await desk().assemble(Task(ASKED, recent=events), None)
    assert context.messages[1:-1] == events
    assert context.allocation.used == plain.allocation.used == context.assembly.totals.tokens_out


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([answered("gone"), ModelRequest(content="hello")], "orphaned_tool_result"),
        ([called("lost"), ModelResponse(content="Never mind.")], "orphaned_tool_call"),
    ],
)
async def test_what_has_lost_its_other_half_is_not_sent_even_where_everything_fits(events, reason, recorder):
    context = await desk().assemble(Task(ASKED, recent=events), None)
    assert [item.reason.value for item in context.allocation.dropped] == [reason]
    assert [message for message in context.messages if message in events] == events[1:]
    assert list(recorder.span("apply_policy allocator").dropped_reasons.values()) == [reason]


async def test_a_call_that_is_pending_is_sent():
    events = [ModelRequest(content="Find it."), called("1")]
    context = await desk().assemble(Task(ASKED, recent=events), None)
    assert context.messages[1:-1] == events
