"""What it costs to look on while somebody else's code assembles: counted, never timed."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from counting import Rounds
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_assembly import EventFacts, describe
from otel_assembly.messages import EventKind
from otel_assembly.observe import ObservedAssembler
from otel_assembly.telemetry import OpenTelemetryRecorder


class Message:
    """Some framework's message; equal ones are asked whether they are, as where a list of them is compared."""

    read = 0

    def __init__(self, number):
        self.number = number


@describe.register
def _(event: Message) -> EventFacts:
    Message.read += 1
    call = f"call {event.number // 4}"
    text = f"message {event.number}"
    return {
        0: EventFacts(EventKind.REQUEST, text),
        1: EventFacts(EventKind.TOOL_CALL, text, opens=(call,)),
        2: EventFacts(EventKind.TOOL_RESULT, text, closes=(call,)),
        3: EventFacts(EventKind.RESPONSE, text),
    }[event.number % 4]


class Counter:
    """A token a character; what it was asked is counted."""

    name, method, generation, asked = "characters", "exact", 0, 0

    def count(self, text):
        self.asked += 1
        return len(text)


SUMMARY = Message(0)

REDUCERS = {
    "nothing": [list],
    "window": [lambda e: e[-20:]],
    "two windows": [lambda e: e[len(e) // 10 :], lambda e: e[-20:]],
    "most of it": [lambda e: e[200:]],
    "head and tail": [lambda e: e[:5] + e[-15:]],
    "a summary and what follows": [lambda e: [SUMMARY, *e[-20:]]],
}


def work_of_a_turn(reducers, length):
    """The most calls and rounds, the most reads and the most counts of a turn that added two messages."""
    spans = TracerProvider(shutdown_on_exit=False)
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    counter = Counter()
    recorder = OpenTelemetryRecorder(tracer_provider=spans, meter_provider=meters)
    observed = ObservedAssembler("peer", recorder=recorder, counter=counter)
    events = [Message(number) for number in range(length)]
    most = (0, 0, 0)
    for turn in range(14):
        read, asked = Message.read, counter.asked
        counts = turn > 3  # what is read for the first time takes what it takes
        with Rounds() if counts else nullcontext() as rounds:
            assembly = observed.begin("c", events, prompts=["be kind"])
            made = events
            for index, reduce in enumerate(reducers):
                with assembly.step(f"step{index}") as step:
                    made = reduce(made)
                    step.out(made)
            assembly.end()
        if counts:
            most = tuple(map(max, most, (rounds.made, Message.read - read, counter.asked - asked)))
        events += [Message(len(events)), Message(len(events) + 1)]
    return most


@pytest.mark.parametrize("length", [10_000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reducers", REDUCERS.values(), ids=REDUCERS)
def test_a_turn_of_a_long_conversation_takes_the_work_of_a_turn_at_a_thousand_messages(reducers, length):
    short, long = [work_of_a_turn(reducers, item) for item in (1_000, length)]
    assert short[0] > 100
    assert long[0] <= short[0] * 1.1 + 50
    assert long[1] <= short[1] + 2
    assert long[2] <= short[2]
    assert short[2] <= 8


def test_where_nothing_is_recorded_or_measured_a_turn_takes_few_calls_at_any_length():
    observed = ObservedAssembler(
        "peer", recorder=OpenTelemetryRecorder(tracer_provider=TracerProvider(sampler=ALWAYS_OFF))
    )
    events = [Message(number) for number in range(10_000)]
    for _ in range(3):
        with Rounds() as rounds:
            assembly = observed.begin("c", events, agent_name="desk")
            with assembly.step("window") as step:
                step.out(events[-5:])
            assembly.end()
    assert rounds.made < 45
