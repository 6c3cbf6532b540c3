"""Asks of AG2's agents as runs: a span of ours only where there would be none, and stamped model calls."""

from __future__ import annotations

import asyncio

import pytest
from ag2_package import BaseMiddleware, MemoryStream, Model, ag2, ask, call, part, policies


def support(*turns, **settings):
    return ag2.Agent("support", config=Model(*turns), assembly=[policies.ConversationPolicy()], **settings)


def tracing(telemetry, **settings):
    return part("middleware.builtin.telemetry").TelemetryMiddleware(
        tracer_provider=telemetry.tracer_provider, agent_name="support", **settings
    )


async def test_an_ask_of_several_turns_is_one_trace(telemetry):
    def look() -> str:
        """Look."""
        return "found"

    await support(call("look"), "found it", tools=[look]).ask("hi")
    assert telemetry.tree().count("invoke_agent support") == 1
    assert len(telemetry.spans_named("assemble_context")) == 2
    assert len({span.trace_id for span in telemetry.spans}) == 1
    span = telemetry.span("invoke_agent support")
    assert span.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert not any(name.startswith(("gen_ai.usage", "gen_ai.request")) for name in span.attributes)


async def test_a_continued_conversation_is_an_ask_each(telemetry):
    reply = await support("one", "two").ask("hi")
    await reply.ask("and?")
    runs = telemetry.spans_named("invoke_agent support")
    assert len(runs) == 2
    assert len({span.attributes["gen_ai.conversation.id"] for span in runs}) == 1
    assert [span.attributes["assembly.turn"] for span in telemetry.spans_named("assemble_context")] == [0, 1]


async def test_every_way_to_ask_is_one_run(telemetry):
    if not hasattr(ag2.Agent, "run"):
        pytest.skip("this release's agents can only be asked")
    agent = support(*"abcdef")
    async with agent.run("hi") as run:
        await run.result()
    async with agent.run("hi") as run:
        run.start()
        await asyncio.sleep(0)
        reply = await run.result()
    if hasattr(reply, "run"):
        async with reply.run("more") as run:
            await run.result()
    if hasattr(agent, "resume"):
        await agent.resume(ask("hi"))
    assert len(telemetry.spans_named("assemble_context")) == len(telemetry.spans_named("invoke_agent support"))
    assert all(span.parent.name == "invoke_agent support" for span in telemetry.spans_named("assemble_context"))


async def test_where_a_span_is_current_none_is_added(telemetry):
    with telemetry.tracer().start_as_current_span("request"):
        await support("one").ask("hi")
    assert telemetry.tree() == "request\n  assemble_context\n    apply_policy conversation"


async def test_a_span_that_a_middleware_of_the_users_opens_is_the_runs(telemetry):
    tracer = telemetry.tracer()

    class Traced(BaseMiddleware):
        async def on_turn(self, call_next, event, context):
            with tracer.start_as_current_span("turn"):
                return await call_next(event, context)

    await support("one", middleware=[ag2.Middleware(Traced)]).ask("hi")
    assert telemetry.tree() == "turn\n  assemble_context\n    apply_policy conversation"


async def test_ag2s_telemetry_at_agent_level_is_repeated_by_nothing_and_stamped(telemetry):
    await support("one", middleware=[tracing(telemetry, model_name="gpt-4o")]).ask("hi")
    assert telemetry.tree() == "\n".join(
        ("invoke_agent support", "  chat gpt-4o", "    assemble_context", "      apply_policy conversation")
    )
    _is_stamped(telemetry)


async def test_ag2s_telemetry_at_ask_level_is_repeated_by_nothing_and_stamped(telemetry):
    await support("one").ask("hi", middleware=[tracing(telemetry, model_name="gpt-4o")])
    assert telemetry.tree() == "\n".join(
        ("invoke_agent support", "  assemble_context", "    apply_policy conversation", "  chat gpt-4o")
    )
    _is_stamped(telemetry)


def _is_stamped(telemetry):
    assembly = telemetry.span("assemble_context")
    chat = telemetry.span("chat gpt-4o")
    assert chat.attributes["assembly.id"] == assembly.attributes["assembly.id"]
    assert [link.span_id for link in chat.links] == [assembly.span_id]


async def test_an_ask_that_is_cancelled_says_so(telemetry):
    started = asyncio.Event()

    class Hanging(Model):
        async def _recording(self, messages, context, **rest):
            started.set()
            await asyncio.Event().wait()

    agent = ag2.Agent("support", config=Hanging(), assembly=[policies.ConversationPolicy()])
    task = asyncio.create_task(agent.ask("hi"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert telemetry.span("invoke_agent support").status == "ERROR"
    assert telemetry.span("invoke_agent support").attributes["error.type"] == "cancelled"


async def test_agents_that_ag2_makes_for_a_task_have_one_name(telemetry):
    for number in range(3):
        agent = ag2.Agent(f"subtask-{number:08x}", config=Model("done"), assembly=[policies.ConversationPolicy()])
        await agent.ask("do it")
    assert [span.attributes["gen_ai.agent.name"] for span in telemetry.spans_named("invoke_agent subtask")] == (
        ["subtask"] * 3
    )


async def test_a_subagent_is_part_of_its_askers_trace(telemetry):
    helper = ag2.Agent("helper", config=Model("done"), assembly=[policies.ConversationPolicy()])

    async def delegate() -> str:
        """Ask the helper."""
        return (await helper.ask("do it", stream=MemoryStream())).body

    await support(call("delegate"), "all done", tools=[delegate]).ask("hi")
    assert len({span.trace_id for span in telemetry.spans}) == 1
    names = [span.attributes["gen_ai.agent.name"] for span in telemetry.spans_named("assemble_context")]
    assert names == ["support", "helper", "support"]
