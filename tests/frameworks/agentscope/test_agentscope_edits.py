"""System prompts that middlewares change, images beyond a limit, and how instrumentation comes and goes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from agentscope.agent import Agent
from agentscope.message import AssistantMsg, Base64Source, DataBlock, TextBlock, ToolCallBlock, ToolResultBlock, UserMsg
from agentscope.middleware import MiddlewareBase
from agentscope.model import ChatModelBase
from scripted import LIMITS_IMAGES, ScriptedModel, agent, instrumented, talk, tool, words

from otel_assembly.instrumentation import HookState, instrument, instrumentor_of, uninstrument


@pytest.fixture
def telemetry(assembly_telemetry):
    with instrumented(assembly_telemetry):
        yield assembly_telemetry
    assert assembly_telemetry.violations() == []


class Polite(MiddlewareBase):
    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt}\nBe polite to everybody."


class Silent(MiddlewareBase):
    async def on_system_prompt(self, agent, current_prompt):
        return current_prompt


class VeryPolite(Polite):
    async def on_system_prompt(self, agent, current_prompt):
        return await super().on_system_prompt(agent, current_prompt) + " Say please."


class Clock(MiddlewareBase):
    def __init__(self):
        self.ticks = 0

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt}\nRound {agent.state.cur_iter}."


def image(data="aGVsbG8="):
    return DataBlock(source=Base64Source(data=data, media_type="image/png"))


def look_up() -> str:
    """Look something up."""
    return words(50)


async def test_each_middleware_that_changes_the_prompt_is_a_policy_with_its_tokens(telemetry):
    someone = agent(ScriptedModel(), middlewares=[Polite(), Silent(), VeryPolite()])
    await talk(someone, "hello")

    assert telemetry.tree().splitlines() == [
        "invoke_agent Friday",
        "  assemble_context",
        "    apply_policy Polite",
        "    apply_policy VeryPolite",
    ]
    polite, very = telemetry.span("apply_policy Polite"), telemetry.span("apply_policy VeryPolite")
    assert polite.attributes["assembly.policy.kind"] == "injection"
    assert polite.attributes["assembly.tokens.in"] < polite.attributes["assembly.tokens.out"]
    assert polite.attributes["assembly.tokens.out"] == very.attributes["assembly.tokens.in"]
    held = telemetry.span("assemble_context").attributes
    assert held["assembly.tokens.out"] == very.attributes["assembly.tokens.out"]
    assert held["assembly.events.in"] == held["assembly.events.out"] == 1
    assert held["assembly.prompt.sources"] == ["VeryPolite"]


async def test_a_prompt_is_told_with_each_call_that_it_is_made_for(telemetry):
    lines = ["call:look_up", "call:look_up", "Done."]
    await talk(agent(ScriptedModel(lines), tools=[tool(look_up)], middlewares=[Polite()]), "hello")
    assert len(telemetry.spans_named("apply_policy Polite")) == 3

    await talk(agent(ScriptedModel(lines), tools=[tool(look_up)], middlewares=[Clock()]), "hello")
    assert len(telemetry.spans_named("apply_policy Clock")) == 3


async def test_middlewares_that_change_nothing_are_no_step(telemetry):
    await talk(agent(ScriptedModel(), middlewares=[Silent()]), "hello")
    assert telemetry.span("assemble_context").children == []


async def test_a_compression_knows_the_prompt_that_middlewares_made(telemetry):
    someone = agent(ScriptedModel(), middlewares=[Polite()])
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    await talk(someone, "and now?")

    (span,) = telemetry.spans_named("assemble_context")
    assert [child.name for child in span.children] == ["apply_policy Polite", "apply_policy compress_context"]
    assert span.attributes["assembly.prompt.sources"] == ["Polite"]
    compressed, prompted = span.children[1], span.children[0]
    assert compressed.attributes["assembly.tokens.in"] == prompted.attributes["assembly.tokens.out"]


@pytest.mark.skipif(not LIMITS_IMAGES, reason="this version of AgentScope limits no images")
async def test_images_beyond_the_limit_are_told_where_they_were_replaced(telemetry):
    someone = agent(ScriptedModel(context_size=100_000), max_image_num=1)
    someone.state.context = [
        UserMsg("user", [TextBlock(text="Which is it?"), image()]),
        AssistantMsg(
            "Friday",
            [
                ToolCallBlock(id="a", name="look", input="{}"),
                ToolResultBlock(id="a", name="look", output=[TextBlock(text="This:"), image()]),
            ],
        ),
    ]
    await talk(someone, "and this?")

    assert telemetry.tree().splitlines()[:3] == [
        "invoke_agent Friday",
        "  assemble_context",
        "    apply_policy limit_images",
    ]
    policy = telemetry.span("apply_policy limit_images")
    assert policy.attributes["assembly.compacted.count"] == policy.attributes["assembly.events.injected"] == 1
    assert policy.compacted == ["1"]
    assert policy.attributes["assembly.policy.config"] == '{"max_image_num":1}'
    assert policy.attributes["assembly.compacted.tokens"] == 765

    someone.state.context.append(UserMsg("user", [image()]))
    await talk(someone, "and that?")
    second = telemetry.span("apply_policy limit_images")
    assert second.attributes["assembly.compacted.count"] == 1
    assert second.parent.attributes["assembly.turn"] == 1
    assert telemetry.metric("assembly.policy.declined", policy_name="compress_context") == 2


async def test_a_few_images_are_no_step(telemetry):
    someone = agent(ScriptedModel(), max_image_num=2)
    someone.state.context = [UserMsg("user", [image()])]
    await talk(someone, "hello", "hello again")
    assert [span.children for span in telemetry.spans_named("assemble_context")] == [[], []]


def hooked():
    found = {}
    for owner in (Agent, ChatModelBase, Polite, VeryPolite, MiddlewareBase, ScriptedModel):
        found.update({(owner, name): value for name, value in vars(owner).items() if callable(value)})
    return found


async def test_everything_is_put_back_and_what_was_built_meanwhile_is_quiet(assembly_telemetry):
    before = hooked()
    with instrumented(assembly_telemetry):
        someone = agent(ScriptedModel(), middlewares=[VeryPolite()])
        await talk(someone, "hello")
        assert instrumentor_of("agentscope").states.values()
        assert set(instrumentor_of("agentscope").states.values()) <= {HookState.TAKEN, HookState.NOT_EXPECTED}
        assert hooked() != before
    assert all(value is before[key] for key, value in hooked().items())
    assembly_telemetry.clear()
    with assembly_telemetry.as_default():
        someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
        await talk(someone, "and now?")
    assert assembly_telemetry.spans == []


async def test_an_agent_that_was_built_before_is_seen(assembly_telemetry):
    someone = agent(ScriptedModel(), middlewares=[Polite()])
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    with instrumented(assembly_telemetry):
        await talk(someone, "and now?")
    names = {span.name for span in assembly_telemetry.spans}
    assert {"apply_policy compress_context", "apply_policy Polite", "compact_block summary"} <= names


async def test_a_subclass_that_calls_its_parents_method_is_told_once(telemetry):
    class Careful(Agent):
        async def _compress_context_impl(self, context_config=None, instructions=None):
            await super()._compress_context_impl(context_config, instructions)

    class Model(ScriptedModel):
        async def generate_structured_output(self, messages, structured_model, **kwargs):
            return await super().generate_structured_output(messages, structured_model, **kwargs)

    someone = Careful("Friday", "You are careful.", Model())
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    await someone.compress_context()
    assert telemetry.tree().splitlines() == [
        "assemble_context",
        "  apply_policy compress_context",
        "    compact_block summary",
    ]


async def test_a_model_that_is_given_its_own_methods_after_it_was_instrumented_is_seen(telemetry):
    class Own(ScriptedModel):
        async def generate_structured_output(self, messages, structured_model, **kwargs):
            return await ChatModelBase.generate_structured_output(self, messages, structured_model, **kwargs)

    someone = agent(Own())
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    await someone.compress_context()
    assert telemetry.span("compact_block summary").attributes["assembly.compaction.compactor"] == "Own"


async def test_nobody_listens_and_nothing_is_read(monkeypatch):
    instrument("agentscope")
    try:
        from otel_assembly.instrumentation.agentscope import conversation

        monkeypatch.setattr(conversation, "events_of", lambda agent: pytest.fail("read, though nobody listens"))
        await talk(agent(ScriptedModel(), middlewares=[Polite()]), "hello")
    finally:
        uninstrument("agentscope")


def test_instrumenting_does_not_import_agentscope():
    code = (
        "import sys; from otel_assembly.instrumentation import instrument; instrument('agentscope');"
        "import otel_assembly.instrumentation.agentscope; print('agentscope' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


async def test_the_state_that_agentscope_stores_is_the_same_with_and_without_us(assembly_telemetry):
    async def run():
        someone = agent(ScriptedModel(["call:look_up", "Done."]), tools=[tool(look_up)], tool_result_limit=5)
        someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
        await talk(someone, "and now?")
        held = json.loads(someone.state.model_dump_json())
        return _without_the_accidental(held)

    bare = await run()
    with instrumented(assembly_telemetry):
        seen = await run()
    assert seen == bare


def _without_the_accidental(value):
    if isinstance(value, dict):
        accidental = {"id", "created_at", "finished_at", "session_id", "reply_id"}
        return {key: _without_the_accidental(part) for key, part in value.items() if key not in accidental}
    return list(map(_without_the_accidental, value)) if isinstance(value, list) else value


async def test_what_was_read_once_is_not_read_again(telemetry, monkeypatch):
    from otel_assembly.instrumentation.agentscope import messages

    reads = []
    real = messages._read

    def counted(*args, **kwargs):
        reads.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(messages, "_read", counted)
    lines = ["call:look_up", "Done.", "call:look_up", "Done."]
    someone = agent(ScriptedModel(lines, context_size=1_000_000), tools=[tool(look_up)], tool_result_limit=5)
    someone.state.context = [UserMsg("user", f"{number} {words(10)}") for number in range(500)]
    await someone.compress_context()
    assert reads == []  # a check that declines reads nothing

    await talk(someone, "and now?")
    assert 500 < len(reads) < 520
    reads.clear()
    await talk(someone, "and now?")
    assert len(reads) < 20
    assert len(telemetry.spans_named("apply_policy truncate_tool_result")) == 2


async def test_a_cancellation_that_comes_once_the_summary_is_applied_does_not_undo_it(telemetry):
    import asyncio

    applied = asyncio.Event()

    class Offloader:
        async def offload_context(self, session_id, msgs):
            applied.set()
            await asyncio.sleep(0.01)
            return "/tmp/context"

    someone = agent(ScriptedModel(), offloader=Offloader())
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    compressing = asyncio.create_task(someone.compress_context())
    await applied.wait()
    compressing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await compressing

    span = telemetry.span("assemble_context")
    assert span.status == "UNSET"
    assert span.attributes["assembly.compacted.count"] == 7
    assert span.attributes["assembly.events.out"] == 1
