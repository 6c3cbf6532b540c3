from __future__ import annotations

import typing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from recount import read
from strategies import as_events, scripts

from otel_assembly import (
    HaltEvent,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    Severity,
    ToolCallEvent,
    ToolResultEvent,
    describe,
)
from otel_assembly.events import (
    AggregationCompleted,
    AggregationFailed,
    AnyEvent,
    AssemblyCompleted,
    CompactionSummary,
    ConfirmResult,
    ConversationResumed,
    Event,
    ExternalExecutionResultEvent,
    ObserverCompleted,
    ObserverStarted,
    ResponseChunk,
    ToolArgumentsChanged,
    ToolErrorEvent,
    ToolFinishedLate,
    ToolResultsEvent,
    TurnCompleted,
    TurnStarted,
    Usage,
    UsageEvent,
    UserConfirmResultEvent,
    event_from_json,
    event_to_json,
)

ONE_OF_EACH = [
    ModelRequest(content="Where is my bag?"),
    ModelResponse(content="", tool_calls=(ToolCallEvent(name="search"),), usage=Usage(input_tokens=7)),
    ResponseChunk(content="It is"),
    ToolCallEvent(id="a", name="search", arguments='{"q": "가방"}', awaiting_approval=True),
    ToolResultEvent(parent_id="a", name="search", content="found"),
    ToolErrorEvent(parent_id="a", error="timeout"),
    ToolFinishedLate(parent_id="a", name="search", seconds=1.5, error="OSError"),
    ToolArgumentsChanged(parent_id="a", name="pay", original="{}", arguments='{"x": 1}', source="confirmation"),
    ToolResultsEvent(results=(ToolResultEvent(parent_id="a", content=""), ToolErrorEvent(parent_id="b", error="no"))),
    CompactionSummary(summary="earlier", event_count=3, provenance=("x", "y")),
    ObserverAlert(source="monitor", severity="warning", message="hm", data={"n": [1, None]}),
    HaltEvent(reason="over", source="monitor", alerts=(ObserverAlert(source="m", severity="fatal", message="!"),)),
    ConversationResumed(halt="h", reason="looked at"),
    UserConfirmResultEvent(confirm_results=(ConfirmResult(tool_call=ToolCallEvent(name="pay"), confirmed=False),)),
    ExternalExecutionResultEvent(execution_results=(ToolResultEvent(parent_id="a", content="clear"),)),
    TurnStarted(turn=0),
    TurnCompleted(turn=0),
    UsageEvent(model="gpt-4o", usage=Usage(input_tokens=1, output_tokens=2)),
    AssemblyCompleted(assembly="f00", turn=1, tokens=2, budget=3),
    ObserverStarted(observer="loop"),
    ObserverCompleted(observer="loop", error="ValueError"),
    AggregationCompleted(aggregate="summary"),
    AggregationFailed(aggregate="summary", error="OSError"),
]
kinds = pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.type)


def test_each_kind_of_event_is_tried_here():
    assert {type(event) for event in ONE_OF_EACH} == set(typing.get_args(typing.get_args(AnyEvent)[0]))


@kinds
def test_json_brings_an_event_back(event):
    back = event_from_json(event_to_json(event))
    assert back == event
    assert type(back) is type(event)
    assert event_to_json(back) == event_to_json(event)


@kinds
def test_an_event_cannot_be_changed(event):
    with pytest.raises(ValidationError):
        event.id = "another"


@kinds
def test_a_field_that_nobody_knows_is_refused(event):
    with pytest.raises(ValidationError):
        type(event).model_validate({**event.model_dump(), "surprise": 1})


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(scripts())
def test_json_brings_any_conversation_back(script):
    for event in as_events(script):
        if isinstance(event, Event):
            assert event_from_json(event_to_json(event)) == event


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[" * 5_000, '{"type": "nothing"}', '{"type": "model_request"}', "null", '{"type"', "NaN"]
)
def test_json_that_is_no_event_is_refused(text):
    with pytest.raises(ValidationError):
        event_from_json(text)


@pytest.mark.parametrize(
    "text", ['{"type": "model_request", "content": "sesame', '["sesame"]', '{"type": "halt", "x": "sesame"}']
)
def test_what_is_refused_is_not_quoted(text):
    with pytest.raises(ValidationError) as refused:
        event_from_json(text)
    assert "sesame" not in str(refused.value)


def test_every_event_has_an_id_of_its_own():
    assert len({ModelRequest(content="same").id for _ in range(100)}) == 100


@pytest.mark.parametrize("severity", [Severity.FATAL, "fatal", "FATAL", "Fatal"])
def test_a_severity_is_read_in_any_case(severity):
    assert ObserverAlert(source="m", severity=severity, message="").severity is Severity.FATAL


@pytest.mark.parametrize("severity", ["", "awful", None, 3])
def test_a_severity_that_is_none_is_refused(severity):
    with pytest.raises(ValidationError):
        ObserverAlert(source="m", severity=severity, message="")


@kinds
def test_what_a_model_would_read_is_what_a_person_reads(event):
    facts, person = describe(event), read(event)
    assert sorted(facts.texts) == sorted(text for text in [*person.texts, person.name] if text)
    assert list(facts.opens) == person.opens
    assert set(facts.awaiting) == person.awaiting
    assert list(facts.closes) == person.closes
    assert facts.rendered == (person.kind != "aside")
    assert facts.id == event.id


def test_what_a_response_was_billed_is_read():
    assert describe(ONE_OF_EACH[1]).billed_tokens == 7
    assert describe(ModelResponse(content="x")).billed_tokens is None


def test_an_event_of_ones_own_is_read_as_its_nearest_base():
    class Whisper(ModelRequest):
        pass

    class Heartbeat(Event):
        pass

    assert describe(Whisper(content="psst")).kind == "request"
    assert describe(Heartbeat()).kind == "other"


@given(st.text())
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_a_text_is_read_as_it_is(text):
    assert describe(ModelRequest(content=text)).text == text
