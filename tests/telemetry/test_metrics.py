"""The metrics: their buckets, their exemplars, their zeros and their bounds."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from counting import WordCounter

from otel_assembly import (
    AlertPolicy,
    Assembler,
    AssemblyError,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    invoke_agent,
)
from otel_assembly.events import Usage
from otel_assembly.sessions import ConversationAdapter, Expectation, Hub, MemorySessionLog
from otel_assembly.telemetry import Bounded
from otel_assembly.telemetry import conventions_registry as registry
from otel_assembly.testing import RecordedTelemetry, conversation

pytestmark = pytest.mark.usefixtures("quiet_sdk")

DESK = {"agent_name": "desk", "framework": "ours"}


def desk():
    return Context(agent_name="desk", framework="ours")


class Broken:
    name = "broken"

    async def apply(self, prompts, events, context):
        raise LookupError("no")


async def everything(telemetry):
    """One of each: drops, overflow, alert, halt, error, a prefix that breaks, usage that was billed."""
    policies = [AlertPolicy(), SlidingWindowPolicy(2), TokenBudgetPolicy(60)]
    assembler = Assembler(
        policies, on_halt="return", counter=WordCounter(), recorder=telemetry.recorder, model="gpt-4o"
    )
    context, history = desk(), History(conversation("ask", "alert", "fatal", "answer"))
    await assembler.assemble(["be kind"], history, context)
    history.append(ModelResponse(content="sure", usage=Usage(input_tokens=20)))
    history.extend(conversation("ask", "answer"))
    await assembler.assemble(["be kind"], history, context)
    with pytest.raises(ContextOverflowError):
        await assembler.assemble(["word " * 120], history, context)
    with pytest.raises(AssemblyError):
        await Assembler([Broken()], on_halt="return", recorder=telemetry.recorder).assemble(
            [], conversation("ask"), context
        )


async def a_session():
    """One of each that sessions have: posts, an inbox that is looked at, an expectation that could be violated."""
    hub = Hub(MemorySessionLog(), [ConversationAdapter([Expectation("max_silence", 60, "audit")])])
    name = (await hub.create("conversation", "ann", ["ann", "bob"])).session_id
    await hub.inbox(name, "bob")


async def test_every_metric_of_the_contract_is_emitted_with_the_buckets_it_advises(recorder):
    await everything(recorder)
    with recorder.as_default():
        await a_session()
    recorder.recorder.failed("test", RuntimeError())
    recorder.recorder.declined("compress_context", "desk", "peer")
    metrics = recorder.metrics
    assert set(metrics) == {metric.name for metric in registry.metrics()}
    for metric in registry.metrics():
        for point in metrics[metric.name]:
            if metric.instrument == "histogram":
                assert point.value.bounds == metric.buckets, metric.name
    assert recorder.violations() == []


@pytest.mark.parametrize(
    ("metric", "lowest", "highest"),
    [
        ("assembly.input.tokens", 100, 1_000_000),
        ("assembly.output.tokens", 100, 1_000_000),
        ("assembly.budget.utilization", 0.01, 2),
        ("assembly.budget.fixed_utilization", 0.01, 2),
    ],
)
def test_no_quantile_is_off_by_more_than_a_fifth(metric, lowest, highest):
    (bounds,) = (item.buckets for item in registry.metrics() if item.name == metric)
    between = [bound for bound in bounds if lowest <= bound <= highest]
    assert (between[0], between[-1]) == (lowest, highest)
    assert all(upper / lower <= 1.2 for lower, upper in pairwise(between))
    if highest == 2:
        assert {0.8, 0.9, 0.95, 0.99, 1} <= set(bounds)  # from where on one worries, and alerts


async def test_what_an_agent_lost_is_counted_as_its_own(recorder, words):
    """Of two agents in one process, the one that loses nothing has no series in what counts losses."""
    policies = [AlertPolicy(), SlidingWindowPolicy(2)]
    careless, careful = Context(agent_name="careless"), Context(agent_name="careful")
    assembler = Assembler(policies, counter=words)
    events = conversation("ask", "alert", "answer", "ask", "answer")
    await assembler.assemble(["be kind"], events, careless)
    await assembler.assemble(["be brief"], [*events, *conversation("ask")], careless)
    await Assembler([Broken()], counter=words, on_policy_error="skip").assemble([], events, careless)
    await assembler.assemble(["be kind"], conversation("ask"), careful)
    for name in (
        "assembly.items.dropped",
        "assembly.tokens.dropped",
        "assembly.alerts.delivered",
        "assembly.policy.errors",
        "assembly.prefix.breaks",
    ):
        assert {point.attributes.get("gen_ai.agent.name") for point in recorder.metrics[name]} == {"careless"}, name
    assert recorder.violations() == []


async def test_what_the_counters_count(recorder):
    await everything(recorder)
    assert recorder.metric("assembly.budget.overflows", **DESK) == 1
    assert recorder.metric("assembly.halts", **DESK) == 1
    warned = {"agent_name": "desk", "alert_severity": "warning", "alert_source": "observer"}
    assert recorder.metric("assembly.alerts.delivered", **warned) == 1
    assert recorder.metric("assembly.alerts.delivered", alert_severity="fatal") == 1
    assert recorder.metric("assembly.policy.errors", policy_name="broken", error_type="LookupError") == 1
    assert recorder.metric("assembly.duration", **DESK).count == 4
    assert recorder.metric("assembly.output.tokens", **DESK).count == 2
    calibration = recorder.metric("assembly.tokens.calibration", model="gpt-4o")
    out = recorder.spans_named("assemble_context")[0].attributes["assembly.tokens.out"]
    assert (calibration.count, calibration.sum) == (1, out / 20)


async def test_an_item_is_counted_once_when_it_leaves_and_not_on_each_turn_that_it_is_gone(recorder, words):
    assembler, context, history = Assembler([SlidingWindowPolicy(2)], counter=words), desk(), History()
    for _ in range(4):
        history.extend(conversation("ask: one", "answer: one two"))
        await assembler.assemble([], history, context)
    dropped = {"policy_name": "sliding_window", "decision_reason": "outside_window"}
    assert recorder.metric("assembly.items.dropped", **dropped) == 6
    tokens = recorder.span("assemble_context").attributes["assembly.dropped.tokens"]
    assert recorder.metric("assembly.tokens.dropped", **dropped) == tokens > 0


async def test_the_counters_that_alerts_watch_are_zero_as_soon_as_an_agent_is_seen(recorder):
    with invoke_agent("early", framework="ours"):
        assert recorder.metric("assembly.halts", agent_name="early", framework="ours") == 0
    await Assembler([]).assemble([], conversation("ask"), desk())
    assert recorder.metric("assembly.halts", **DESK) == 0
    assert recorder.metric("assembly.budget.overflows", **DESK) == 0
    await Assembler([]).assemble([], conversation("ask"), Context())
    nameless = [point.value for point in recorder.metrics["assembly.halts"] if not point.attributes]
    assert nameless == [0]


async def test_the_fixed_part_has_a_share_of_its_own(recorder, words):
    assembler = Assembler([TokenBudgetPolicy(40)], counter=words)
    await assembler.assemble(["be kind"], conversation("ask", "answer"), desk())
    span = recorder.span("assemble_context").attributes
    fixed = recorder.metric("assembly.budget.fixed_utilization", agent_name="desk")
    assert fixed.sum == span["assembly.budget.fixed"] / 40
    assert recorder.metric("assembly.budget.utilization").sum == span["assembly.budget.utilization"]
    with pytest.raises(ContextOverflowError) as raised:
        await assembler.assemble(["word " * 60], conversation("ask"), desk())
    fixed = recorder.metric("assembly.budget.fixed_utilization", agent_name="desk")
    assert fixed.max == raised.value.needed / 40 > 1


async def test_a_budget_of_nothing_costs_no_metric(recorder):
    class Penniless:
        name = "penniless"

        async def apply(self, prompts, events, context):
            raise ContextOverflowError(0, 5, {})

    with pytest.raises(ContextOverflowError):
        await Assembler([Penniless()]).assemble([], conversation("ask"), desk())
    assert recorder.metric("assembly.budget.overflows", **DESK) == 1
    assert "assembly.telemetry.errors" not in recorder.metrics


async def test_the_reuse_of_the_prefix_leaves_first_turns_out(recorder, words):
    assembler, context = Assembler([], counter=words), desk()
    events = conversation("ask", "answer")
    await assembler.assemble(["be kind"], events, context)
    assert "assembly.prefix.reuse" not in recorder.metrics
    await assembler.assemble(["be kind"], [*events, *conversation("ask")], context)
    reuse = recorder.metric("assembly.prefix.reuse", agent_name="desk")
    assert (reuse.count, reuse.sum) == (1, 1.0)
    await assembler.assemble(["be brief"], events, context)
    assert recorder.metric("assembly.prefix.breaks", prefix_break="prompt_changed") == 1


async def test_exemplars_lead_to_the_span_that_was_measured(recorder, words):
    policies = [ConversationPolicy(), SlidingWindowPolicy(1)]
    await Assembler(policies, counter=words).assemble([], conversation("ask", "ask"), desk())
    assembly, window = recorder.span("assemble_context"), recorder.span("apply_policy sliding_window")
    metrics = recorder.metrics
    for name, span in (
        ("assembly.duration", assembly),
        ("assembly.input.tokens", assembly),
        ("assembly.output.tokens", assembly),
        ("assembly.items.dropped", window),
    ):
        (point,) = metrics[name]
        assert point.exemplars == ((span.trace_id, span.span_id),), name
    durations = {point.attributes["assembly.policy.name"]: point for point in metrics["assembly.policy.duration"]}
    assert durations["sliding_window"].exemplars == ((window.trace_id, window.span_id),)


async def test_past_a_hundred_names_all_others_are_one(recorder):
    class Named:
        def __init__(self, name):
            self.name = name

        async def apply(self, prompts, events, context):
            raise ValueError

    for index in range(130):
        context = Context(agent_name=f"agent-{index}", framework=f"framework-{index}")
        assembler = Assembler([Named(f"policy-{index}")], on_policy_error="skip")
        await assembler.assemble([], conversation("ask"), context)
    for name, key in (
        ("assembly.duration", "gen_ai.agent.name"),
        ("assembly.duration", "assembly.framework"),
        ("assembly.policy.duration", "assembly.policy.name"),
        ("assembly.policy.errors", "assembly.policy.name"),
    ):
        points = recorder.metrics[name]
        assert len({point.attributes[key] for point in points}) == 101
        other = [point for point in points if point.attributes[key] == "_OTHER"]
        assert sum(getattr(point.value, "count", point.value) for point in other) == 30
    assert recorder.violations() == []


def test_a_bound_holds_for_those_that_came_first():
    bounded = Bounded(2)
    assert [bounded(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", "_OTHER", "a", "_OTHER"]


async def test_a_clock_that_goes_back_is_no_negative_duration(recorder, monkeypatch):
    import time

    ticks = iter(range(10**18, 0, -(10**9)))
    monkeypatch.setattr(time, "time_ns", lambda: next(ticks))
    await Assembler([]).assemble([], conversation("ask"), desk())
    monkeypatch.undo()
    assert recorder.metric("assembly.duration").sum == 0


async def test_assemblies_in_threads_make_each_instrument_once(caplog):
    telemetry = RecordedTelemetry()

    def one():
        asyncio.run(Assembler([], recorder=telemetry.recorder).assemble([], [ModelRequest(content="hi")], desk()))

    await asyncio.gather(*(asyncio.to_thread(one) for _ in range(8)))
    assert telemetry.metric("assembly.duration", **DESK).count == 8
    assert telemetry.metric("assembly.halts", **DESK) == 0
