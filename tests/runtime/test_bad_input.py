"""What tools, models, middlewares and servers do wrong: an error that names it, closed spans, and a session goes on."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from spoken_agents import calls, said

from otel_assembly import Agent, MiddlewareBase, ModelResponse, Tool, ToolCallEvent
from otel_assembly.errors import MiddlewareError, ModelCallError
from otel_assembly.events import ToolErrorEvent
from otel_assembly.runtime import mcp_tools
from otel_assembly.telemetry import TracingMiddleware
from otel_assembly.testing import RecordedTelemetry, ScriptedModel

SECRET = "sesame-4711"


class Open(SpanProcessor):
    """The names of the spans that have begun and not ended."""

    def __init__(self):
        self.names = []

    def on_start(self, span, parent_context=None):
        self.names.append(span.name)

    def on_end(self, span):
        self.names.remove(span.name)


@pytest.fixture
def telemetry():
    told, still = RecordedTelemetry(), Open()
    told.tracer_provider.add_span_processor(still)
    with told.as_default():
        yield told
    assert still.names == []
    assert told.violations() == []
    assert SECRET not in repr(told.spans)
    told.shutdown()


def raises() -> str:
    raise ValueError(SECRET)


def unserialisable() -> object:
    return threading.Lock()


def cyclic() -> list:
    made = []
    made.append(made)
    return made


def no_text() -> bytes:
    return b"\xff\xfe"


def cancels() -> str:
    raise asyncio.CancelledError


async def never() -> str:
    await asyncio.Event().wait()
    return ""


ENOUGH = threading.Event()


def never_in_a_thread() -> str:
    ENOUGH.wait(500)
    return ""


def adds(a: int) -> int:
    return a


TOOLS = [
    raises,
    unserialisable,
    cyclic,
    no_text,
    Tool(never, timeout=0.05),
    Tool(never_in_a_thread, timeout=0.05),
    adds,
]


@pytest.fixture
def threads():
    """What waits in a thread goes on when the test is over, or the interpreter would wait for it."""
    ENOUGH.clear()
    yield
    ENOUGH.set()


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        ("raises", "{}", f"ValueError: {SECRET}"),
        ("unserialisable", "{}", "tool 'unserialisable' returned a lock, which has no JSON form"),
        ("cyclic", "{}", "tool 'cyclic' returned a list, which has no JSON form"),
        ("no_text", "{}", "tool 'no_text' returned a bytes, which has no JSON form"),
        ("never", "{}", "tool 'never' took more than 0.05 s"),
        ("never_in_a_thread", "{}", "tool 'never_in_a_thread' took more than 0.05 s"),
        ("adds", '{"a": ', "tool 'adds' cannot take these arguments: arguments: Invalid JSON"),
        ("adds", '{"a": "x"}', "tool 'adds' cannot take these arguments: a: Input should be a valid integer"),
        ("adds", '["a"]', "tool 'adds' cannot take these arguments: arguments: Input should be an object"),
        ("unheard_of", "{}", "tool 'unheard_of' is not known; the tools are raises, unserialisable, "),
    ],
)
async def test_a_call_that_comes_to_nothing_is_named_to_the_model(telemetry, threads, tool, arguments, error):
    model = ScriptedModel(calls(tool, arguments=arguments), "I see.", calls("adds", arguments='{"a": 3}'), "3.")
    agent = Agent("helper", "", model, TOOLS, middlewares=[TracingMiddleware()])
    assert (await agent.ask("Go.")).content == "I see."
    (event,) = [event for event in agent.session.history if isinstance(event, ToolErrorEvent)]
    assert (event.name, event.error[: len(error)]) == (tool, error)
    name = "_OTHER" if tool == "unheard_of" else tool
    assert telemetry.span(f"execute_tool {name}").attributes["error.type"] == "tool_error"
    assert telemetry.span("invoke_agent helper").status == "UNSET"
    assert (await agent.ask("And 3?")).content == "3."
    assert said(agent.session)[-2] == "result adds: 3"


async def test_two_calls_with_one_id_are_two_calls(telemetry):
    both = [ToolCallEvent(id="same", name="adds", arguments=f'{{"a": {number}}}') for number in (1, 2)]
    model = ScriptedModel(ModelResponse(tool_calls=both), "Done.", "Yes.")
    agent = Agent("helper", "", model, TOOLS, middlewares=[TracingMiddleware()])
    await agent.ask("Go.")
    spans = telemetry.spans_named("execute_tool adds")
    assert len({span.attributes["gen_ai.tool.call.id"] for span in spans}) == len(spans) == 2
    assert sorted(said(agent.session)[2:4]) == ["result adds: 1", "result adds: 2"]
    assert (await agent.ask("Both?")).content == "Yes."


@pytest.mark.parametrize("hook", ["on_reply", "on_reasoning", "on_acting", "on_model_call"])
@pytest.mark.parametrize("place", ["outside", "inside"])
async def test_a_middleware_that_raises_in_the_middle_of_a_stream_is_named(telemetry, hook, place):
    class Breaks(MiddlewareBase):
        broken = False

        async def once(self, events):
            async for event in events:
                yield event
                if not self.broken:
                    self.broken = True
                    raise KeyError(SECRET)

    async def of_a_call(self, agent, input_kwargs, next_handler):
        answer = await next_handler()
        return self.once(answer) if hasattr(answer, "__aiter__") else answer

    def of_a_step(self, agent, input_kwargs, next_handler):
        return self.once(next_handler())

    breaks = type("Breaks", (Breaks,), {hook: of_a_call if hook == "on_model_call" else of_a_step})()
    middlewares = [breaks, TracingMiddleware()] if place == "outside" else [TracingMiddleware(), breaks]
    model = ScriptedModel(["One ", "moment."], calls("adds", arguments='{"a": 3}'), ["It is ", "3."], ["Still ", "3."])
    if hook == "on_acting":
        model = ScriptedModel(calls("adds", arguments='{"a": 3}'), ["It is ", "3."], ["Still ", "3."])
    agent = Agent("helper", "", model, TOOLS, middlewares=middlewares)
    with pytest.raises(MiddlewareError, match=f"middleware Breaks: {hook} raised KeyError") as caught:
        await agent.ask("3?")
    assert isinstance(caught.value.__cause__, KeyError)
    assert SECRET not in str(caught.value)
    assert not agent.session.asking.locked()
    if place == "inside":
        assert telemetry.span("invoke_agent helper").status == "ERROR"
    telemetry.clear()
    assert (await agent.ask()).content
    assert telemetry.span("invoke_agent helper").status == "UNSET"


async def test_an_mcp_server_that_dies_is_named(telemetry):
    server = str(Path(__file__).with_name("mcp_server.py"))
    async with mcp_tools([sys.executable, server]) as tools:
        model = ScriptedModel(calls("die"), "Sorry.", "Yes.")
        agent = Agent("cook", "", model, tools, middlewares=[TracingMiddleware()])
        assert (await agent.ask("Burn it.")).content == "Sorry."
        (event,) = [event for event in agent.session.history if isinstance(event, ToolErrorEvent)]
        assert "tool 'die' got no answer from MCP server" in event.error
        assert server in event.error
        assert telemetry.span("execute_tool die").attributes["error.type"] == "tool_error"
        assert (await agent.ask("Still there?")).content == "Yes."


async def test_a_model_that_fails_in_the_middle_of_its_answer_is_named(telemetry):
    cut = ModelCallError("the answer broke off", provider="acme", model="scripted", retryable=True)
    agent = Agent("helper", "", ScriptedModel(["One ", cut], "Back."), middlewares=[TracingMiddleware()])
    with pytest.raises(ModelCallError, match="acme did not answer for model 'scripted'"):
        await agent.ask("Hi.")
    assert telemetry.span("chat scripted").status == "ERROR"
    assert (await agent.ask()).content == "Back."
