"""What a framework's own reducers are known to do is said of their steps, and one that raises outside of any call."""

from __future__ import annotations

import pytest

from otel_assembly import DecisionReason
from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    InvokingAgent,
    ModelCall,
    ReducerSpec,
    Reduction,
    StepReport,
)

CALLS = {"id": "1", "function": {"name": "weather", "arguments": "{}"}}
TALK = [
    {"role": "user", "content": "opening request"},
    {"role": "assistant", "content": "", "tool_calls": [CALLS]},
    {"role": "tool", "tool_call_id": "1", "content": "rain"},
    {"role": "assistant", "content": "it rains"},
]


class Newest:
    """Keeps the newest messages, and never begins with a result."""

    def __init__(self, size):
        self.size = size


NEWEST = ReducerSpec(
    "newest",
    reason=DecisionReason.OUTSIDE_WINDOW,
    settings={"size": "size", "not_there": "not_there"},
    keeps=lambda newest, given, _: given[-newest.size :],
)


def reduced(known, reducer, after):
    """A model is called with what a reducer made of the talk."""
    call = ModelCall(Instrumentation("pretend"), InvokingAgent("talk", "clerk", "clerk"))
    reduction = Reduction(call.instrumentation, StepReport(known.policy, TALK, config=known.config(reducer)), call=call)
    known.done(reduction, reducer, after)
    call.client_called(ClientRequest(after))


def test_what_its_own_rule_keeps_and_does_not_come_out_had_lost_its_other_half(assembly_telemetry):
    reduced(NEWEST, Newest(2), TALK[3:])
    step = assembly_telemetry.span("apply_policy newest")
    assert step.dropped_reasons == {"0": "outside_window", "1": "outside_window", "2": "orphaned_tool_result"}
    assert step.attributes["assembly.policy.config"] == '{"size":2}'


@pytest.mark.parametrize(
    ("known", "cause", "budget"),
    [
        (ReducerSpec("limit", limit=lambda *_: 1), "newest_atom", 1),
        (ReducerSpec("limit", limit=lambda *_: 9_999), None, 9_999),
        (ReducerSpec("limit", limit=lambda *_: 3, unit="items"), "framework", None),
    ],
    ids=["nothing is left", "it holds", "items"],
)
def test_a_limit_that_did_not_hold_is_an_overflow(known, cause, budget, assembly_telemetry):
    reduced(known, None, TALK if cause != "newest_atom" else [])
    step, assembly = assembly_telemetry.span("apply_policy limit"), assembly_telemetry.span("assemble_context")
    assert step.attributes.get("assembly.overflow.cause") == cause
    if budget is not None:
        assert assembly.attributes["assembly.budget.limit"] == budget


def test_what_it_says_itself_that_it_left_out_is_told_beside_what_did(assembly_telemetry):
    note = {"role": "user", "content": "Skipped 2 messages."}
    reduced(ReducerSpec("note", reported=lambda *_: 2), None, [note, TALK[-1]])
    step = assembly_telemetry.span("apply_policy note")
    assert (step.attributes["assembly.dropped.reported_count"], step.attributes["assembly.dropped.count"]) == (2, 3)


def test_one_that_raises_outside_of_any_call_is_told_as_a_call_that_is_not_made(assembly_telemetry):
    report, error = StepReport("memory", TALK, kind="injection"), ConnectionError()
    Reduction(Instrumentation("pretend"), report).prevented_call(error, InvokingAgent("talk", "clerk", "clerk"))
    step, assembly = assembly_telemetry.span("apply_policy memory"), assembly_telemetry.span("assemble_context")
    assert step.attributes["error.type"] == assembly.attributes["error.type"] == "ConnectionError"
    assert (assembly.attributes["assembly.events.in"], assembly.attributes["assembly.events.out"]) == (4, 0)
