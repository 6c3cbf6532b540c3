"""Messages can be assigned to, as AutoGen's own can, and a context reads them again."""

from __future__ import annotations

import json

from otel_assembly.model_context import (
    AssistantMessage,
    BufferedChatCompletionContext,
    FunctionCall,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    UnboundedChatCompletionContext,
    UserMessage,
)
from otel_assembly.testing import RecordedTelemetry


def messages():
    return [
        UserMessage(content="Weather?", source="user"),
        AssistantMessage(content=[FunctionCall("1", "{}", "look")], thought="hm " * 300, source="clerk"),
        FunctionExecutionResultMessage(content=[FunctionExecutionResult(content="fine", name="look", call_id="1")]),
    ]


async def test_a_thought_can_be_taken_out():
    context = UnboundedChatCompletionContext(messages())
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        for message in await context.get_messages():
            if isinstance(message, AssistantMessage):
                message.thought = None
        given = await context.get_messages()
    assert [getattr(message, "thought", None) for message in given] == [None, None, None]
    before, after = (span.attributes["assembly.tokens.out"] for span in telemetry.spans_named("assemble_context"))
    assert before - after > 250
    assert json.dumps(await context.save_state()).count("hm") == 0
    telemetry.shutdown()


async def test_a_call_and_a_text_can_be_assigned_to():
    context = BufferedChatCompletionContext(10, initial_messages=messages())
    asked, called, _ = await context.get_messages()
    asked.content = "Weather in Bonn?"
    called.content[0].arguments = '{"city": "Bonn"}'
    asked, called, _ = await context.get_messages()
    assert asked.content == "Weather in Bonn?"
    assert called.content[0].arguments == '{"city": "Bonn"}'
