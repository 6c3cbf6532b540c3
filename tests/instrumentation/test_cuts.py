"""Reducers that cut: what stays behind the cut, which of a framework's they are, and what they were made with."""

from __future__ import annotations

from contextvars import copy_context

import pytest

from otel_assembly import DecisionReason
from otel_assembly.decision import DecisionOutcome
from otel_assembly.errors import HaltedError
from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    InvokingAgent,
    MadeWith,
    ModelCall,
    ReducerSpec,
    Reduction,
    StepReport,
    behind,
    client,
    in_package,
    known_of,
    name_of,
    newest,
    plugin_scope,
    record_standalone_call,
    summariser_call,
    without_summaries,
)
from otel_assembly.instrumentation.reductions import reducing

TALK = [{"role": "user", "content": word} for word in ("one", "two", "three", "four")]


class Window:
    def __init__(self, size, unit="items"):
        self.size = size


class OfUsers(Window):
    name = "of users"


def test_what_stays_is_behind_the_cut_and_all_that_came_out_where_nothing_was_cut():
    assert newest("size")(Window(3), TALK, TALK[2:]) == TALK[1:]
    assert newest("size")(Window(9), TALK, TALK[2:]) == TALK
    assert behind(lambda *_: 2)(None, TALK, TALK) == TALK


def test_a_class_is_known_by_the_frameworks_that_it_derives_from(monkeypatch):
    known = {"Window": ReducerSpec("window")}
    assert known_of(OfUsers, known, ["pretend"]) is None
    monkeypatch.setattr(Window, "__module__", "pretend.windows")
    assert known_of(OfUsers, known, ["pretend"]) is known["Window"]
    monkeypatch.setattr(Window, "__module__", "pretended.windows")
    assert known_of(OfUsers, known, ["pretend"]) is None


def test_a_reducer_is_called_as_it_calls_itself():
    assert (name_of(OfUsers(1)), name_of(Window(1))) == ("of users", "Window")


def test_what_a_reducer_was_made_with_is_known_of_it_while_that_is_instrumented():
    made, instrumentation = MadeWith(1, "unit"), Instrumentation("pretend")

    class Forgetful(Window):
        __init__ = made.wrap(Window.__init__, instrumentation)

    one, other = Forgetful(1, "tokens"), Forgetful(1, unit="turns")
    assert (made.get(one), made.get(other)) == ("tokens", "turns")
    instrumentation.open = False
    assert made.get(Forgetful(1, "tokens")) is None


def test_settings_may_be_worked_out():
    known = ReducerSpec(settings={"size": "size", "twice": lambda window: 2 * window.size})
    assert known.config(Window(2), "and whatever it is called with") == {"size": 2, "twice": 4}


@pytest.mark.parametrize("text", ["", "Error generating summary: 500 Server Error"], ids=["empty", "error text"])
def test_what_no_summary_was_made_of_is_lost(text):
    made = {"role": "system", "content": text}
    (lost,) = without_summaries(
        TALK, [made, TALK[3]], lambda message: message["content"] if message["role"] == "system" else None
    )
    assert (lost.events, lost.outcome, lost.reason) == (
        TALK[:3],
        DecisionOutcome.DROPPED,
        DecisionReason.POLICY_ERROR,
    )


def test_nothing_is_lost_where_a_summary_was_made_or_none_was_to_be():
    made = {"role": "system", "content": "They counted."}
    for after in ([made, TALK[3]], TALK[2:]):
        assert (
            without_summaries(TALK, after, lambda message: message["content"] if message["role"] == "system" else None)
            == []
        )


def test_the_hooks_of_a_package_have_its_modules_and_the_versions_of_all():
    first, *others = in_package(
        "pretend",
        ("agent", "Agent.ask", None, "asks"),
        ("model", "A.call B.call", None, "calls", "< 2"),
        versions="> 1",
    )
    assert (first.name, first.versions) == ("pretend.agent.Agent.ask", "> 1")
    assert [(hook.name, hook.versions) for hook in others] == [
        ("pretend.model.A.call", "< 2"),
        ("pretend.model.B.call", "< 2"),
    ]


@pytest.fixture
def instrumentation(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")


def test_messages_that_can_be_read_once_are_left_to_the_client(instrumentation, assembly_telemetry):
    def sent(messages):
        return ClientRequest(messages, model="gpt-4o")

    call = ModelCall(instrumentation, InvokingAgent("talk", "clerk", "clerk"), messages=TALK)
    with call.current():
        assert client(sent, record=record_standalone_call)(list, instrumentation)(iter(TALK)) == TALK
        call.begin_step(StepReport("window", TALK))
        assert client(sent)(list, instrumentation)(iter(TALK)) == TALK
    assert assembly_telemetry.metrics["assembly.telemetry.errors"]


def test_a_summarisers_own_function_is_told_only_inside_of_a_reducer(instrumentation, assembly_telemetry):
    told = summariser_call(lambda messages: ClientRequest(messages, model="gpt-4o"), str)
    summary = told(lambda messages: "so", instrumentation)
    summary(TALK)
    assert assembly_telemetry.spans == []
    call = ModelCall(instrumentation, InvokingAgent("talk", "clerk", "clerk"), messages=TALK)
    reduction = Reduction(instrumentation, StepReport("summarizes", TALK), call=call)
    with reduction.tracked():
        summary(TALK)
    reduction.done(TALK[2:])
    call.end()
    assert assembly_telemetry.span("compact_block summary").parent.name == "apply_policy summarizes"


def test_a_plug_in_ends_what_was_prepared_before_it(instrumentation, assembly_telemetry):
    call = ModelCall(instrumentation, InvokingAgent("talk", "clerk", "clerk"), messages=TALK)
    call.reduced(StepReport("window", TALK, TALK[1:]))
    with plugin_scope(instrumentation, call):
        assert len(assembly_telemetry.spans_named("assemble_context")) == 1


def test_a_plug_in_that_raises_hides_no_later_model_call(instrumentation):
    call = ModelCall(instrumentation, InvokingAgent("talk", "clerk", "clerk"), messages=TALK)
    contexts = []

    def halt():
        assert reducing() is not None
        contexts.append(copy_context())
        raise HaltedError("a loop", "LoopDetector")

    with pytest.raises(HaltedError), plugin_scope(instrumentation, call):
        halt()
    assert contexts[0].run(reducing) is None


def test_what_a_followed_reducer_raises_is_told_and_goes_through(instrumentation, assembly_telemetry):
    call = ModelCall(instrumentation, InvokingAgent("talk", "clerk", "clerk"), messages=TALK)
    with pytest.raises(ConnectionError), Reduction(instrumentation, StepReport("window", TALK), call=call).tracked():
        raise ConnectionError
    call.end()
    assert assembly_telemetry.span("apply_policy window").attributes["error.type"] == "ConnectionError"
