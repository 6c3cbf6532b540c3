"""A scripted model that writes down what it receives, and what that comes to, counted with nothing of ours."""

from __future__ import annotations

import copy
from typing import NamedTuple

from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
    ModelInfo,
    RequestUsage,
    SystemMessage,
)
from recount import Read, count, prompt_tokens


class Received(NamedTuple):
    """What one call gave the model's client."""

    who: str
    messages: list
    tools: list


class Scripted(ChatCompletionClient):
    """A model that plays a script, and writes down each call in a log that several of them may share.

    An answer is a text, a result, an exception that is raised, or a function of the messages that returns one of these
    or an awaitable of one.
    """

    def __init__(self, log, who, *answers, vision=False, family="unknown", **more):
        self.log, self.who, self.answers = log, who, list(answers)
        self.info = ModelInfo(
            vision=vision, function_calling=True, json_output=False, family=family, structured_output=True, **more
        )

    async def _answer(self, messages, tools):
        schemas = [tool if isinstance(tool, dict) else tool.schema for tool in tools]
        self.log.append(Received(self.who, copy.deepcopy(list(messages)), copy.deepcopy(schemas)))
        answer = self.answers.pop(0)
        if callable(answer):
            answer = answer(messages)
        if hasattr(answer, "__await__"):
            answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, str):
            answer = CreateResult(finish_reason="stop", content=answer, usage=RequestUsage(1, 1), cached=False)
        return answer

    async def create(self, messages, *, tools=(), **_):
        return await self._answer(messages, tools)

    async def create_stream(self, messages, *, tools=(), **_):
        answer = await self._answer(messages, tools)
        if isinstance(answer.content, str):
            for word in answer.content.split():
                yield word
        yield answer

    async def close(self):
        pass

    def actual_usage(self):
        return RequestUsage(0, 0)

    total_usage = actual_usage

    def count_tokens(self, messages, *, tools=()):
        return sum(len(str(message.content).split()) for message in messages)

    def remaining_tokens(self, messages, *, tools=()):
        return 1_000 - self.count_tokens(messages)

    @property
    def capabilities(self):
        return self.info

    @property
    def model_info(self):
        return self.info


def wants(*called, thought=None):
    """An answer that calls tools: of each its name and its arguments."""
    content = [
        FunctionCall(id=f"call {number}", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(called)
    ]
    return CreateResult(
        finish_reason="function_calls", content=content, usage=RequestUsage(1, 1), cached=False, thought=thought
    )


def tokens_of(call):
    """The tokens of all that a client received, counted anew."""
    return prompt_tokens([], [as_read(message) for message in call.messages], _tool_tokens(call.tools))


def as_read(message):
    """A message as a person would read it."""
    content = message.content
    if isinstance(message, SystemMessage):
        return Read("system", [content])
    if isinstance(message, FunctionExecutionResultMessage):
        return Read("result", [message.content for message in content], closes=[call.call_id for call in content])
    if isinstance(message, AssistantMessage):
        if isinstance(content, str):
            return Read("response", [content])
        spelled = [text for call in content for text in (call.name, call.arguments)]
        return Read("response", [message.thought or "", *spelled], opens=[call.id for call in content])
    texts = [content] if isinstance(content, str) else [part for part in content if isinstance(part, str)]
    return Read("request", texts, name=message.source)


def _tool_tokens(tools):
    """By the OpenAI cookbook, for tools of flat parameters."""
    return sum(map(_schema_tokens, tools)) + 12 if tools else 0


def _schema_tokens(schema):
    properties = schema["parameters"]["properties"]
    said = [
        f"{name}:{value['type']}:{value.get('description', '').removesuffix('.')}" for name, value in properties.items()
    ]
    own = count(f"{schema['name']}:{schema['description'].removesuffix('.')}")
    return 7 + own + (3 if said else 0) + sum(3 + count(text) for text in said)


def told_calls(telemetry):
    """What is told of each call that a model was called with: messages, and tokens."""
    found = []
    for span in telemetry.spans_named("assemble_context"):
        held = span.attributes
        found.append((held["assembly.prompts.out"] + held["assembly.events.out"], held["assembly.tokens.out"]))
    return found


def assert_every_call_is_told(telemetry, log):
    """Each call that a client received has an assembly of its own, in order, with all that it received."""
    assert told_calls(telemetry) == [(len(call.messages), tokens_of(call)) for call in log]
    for span, call in zip(telemetry.spans_named("assemble_context"), log, strict=True):
        leading = 0
        while leading < len(call.messages) and isinstance(call.messages[leading], SystemMessage):
            leading += 1
        assert span.attributes["assembly.prompts.out"] <= leading
        assert "assembly.input.unknown" not in span.attributes
