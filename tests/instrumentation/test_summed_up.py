"""Why messages left of a reducer that asked a summariser: what it had read is in the summary, if it made one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_assembly import DecisionReason
from otel_assembly.budget import CompactionOutcome
from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    InvokingAgent,
    ModelCall,
    Reduction,
    StepReport,
    compacted_verdict,
)
from otel_assembly.messages import summary_like

HISTORY = [{"role": "user", "content": f"question {number}"} for number in range(6)]


@pytest.fixture
def instrumentation(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")


def summarised(telemetry, instrumentation, read, outcome=None, *, history=HISTORY, summary=()):
    """The step of a reducer that leaves out all but the newest two, for which a model may have read some."""
    call = ModelCall(instrumentation, InvokingAgent("talk", "clerk", "clerk"), messages=history, model="gpt-4o")
    reduction = Reduction(instrumentation, StepReport("sums up", history), call=call)
    if read is not None:
        with reduction.compacting("gpt-4o", lambda count: 7) as attempt:
            reduction.read = read
            reduction.record_summary(attempt, "All of it.")
            attempt.outcome = outcome
    after = [*summary, *history[-2:]]
    verdict = compacted_verdict(reduction, after, *summary)
    reduction.report = replace(reduction.report, verdicts=[verdict], reason=DecisionReason.OVER_BUDGET, stands_in=False)
    reduction.done(after)
    call.client_called(ClientRequest(after))
    return telemetry.span("apply_policy sums up")


def test_what_the_summariser_had_not_read_is_lost(instrumentation, assembly_telemetry):
    step = summarised(assembly_telemetry, instrumentation, HISTORY[2:4])
    assert step.compacted == ["2", "3"]
    assert step.dropped_reasons == {"0": "over_budget", "1": "over_budget"}


def test_all_is_lost_where_no_summary_was_made(instrumentation, assembly_telemetry):
    step = summarised(assembly_telemetry, instrumentation, HISTORY[:4], CompactionOutcome.EMPTY)
    assert step.compacted == []
    assert step.dropped_reasons == dict.fromkeys("0123", "over_budget")


def test_where_no_summariser_was_seen_what_left_is_in_the_summary(instrumentation, assembly_telemetry):
    step = summarised(assembly_telemetry, instrumentation, None)
    assert step.compacted == ["0", "1", "2", "3"]


def test_an_earlier_summary_is_in_the_next_one(instrumentation, assembly_telemetry):
    earlier = summary_like(HISTORY[0], "What was.", HISTORY[:1])
    step = summarised(assembly_telemetry, instrumentation, HISTORY[1:4], history=[earlier, *HISTORY[1:]])
    assert step.compacted == ["0", "1", "2", "3"]


def test_a_summary_counts_as_it_is_sent(instrumentation, assembly_telemetry):
    long = [{"role": "user", "content": "What was said before, in the words of a template: all of it, and no more."}]
    summarised(assembly_telemetry, instrumentation, HISTORY[:4], summary=long)
    block = assembly_telemetry.span("compact_block summary").attributes
    sent = assembly_telemetry.span("assemble_context").arrived
    assert block["assembly.tokens.out"] == sent[block["assembly.compaction.result"]].tokens > 10
