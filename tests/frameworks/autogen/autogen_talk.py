"""Messages and models for conversations with AutoGen's agents."""

from __future__ import annotations

from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    ModelInfo,
    RequestUsage,
    UserMessage,
)
from autogen_ext.models.replay import ReplayChatCompletionClient


def user(text, source="user"):
    return UserMessage(content=text, source=source)


def reply(text):
    return AssistantMessage(content=text, source="assistant")


def calls(*ids, thought=None):
    content = [FunctionCall(id=item_id, arguments='{"city": "Bonn"}', name="weather") for item_id in ids]
    return AssistantMessage(content=content, thought=thought, source="assistant")


def results(*ids, text="it rains"):
    content = [
        FunctionExecutionResult(content=text, name="weather", call_id=item_id, is_error=False) for item_id in ids
    ]
    return FunctionExecutionResultMessage(content=content)


def model(*answers, vision=False, tools=True, **more):
    info = ModelInfo(
        vision=vision, function_calling=tools, json_output=False, family="unknown", structured_output=False, **more
    )
    return ReplayChatCompletionClient(list(answers), model_info=info)


def asks_for(name, arguments="{}", call_id="1"):
    """An answer of the model that calls a tool."""
    return CreateResult(
        finish_reason="function_calls",
        content=[FunctionCall(id=call_id, name=name, arguments=arguments)],
        usage=RequestUsage(3, 3),
        cached=False,
    )


async def filled(context, *messages):
    for message in messages:
        await context.add_message(message)
    return context


async def asked(context):
    """What a model is called with of a context."""
    messages = await context.get_messages()
    await model("yes").create(messages)
    return messages


def said(messages):
    """What each message says, in short."""
    return [message.content if isinstance(message.content, str) else type(message).__name__ for message in messages]
