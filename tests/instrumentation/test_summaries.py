"""What is told of a summary that a reducer has a model make."""

from __future__ import annotations

import pytest

from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    InvokingAgent,
    ModelCall,
    Reduction,
    StepReport,
    Summary,
)

HISTORY = [{"role": "user", "content": f"question {number}"} for number in range(6)]


@pytest.fixture
def instrumentation(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")


def summarised(instrumentation, seen, text, **limits):
    """The older four are summarised, of which the model is given some."""
    call = ModelCall(instrumentation, InvokingAgent("talk", "clerk", "clerk"), messages=HISTORY)
    reduction = Reduction(instrumentation, StepReport("sums up", HISTORY), call=call)
    reduction.open()
    with Summary(reduction, HISTORY[:4]) as summary:
        for name, value in limits.items():
            setattr(summary, name, value)
        summary.begin("gpt-4o", seen)
        summary.finish(text)
    after = [{"role": "user", "content": text}, *HISTORY[4:]]
    reduction.done(after)
    call.client_called(ClientRequest(after))


def test_what_the_model_saw_is_compacted_and_what_it_did_not_see_dropped(instrumentation, assembly_telemetry):
    summarised(instrumentation, HISTORY[2:4], "They ask things.")
    step = assembly_telemetry.span("apply_policy sums up")
    assert step.compacted == ["2", "3"]
    assert step.dropped_reasons == {"0": "over_budget", "1": "over_budget"}
    assert assembly_telemetry.span("compact_block summary").parent_id == step.span_id


@pytest.mark.parametrize("text", ["", "Error generating summary: 500 Server Error"])
def test_what_is_no_summary_has_lost_what_it_stands_for(instrumentation, assembly_telemetry, text):
    summarised(instrumentation, HISTORY[:4], text)
    step = assembly_telemetry.span("apply_policy sums up")
    assert step.dropped_reasons == dict.fromkeys("0123", "policy_error")


def test_where_nothing_was_left_to_summarise_all_is_gone_and_no_model_was_called(instrumentation, assembly_telemetry):
    summarised(instrumentation, [], "Too long.", needed=50, limit=10)
    step = assembly_telemetry.span("apply_policy sums up")
    assert step.dropped_reasons == dict.fromkeys("0123", "over_budget")
    assert step.attributes["assembly.overflow.tokens"] == 40
    assert assembly_telemetry.spans_named("compact_block summary") == []
