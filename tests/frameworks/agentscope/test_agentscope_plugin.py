"""Our policies inside AgentScope: what the model is sent, and how a conversation is halted."""

from __future__ import annotations

import pytest
from agentscope.message import ToolCallBlock, ToolResultBlock
from agentscope.middleware import MiddlewareBase, TracingMiddleware
from scripted import ScriptedModel, agent, instrumented, interrupted, talk, tool, words

from otel_assembly import (
    BudgetPolicy,
    ContextOverflowError,
    SlidingWindowPolicy,
)
from otel_assembly.instrumentation.agentscope import AssemblyMiddleware
from otel_assembly.runtime import LoopDetector, TokenMonitor


def look_up() -> str:
    """Look something up."""
    return words(300)


def blocks(messages):
    return [block for message in messages for block in message.content]


def pairs_are_whole(messages):
    calls = [block.id for block in blocks(messages) if isinstance(block, ToolCallBlock)]
    results = [block.id for block in blocks(messages) if isinstance(block, ToolResultBlock)]
    return sorted(calls) == sorted(results)


async def test_what_stays_are_the_very_messages_and_blocks_that_came_in():
    seen = {}

    class Looking(ScriptedModel):
        async def __call__(self, messages, tools=None, tool_choice=None, **kwargs):
            seen["sent"] = messages
            return await super().__call__(messages, tools, tool_choice, **kwargs)

    someone = agent(Looking(), middlewares=[AssemblyMiddleware([SlidingWindowPolicy(50)])])
    await talk(someone, "one", "two")
    # The answer is appended in place to nothing that was sent.
    assert all(any(sent is held for held in someone.state.context) for sent in seen["sent"][1:])


async def test_a_long_reply_is_cut_between_its_calls_and_the_request_stays():
    model = ScriptedModel(["call:look_up"] * 8 + ["Done."], context_size=100_000)
    budget = BudgetPolicy(window=2_000, output_reserve=200)
    someone = agent(model, tools=[tool(look_up)], middlewares=[AssemblyMiddleware([budget])])
    await talk(someone, "What is the fare of 4711?")

    last = model.asked[-1]
    assert pairs_are_whole(last)
    assert any("4711" in (message.get_text_content() or "") for message in last)
    assert 0 < len(blocks(last)) < 2 + 16
    assert len(blocks(someone.state.context)) == 1 + 16 + 1


async def test_a_summary_of_ours_is_a_message_and_a_long_result_is_shortened():
    model = ScriptedModel(["call:look_up"] * 8 + ["Done."], context_size=100_000)
    budget = BudgetPolicy(window=1_600, output_reserve=200, compact="extractive", summary_tokens=100, step_tokens=0)
    someone = agent(model, tools=[tool(look_up)], middlewares=[AssemblyMiddleware([budget])])
    await talk(someone, "What is the fare of 4711?")

    last = model.asked[-1]
    assert any("summarised" in (message.get_text_content() or "") for message in last if message.role == "user")
    assert pairs_are_whole(last)

    model = ScriptedModel(["call:long", "Done."], context_size=100_000)

    def long() -> str:
        """Look everything up."""
        return ". ".join(f"Fare {number} is {number * 7} EUR" for number in range(600))

    someone = agent(model, tools=[tool(long)], middlewares=[AssemblyMiddleware([budget])])
    await talk(someone, "What is the fare of 4711?")
    (result,) = model.asked[-1][-1].get_content_blocks("tool_result")
    assert 0 < len(str(result.output)) < 6_000
    (kept,) = someone.state.context[-1].get_content_blocks("tool_result")
    assert len(str(kept.output)) > 10_000


async def test_each_try_of_a_model_call_has_an_assembly(assembly_telemetry):
    class Flaky(ScriptedModel):
        tries = 0

        async def _call_api(self, *args, **kwargs):
            self.tries += 1
            if self.tries < 3:
                raise ConnectionError("busy")
            return await super()._call_api(*args, **kwargs)

    model = Flaky()
    someone = agent(model, middlewares=[AssemblyMiddleware([SlidingWindowPolicy(3)])])
    someone.model_config.max_retries = 5
    with instrumented(assembly_telemetry):
        await talk(someone, "hello")
    assert model.tries == 3
    told = assembly_telemetry.spans_named("assemble_context")
    assert [span.attributes["assembly.events.out"] for span in told] == [1, 1, 1]
    assert assembly_telemetry.violations() == []


async def test_no_tool_is_called_once_an_observer_has_halted():
    called = []

    def pay() -> str:
        """Pay."""
        called.append(1)
        return "paid"

    detector = LoopDetector(repeat_threshold=3, severity="fatal")
    middleware = AssemblyMiddleware([SlidingWindowPolicy(50)], observers=[detector])
    model = ScriptedModel(["call:pay"])
    someone = agent(model, tools=[tool(pay)], middlewares=[middleware])
    answer = await talk(someone, "pay")

    assert len(called) == 2
    assert len(model.asked) == 3
    assert interrupted(answer)
    assert pairs_are_whole(someone.state.context)


@pytest.mark.parametrize("stream", [False, True])
async def test_observers_see_what_each_model_call_was_billed_for(stream):
    monitor = TokenMonitor(warn_threshold=20, alert_threshold=30, alert_severity="fatal")
    middleware = AssemblyMiddleware([SlidingWindowPolicy(50)], observers=[monitor])
    model = ScriptedModel(stream=stream)
    someone = agent(model, middlewares=[middleware])
    await talk(someone, "one", "two", "three", "four")
    assert len(model.asked) == 3


async def test_a_budget_that_cannot_hold_is_raised_and_told_once(assembly_telemetry):
    someone = agent(ScriptedModel(), middlewares=[AssemblyMiddleware([BudgetPolicy(window=300, output_reserve=100)])])
    someone.model_config.max_retries = 3
    with instrumented(assembly_telemetry), pytest.raises(ContextOverflowError):
        await talk(someone, words(2_000))
    assert assembly_telemetry.metric("assembly.budget.overflows") == 1
    assert someone.model.asked == []


async def test_a_compressed_summary_is_a_summary_to_the_policies(assembly_telemetry):
    middleware = AssemblyMiddleware([SlidingWindowPolicy(50)])
    with instrumented(assembly_telemetry):
        someone = agent(ScriptedModel(), middlewares=[middleware])
        someone.state.summary = "Earlier, a flight was booked."
        await talk(someone, "hello", "hello again")
    first = assembly_telemetry.spans_named("assemble_context")[0]
    assert [fact.kind for fact in first.arrived.values()] == ["summary", "request"]
    second = assembly_telemetry.spans_named("assemble_context")[1]
    assert "0" in second.offered
    assert [fact.kind for fact in second.arrived.values()] == ["response", "request"]


async def test_with_agentscopes_tracing_the_model_call_knows_its_assembly(assembly_telemetry, monkeypatch):
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer_provider", lambda: assembly_telemetry.tracer_provider)
    monkeypatch.setattr(trace, "get_tracer", lambda name, *_, **__: assembly_telemetry.tracer_provider.get_tracer(name))
    with instrumented(assembly_telemetry):
        for order in (0, 1):
            middlewares = [AssemblyMiddleware([SlidingWindowPolicy(1)]), TracingMiddleware()]
            someone = agent(ScriptedModel(), middlewares=middlewares[:: -1 if order else 1])
            await talk(someone, "one", "two")
            chat = assembly_telemetry.span("chat gpt-4o")
            assert (
                chat.attributes["assembly.id"] == assembly_telemetry.span("assemble_context").attributes["assembly.id"]
            )
            assert chat.attributes["gen_ai.conversation.compacted"] is True
            assert len(assembly_telemetry.spans_named("invoke_agent Friday")) == 2 + 2 * order


class Passes(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler(**input_kwargs)


async def test_a_middleware_that_changes_nothing_after_the_plugin_has_no_step(assembly_telemetry):
    with instrumented(assembly_telemetry):
        someone = agent(ScriptedModel(), middlewares=[AssemblyMiddleware([SlidingWindowPolicy(3)]), Passes()])
        await talk(someone, "one", "two")
    spans = assembly_telemetry.spans_named("assemble_context")
    names = [step.name for span in spans for step in span.children]
    assert set(names) == {"apply_policy sliding_window"}
