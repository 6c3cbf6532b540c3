"""What is exported of messages where content is asked for: whole, and in a form that every exporter takes."""

from __future__ import annotations

import json

import pytest

from otel_assembly import Agent, ModelResponse, ToolCallEvent
from otel_assembly.telemetry import ContentCapture, TelemetrySettings, TracingMiddleware
from otel_assembly.testing import RecordedTelemetry, ScriptedModel


async def parts(message):
    """The parts of a message that a model is sent; of a text, what it says."""
    told = RecordedTelemetry(settings=TelemetrySettings(content=ContentCapture.SPAN_ONLY))
    model = ScriptedModel("yes")

    async def send():
        return await model([], [message])

    with told.as_default():
        given = {"messages": [message], "tools": (), "current_model": model}
        await TracingMiddleware().on_model_call(None, given, send)
    (said,) = json.loads(told.span("chat scripted").attributes["gen_ai.input.messages"])
    told.shutdown()
    return [part.get("content", part) for part in said["parts"]]


def text(said):
    return {"type": "text", "text": said}


async def test_every_text_of_a_chat_message_is_told():
    assert await parts({"role": "user", "content": [text("one"), text("two")]}) == ["one", "two"]
    assert await parts({"role": "assistant", "content": None, "refusal": "I will not."}) == ["I will not."]


async def test_the_names_and_arguments_of_calls_are_no_texts():
    function = {"name": "add", "arguments": "{}"}
    message = {"role": "assistant", "content": "add", "tool_calls": [{"id": "a", "function": function}]}
    said, call = await parts(message)
    assert (said, call["name"], call["arguments"]) == ("add", "add", {})


def texts(value):
    """Every text of a value, keys included."""
    if isinstance(value, str):
        yield value
    elif hasattr(value, "items"):
        for key, item in value.items():
            yield from texts(key)
            yield from texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"word": "\\ud83d"}',
        '{"\\ud83d": 1}',
        '{"word": NaN}',
        '{"word": 1e999}',
        '{"word": ' + "[" * 3_000 + "]" * 3_000 + "}",
    ],
    ids=["half a pair", "half a pair as a key", "not a number", "too large", "too deep"],
)
async def test_what_a_model_wrote_costs_no_batch_and_no_message(arguments, caplog):
    def keep(word: object) -> str:
        return "kept"

    call = ModelResponse(tool_calls=(ToolCallEvent(id="c1", name="keep", arguments=arguments),))
    told = RecordedTelemetry(settings=TelemetrySettings(content=ContentCapture.SPAN_AND_EVENT))
    with told.as_default():
        await Agent("helper", "", ScriptedModel(call, "yes"), [keep], middlewares=[TracingMiddleware()]).ask("?")
    assert not caplog.records
    for item in [*told.spans, *told.logs]:
        for said in texts(dict(item.attributes)):
            said.encode()
    for span in told.spans_named("chat scripted"):
        for name in ("gen_ai.input.messages", "gen_ai.output.messages"):
            json.loads(span.attributes[name], parse_constant=pytest.fail)
    told.shutdown()
