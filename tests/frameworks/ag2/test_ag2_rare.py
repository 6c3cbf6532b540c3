"""What AG2's programs rarely do, and is told all the same, or left alone."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from ag2_package import (
    AssemblerMiddleware,
    BaseMiddleware,
    MemoryStream,
    Model,
    ag2,
    answer,
    ask,
    call,
    events,
    history_of,
    part,
    policies,
    said,
)

from otel_assembly import ConfigurationError, SlidingWindowPolicy
from otel_assembly.instrumentation.ag2 import AssembledPolicy


async def test_a_result_that_a_limiter_cut_from_its_call_is_an_orphan(telemetry):
    limiter = part("middleware.builtin.history_limiter").HistoryLimiter(max_events=4)
    stream = MemoryStream()
    calling = events.ModelResponse(tool_calls=events.ToolCallsEvent([call("weather")]))
    result = events.ToolResultEvent(parent_id="c1", name="weather", result=events.ToolResult("rain"))
    await history_of(
        stream, ask("opening"), ask("weather?"), calling, events.ToolResultsEvent([result]), answer("it rains")
    )
    await ag2.Agent("support", config=Model("fine"), middleware=[limiter]).ask("and now?", stream=stream)
    step = telemetry.span("apply_policy history_limiter")
    assert step.dropped_reasons == {"1": "outside_window", "2": "outside_window", "3": "orphaned_tool_result"}
    assert json.loads(step.attributes["assembly.policy.config"]) == {"max_events": 4}


class Kept:
    """A history of somebody else's."""


def test_a_plug_in_knows_no_context_of_what_is_no_stream():
    plugin = AssembledPolicy([SlidingWindowPolicy(3)])
    with pytest.raises(ConfigurationError, match="Kept is not the history of an AG2 stream"):
        plugin.context_of(SimpleNamespace(history=Kept()))


async def test_a_view_that_a_program_asks_by_itself_is_told_at_once(telemetry):
    views = part("network.views.builtin")
    channel = SimpleNamespace(channel_id="c-1", participants=[])
    seen = await views.FullTranscript().project(
        [], participant_id="a-1", channel=channel, render_envelope=lambda envelope: None
    )
    assert list(seen) == []
    told = telemetry.span("project_view full_transcript")
    assert told.parent is None
    assert told.attributes["gen_ai.conversation.id"] == "c-1"
    assert (told.attributes["assembly.envelopes.in"], told.attributes["assembly.events.out"]) == (0, 0)


async def test_a_view_that_fails_is_told_with_its_error(telemetry):
    views = part("network.views.builtin")

    def render(envelope):
        raise ConnectionError("the customer's secret")

    envelope = SimpleNamespace(audience=None, sender_id="other", envelope_id="e-1")
    with pytest.raises((ConnectionError, AttributeError)):
        await views.FullTranscript().project(
            [envelope], participant_id="a-1", channel=SimpleNamespace(channel_id="c-1"), render_envelope=render
        )
    told = telemetry.span("project_view full_transcript")
    assert told.status == "ERROR"
    assert "secret" not in str(telemetry.spans)


async def test_an_iterator_that_a_middleware_hands_on_is_left_to_the_client(telemetry):
    class Lazy(BaseMiddleware):
        async def on_llm_call(self, call_next, given, context):
            return await call_next(iter([*given, ask("Mind the time.")]), context)

    model = Model("fine")
    agent = ag2.Agent("support", config=model)
    assert (await agent.ask("first", middleware=[ag2.Middleware(Lazy)])).body == "fine"
    assert said(model.sent[0]) == ["first", "Mind the time."]
    assert telemetry.spans_named("assemble_context") == []
    assert telemetry.metrics["assembly.telemetry.errors"]


async def test_a_client_that_a_middleware_gives_an_iterator_is_no_matter_of_the_turns(telemetry):
    class Guards(BaseMiddleware):
        async def on_llm_call(self, call_next, given, context):
            aside = part("context").ConversationContext(MemoryStream())
            await guard(iter([ask("is it fine?")]), aside, tools=[], response_schema=None, serializer=None)
            return await call_next(given, context)

    guard = part("testing").TestConfig("it is").create()
    assembler = ag2.Middleware(AssemblerMiddleware, policies=[policies.ConversationPolicy()])
    agent = ag2.Agent("support", config=Model("fine"), middleware=[assembler])
    assert (await agent.ask("first", middleware=[ag2.Middleware(Guards)])).body == "fine"
    (told,) = telemetry.spans_named("assemble_context")
    assert told.attributes["assembly.events.out"] == 1


async def test_a_tool_whose_schema_is_no_json_costs_nothing_that_is_known(telemetry):
    def weather(city: str) -> str:
        return "rain"

    tool = part("tools").tool
    odd = tool(weather, name="odd", schema={"type": "object", "properties": {"city": {"default": object()}}})
    plain = tool(weather, name="plain")
    for tools in ([plain], [plain, odd], []):
        assert (await ag2.Agent("support", config=Model("fine"), tools=tools).ask("first")).body == "fine"
    one, two, none = (span.attributes["assembly.tokens.out"] for span in telemetry.spans_named("assemble_context"))
    assert one == two > none
