"""Assemblies that somebody else's code runs: what is told of them, and that none of it is ever felt."""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import replace
from itertools import product

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_assembly import (
    DecisionReason,
    EventFacts,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    Severity,
    ToolCallEvent,
    ToolResultEvent,
    describe,
)
from otel_assembly.conversation_state import AlertFacts
from otel_assembly.events import ToolResultsEvent
from otel_assembly.explain import explain
from otel_assembly.messages import EventKind
from otel_assembly.observe import ObservedAssembler
from otel_assembly.telemetry import AlertSignal, OpenTelemetryRecorder, TelemetrySettings, read_ledgers


def user(text):
    return {"role": "user", "content": text}


def says(text):
    return {"role": "assistant", "content": text}


def calls(*ids):
    made = [{"id": item_id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for item_id in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def answers(value):
    return {"role": "tool", "tool_call_id": value, "content": f"answer {value}"}


class Conversation:
    """What a framework holds its messages by."""


@pytest.fixture
def observed(recorder, words):
    return ObservedAssembler("peer", recorder=recorder.recorder, counter=words)


def turn(observed, conversation, events, reduce=list, *, policy="window", said=None, **begun):
    """One turn of a framework whose reducer is `reduce`; what it made is returned."""
    assembly = observed.begin(conversation, events, **begun)
    with assembly.step(policy, kind="reduction") as step:
        result = reduce(events)
        step.out(result, reason=DecisionReason.OUTSIDE_WINDOW, **(said or {}))
    assembly.end()
    return result


def ledger_of(recorder):
    (ledger,) = read_ledgers(recorder.spans).values()
    return ledger


# What the framework says of itself


def test_what_the_framework_says_that_it_left_out_stands_beside_what_it_did(observed, recorder):
    events = [user(f"{n}") for n in range(6)]
    turn(observed, "c", events, lambda e: e[-2:], said={"reported": 3})
    span = recorder.span("apply_policy window")
    assert span.attributes["assembly.dropped.reported_count"] == 3
    assert span.attributes["assembly.dropped.count"] == 4
    assert "assembly.dropped.reported_count" not in recorder.span("assemble_context").attributes
    assert recorder.violations() == []


def test_a_framework_that_says_nothing_has_no_such_number(observed, recorder):
    turn(observed, "c", [user("a"), user("b")], lambda e: e[1:])
    assert "assembly.dropped.reported_count" not in recorder.span("apply_policy window").attributes


# Pairs


@pytest.mark.parametrize(
    ("keep", "broken"),
    [
        ([0, 1, 2, 3, 4], 0),
        ([2, 3, 4], 2),  # results without their call
        ([0, 1, 3, 4], 1),  # a call without one of its results, and an answer after it
        ([0, 1, 4], 1),
        ([0, 4], 0),
        ([3, 2, 4], 2),
        ([0, 1], 0),  # nobody has answered yet: it still waits
    ],
)
def test_pairs_that_the_reducer_broke_are_counted(observed, recorder, keep, broken):
    events = [user("q"), calls("a", "b"), answers("a"), answers("b"), says("done")]
    turn(observed, "c", events, lambda e: [e[n] for n in keep])
    for span in (recorder.span("apply_policy window"), recorder.span("assemble_context")):
        assert span.attributes.get("assembly.pairs.broken", 0) == broken
    assert recorder.violations() == []


def thought(name):
    return {"type": "reasoning", "id": name, "summary": [{"type": "summary_text", "text": f"Thinking {name}."}]}


NOTE = {"role": "user", "content": "A note of the reducer."}


def function_call(name):
    return {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}


def function_result(name):
    return {"type": "function_call_output", "call_id": name, "output": "found"}


@pytest.mark.parametrize(
    ("keep", "broken"),
    [
        (range(7), 0),
        ([0, 3, 4, 5, 6], 0),
        ([0, 1, 3, 4, 5, 6], 1),  # reasoning without its answer
        ([0, 2, 3, 4, 5, 6], 1),  # an answer without its reasoning
        ([0, 1, 2, 4, 5, 6], 1),  # a call without its reasoning
        ([0, 1, 3, 5, 6], 3),  # two thoughts without what they led to, and a result
    ],
)
def test_reasoning_that_the_reducer_separated_counts_as_a_broken_pair(observed, recorder, keep, broken):
    events = [
        user("q"),
        thought("r0"),
        says("yes"),
        thought("r1"),
        function_call("c"),
        function_result("c"),
        user("so"),
    ]
    turn(observed, "c", events, lambda e: [e[n] for n in keep])
    for span in (recorder.span("apply_policy window"), recorder.span("assemble_context")):
        assert span.attributes.get("assembly.pairs.broken", 0) == broken


@pytest.mark.parametrize(
    ("reduced", "broken"),
    [
        (lambda e: [NOTE, *e], 0),
        (lambda e: [e[0], NOTE, *e[3:]], 0),
        (lambda e: [NOTE, *e[2:]], 1),  # an answer without its reasoning
        (lambda e: [e[0], e[1], NOTE, *e[3:]], 1),  # reasoning without its answer
        (lambda e: [*e[:4], NOTE, *e[5:]], 2),  # reasoning without its call, and a result without it
        (lambda e: [*e[:2], NOTE, *e[2:]], 2),  # a message between the two
        (lambda e: [e[0], e[2], e[1], *e[3:]], 2),  # reasoning behind its answer
        (lambda e: [e[0], e[3], e[2], e[1], *e[4:]], 4),  # each reasoning in front of the item of the other
        (lambda e: [e[6], *e[:6]], 0),
    ],
)
def test_separated_reasoning_is_counted_if_the_reducer_inserts_or_reorders(observed, recorder, reduced, broken):
    events = [
        user("q"),
        thought("r0"),
        says("yes"),
        thought("r1"),
        function_call("c"),
        function_result("c"),
        user("so"),
    ]
    turn(observed, "c", events, reduced)
    for span in (recorder.span("apply_policy window"), recorder.span("assemble_context")):
        assert span.attributes.get("assembly.pairs.broken", 0) == broken
    again = [*events, says("done"), user("and")]
    turn(observed, "c", again, reduced)
    for span in (recorder.spans_named("apply_policy window")[-1], recorder.spans_named("assemble_context")[-1]):
        assert span.attributes.get("assembly.pairs.broken", 0) == broken


@pytest.mark.parametrize(
    ("drops", "broken"),
    [
        (lambda at, item: item.get("type") == "reasoning", 40),
        (lambda at, item: item.get("role") == "assistant", 40),
        (lambda at, item: at % 6 in (1, 2), 0),
    ],
)
def test_separated_reasoning_is_counted_in_scattered_filters_too(observed, recorder, drops, broken):
    events = []
    for number in range(40):
        events += [user(f"q{number}"), thought(f"r{number}"), says(f"a{number}")]
    turn(observed, "c", events, lambda e: [item for at, item in enumerate(e) if not drops(at, item)])
    assert recorder.span("apply_policy window").attributes.get("assembly.pairs.broken", 0) == broken


# What restates another event


def asks(call):
    return ModelResponse(tool_calls=(ToolCallEvent(id=call, name="look", arguments="{}"),))


def tool_turn(call, answer):
    """A tool's turn as a stream carries it: the call twice, the result twice, and a note of the framework between."""
    result = ToolResultEvent(parent_id=call, name="look", content=answer)
    return [
        asks(call),
        ToolCallEvent(id=call, name="look", arguments="{}"),
        ObserverAlert(source="watch", severity=Severity.WARNING, message="slow"),
        result,
        ToolResultsEvent(results=(result,)),
    ]


def without_alerts(events):
    return [event for event in events if not isinstance(event, ObserverAlert)]


def test_what_left_has_tokens_also_where_events_restate_others(observed, recorder):
    events = [ModelRequest(content="please look"), *tool_turn("a", "one two three"), *tool_turn("b", "four five")]
    turn(observed, "c", events, policy="everything")
    sent = recorder.span("assemble_context").attributes["assembly.tokens.out"]
    assembly = observed.begin("c", events)
    with assembly.step("conversation") as step:
        step.out(without_alerts(events), reason=DecisionReason.NOT_CONVERSATION)
    with assembly.step("window") as step:
        step.out(without_alerts(events)[5:], reason=DecisionReason.OUTSIDE_WINDOW)
    assembly.end()
    for name in ("assemble_context", "apply_policy conversation", "apply_policy window"):
        held = recorder.span(name).attributes
        assert held["assembly.tokens.in"] == sent
    whole, window = (recorder.span(name).attributes for name in ("assemble_context", "apply_policy window"))
    left = sent - whole["assembly.tokens.out"]
    assert left > 5
    assert whole["assembly.dropped.tokens"] == window["assembly.dropped.tokens"] == left
    assert recorder.metric("assembly.tokens.dropped", policy_name="window", decision_reason="outside_window") == left
    assert recorder.violations() == []


def test_whatever_part_is_sent_it_counts_as_it_would_by_itself(observed, recorder):
    events = [*without_alerts(tool_turn("a", "one two")), *tool_turn("b", "three")]
    for parts, chosen in enumerate(product((False, True), repeat=len(events))):
        part = [event for event, is_sent in zip(events, chosen, strict=True) if is_sent]
        turn(observed, "long", events, lambda _, part=part: part)
        ours = recorder.span("assemble_context").attributes
        turn(observed, f"alone {parts}", part)
        alone = recorder.span("assemble_context").attributes
        assert ours["assembly.tokens.out"] == alone["assembly.tokens.out"], [events.index(event) for event in part]
        recorder.clear()


# What stands in for others, and what only notes that something is missing


@pytest.mark.parametrize(
    ("said", "compacted"),
    [({}, 4), ({"stands_in": True, "reported": 4}, 4), ({"stands_in": False}, 0), ({"reported": 4}, 0)],
)
def test_a_note_that_something_is_missing_stands_in_for_none_of_it(observed, recorder, said, compacted):
    events = [user(f"{n}") for n in range(7)]
    turn(observed, "c", events, lambda e: [e[0], says("Left out 4."), *e[-2:]], said=said)
    step = recorder.span("apply_policy window")
    gone = step.compacted or sorted(step.dropped_reasons)
    assert gone == ["1", "2", "3", "4"]
    assert set(step.dropped_reasons.values()) == (set() if compacted else {"outside_window"})
    assert step.attributes["assembly.compacted.count"] == compacted
    assert step.injected == ["m0"]
    assert recorder.violations() == []


# The time of a policy


class Watch:
    """Counts words, and says when it was first asked to."""

    name, method, generation = "watch", "exact", 0

    def __init__(self):
        self.asked = []

    def count(self, text):
        self.asked.append(time.time_ns())
        return len(text.split())


@pytest.mark.parametrize("first", ["out", "count", "overflow"])
def test_what_we_do_is_no_part_of_the_time_that_a_policy_took(recorder, first):
    watch = Watch()
    events = [user("a"), user("b")]
    assembly = ObservedAssembler("peer", recorder=recorder.recorder, counter=watch).begin("c", events)
    watch.asked.clear()
    with assembly.step("window") as step:
        if first == "count":
            step.count("a b")
        if first == "overflow":
            step.overflow(budget=1, needed=2)
        told = time.time_ns()
        time.sleep(0.002)
        step.out([events[1], user("c")])
        told = time.time_ns() if first == "out" else told
        time.sleep(0.002)
    assembly.end()
    span = recorder.span("apply_policy window")
    assert span.start_ns <= span.end_ns <= min(told, *watch.asked)


def test_a_policy_that_goes_on_with_a_summary_has_its_time_to_the_end(observed, recorder):
    events = [user("a"), user("b")]
    assembly = observed.begin("c", events)
    with assembly.step("summarise") as step:
        with step.compacting("model") as attempt:
            attempt.tokens_out = step.count("short")
        made = [says("short")]
        done = time.time_ns()
        step.out(made)
    assembly.end()
    assert recorder.span("apply_policy summarise").end_ns >= done
    assert recorder.violations() == []


# What cannot be known


def test_where_the_input_is_unknown_nothing_is_said_of_it(observed, recorder):
    events = [user("one"), says("two words"), user("three")]
    turn(observed, "c", events[:2], unknown_input=True)
    turn(observed, "c", events[1:], unknown_input=True)
    for name in ("assemble_context", "apply_policy window"):
        held = recorder.span(name).attributes
        assert held["assembly.input.unknown"] is True
        assert held["assembly.events.out"] == 2
        assert not {"assembly.events.in", "assembly.tokens.in", "assembly.dropped.count"} & held.keys()
    assert recorder.span("assemble_context").offered == []
    assert "assembly.input.tokens" not in recorder.metrics
    assert "assembly.items.dropped" not in recorder.metrics
    assert recorder.violations() == []
    ledger = ledger_of(recorder)
    assert ledger.problems == []
    assert [list(turn.kept) for turn in ledger.turns] == [["0", "1"], ["1", "2"]]
    assert ledger.exits(1) == {}


# Checks that came to nothing, and views


def test_a_check_that_found_nothing_to_do_is_a_count(observed, recorder):
    observed.declined("compress_context")
    observed.declined("compress_context", agent_name="desk")
    assert recorder.metric("assembly.policy.declined", policy_name="compress_context") == 2
    assert recorder.metric("assembly.policy.declined", agent_name="desk") == 1
    assert recorder.spans == []
    assert recorder.violations() == []


def test_a_view_is_a_span_with_numbers_and_no_word(observed, recorder):
    observed.project(
        "channel", "net", envelopes_in=5, events=[user("one two"), says("three")], envelopes_out=2, agent_name="desk"
    )
    span = recorder.span("project_view channel")
    assert span.attributes == {
        "assembly.view.name": "channel",
        "assembly.framework": "peer",
        "gen_ai.agent.name": "desk",
        "assembly.envelopes.in": 5,
        "assembly.envelopes.out": 2,
        "assembly.events.out": 2,
        "assembly.tokens.out": 11,
        "assembly.tokens.method": "exact",
        "assembly.tokens.encoding": "words",
    }
    assert recorder.violations() == []


def test_a_view_that_raised_says_so(observed, recorder):
    observed.project("channel", None, envelopes_in=5, error=ValueError("secret"))
    span = recorder.span("project_view channel")
    assert span.attributes["error.type"] == "ValueError"
    assert "assembly.tokens.out" not in span.attributes
    assert span.status == "ERROR"
    assert recorder.violations() == []


# A reduced history that is the next input


def summary(text):
    return {"role": "system", "content": text, "id": text}


def test_what_a_summary_stands_for_is_known_once_the_summary_is_the_history(observed, recorder):
    state = [user("a"), says("b"), user("c"), says("d")]
    state = turn(observed, "c", state, lambda e: [summary("s"), *e[3:]], policy="summarise")
    state = turn(observed, "c", [*state, user("e")], policy="summarise")
    ledger = ledger_of(recorder)
    assert ledger.problems == []
    first, second = ledger.turns
    assert list(first.kept) == ["m0", "3"]
    assert (list(second.offered), list(second.kept), list(second.arrived)) == (*[["m0", "3", "4"]] * 2, ["4"])
    why = {item: (exit_.outcome, exit_.policy) for item, exit_ in ledger.exits(0).items()}
    assert why == dict.fromkeys("012", ("compacted", "summarise"))
    assert ledger.exits(1) == {}
    assert recorder.violations() == []


def test_a_summary_of_a_summary_stands_for_the_leaves(observed, recorder):
    state = [user("a"), says("b"), user("c"), says("d")]
    for text in ("s1", "s2"):
        assembly = observed.begin("c", state)
        with assembly.step("summarise") as step:
            with step.compacting("model", tokens_in=9) as attempt:
                attempt.tokens_out = 1
            state = [summary(text), *state[-2:]]
            step.out(state)
        assembly.end()
        state = [*state, user(f"after {text}")]
    provenance = [
        span.whole["assembly.compaction.provenance"] for span in recorder.spans_named("compact_block summary")
    ]
    assert provenance == [["0-1"], ["0-2"]]
    assert ledger_of(recorder).problems == []


def test_what_says_the_same_as_what_came_in_is_another_item(observed, recorder):
    state = [user("a")]
    for number in range(3):
        state = turn(observed, "c", state, lambda e: [*e, says("likes tea")], policy="memory")
        state = [*state, user(f"then {number}")]
    assert [span.attributes["assembly.events.injected"] for span in recorder.spans_named("apply_policy memory")] == [
        1
    ] * 3
    assert recorder.spans_named("assemble_context")[-1].kept == ["0", "m0", "1", "m1", "2", "m2"]
    assert recorder.violations() == []


def test_explain_names_the_summary_and_its_turn(observed, recorder):
    state = [user("the request"), says("b"), user("c"), says("d")]
    state = turn(observed, "c", state, lambda e: [summary("s"), *e[3:]], policy="summarise")
    turn(observed, "c", [*state, user("e")], policy="summarise")
    told = explain(ledger_of(recorder), 1, "0")
    assert (told.outcome, told.policy, told.since) == ("compacted", "summarise", 0)
    holder = told.holder
    assert (holder.item, holder.turn, holder.in_prompt, holder.leaves) == ("m0", 0, True, 3)
    assert told.unknown == ()


# Nothing of it is ever felt


class Strange:
    """A type that nobody has registered."""


class BrokenRecorder:
    def __getattr__(self, name):
        raise RuntimeError("secret")


def errors(recorder):
    return recorder.metric("assembly.telemetry.errors", component="instrumentation.peer")


def test_events_that_cannot_be_read_are_a_count_and_no_span_that_lies(observed, recorder):
    assert observed.begin("c", [Strange()]) is None
    assembly = observed.begin("c", [user("a")])
    with assembly.step("window") as step:
        step.out([Strange()])
    assembly.end()
    assert errors(recorder) == 2
    assert all("assembly.turn" not in span.attributes for span in recorder.spans)
    turn(observed, "c", [user("a"), user("b")], lambda e: e[1:])
    assert len(recorder.span("assemble_context").kept) == 1


def test_a_recorder_that_raises_at_everything_is_not_felt():
    observed = ObservedAssembler("peer", recorder=BrokenRecorder())
    assert observed.begin("c", [user("a")]) is None
    observed.declined("window")
    observed.project("view", "c", envelopes_in=1)


def test_a_counter_that_raises_costs_the_numbers_and_nothing_else(recorder):
    class Counter:
        name, method, generation = "broken", "exact", 0

        def count(self, text):
            raise OSError("no vocabulary")

    observed = ObservedAssembler("peer", recorder=recorder.recorder, counter=Counter())
    events = [user("a"), user("b")]
    assert turn(observed, "c", events, lambda e: e[1:]) == events[1:]


def test_what_the_reducer_raises_is_its_own_affair(observed, recorder):
    assembly = observed.begin("c", [user("a")])
    with pytest.raises(LookupError, match="mine"), assembly.step("window"):
        raise LookupError("mine")
    assembly.end(LookupError("mine"))
    assert recorder.span("apply_policy window").attributes["error.type"] == "LookupError"
    assert "assembly.telemetry.errors" not in recorder.metrics
    assert recorder.violations() == []


# What is remembered is bounded


class Held:
    """A conversation of a framework."""


class Spied:
    """A message that counts how often it is read."""

    read = 0

    def __init__(self, text="a b"):
        self.text = text


@describe.register
def _(event: Spied) -> EventFacts:
    Spied.read += 1
    return EventFacts(EventKind.REQUEST, event.text)


def test_a_conversation_that_is_let_go_of_takes_its_events_with_it(observed):
    conversation, event = Held(), ModelRequest(content="a")
    conversation.events = [event]
    turn(observed, conversation, conversation.events)
    gone = weakref.ref(event)
    del conversation, event
    gc.collect()
    assert gone() is None


def test_the_least_recently_used_conversations_make_room_for_events(observed, recorder, monkeypatch):
    monkeypatch.setattr("otel_assembly.observe.conversations.EVENTS", 10)
    events = [user(f"{n}") for n in range(6)]
    turn(observed, "a", events)
    turn(observed, "b", events[:4])
    turn(observed, "a", events)
    turn(observed, "c", events[:3])
    ids = {}
    for text in ("a", "c", "b"):
        recorder.clear()
        turn(observed, text, events[:3] if text != "a" else events)
        ids[text] = recorder.span("assemble_context").attributes["assembly.turn"]
    assert ids == {"a": 2, "c": 1, "b": 0}


# Who is told nothing pays nothing


def test_where_nothing_is_recorded_nothing_is_read_and_turns_are_counted(words):
    spans = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    observed = ObservedAssembler("peer", recorder=OpenTelemetryRecorder(tracer_provider=spans), counter=words)
    for _ in range(3):
        turn(observed, "c", [Spied(), Spied()], lambda e: e[1:])
    assert Spied.read == 0
    assert observed.ledger("c").turns == 3


def test_alerts_are_logged_also_where_no_span_records_and_nothing_is_measured():
    logs = InMemoryLogRecordExporter()
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(logs))
    recorder = OpenTelemetryRecorder(
        tracer_provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False),
        logger_provider=provider,
        settings=TelemetrySettings(alert_signal=AlertSignal.LOG_EVENT),
    )
    assembly = ObservedAssembler("peer", recorder=recorder).begin("c", [user("a")])
    with assembly.step("alerts") as step:
        step.out(alerts=[AlertFacts("watch", "warning", "slow")])
        step.overflow(budget=1, needed=2)
    assembly.end()
    assert [log.log_record.event_name for log in logs.get_finished_logs()] == ["assembly.alert", "assembly.overflow"]


def test_an_output_that_the_framework_changes_later_is_recorded_as_it_was_reported(observed, recorder):
    assembly = observed.begin(Conversation(), [user("first"), user("second")])
    with assembly.step("window", kind="reduction") as step:
        output = [user("second")]
        step.record(replace(step.report, after=output))
        output.append(user("added later"))
    assembly.end()
    assert recorder.span("apply_policy window").attributes["assembly.events.out"] == 1
