"""What changes a context, a prompt or the messages before one model call are steps of one assembly."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from agentscope.message import AssistantMsg, Base64Source, DataBlock, TextBlock, UserMsg
from agentscope.middleware import MiddlewareBase
from scripted import LIMITS_IMAGES, ScriptedModel, agent, instrumented, talk, tool, words

from otel_assembly.telemetry import read_ledgers

ASSEMBLY = "assemble_context"


@pytest.fixture
def telemetry(assembly_telemetry):
    with instrumented(assembly_telemetry):
        yield assembly_telemetry
    assert assembly_telemetry.violations() == []


class Polite(MiddlewareBase):
    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt}\nBe polite to everybody."


class Newest(MiddlewareBase):
    """Sends the system prompt and the newest message alone."""

    async def on_model_call(self, agent, input_kwargs, next_handler):
        first, *rest = input_kwargs["messages"]
        return await next_handler(**{**input_kwargs, "messages": [first, *rest[-1:]]})


class Asks(MiddlewareBase):
    """Asks a model of its own something else, before the agent's is called."""

    def __init__(self, model):
        self.model = model

    async def on_model_call(self, agent, input_kwargs, next_handler):
        await self.model([UserMsg("user", "What is the mood?")])
        return await next_handler(**input_kwargs)


class Answers(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        raise ZeroDivisionError


class Heard(ScriptedModel):
    """Notes how many assemblies had ended when it was called."""

    telemetry = None

    async def _call_api(self, model_name, messages, tools=None, tool_choice=None, **kwargs):
        self.ended = [*getattr(self, "ended", ()), len(self.telemetry.spans_named(ASSEMBLY))]
        return await super()._call_api(model_name, messages, tools, tool_choice, **kwargs)


def look_up() -> str:
    """Look something up."""
    return words(50)


def long(someone, messages=7):
    someone.state.context = [UserMsg("user", words(600)) for _ in range(messages)]
    return someone


def image():
    return DataBlock(source=Base64Source(data="aGVsbG8=", media_type="image/png"))


def chains(telemetry):
    return [
        [step.name.removeprefix("apply_policy ") for step in span.children if step.name.startswith("apply")]
        for span in telemetry.spans_named(ASSEMBLY)
    ]


def sound(telemetry):
    for ledger in read_ledgers(telemetry.spans).values():
        assert ledger.problems == []
    for span in telemetry.spans_named(ASSEMBLY):
        steps = [step for step in span.children if step.name.startswith("apply")]
        if not steps:
            continue
        assert span.start_ns <= steps[0].start_ns
        assert steps[-1].end_ns <= span.end_ns
        assert steps[0].attributes["assembly.events.in"] == span.attributes["assembly.events.in"]
        assert steps[-1].attributes["assembly.events.out"] == span.attributes["assembly.events.out"]
        for message, other in pairwise(steps):
            assert message.end_ns <= other.start_ns
            assert message.attributes["assembly.events.out"] == other.attributes["assembly.events.in"]
            assert message.attributes["assembly.tokens.out"] == other.attributes["assembly.tokens.in"]


async def test_a_prompt_a_compression_and_a_window_make_one_assembly(telemetry):
    model = Heard()
    model.telemetry = telemetry
    someone = long(agent(model, middlewares=[Polite(), Newest()]))
    await talk(someone, "and now?")
    assert chains(telemetry) == [["Polite", "compress_context", "Newest"]]
    (span,) = telemetry.spans_named(ASSEMBLY)
    assert model.ended[-1] == 1
    assert span.attributes["assembly.events.in"] == 8
    assert span.attributes["assembly.events.out"] == len(model.asked[-1]) - 1 == 1
    assert telemetry.span("compact_block summary").parent.name == "apply_policy compress_context"
    sound(telemetry)


@pytest.mark.skipif(not LIMITS_IMAGES, reason="this version of AgentScope limits no images")
async def test_images_and_a_compression_make_one_assembly(telemetry):
    someone = long(agent(ScriptedModel(), max_image_num=1))
    someone.state.context.append(UserMsg("user", [TextBlock(text="Which is it?"), image()]))
    someone.state.context.append(AssistantMsg("Friday", [image(), TextBlock(text="This.")]))
    await talk(someone, "and now?")
    assert chains(telemetry) == [["limit_images", "compress_context"]]
    sound(telemetry)


async def test_every_round_has_its_own_and_all_are_turns_of_one_ledger(telemetry):
    model = ScriptedModel(["call:look_up", "call:look_up", "Done."])
    someone = long(agent(model, tools=[tool(look_up)], middlewares=[Polite(), Newest()]))
    await talk(someone, "hello", "again")
    assert len(model.asked) == len(chains(telemetry)) == 4
    assert chains(telemetry)[0] == ["Polite", "compress_context", "Newest"]
    spans = telemetry.spans_named(ASSEMBLY)
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 2, 3]
    assert len({span.attributes["assembly.ledger.id"] for span in spans}) == 1
    for message, other in pairwise(spans):
        assert other.attributes["assembly.previous.id"] == message.attributes["assembly.id"]
    sound(telemetry)


async def test_a_model_that_a_middleware_asks_itself_is_not_the_call(telemetry):
    other = ScriptedModel(["Good."])
    someone = long(agent(ScriptedModel(), middlewares=[Asks(other), Newest()]))
    await talk(someone, "and now?")
    assert len(other.asked) == 1
    assert chains(telemetry) == [[], ["compress_context", "on_model_call"]]
    sound(telemetry)


async def test_what_was_prepared_for_a_model_that_is_not_called_is_told(telemetry):
    someone = long(agent(ScriptedModel(), middlewares=[Polite(), Answers()]))
    with pytest.raises(ZeroDivisionError):
        await talk(someone, "and now?")
    assert chains(telemetry) == [["Polite", "compress_context", "Answers"]]
    assert telemetry.span(ASSEMBLY).attributes["error.type"] == "ZeroDivisionError"


async def test_a_compression_that_is_asked_for_outside_of_any_reply_waits_for_no_model(telemetry):
    someone = long(agent(ScriptedModel()))
    await someone.compress_context()
    assert chains(telemetry) == [["compress_context"]]
    await talk(someone, "and now?")
    assert chains(telemetry) == [["compress_context"], []]


async def test_agents_at_once_prepare_each_its_own_call(telemetry):
    agents = [long(agent(ScriptedModel(), name=f"agent{n}", middlewares=[Polite(), Newest()])) for n in range(4)]
    await asyncio.gather(*(talk(agent, "and now?") for agent in agents))
    assert chains(telemetry) == [["Polite", "compress_context", "Newest"]] * 4
    for span in telemetry.spans_named(ASSEMBLY):
        assert span.parent.name == f"invoke_agent {span.attributes['gen_ai.agent.name']}"
    assert len({span.attributes["assembly.ledger.id"] for span in telemetry.spans_named(ASSEMBLY)}) == 4
    sound(telemetry)
