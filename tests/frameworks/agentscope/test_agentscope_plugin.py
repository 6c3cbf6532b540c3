"""Our policies inside AgentScope: what the model is sent, and how a conversation is halted."""

from __future__ import annotations

import pytest
from agentscope.message import AssistantMsg, Msg, TextBlock, ToolCallBlock, ToolResultBlock, UserMsg
from agentscope.middleware import TracingMiddleware
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import ScriptedModel, agent, instrumented, interrupted, talk, tool, words

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    ContextOverflowError,
    ObserverAlert,
    SlidingWindowPolicy,
)
from otel_assembly.instrumentation.agentscope import AssemblyMiddleware
from otel_assembly.runtime import LoopDetector, TokenMonitor
from otel_assembly.tokens import TokenMeter, counter_for


def look_up() -> str:
    """Look something up."""
    return words(300)


def blocks(messages):
    return [block for message in messages for block in message.content]


def pairs_are_whole(messages):
    calls = [block.id for block in blocks(messages) if isinstance(block, ToolCallBlock)]
    results = [block.id for block in blocks(messages) if isinstance(block, ToolResultBlock)]
    return sorted(calls) == sorted(results)


async def test_the_model_is_sent_what_the_policies_let_through_and_the_context_stays_whole():
    model = ScriptedModel()
    someone = agent(model, middlewares=[AssemblyMiddleware([SlidingWindowPolicy(3)])])
    await talk(someone, "one", "two", "three")

    assert [m.get_text_content() for m in model.asked[-1]][1:] == ["two", "Done.", "three"]
    assert len(someone.state.context) == 6


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


async def test_an_instrumented_agent_tells_of_each_assembly_once(assembly_telemetry):
    middleware = AssemblyMiddleware([SlidingWindowPolicy(3)], name="support")
    with instrumented(assembly_telemetry):
        someone = agent(ScriptedModel(), middlewares=[middleware])
        await talk(someone, "one", "two", "three")

    assert assembly_telemetry.tree().splitlines()[-3:] == [
        "invoke_agent Friday",
        "  assemble_context",
        "    apply_policy sliding_window",
    ]
    held = assembly_telemetry.span("assemble_context").attributes
    assert held["assembly.framework"] == "agentscope"
    assert held["assembly.name"] == "support"
    assert held["assembly.turn"] == 2
    assert held["gen_ai.conversation.id"] == someone.state.session_id
    assert held["gen_ai.agent.name"] == "Friday"
    assert assembly_telemetry.violations() == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fatal_alert_ends_the_reply_as_interrupted_before_the_model_is_called(assembly_telemetry, stream):
    middleware = AssemblyMiddleware([SlidingWindowPolicy(5)])
    model = ScriptedModel(stream=stream)
    someone = agent(model, middlewares=[middleware])
    with instrumented(assembly_telemetry):
        await talk(someone, "hello")
        alert = ObserverAlert(source="watchdog", severity="fatal", message="the account is blocked")
        await middleware.context_of(someone).send(alert)
        answer = await talk(someone, "go on")
        again = await talk(someone, "please")

    assert len(model.asked) == 1
    assert interrupted(answer)
    assert interrupted(again)
    texts = [block.text for block in blocks(someone.state.context) if isinstance(block, TextBlock)]
    assert any("the account is blocked" in text for text in texts)
    assert assembly_telemetry.metric("assembly.halts") == 1


async def test_an_alert_whose_model_call_failed_is_shown_again(assembly_telemetry):
    class Failing(ScriptedModel):
        async def _call_api(self, model_name, messages, *args, **kwargs):
            if len(self.asked) < 2:
                self.asked.append(messages)
                raise ConnectionError("no answer")
            return await super()._call_api(model_name, messages, *args, **kwargs)

    middleware, model = AssemblyMiddleware([AlertPolicy()]), Failing()
    someone = agent(model, middlewares=[middleware])
    warning = ObserverAlert(source="ops", severity="warning", message="Costs rise.")
    await middleware.context_of(someone).send(warning)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await talk(someone, "hello")
    await talk(someone, "hello", "go on")
    assert ["Costs rise." in str(sent) for sent in model.asked] == [True, True, True, False]
    assert assembly_telemetry.metric("assembly.alerts.delivered") == 1


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


async def test_an_alert_is_read_by_the_model_once():
    middleware = AssemblyMiddleware([AlertPolicy()])
    model = ScriptedModel()
    someone = agent(model, middlewares=[middleware])
    await talk(someone, "hello")
    await middleware.context_of(someone.state).send(
        ObserverAlert(source="watchdog", severity="warning", message="slow down")
    )
    await talk(someone, "go on", "and on")

    told = ["slow down" in str([m.get_text_content() for m in asked]) for asked in model.asked]
    assert told == [False, True, False]
    assert all(isinstance(message, Msg) for asked in model.asked for message in asked)


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


def test_an_assembler_has_its_own_name():
    assert AssemblyMiddleware(Assembler([], name="mine")).assembler.name == "mine"
    with pytest.raises(ConfigurationError, match="AssemblyMiddleware"):
        AssemblyMiddleware(Assembler([]), name="other")


_STEPS = st.lists(st.tuples(st.sampled_from(["say", "call", "calls"]), st.integers(1, 80)), max_size=12)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(replies=st.lists(_STEPS, min_size=1, max_size=4), window=st.integers(200, 1_200))
def test_no_pair_is_broken_and_the_budget_holds(replies, window):
    import asyncio

    context, number = [], 0
    for steps in replies:
        context.append(UserMsg("user", "What now?"))
        own = AssistantMsg("Friday", [])
        for kind, size in steps:
            if kind == "say":
                own.content.append(TextBlock(text=words(size)))
                continue
            ids = [f"call-{number + n}" for n in range(1 if kind == "call" else 2)]
            number += len(ids)
            own.content += [ToolCallBlock(id=item_id, name="look_up", input="{}", state="finished") for item_id in ids]
            own.content += [ToolResultBlock(id=item_id, name="look_up", output=words(size)) for item_id in ids]
        context.append(own)
    model = ScriptedModel(context_size=1_000_000)
    someone = agent(model, middlewares=[AssemblyMiddleware([BudgetPolicy(window=window, output_reserve=0)])])
    someone.state.context = context
    asyncio.run(talk(someone, "And the newest?"))

    sent = model.asked[0]
    assert pairs_are_whole(sent)
    assert sent[-1].get_text_content() == "And the newest?"
    meter = TokenMeter(counter_for("gpt-4o"))
    texts = [text for block in blocks(sent) for text in texts_of(block)]
    assert sum(map(meter.text, texts)) + 4 * len(sent) <= window


def texts_of(block):
    if isinstance(block, ToolCallBlock):
        return [block.name, block.input]
    return [block.output] if isinstance(block, ToolResultBlock) else [block.text]
