"""Middlewares of the user's own that cut the context, in the agent's state or on the way to the model."""

from __future__ import annotations

import pytest
from agentscope.message import UserMsg
from agentscope.middleware import MiddlewareBase, TracingMiddleware
from scripted import FALLS_BACK, ScriptedModel, agent, instrumented, talk, words

from otel_assembly.instrumentation import uninstrument


@pytest.fixture
def telemetry(assembly_telemetry):
    with instrumented(assembly_telemetry):
        yield assembly_telemetry
    assert assembly_telemetry.violations() == []


class KeepTwo(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        messages = input_kwargs["messages"]
        return await next_handler(messages=[*messages[:1], *messages[-2:]])


class Watching(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler(**input_kwargs)


class Forgetful(MiddlewareBase):
    async def on_compress_context(self, agent, input_kwargs, next_handler):
        agent.state.context = agent.state.context[-1:]
        agent.state.summary = "They talked."


class Careful(MiddlewareBase):
    async def on_compress_context(self, agent, input_kwargs, next_handler):
        await next_handler(**input_kwargs)


async def test_messages_that_a_middleware_takes_out_before_the_model_are_told_by_its_name(telemetry):
    someone = agent(ScriptedModel(), middlewares=[KeepTwo()])
    await talk(someone, "Order 4711.", "And now?")

    policy = telemetry.span("apply_policy KeepTwo")
    assert policy.dropped_reasons == {"0": "policy"}
    assert policy.parent.attributes["assembly.events.out"] == 2
    assert policy.parent.parent.name == "invoke_agent Friday"
    dropped = telemetry.metric("assembly.items.dropped", policy_name="KeepTwo", decision_reason="policy")
    assert dropped == 1


async def test_of_several_that_could_have_done_it_none_is_named(telemetry):
    await talk(agent(ScriptedModel(), middlewares=[Watching(), KeepTwo()]), "one", "two", "three")
    assert telemetry.span("apply_policy on_model_call").dropped_reasons


async def test_middlewares_that_pass_the_messages_on_are_no_policies(telemetry):
    await talk(agent(ScriptedModel(), middlewares=[Watching()]), "one", "two")
    assert telemetry.tree().splitlines() == ["invoke_agent Friday", "  assemble_context"] * 2


async def test_each_attempt_has_an_assembly_with_the_same_steps(telemetry):
    class Flaky(ScriptedModel):
        tries = 0

        async def _call_api(self, *args, **kwargs):
            self.tries += 1
            if self.tries < 3:
                raise ConnectionError("busy")
            return await super()._call_api(*args, **kwargs)

    someone = agent(Flaky(), middlewares=[KeepTwo()])
    someone.state.context = [UserMsg("user", "one"), UserMsg("user", "two")]
    someone.model_config.max_retries = 5
    await talk(someone, "three")
    steps = telemetry.spans_named("apply_policy KeepTwo")
    assert [step.dropped_reasons for step in steps] == [{"0": "policy"}] * 3
    assert telemetry.metric("assembly.items.dropped", policy_name="KeepTwo", decision_reason="policy") == 1


async def test_a_context_that_a_middleware_compresses_is_told_by_its_name(telemetry):
    someone = agent(ScriptedModel(), middlewares=[Forgetful()])
    someone.state.context = [UserMsg("user", f"{number} {words(10)}") for number in range(5)]
    await talk(someone, "and now?")

    policy = telemetry.span("apply_policy Forgetful")
    assert policy.compacted == ["0", "1", "2", "3", "4"]
    assert policy.parent.kept == ["m0", "5"]


async def test_agentscopes_own_compression_inside_a_middleware_is_told_once(telemetry):
    someone = agent(ScriptedModel(), middlewares=[Careful()])
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    await talk(someone, "and now?")
    assert [span.name for span in telemetry.span("assemble_context").children] == ["apply_policy compress_context"]


async def test_the_model_call_around_it_is_stamped(assembly_telemetry, monkeypatch):
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer_provider", lambda: assembly_telemetry.tracer_provider)
    monkeypatch.setattr(trace, "get_tracer", lambda name, *_, **__: assembly_telemetry.tracer_provider.get_tracer(name))
    with instrumented(assembly_telemetry):
        await talk(agent(ScriptedModel(), middlewares=[TracingMiddleware(), KeepTwo()]), "one", "two")
    chat = assembly_telemetry.span("chat gpt-4o")
    assert chat.attributes["gen_ai.conversation.compacted"] is True
    assert [child.name for child in chat.children] == ["assemble_context"]


async def test_a_model_that_is_no_subclass_of_agentscopes_is_seen(telemetry):
    class Alike:
        def __init__(self):
            self.model, self.context_size, self._real = "gpt-4o", 4_000, ScriptedModel(summary=ConnectionError("no"))

        async def count_tokens(self, messages, tools):
            return await self._real.count_tokens(messages, tools)

        async def generate_structured_output(self, messages, structured_model):
            return await self._real.generate_structured_output(messages, structured_model)

    before = dict(vars(Alike))
    someone = agent(Alike())
    someone.state.context = [UserMsg("user", words(450)) for _ in range(8)]
    if FALLS_BACK:
        await someone.compress_context()
        assert telemetry.span("apply_policy compress_context").dropped_reasons
    else:
        with pytest.raises(ConnectionError):
            await someone.compress_context()
    assert telemetry.span("compact_block summary").attributes["assembly.compaction.compactor"] == "Alike"
    uninstrument("agentscope")
    assert dict(vars(Alike)) == before


async def test_an_agent_that_is_equal_to_others_is_seen_like_any_other(telemetry):
    someone = agent(ScriptedModel(), middlewares=[Forgetful()])

    class Alike(type(someone)):
        def __eq__(self, other):
            return isinstance(other, Alike)

    someone.__class__ = Alike
    await talk(someone, "Order 4711.", "And now?")
    assert [span.name for span in telemetry.spans].count("apply_policy Forgetful") >= 1
