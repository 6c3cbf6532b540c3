"""What is told of AgentScope where a middleware puts something in, and where what shortens a context does not do it."""

from __future__ import annotations

import pytest
from agentscope.message import Base64Source, DataBlock, SystemMsg, TextBlock, UserMsg
from agentscope.middleware import MiddlewareBase
from scripted import FALLS_BACK, LIMITS_IMAGES, ScriptedModel, agent, instrumented, talk, words

STEP, ASSEMBLY = "apply_policy compress_context", "assemble_context"


@pytest.fixture
def telemetry(assembly_telemetry):
    with instrumented(assembly_telemetry):
        yield assembly_telemetry
    assert assembly_telemetry.violations() == []


class Reminding(MiddlewareBase):
    """Puts a system message where it is told to, on the way to the model."""

    def __init__(self, at):
        self.at = at

    async def on_model_call(self, agent, input_kwargs, next_handler):
        messages = list(input_kwargs["messages"])
        messages.insert(self.at if self.at >= 0 else len(messages), SystemMsg("system", "Answer in one word."))
        return await next_handler(messages=messages)


@pytest.mark.parametrize("at", [0, 1, 2, -1])
async def test_a_system_message_that_a_middleware_injects_is_seen_wherever_it_stands(telemetry, at):
    model = ScriptedModel()
    await talk(agent(model, middlewares=[Reminding(at)]), "Order 4711.", "And now?")
    assert "Answer in one word." in [message.get_text_content() for message in model.asked[-1]]
    span, step = telemetry.span(ASSEMBLY), telemetry.span("apply_policy Reminding")
    added = step.attributes["assembly.tokens.out"] - step.attributes["assembly.tokens.in"]
    assert (
        added == step.attributes["assembly.tokens.out"] - span.attributes["assembly.tokens.in"] == 11
    )  # with the name `system`
    if at in {0, 1}:
        assert "Reminding" in span.attributes["assembly.prompt.sources"]
    else:
        assert step.attributes["assembly.events.injected"] == 1
        first, made = telemetry.spans_named(ASSEMBLY)[0], telemetry.spans_named("apply_policy Reminding")[0].injected
        assert first.arrived[made[0]].kind == "system"
    assert step.attributes["assembly.dropped.count"] == 0


async def test_a_system_message_of_the_context_itself_is_an_item_and_stays_one(telemetry):
    someone = agent(ScriptedModel(), middlewares=[Reminding(-1)])
    someone.state.context = [SystemMsg("system", "The user is in Bonn.")]
    await talk(someone, "hello")
    span = telemetry.span(ASSEMBLY)
    assert [span.arrived[item].kind for item in span.kept] == ["system", "request", "system"]
    assert span.attributes["assembly.prompts.out"] == 1


class Verbose(MiddlewareBase):
    """Makes a system prompt that leaves little room."""

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt}\n{words(2_000)}"


async def test_a_compressed_prompt_over_its_limit_is_an_overflow(telemetry):
    someone = agent(ScriptedModel(context_size=1_000), middlewares=[Verbose()])
    someone.state.context = [UserMsg("user", words(300)) for _ in range(4)]
    await someone.compress_context()
    for span in (telemetry.span(ASSEMBLY), telemetry.span(STEP)):
        held = span.attributes
        assert held["assembly.overflowed"] is True
        assert held["assembly.overflow.cause"] == "framework"
        assert held["assembly.overflow.tokens"] == held["assembly.tokens.out"] - 800 > 0
        assert (span.status, held["error.type"]) == ("ERROR", "context_overflow")
        assert [event.name for event in span.events] == ["assembly.overflow"]
    assert telemetry.span(STEP).compacted
    assert telemetry.metric("assembly.budget.overflows", agent_name="Friday") == 1


async def test_a_compressed_prompt_under_its_limit_is_none(telemetry):
    someone = agent(ScriptedModel(context_size=1_000))
    someone.state.context = [UserMsg("user", words(300)) for _ in range(4)]
    await someone.compress_context()
    assert telemetry.span(ASSEMBLY).attributes["assembly.overflowed"] is False
    assert not telemetry.metric("assembly.budget.overflows", agent_name="Friday")


@pytest.mark.skipif(not FALLS_BACK, reason="this version of AgentScope has no such tool")
async def test_a_compression_by_the_agents_own_tool_that_fails_took_nothing_out(telemetry):
    model = ScriptedModel(["call:CompressContext", "Done."], summary=ConnectionError("no"))
    someone = agent(
        model, compression_tool_enabled=True, context_buffer_ratio=0.5, compression_fallback_to_truncation=False
    )
    someone.state.context = [UserMsg("user", words(600)) for _ in range(4)]
    answer = await talk(someone, "tidy up")
    assert answer.get_text_content() == "Done."
    step = telemetry.span(STEP)
    span = step.parent
    assert step.attributes["error.type"] == span.attributes["error.type"] == "ConnectionError"
    assert step.status == span.status == "ERROR"
    for held in (span.attributes, step.attributes):
        assert held["assembly.events.out"] == held["assembly.events.in"] > 0
        assert held["assembly.tokens.out"] == held["assembly.tokens.in"] > 0
        assert held["assembly.dropped.count"] == held["assembly.compacted.count"] == 0


async def test_a_summary_with_nothing_in_it_stands_for_nothing(telemetry):
    empty = dict.fromkeys(
        ("task_overview", "current_state", "important_discoveries", "next_steps", "context_to_preserve"), ""
    )
    someone = agent(ScriptedModel(summary=empty), reserve_ratio=0.2)
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    await someone.compress_context()
    assert telemetry.span("compact_block summary").attributes["assembly.compaction.outcome"] == "empty"
    step = telemetry.span(STEP)
    assert step.compacted == []
    assert step.dropped_reasons


class Broken(MiddlewareBase):
    async def on_compress_context(self, agent, input_kwargs, next_handler):
        agent.state.context = agent.state.context[-1:]
        raise ConnectionError("the customer's secret")


class BrokenBefore(MiddlewareBase):
    async def on_compress_context(self, agent, input_kwargs, next_handler):
        raise ConnectionError("the customer's secret")


async def test_a_middleware_that_compresses_and_raises_is_told_with_what_it_had_done_by_then(telemetry):
    someone = agent(ScriptedModel(), middlewares=[Broken()])
    someone.state.context = [UserMsg("user", f"{number}") for number in range(5)]
    with pytest.raises(ConnectionError):
        await someone.compress_context()
    step = telemetry.span("apply_policy Broken")
    assert step.dropped_reasons == dict.fromkeys(map(str, range(4)), "policy")
    assert (step.status, step.attributes["error.type"]) == ("ERROR", "ConnectionError")
    assert telemetry.metric("assembly.policy.errors", policy_name="Broken", error_type="ConnectionError") == 1
    assert "secret" not in str(telemetry.spans)


async def test_a_middleware_that_raises_before_it_has_compressed_is_told(telemetry):
    someone = agent(ScriptedModel(), middlewares=[BrokenBefore()])
    someone.state.context = [UserMsg("user", f"{number}") for number in range(5)]
    with pytest.raises(ConnectionError):
        await someone.compress_context()
    step = telemetry.span("apply_policy BrokenBefore")
    assert step.attributes["assembly.events.out"] == 5
    assert step.attributes["assembly.dropped.count"] == 0


async def test_what_agentscopes_own_compression_raises_inside_a_middleware_is_told_once(telemetry):
    class Careful(MiddlewareBase):
        async def on_compress_context(self, agent, input_kwargs, next_handler):
            await next_handler(**input_kwargs)

    settings = {"compression_fallback_to_truncation": False} if FALLS_BACK else {}
    someone = agent(ScriptedModel(summary=ConnectionError("no")), middlewares=[Careful()], **settings)
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    with pytest.raises(ConnectionError):
        await someone.compress_context()
    assert [span.name for span in telemetry.spans_named(ASSEMBLY)[0].children] == [STEP]
    assert len(telemetry.spans_named(ASSEMBLY)) == 1


class BrokenOnTheWay(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        raise ConnectionError("no memory")


class BrokenPrompt(MiddlewareBase):
    async def on_system_prompt(self, agent, current_prompt):
        raise ConnectionError("no memory")


@pytest.mark.parametrize("middleware", [BrokenOnTheWay, BrokenPrompt])
async def test_a_middleware_that_raises_before_the_model_is_called_is_told(telemetry, middleware):
    model = ScriptedModel()
    with pytest.raises(ConnectionError):
        await talk(agent(model, middlewares=[middleware()]), "hello")
    assert model.asked == []
    step = telemetry.span(f"apply_policy {middleware.__name__}")
    assert (step.status, step.attributes["error.type"]) == ("ERROR", "ConnectionError")
    assert telemetry.span(ASSEMBLY).attributes["assembly.events.out"] == 0
    assert len(telemetry.spans_named(ASSEMBLY)) == 1


async def test_what_the_model_raises_is_no_error_of_a_middleware(telemetry):
    class Down(ScriptedModel):
        async def _call_api(self, *args, **kwargs):
            raise ConnectionError("no")

    with pytest.raises(ConnectionError):
        await talk(agent(Down(), middlewares=[Reminding(-1)]), "hello")
    assert telemetry.span("apply_policy Reminding").status == "UNSET"
    assert len(telemetry.spans_named(ASSEMBLY)) == 1


@pytest.mark.skipif(not LIMITS_IMAGES, reason="this version of AgentScope limits no images")
async def test_images_that_cannot_be_kept_elsewhere_stay_and_that_is_told(telemetry):
    class Full:
        async def offload_data_block(self, *args, **kwargs):
            raise OSError("full")

    def image():
        return DataBlock(source=Base64Source(data="aGVsbG8=", media_type="image/png"))

    someone = agent(ScriptedModel(context_size=100_000), max_image_num=1)
    someone.offloader = Full()
    someone.state.context = [UserMsg("user", [TextBlock(text="this?"), image()]) for _ in range(4)]
    with pytest.raises(OSError, match="full"):
        await someone.compress_context()
    step = telemetry.span("apply_policy limit_images")
    assert step.attributes["assembly.compacted.count"] == 0
    assert (step.status, step.attributes["error.type"]) == ("ERROR", "OSError")
    assert telemetry.span(ASSEMBLY).attributes["assembly.dropped.count"] == 0


class Copying(MiddlewareBase):
    """Hands on copies of what it was given, as who redacts or logs does."""

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler(messages=[message.model_copy(deep=True) for message in input_kwargs["messages"]])

    async def on_compress_context(self, agent, input_kwargs, next_handler):
        agent.state.context = [message.model_copy(deep=True) for message in agent.state.context]


async def test_copies_that_say_the_same_are_no_change(telemetry):
    await talk(agent(ScriptedModel(), middlewares=[Copying()]), "Order 4711.", "And now?")
    assert telemetry.spans_named("apply_policy Copying") == []
