"""Every event stands within its span's time, whatever happens and however long telling it takes."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_runs import played, runs

from otel_assembly import (
    AlertPolicy,
    Assembler,
    AssemblyError,
    Block,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    HaltEvent,
    History,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    allocate,
    attach,
)
from otel_assembly.observe import ObservedAssembler
from otel_assembly.runtime import BudgetMonitor, Stream
from otel_assembly.testing import RecordedTelemetry, conversation

pytestmark = pytest.mark.usefixtures("quiet_sdk")


def stand_in_their_time(telemetry):
    """How many events there are; each within its span's time."""
    events = 0
    for span in telemetry.spans:
        assert span.start_ns <= span.end_ns, span.name
        for event in span.events:
            assert span.start_ns <= event.time_ns <= span.end_ns, (span.name, event.name)
            events += 1
    return events


class Slow:
    """Counts words; counting takes its time, and much of it is done when an assembly has ended."""

    name, method, generation = "slow", "exact", 0

    def count(self, text):
        time.sleep(0.0002)
        return len(text.split())


class Leaves:
    """Sends something from a task that goes on when the policy has ended, and from a thread."""

    name = "leaves"

    async def apply(self, prompts, events, context):
        async def later():
            await asyncio.sleep(0.001)
            await context.send(HaltEvent(reason="late", source="leaves"))

        self.task = asyncio.create_task(later())
        await asyncio.to_thread(time.sleep, 0.0005)
        return prompts, events


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(run=runs())
def test_in_any_run(run):
    telemetry = RecordedTelemetry()
    with telemetry.recorder.invoke_agent("desk"):
        asyncio.run(played(run, telemetry.recorder))
    stand_in_their_time(telemetry)
    telemetry.shutdown()


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    words=st.lists(
        st.sampled_from(["ask", "answer", "alert", "fatal", "ask: " + "word " * 60]), min_size=2, max_size=12
    ),
    on_halt=st.sampled_from(["raise", "return"]),
    budget=st.sampled_from([10, 60, 400]),
    policy=st.sampled_from(["budget", "window", "drop"]),
    run=st.booleans(),
)
def test_of_alerts_overflows_and_halts(words, on_halt, budget, policy, run):
    last = {
        "budget": BudgetPolicy(window=budget + 5, output_reserve=5),
        "window": SlidingWindowPolicy(2),
        "drop": TokenBudgetPolicy(budget, on_overflow="drop"),
    }[policy]
    telemetry = RecordedTelemetry()

    async def play():
        stream, leaves = Stream(History()), Leaves()
        context = Context(agent_name="desk", stream=stream)
        chain = [AlertPolicy(), leaves, ConversationPolicy(), last]
        assembler = Assembler(chain, on_halt=on_halt, counter=Slow(), recorder=telemetry.recorder)
        with attach(stream, [BudgetMonitor(0.9, overflow_severity="fatal")], context):
            for word in words:
                stream.history.extend(conversation(word))
                try:
                    await assembler.assemble(["be kind"], stream.history, context)
                except AssemblyError:
                    break
        await leaves.task if hasattr(leaves, "task") else None

    if run:
        with telemetry.recorder.invoke_agent("desk"):
            asyncio.run(play())
    else:
        asyncio.run(play())
    stand_in_their_time(telemetry)
    telemetry.shutdown()


def test_of_an_assembly_that_began_before_it_is_told_of():
    telemetry = RecordedTelemetry()
    observed = ObservedAssembler("ours", recorder=telemetry.recorder)
    began = time.time_ns()
    time.sleep(0.002)
    assembly = observed.begin("c", conversation("ask", "answer"), started_ns=began)
    with assembly.step("reducer", started_ns=began) as step:
        step.out([], halts=0)
        step.overflow(budget=10, needed=30)
    time.sleep(0.002)
    assembly.end()
    assert stand_in_their_time(telemetry) == 2


def test_of_an_allocation_that_overflows(recorder):
    blocks = [Block("rules", 1, "word " * 100, cuttable=False)]
    with pytest.raises(ContextOverflowError):
        allocate(blocks, window=50, output_reserve=10)
    assert stand_in_their_time(recorder) == 1
