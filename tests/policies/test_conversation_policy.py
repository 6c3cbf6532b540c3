from __future__ import annotations

import pytest

from otel_assembly import (
    Context,
    ConversationPolicy,
    EventFacts,
    HaltEvent,
    History,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    ToolCallEvent,
    ToolResultEvent,
    describe,
)
from otel_assembly.events import (
    AssemblyCompleted,
    CompactionSummary,
    ToolErrorEvent,
    ToolResultsEvent,
    TurnCompleted,
    TurnStarted,
    Usage,
    UsageEvent,
)

CALL = ToolCallEvent(id="a", name="search")
ANSWER = ToolResultEvent(parent_id="a", content="found")
CONVERSATION = [
    {"role": "system", "content": "be brief"},
    ModelRequest(content="ask"),
    ModelResponse(tool_calls=(CALL, ToolCallEvent(id="b", name="book"))),
    CALL,
    ANSWER,
    ToolErrorEvent(parent_id="b", error="no seats"),
    ToolResultsEvent(results=(ANSWER,)),
    CompactionSummary(summary="earlier"),
    ModelResponse(content="said"),
]
ASIDES = [
    ObserverAlert(source="monitor", severity="info", message="hm"),
    HaltEvent(reason="over", source="monitor"),
    TurnStarted(turn=0),
    TurnCompleted(turn=0),
    UsageEvent(usage=Usage(input_tokens=1)),
    AssemblyCompleted(assembly="x", turn=0, tokens=1),
]


def interleaved():
    events = []
    for number, event in enumerate(CONVERSATION):
        events += [ASIDES[number % len(ASIDES)], event]
    return events


@pytest.mark.parametrize("make", [list, History, lambda e: History(e).view(), lambda e: History([e[0], *e])[1:]])
async def test_it_keeps_what_a_model_is_told_and_drops_the_rest(make):
    outcome = await ConversationPolicy().decide(["prompt"], make(interleaved()), Context())
    assert list(map(id, outcome.events)) == list(map(id, CONVERSATION))
    assert list(outcome.prompts) == ["prompt"]
    assert [(v.outcome, v.reason, len(v.events)) for v in outcome.decisions] == [
        ("dropped", "not_conversation", len(CONVERSATION))
    ]


class Remark:
    """An event of a kind that nobody declared to be conversation."""


@describe.register
def _(event: Remark) -> EventFacts:
    return EventFacts("other", "psst")


async def test_an_event_that_does_not_say_it_is_conversation_is_filtered_out():
    _, kept = await ConversationPolicy().apply([], [Remark(), *CONVERSATION], Context())
    assert kept == CONVERSATION


@pytest.mark.parametrize("make", [list, History])
async def test_orphans_leave_with_their_own_reasons(make):
    stray = ToolResultEvent(parent_id="z", content="?")
    given_up = ModelResponse(tool_calls=(ToolCallEvent(id="c", name="search"),))
    events = [ModelRequest(content="ask"), stray, given_up, ModelResponse(content="said"), TurnCompleted(turn=0)]
    outcome = await ConversationPolicy().decide([], make(events), Context())
    assert list(outcome.events) == [events[0], events[3]]
    assert {v.reason: list(v.events) for v in outcome.decisions} == {
        "not_conversation": [events[4]],
        "orphaned_tool_result": [stray],
        "orphaned_tool_call": [given_up],
    }


async def test_a_given_up_call_comes_back_with_its_late_result():
    call = ModelResponse(tool_calls=(ToolCallEvent(id="c", name="search"),))
    history = History([ModelRequest(content="ask"), call, ModelResponse(content="still looking")])
    before = await ConversationPolicy().decide([], history, Context())
    history.append(ToolResultEvent(parent_id="c", content="found"))
    after = await ConversationPolicy().decide([], history, Context())
    assert call not in before.events
    assert list(after.events) == list(history)


async def test_what_arrives_while_a_turn_is_assembled_is_not_in_it():
    history = History(CONVERSATION)
    view = history.view()
    history.extend([TurnCompleted(turn=0), ModelRequest(content="later")])
    outcome = await ConversationPolicy().decide([], view, Context())
    assert list(outcome.events) == CONVERSATION


async def test_a_result_that_arrives_while_a_turn_is_assembled_does_not_make_its_call_whole():
    call = ModelResponse(tool_calls=(ToolCallEvent(id="c", name="search"),))
    history = History([ModelRequest(content="ask"), call, ModelResponse(content="still looking")])
    view = history.view()
    history.append(ToolResultEvent(parent_id="c", content="found"))
    outcome = await ConversationPolicy().decide([], view, Context())
    assert call not in outcome.events


async def test_nothing_in_nothing_out():
    for nothing in ([], History(), History().view()):
        assert await ConversationPolicy().apply([], nothing, Context()) == ([], [])
