"""Calls that are known by their messages, in runs whose span is opened only when something is told."""

from __future__ import annotations

from functools import partial
from operator import itemgetter

import pytest

from otel_assembly.instrumentation import (
    ClientRequest,
    ConversationsByFirstMessage,
    GraphPosition,
    Instrumentation,
    InvokingAgent,
    LazyRun,
    PreparedCalls,
    PreparedOutside,
    Reduction,
    StepReport,
)

ASSEMBLY = "assemble_context"


class Message(dict):
    """One that can be remembered for as long as it lives."""


HISTORY = [Message(role="user", content=str(number)) for number in range(6)]


@pytest.fixture
def instrumentation(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")


class StepLog:
    """A framework of steps that hand on nothing but messages, each in a context of its own."""

    def __init__(self, instrumentation, calls=None, run=None):
        self.instrumentation = instrumentation
        self.calls = PreparedCalls() if calls is None else calls
        self.run = run
        self.openings = ConversationsByFirstMessage(itemgetter("role"))

    def at(self, place, step):
        invoking_agent = InvokingAgent(None, "talk/", "clerk")
        return GraphPosition(self.calls, place, step, self.run, invoking_agent, "step", self.openings)

    def finds(self, messages, since_ns, place, step):
        return self.at(place, step).call_for_reducer(self.instrumentation, messages, since_ns)

    def cuts(self, messages, most, place="step", step=1):
        """A reducer that keeps the newest."""
        finds = partial(self.finds, place=place, step=step)
        Reduction(self.instrumentation, StepReport(f"newest {most}", messages), find_call=finds).done(messages[-most:])
        return messages[-most:]

    def asks(self, messages, place="step", step=1):
        """A model is sent these."""
        self.at(place, step).call_for_request(self.instrumentation, messages, 0).client_called(ClientRequest(messages))


def told(telemetry):
    return [
        [step.name.removeprefix("apply_policy ") for step in span.children] for span in telemetry.spans_named(ASSEMBLY)
    ]


def test_what_reduces_one_after_the_other_are_the_steps_of_the_call_that_is_made_with_it(
    instrumentation, assembly_telemetry
):
    steps = StepLog(instrumentation)
    kept = steps.cuts(steps.cuts(HISTORY, 4), 2)
    steps.asks(HISTORY[:1])  # a question beside it
    steps.asks(kept)
    assert told(assembly_telemetry) == [[], ["newest 4", "newest 2"]]


def test_what_is_handed_on_is_gone_on_with_by_each_of_those_that_come_after_it(instrumentation, assembly_telemetry):
    steps = StepLog(instrumentation)
    kept = steps.cuts(HISTORY, 4)
    steps.at("step", 1).finish([list(kept)])
    shorter = [steps.cuts(kept, most, f"branch {most}", 2) for most in (3, 2)]
    for messages, most in zip(shorter, (3, 2), strict=True):
        steps.asks(messages, f"branch {most}", 2)
    assert told(assembly_telemetry) == [["newest 4", "newest 3"], ["newest 4", "newest 2"]]


def test_a_call_that_is_made_again_has_the_same_steps(instrumentation, assembly_telemetry):
    steps = StepLog(instrumentation)
    kept = steps.cuts(HISTORY, 4)
    for _ in range(3):
        steps.asks(kept)
    assert told(assembly_telemetry) == [["newest 4"]] * 3


def test_what_no_model_is_called_with_is_told_as_its_place_is_left(instrumentation, assembly_telemetry):
    steps = StepLog(instrumentation)
    steps.cuts(HISTORY, 4)
    assert told(assembly_telemetry) == []
    steps.at("step", 1).finish([])
    assert told(assembly_telemetry) == [["newest 4"]]
    assert "assembly.model" not in assembly_telemetry.span(ASSEMBLY).attributes


def test_what_a_run_in_a_run_goes_on_with_was_handed_on_around_it(instrumentation, assembly_telemetry):
    outer = StepLog(instrumentation)
    kept = outer.cuts(HISTORY, 4)
    outer.at("step", 1).finish([kept])
    inner = StepLog(instrumentation, PreparedCalls(outer.calls, step=2))
    inner.asks(list(kept))
    assert told(assembly_telemetry) == [["newest 4"]]


def test_outside_of_any_run_only_the_very_messages_are_known_and_so_many_calls_wait(
    instrumentation, assembly_telemetry
):
    steps = StepLog(instrumentation, PreparedOutside())
    kept = steps.cuts(HISTORY, 4)
    steps.asks([dict(message) for message in kept])
    assert told(assembly_telemetry) == [[]]
    steps.asks(kept)
    assert told(assembly_telemetry)[1:] == [["newest 4"]]
    for _ in range(3):
        steps.cuts(HISTORY, 2)
    assert told(assembly_telemetry)[2:] == [["newest 2"]] * 2
    steps.calls.end()
    assert told(assembly_telemetry)[2:] == [["newest 2"]] * 3


def test_a_reducer_that_raised_is_why_no_model_is_called(instrumentation, assembly_telemetry):
    steps = StepLog(instrumentation)
    finds = partial(steps.finds, place="step", step=1)
    Reduction(instrumentation, StepReport("breaks", HISTORY), find_call=finds).failed(ConnectionError("no"))
    steps.at("step", 1).finish([])
    assert assembly_telemetry.span(ASSEMBLY).attributes["error.type"] == "ConnectionError"


@pytest.mark.parametrize("tells", [True, False])
def test_a_run_has_a_span_from_what_is_told_in_it_on_and_so_have_those_around_it(
    instrumentation, assembly_telemetry, tells
):
    outer = LazyRun(instrumentation, "outer")
    inner = LazyRun(instrumentation, "inner", parent=outer)
    with outer.current(), inner.current():
        if tells:
            steps = StepLog(instrumentation, run=inner)
            steps.asks(steps.cuts(HISTORY, 2))
    inner.end()
    outer.end()
    assert [span.name for span in assembly_telemetry.spans if span.parent_id is None] == ["invoke_agent outer"] * tells
    assert len(assembly_telemetry.spans_named(ASSEMBLY)) == tells


@pytest.mark.parametrize("at_once", [True, False])
def test_a_run_may_have_its_span_from_the_start(instrumentation, assembly_telemetry, at_once):
    run = LazyRun(instrumentation, "clerk", at_once=at_once)
    with run.current():
        pass
    run.end()
    assert [span.name for span in assembly_telemetry.spans] == ["invoke_agent clerk"] * at_once


def test_a_run_in_the_callers_span_adds_none(instrumentation, assembly_telemetry):
    run = LazyRun(instrumentation, "clerk", at_once=True)
    with assembly_telemetry.tracer().start_as_current_span("request"), run.current(), run.with_span():
        pass
    run.end()
    assert [span.name for span in assembly_telemetry.spans] == ["request"]
