"""What an agent compacts ahead of need is in the trace: who did it, how long it took, and what came of it."""

from __future__ import annotations

import pytest

from otel_assembly import Agent, BudgetPolicy, MiddlewareBase
from otel_assembly.events import CompactionSummary
from otel_assembly.recorder import NullRecorder, using_recorder
from otel_assembly.telemetry import TracingMiddleware
from otel_assembly.testing import RecordedTelemetry, ScriptedModel

SECRET = "sesame-4711"


@pytest.fixture
def telemetry():
    told = RecordedTelemetry()
    with told.as_default():
        yield told
    assert told.violations() == []
    told.shutdown()


def helper(summarise, asks=12, **settings):
    chain = [BudgetPolicy(400, 10, step_tokens=0, compact=summarise, summary_tokens=60)]
    # A model whose tokenizer is known: what other tests were billed for calibrates no count of its.
    model = ScriptedModel(*["Yes, I have understood all of what you have said."] * asks, model="gpt-4o")
    return Agent("helper", "Be brief.", model, assembly=chain, **settings)


async def talk(agent, asks=12):
    for number in range(asks):
        await agent.ask(f"Fact {number}: the train {SECRET} leaves at {number} o'clock from track {number}.")


def attempts(telemetry):
    return [span for span in telemetry.spans if span.name == "compact_block older"]


@pytest.mark.parametrize("middlewares", [[], [TracingMiddleware]])
async def test_an_attempt_ahead_of_need_is_a_span_of_the_run(telemetry, middlewares):
    async def summarise(text, target_tokens):
        with telemetry.tracer().start_as_current_span("chat small"):
            return f"Trains leave: {SECRET}."

    agent = helper(summarise, middlewares=[middleware() for middleware in middlewares])
    await talk(agent)
    runs = {span.span_id: span for span in telemetry.spans_named("invoke_agent helper")}
    ahead = [span for span in attempts(telemetry) if span.parent.span_id in runs]
    first = ahead[0]
    assert first.attributes["assembly.policy.name"] == "budget"
    assert first.attributes["gen_ai.agent.name"] == "helper"
    assert first.attributes["assembly.compaction.outcome"] == "compacted"
    assert 0 < first.attributes["assembly.tokens.out"] <= first.attributes["assembly.compaction.target_tokens"] == 60
    assert first.status == "UNSET"
    inside = next(span for span in telemetry.spans_named("chat small") if span.trace_id == first.trace_id)
    assert inside.parent.span_id == first.span_id
    # It was there when it was needed: the assembly that came next made none of its own, and says what is compacted.
    assembly = next(span for span in telemetry.spans_named("assemble_context") if span.trace_id == first.trace_id)
    assert first.end_ns <= assembly.start_ns
    assert assembly.attributes["assembly.compacted.count"] > 0
    assert not [span for span in attempts(telemetry) if span.trace_id == first.trace_id and span not in ahead]
    assert SECRET not in repr(telemetry.spans)


async def test_an_attempt_that_fails_says_so_and_the_ask_goes_on(telemetry):
    def broken(text, target_tokens):
        raise ValueError(SECRET)

    agent = helper(broken)
    await talk(agent)
    first = attempts(telemetry)[0]
    assert (first.status, first.attributes["error.type"]) == ("ERROR", "ValueError")
    assert first.attributes["assembly.compaction.outcome"] == "raised"
    assert SECRET not in repr(telemetry.spans)


async def test_it_is_told_where_somebody_asks_for_it_outside_of_an_ask(telemetry):
    class NotByItself(MiddlewareBase):
        async def on_compress_context(self, agent, input_kwargs, next_handler):
            if input_kwargs["instructions"] == "now":
                await next_handler()

    agent = helper(lambda text, target_tokens: "Trains leave.", middlewares=[NotByItself()])
    await talk(agent, 8)
    assert attempts(telemetry) == []
    with telemetry.tracer().start_as_current_span("upkeep"):
        await agent.compress_context(instructions="now")
    (attempt,) = attempts(telemetry)
    assert attempt.parent.span_id == telemetry.span("upkeep").span_id
    telemetry.clear()
    await agent.compress_context(instructions="now")
    assert attempts(telemetry) == []  # nothing has come since


async def test_where_nobody_listens_it_works_the_same():
    agent = helper(lambda text, target_tokens: "Trains leave.")
    with using_recorder(NullRecorder()):
        await talk(agent)
    assert any(isinstance(event, CompactionSummary) for event in agent.model.received[-1].events)


async def test_a_system_prompt_that_middleware_makes_is_counted_for_it():
    class Long(MiddlewareBase):
        asked = 0

        async def on_system_prompt(self, agent, current_prompt):
            self.asked += 1
            return current_prompt + " Mind the gap." * 40

    long, plain = Long(), helper(lambda text, target_tokens: "Trains leave.")
    agent = helper(lambda text, target_tokens: "Trains leave.", middlewares=[long])
    await talk(plain, 4)
    await talk(agent, 4)
    assert long.asked == 8  # once for the prompt of each round, once for the compression before it
    assert (plain.session.context.budget_ratio, agent.session.context.budget_ratio) == (1, 0.8)
