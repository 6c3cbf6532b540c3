"""What AG2's compaction and aggregation are told to have done where they came to nothing, in whole or in part."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from ag2_package import MemoryStream, Model, ag2, answer, ask, events, history_of, part, policies

compact = part("compact")
aggregate = part("aggregate")
knowledge = part("knowledge")
TRIGGER = compact.CompactTrigger(max_events=5)


class Raising(Model):
    """A model whose provider is down."""

    async def _recording(self, messages, context, **rest):
        raise ConnectionError("the customer's secret")


def kept_up(*turns, **settings):
    config = part("agent").KnowledgeConfig(store=knowledge.MemoryKnowledgeStore(), **settings)
    return ag2.Agent("support", config=Model(*turns), knowledge=config, assembly=[policies.ConversationPolicy()])


async def asked(agent):
    """One ask of a conversation of eight events; the stream."""
    stream = MemoryStream()
    await history_of(stream, *(event for i in range(4) for event in (ask(f"question {i}"), answer(f"answer {i}"))))
    with contextlib.suppress(ConnectionError):  # releases before 0.14 let it through
        await agent.ask("next", stream=stream)
    return stream


def nothing_left(assembly, step):
    """All of the history is still there, and the spans say so."""
    for span in (assembly, step):
        held = span.attributes
        assert held["assembly.events.out"] == held["assembly.events.in"] > 0
        assert held["assembly.tokens.out"] == held["assembly.tokens.in"] > 0
        assert held["assembly.dropped.count"] == held["assembly.compacted.count"] == 0
        assert (span.status, held["error.type"]) == ("ERROR", "ConnectionError")
    assert assembly.kept == list(map(str, range(assembly.attributes["assembly.events.in"])))


def named(telemetry, name):
    (found,) = (
        span for span in telemetry.spans_named("assemble_context") if span.attributes.get("assembly.name") == name
    )
    return found


async def test_a_compaction_that_failed_took_nothing_out(telemetry):
    strategy = compact.SummarizeCompact(target=3, config=Raising())
    stream = await asked(kept_up("fine", compact=strategy, compact_trigger=TRIGGER))
    assert len([event for event in await stream.history.get_events() if type(event).__name__ != "UsageEvent"]) >= 10
    nothing_left(named(telemetry, "compaction"), telemetry.span("apply_policy compaction"))
    assert telemetry.metric("assembly.policy.errors", policy_name="compaction", error_type="ConnectionError") == 1
    assert "assembly.items.dropped" not in telemetry.metrics or not telemetry.metric(
        "assembly.items.dropped", policy_name="compaction"
    )
    assert "secret" not in str(telemetry.spans)


async def test_an_aggregation_that_failed_took_nothing_out(telemetry):
    strategy = aggregate.WorkingMemoryAggregate(config=Raising())
    agent = kept_up("fine", aggregate=strategy, aggregate_trigger=aggregate.AggregateTrigger(on_end=True))
    await asked(agent)
    nothing_left(named(telemetry, "aggregation"), telemetry.span("apply_policy aggregation"))
    assert telemetry.metric("assembly.policy.errors", policy_name="aggregation", error_type="ConnectionError") == 1


async def test_a_strategy_that_raises_before_it_has_asked_anybody_is_told(telemetry):
    class Broken:
        async def compact(self, events_, context, store):
            raise ConnectionError("no store")

    await asked(kept_up("fine", compact=Broken(), compact_trigger=TRIGGER))
    nothing_left(named(telemetry, "compaction"), telemetry.span("apply_policy compaction"))
    assert telemetry.metric("assembly.policy.errors", policy_name="compaction") == 1


async def test_a_strategy_of_ag2s_whose_store_is_down_is_told(telemetry):
    class Down(knowledge.MemoryKnowledgeStore):
        async def write(self, path, content):
            if ".dropped-" in path:
                raise ConnectionError("no store")
            await super().write(path, content)

    config = part("agent").KnowledgeConfig(
        store=Down(), compact=compact.TailWindowCompact(target=2), compact_trigger=TRIGGER
    )
    await asked(ag2.Agent("support", config=Model("fine"), knowledge=config))
    nothing_left(named(telemetry, "compaction"), telemetry.span("apply_policy compaction"))


async def test_the_prompt_after_a_failed_compaction_is_compared_with_the_one_before_it(telemetry):
    billed = [
        events.ModelResponse(events.ModelMessage(text), usage=events.Usage(prompt_tokens=9, completion_tokens=1))
        for text in ("one", "two", "three")
    ]
    strategy = compact.SummarizeCompact(target=1, config=Raising())
    agent = kept_up(*billed, compact=strategy, compact_trigger=compact.CompactTrigger(max_events=1))
    stream = MemoryStream()
    for question in ("a", "b", "c"):
        with contextlib.suppress(ConnectionError):
            await agent.ask(question, stream=stream)
    prompts = [
        span for span in telemetry.spans_named("assemble_context") if span.attributes.get("assembly.name") is None
    ]
    assert [prompt.attributes.get("assembly.prefix.break") for prompt in prompts] == ["first", None, None]
    for name in ("assembly.items.dropped", "assembly.prefix.breaks"):
        assert not [
            point
            for point in telemetry.metrics.get(name, ())
            if point.attributes.get("assembly.policy.name") == "compaction"
        ]
    assert "assembly.prefix.breaks" not in telemetry.metrics


@pytest.mark.parametrize("text", ["", "Error generating summary: 500 Server Error"], ids=["empty", "error text"])
async def test_a_summary_that_is_none_has_lost_what_it_replaced(telemetry, text):
    strategy = compact.SummarizeCompact(target=3, config=Model(text))
    await asked(kept_up("fine", compact=strategy, compact_trigger=TRIGGER))
    step = telemetry.span("apply_policy compaction")
    outcome = telemetry.span("compact_block summary").attributes["assembly.compaction.outcome"]
    assert outcome == ("error_text" if text else "empty")
    assert step.compacted == []
    assert set(step.dropped_reasons.values()) == {"policy_error"}
    assert len(step.dropped_reasons) >= 6


async def test_a_compaction_that_is_cancelled_took_nothing_out_and_is_no_error_of_the_strategy(telemetry):
    started = asyncio.Event()

    class Hanging:
        async def compact(self, events_, context, store):
            started.set()
            await asyncio.Event().wait()

    stream = MemoryStream()
    await history_of(stream, *(ask(f"question {i}") for i in range(8)))
    task = asyncio.create_task(kept_up("fine", compact=Hanging(), compact_trigger=TRIGGER).ask("next", stream=stream))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    step = telemetry.span("apply_policy compaction")
    assert step.status == "ERROR"
    assert step.attributes["error.type"] == "cancelled"
    assert named(telemetry, "compaction").attributes["error.type"] == "cancelled"
    assert "assembly.policy.errors" not in telemetry.metrics
    assert step.attributes["assembly.dropped.count"] == 0


async def test_records_of_tokens_that_ag2_puts_back_have_not_left(telemetry):
    trigger = compact.CompactTrigger(max_events=3)
    billed = [
        events.ModelResponse(events.ModelMessage(text), usage=events.Usage(prompt_tokens=9, completion_tokens=1))
        for text in ("one", "two", "three")
    ]
    agent = kept_up(*billed, compact=compact.TailWindowCompact(target=2), compact_trigger=trigger)
    stream = MemoryStream()
    for question in ("a", "b", "c"):
        await agent.ask(question, stream=stream)
    held = [type(event).__name__ for event in await stream.history.get_events()]
    left = telemetry.span("apply_policy compaction").attributes["assembly.dropped.count"]
    told = named_last(telemetry, "compaction").attributes
    assert left > 0
    assert told["assembly.events.out"] == len(held)
    assert told["assembly.events.in"] - left == len(held)


def named_last(telemetry, name):
    return [span for span in telemetry.spans_named("assemble_context") if span.attributes.get("assembly.name") == name][
        -1
    ]
