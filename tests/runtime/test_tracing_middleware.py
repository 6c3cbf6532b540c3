"""`TracingMiddleware`: GenAI's spans of a run, in one trace with its assemblies."""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import aclosing

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_assembly import (
    Agent,
    HaltedError,
    MiddlewareBase,
    ModelResponse,
    ObserverAlert,
    SlidingWindowPolicy,
    Tool,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.errors import ModelCallError
from otel_assembly.events import (
    ConfirmResult,
    ExternalExecutionResultEvent,
    ToolErrorEvent,
    Usage,
    UserConfirmResultEvent,
)
from otel_assembly.recorder import NullRecorder, using_recorder
from otel_assembly.runtime import AssemblerMiddleware
from otel_assembly.telemetry import ContentCapture, TelemetrySettings, TracingMiddleware
from otel_assembly.testing import RecordedTelemetry, ScriptedModel

SECRET = "sesame-4711"
#: The instrumentation scope of GenAI's spans is the module.
SCOPE = TracingMiddleware.__module__


@pytest.fixture
def telemetry():
    told = RecordedTelemetry()
    with told.as_default():
        yield told
    assert told.violations() == []
    told.shutdown()


def call(name="add", arguments='{"a": 1, "b": 2}', call_id="c1"):
    return ToolCallEvent(id=call_id, name=name, arguments=arguments)


def calls(*those, usage=None):
    return ModelResponse(tool_calls=those, usage=usage)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def made(*answers, tools=(add,), middlewares=None, streams=False, **other):
    middlewares = [TracingMiddleware()] if middlewares is None else middlewares
    model = ScriptedModel(*answers, streams=streams)
    return Agent("helper", "Be brief.", model, tools, middlewares=middlewares, **other)


def points(telemetry, name):
    data = telemetry._metrics.get_metrics_data()
    return [
        point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        if scope.scope.name == SCOPE
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]


# The spans


async def test_a_run_is_one_trace_of_genais_spans(telemetry):
    agent = made(calls(call(), usage=Usage(input_tokens=12, output_tokens=3)), "3")
    agent = agent.open_session("conversation-7")
    await agent.ask("1 + 2?")
    run = telemetry.span("invoke_agent helper")
    assert [fact.name for fact in telemetry.spans if fact.scope == SCOPE] == [
        "chat scripted",
        "execute_tool add",
        "chat scripted",
        "invoke_agent helper",
    ]
    assert len({item.trace_id for item in telemetry.spans}) == 1
    for span in telemetry.spans:
        if span.scope == SCOPE and span.name != run.name:
            assert span.parent.span_id == run.span_id
    assert run.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "helper",
        "gen_ai.conversation.id": "conversation-7",
    }
    first = telemetry.spans_named("chat scripted")[0]
    assembly = telemetry.spans_named("assemble_context")[0].attributes["assembly.id"]
    assert first.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "unknown",
        "gen_ai.request.model": "scripted",
        "gen_ai.conversation.id": "conversation-7",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "assembly.id": assembly,
    }
    assert telemetry.span("execute_tool add").attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.description": "Add two numbers.",
        "gen_ai.agent.name": "helper",
    }


async def test_the_metrics_of_the_conventions_are_recorded(telemetry):
    await made(calls(call(), usage=Usage(input_tokens=12, output_tokens=3)), ["a", "b"]).ask("1 + 2?")
    assert sum(point.count for point in points(telemetry, "gen_ai.client.operation.duration")) == 2
    used = {
        point.attributes["gen_ai.token.type"]: point.sum for point in points(telemetry, "gen_ai.client.token.usage")
    }
    assert used == {"input": 12, "output": 3}
    for name in ("gen_ai.invoke_agent.duration", "gen_ai.execute_tool.duration"):
        (one,) = points(telemetry, name)
        assert one.count == 1
    (one,) = points(telemetry, "gen_ai.client.operation.time_to_first_chunk")
    assert one.count == 1


async def test_the_callers_span_is_the_parent_of_the_run(telemetry):
    with telemetry.tracer().start_as_current_span("request"):
        await made("yes").ask("?")
    assert telemetry.span("invoke_agent helper").parent.span_id == telemetry.span("request").span_id


async def test_asks_without_a_span_around_them_are_traces_of_their_own(telemetry):
    agent = made("yes", "no")
    await agent.ask("?")
    await agent.ask("?")
    first, second = telemetry.spans_named("invoke_agent helper")
    assert first.trace_id != second.trace_id
    assert first.parent is None is second.parent


# With the assembly


async def test_a_chain_in_front_makes_its_assembly_beside_the_call_that_is_stamped(telemetry):
    chain = AssemblerMiddleware([SlidingWindowPolicy(1)])
    agent = made("yes", "no", middlewares=[chain, TracingMiddleware()])
    await agent.ask("?")
    telemetry.clear()
    await agent.ask("??")
    run, assembly, chat = (
        telemetry.span(name) for name in ("invoke_agent helper", "assemble_context", "chat scripted")
    )
    assert assembly.parent.span_id == chat.parent.span_id == run.span_id
    assert assembly.end_ns <= chat.start_ns
    assert chat.attributes["assembly.id"] == assembly.attributes["assembly.id"]
    assert chat.attributes["gen_ai.conversation.compacted"] is True
    assert [link.span_id for link in chat.links] == [assembly.span_id]


async def test_a_chain_behind_it_makes_its_assembly_in_the_call_that_is_stamped(telemetry):
    agent = made("yes", "no", assembly=[SlidingWindowPolicy(1)])
    await agent.ask("?")
    telemetry.clear()
    await agent.ask("??")
    run, assembly, chat = (
        telemetry.span(name) for name in ("invoke_agent helper", "assemble_context", "chat scripted")
    )
    assert chat.parent.span_id == run.span_id
    assert assembly.parent.span_id == chat.span_id
    assert chat.attributes["assembly.id"] == assembly.attributes["assembly.id"]
    assert chat.attributes["gen_ai.conversation.compacted"] is True
    assert [link.span_id for link in chat.links] == [assembly.span_id]


# Streams


async def test_a_streamed_call_ends_when_its_answer_has_been_read(telemetry):
    seen = []
    agent = made(["one ", "two"])
    async with aclosing(agent.stream("?")) as events:
        async for event in events:
            assert not trace.get_current_span().get_span_context().is_valid
            seen.append((event.type, len(telemetry.spans_named("chat scripted"))))
    assert seen == [("response_chunk", 0), ("response_chunk", 0), ("model_response", 1)]
    chat = telemetry.span("chat scripted")
    assert chat.attributes["gen_ai.request.stream"] is True
    assert chat.attributes["gen_ai.response.time_to_first_chunk"] >= 0
    assert "error.type" not in chat.attributes


async def test_a_stream_that_is_left_ends_the_call_and_the_run_without_an_error(telemetry):
    async with aclosing(made(["one ", "two"]).stream("?")) as events:
        async for _ in events:
            break
    for name in ("chat scripted", "invoke_agent helper"):
        assert "error.type" not in telemetry.span(name).attributes
        assert telemetry.span(name).status == "UNSET"


async def test_a_stream_that_is_cut_says_by_what_and_quotes_nothing(telemetry):
    with pytest.raises(ModelCallError):
        await made([SECRET, ModelCallError(SECRET, provider="p", model="scripted")]).ask("?")
    for name in ("chat scripted", "invoke_agent helper"):
        span = telemetry.span(name)
        assert (span.status, span.attributes["error.type"]) == ("ERROR", "otel_assembly.errors.ModelCallError")
    assert SECRET not in repr(telemetry.spans)


async def test_a_stream_that_nobody_reads_ends_its_call_when_it_is_thrown_away(telemetry):
    class Twice(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            await next_handler()
            gc.collect()
            return await next_handler()

    await made(["lost"], ["found"], middlewares=[Twice(), TracingMiddleware()]).ask("?")
    assert len(telemetry.spans_named("chat scripted")) == 2


async def test_a_run_that_is_cancelled_has_not_failed(telemetry):
    waits = asyncio.Event()

    async def forever() -> str:
        waits.set()
        await asyncio.Event().wait()
        return ""

    task = asyncio.create_task(made(calls(call("forever", "{}")), tools=[forever]).ask("?"))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for name in ("execute_tool forever", "invoke_agent helper"):
        assert telemetry.span(name).status == "UNSET"


async def test_no_context_is_held_across_a_yield(telemetry):
    """Two runs that one task reads in turn never stand in each other's spans."""
    one, other = made(["a", "b"]).stream("?"), made(["c", "d"]).stream("?")
    async with aclosing(one), aclosing(other):
        for _ in range(2):
            for stream in (one, other):
                await anext(stream)
                assert not trace.get_current_span().get_span_context().is_valid
        async for _ in one:
            pass
        async for _ in other:
            pass
    first, second = telemetry.spans_named("invoke_agent helper")
    assert first.trace_id != second.trace_id
    assert {chat.parent.span_id for chat in telemetry.spans_named("chat scripted")} == {first.span_id, second.span_id}


# Several at once


async def test_tools_that_run_at_once_are_children_of_the_run(telemetry):
    both = asyncio.Barrier(2)

    async def meet(name: str) -> str:
        with telemetry.tracer().start_as_current_span(f"inside {name}"):
            await both.wait()
        return name

    answer = calls(call("meet", '{"name": "a"}', "c1"), call("meet", '{"name": "b"}', "c2"))
    await made(answer, "done", tools=[meet]).ask("?")
    run = telemetry.span("invoke_agent helper")
    tools = {span.attributes["gen_ai.tool.call.id"]: span for span in telemetry.spans_named("execute_tool meet")}
    assert {tool.parent.span_id for tool in tools.values()} == {run.span_id}
    assert telemetry.span("inside a").parent.span_id == tools["c1"].span_id
    assert telemetry.span("inside b").parent.span_id == tools["c2"].span_id


async def test_agents_that_run_at_once_share_no_parent(telemetry):
    agents = [made(calls(call()), "3") for _ in range(20)]
    await asyncio.gather(*(agent.ask("?") for agent in agents))
    runs = telemetry.spans_named("invoke_agent helper")
    assert len({run.trace_id for run in runs}) == 20
    below = [span for span in telemetry.spans if span.scope == SCOPE and span.parent is not None]
    assert sorted(span.parent.span_id for span in below) == sorted(run.span_id for run in runs for _ in range(3))


async def test_an_agent_that_a_tool_asks_stands_under_the_tool(telemetry):
    inner = Agent("inner", "", ScriptedModel("42"), middlewares=[TracingMiddleware()])

    async def delegate() -> str:
        return (await inner.ask("?")).content

    await made(calls(call("delegate", "{}")), "42", tools=[delegate]).ask("?")
    assert telemetry.span("invoke_agent inner").parent.span_id == telemetry.span("execute_tool delegate").span_id


# What goes wrong


async def test_a_tool_that_fails_says_so_and_not_why(telemetry):
    def broken() -> str:
        raise ValueError(SECRET)

    await made(calls(call("broken", "{}")), "sorry", tools=[broken]).ask("?")
    span = telemetry.span("execute_tool broken")
    assert (span.status, span.attributes["error.type"]) == ("ERROR", "tool_error")
    assert SECRET not in repr(telemetry.spans)
    assert telemetry.span("invoke_agent helper").status == "UNSET"


async def test_a_tool_that_does_not_exist_is_not_named_in_the_models_words(telemetry):
    await made(calls(call(SECRET, "{}")), "sorry").ask("?")
    assert telemetry.span("execute_tool _OTHER").attributes["error.type"] == "tool_error"
    assert SECRET not in repr(telemetry.spans)


async def test_a_halt_stands_on_the_run(telemetry):
    class Watches:
        name, watches = "limits", ToolResultEvent

        async def process(self, event, context):
            return ObserverAlert(source="limits", severity="fatal", message="enough")

    agent = made(calls(call()), "3", observers=[Watches()])
    await agent.ask("?")
    run = telemetry.span("invoke_agent helper")
    assert [event.name for event in run.events] == ["assembly.halt"]
    assert (run.status, run.attributes["error.type"]) == ("ERROR", "assembly_halt")
    with pytest.raises(HaltedError):
        await agent.ask("?")


# Waiting for somebody


async def test_calls_that_wait_are_named_on_the_run(telemetry):
    agent = made(calls(call(), call("deploy", "{}", "c2")), "done", tools=[Tool(add, needs_approval=True), add_later()])
    waiting = (await agent.ask("?")).tool_calls
    run = telemetry.span("invoke_agent helper")
    assert run.attributes["assembly.pending.calls"] == ["c1", "c2"]
    assert run.attributes["assembly.pending.tools"] == ["add", "deploy"]
    telemetry.clear()
    await agent.ask(UserConfirmResultEvent(confirm_results=(ConfirmResult(tool_call=waiting[0], confirmed=True),)))
    run = telemetry.span("invoke_agent helper")
    assert run.attributes["assembly.pending.calls"] == ["c2"]
    assert telemetry.span("execute_tool add").parent.span_id == run.span_id


def add_later():
    return Tool(None, name="deploy", description="Somebody deploys.", parameters={"type": "object", "properties": {}})


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (ToolResultEvent(parent_id="c2", content=SECRET), None),
        (ToolErrorEvent(parent_id="c2", name="deploy", error=SECRET), "tool_error"),
    ],
)
async def test_what_somebody_else_ran_is_a_span_without_length(telemetry, result, error):
    agent = made(calls(call("deploy", "{}", "c2")), "done", tools=[add_later()])
    await agent.ask("?")
    assert [span.name for span in telemetry.spans if span.name.startswith("execute_tool")] == []
    telemetry.clear()
    await agent.ask(ExternalExecutionResultEvent(execution_results=(result,)))
    run, tool = telemetry.span("invoke_agent helper"), telemetry.span("execute_tool deploy")
    assert tool.parent.span_id == run.span_id
    assert tool.start_ns == tool.end_ns >= run.start_ns
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "deploy",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c2",
        "assembly.tool.external": True,
    } | ({"error.type": error} if error else {})
    assert SECRET not in repr(telemetry.spans)


# Content


def secretive(*, streams=False, **other):
    """Every place in which somebody says something."""

    def keep(word: str) -> str:
        return SECRET

    model = ScriptedModel(calls(call("keep", f'{{"word": "{SECRET}"}}')), f"it is {SECRET}", streams=streams)
    return Agent("helper", f"Keep {SECRET}.", model, [keep], **other)


@pytest.mark.parametrize("streams", [False, True])
async def test_not_one_byte_of_content_leaves_unasked(telemetry, streams):
    await secretive(streams=streams, middlewares=[TracingMiddleware()]).ask(f"say {SECRET}")
    assert SECRET not in repr(telemetry.spans) + repr(telemetry.logs)
    assert SECRET not in repr(telemetry._metrics.get_metrics_data())


@pytest.mark.parametrize("order", ["chain first", "chain last"])
async def test_content_is_what_was_sent_where_it_is_asked_for(order):
    told = RecordedTelemetry(settings=TelemetrySettings(content=ContentCapture.SPAN_ONLY))
    chain = AssemblerMiddleware([SlidingWindowPolicy(1)])
    middlewares = [chain, TracingMiddleware()] if order == "chain first" else [TracingMiddleware(), chain]
    with told.as_default():
        agent = made("yes", "no", middlewares=middlewares)
        await agent.ask("first?")
        await agent.ask("second?")
    first, second = told.spans_named("chat scripted")
    assert "first?" in first.attributes["gen_ai.input.messages"]
    assert '"yes"' in first.attributes["gen_ai.output.messages"]
    assert "Be brief." in first.attributes["gen_ai.system_instructions"]
    assert '"add"' in first.attributes["gen_ai.tool.definitions"]
    assert "first?" not in second.attributes["gen_ai.input.messages"]
    assert "second?" in second.attributes["gen_ai.input.messages"]
    assert "second?" in told.span("invoke_agent helper").attributes["gen_ai.input.messages"]
    told.shutdown()


async def test_content_is_redacted_first():
    settings = TelemetrySettings(
        content=ContentCapture.SPAN_AND_EVENT, redact=lambda text: text.replace(SECRET, "[redacted]")
    )
    told = RecordedTelemetry(settings=settings)
    with told.as_default():
        await secretive(middlewares=[TracingMiddleware()]).ask(f"say {SECRET}")
    tool = told.span("execute_tool keep").attributes
    assert (tool["gen_ai.tool.call.arguments"], tool["gen_ai.tool.call.result"]) == (
        '{"word":"[redacted]"}',
        "[redacted]",
    )
    assert len(told.logs_named("gen_ai.client.inference.operation.details")) == 2
    assert SECRET not in repr(told.spans) + repr(told.logs)
    told.shutdown()


# Where nobody listens


@pytest.fixture
def counted(monkeypatch):
    """How many Python functions of ours, and of OpenTelemetry's, a hook calls."""
    done = []

    def count(frame, event, argument):
        if event == "call":
            done.append(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name)

    def counting(function):
        done.clear()
        sys.setprofile(count)
        try:
            result = function()
        finally:
            sys.setprofile(None)
        return result, [name for name in done if not name.startswith("test_")]

    return counting


@pytest.mark.parametrize("hook", ["on_reply", "on_acting"])
def test_without_a_provider_a_hook_gives_what_the_next_one_gives(hook, counted):
    given = object()
    middleware = TracingMiddleware()
    with using_recorder(NullRecorder()):
        result, done = counted(lambda: getattr(middleware, hook)(None, None, lambda: given))
    assert result is given
    assert len(done) <= 7, done


async def test_without_a_provider_a_model_call_is_that_of_the_next_one():
    given = []

    async def next_handler(**changed):
        given.append(changed)
        return next_handler

    with using_recorder(NullRecorder()):
        assert await TracingMiddleware().on_model_call(None, None, next_handler) is next_handler
    assert given == [{}]


async def test_what_is_suppressed_is_not_told(telemetry):
    with suppress_instrumentation():
        await made("yes").ask("?")
    assert telemetry.spans == []


async def test_a_run_that_is_not_sampled_is_measured_and_costs_no_span():
    told = RecordedTelemetry(sampler=ALWAYS_OFF)
    with told.as_default():
        await made(calls(call()), "3").ask("?")
    assert told.spans == []
    assert sum(point.count for point in points(told, "gen_ai.client.operation.duration")) == 2
    told.shutdown()


async def test_telemetry_that_fails_never_reaches_the_agent(telemetry, monkeypatch):
    from opentelemetry.util.genai.handler import TelemetryHandler

    def broken(*_, **__):
        raise RuntimeError("broken")

    for name in ("inference", "tool", "invoke_local_agent"):
        monkeypatch.setattr(TelemetryHandler, name, broken)
    assert (await made(calls(call()), "3").ask("?")).content == "3"
